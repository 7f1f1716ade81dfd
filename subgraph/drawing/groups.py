"""A network -> `Tree`: its nodes in groups that open.

Groups are name scopes (`/encoder/layer.3/attention/MatMul`) if the scopes follow the data: scopes
inside of a group are kept only if hardly a tensor goes back from a later one to an earlier, and if
what a scope holds hangs together. The names `Conv.0` and `Conv.1`, an operator and a number, make
no scope `Conv`. If names have no scopes, or a scope holds too much, its members are grouped
between tensors that are alone in crossing a cut; without such tensors, by equal shares in
topological order, which cannot form a cycle.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TypeVar

from subgraph.drawing.network import Network
from subgraph.iterables import flatten, group_values, invert
from subgraph.reach import reach
from subgraph.text import find_shared_start, omit_middle
from subgraph.types import Strings

T = TypeVar("T")

MAX_FLAT = 400  # members of a group; with more, a layout takes too long and is unreadable
# Members that a group without scopes may have before they are grouped by cut points.
MAX_FLAT_MEMBERS = 48
MIN_CHAIN_NODES = 12  # nodes in a row, without branches, that form a group
MAX_TAIL_NODES = 3  # nodes in a row that still belong to the branches in front of them
MAX_BACKWARD = 0.25  # share of the tensors between scopes that may go back to an earlier one
MIN_JOINED = 0.5  # share of the nodes of scopes that another one in the scope must be tied to
# Separators of scopes in node names. The first separator that half of the named nodes have is used.
SCOPES = ("/", ".")


@dataclass
class DrawnGroup:
    """A group of nodes.

    Attributes:
        key: The name in `open_groups`.
        label: The name that is shown.
        members: Leaves, and numbers of groups inside.
        scope: The number of parts of its nodes' names that it shows.
        parent: The number of the group around it.
        depth: The number of groups around it.
        nodes: The number of leaves that are nodes.
        leaves: All leaves inside.
    """

    key: str
    label: str
    members: list[int]
    scope: int = 0
    parent: int = -1
    depth: int = 0
    nodes: int = 0
    leaves: list[int] = field(default_factory=list)


class Tree:
    """The groups of a network.

    A member of a group is a number: a leaf if it is below `network.leaves`, else a group.
    Complexity: linear.

    Attributes:
        root: The number of the group that has all leaves.
        groups: Each group by its number, outer groups first.
        numbers: The number of each group by its key.
    """

    def __init__(
        self,
        network: Network,
        holders: Collection[int] = (),
        notes: Mapping[int, str] | None = None,
    ) -> None:
        """Group the nodes of a network.

        Args:
            network: The network.
            holders: The nodes with bodies.
            notes: The texts that follow the operators of nodes, by node.
        """
        self.network = network
        self.holders = holders
        self.notes = notes or {}
        self.root = network.leaves
        self._last = self.root
        # Group between cut points → names of its first and last node.
        self._ends: dict[int, list[str]] = {}
        self.groups: dict[int, DrawnGroup] = {self.root: DrawnGroup("", "", [])}
        self._separator = "" if network.scopes else find_separator(network.names)
        names = (
            name.split(self._separator)[:-1] if self._separator else () for name in network.names
        )
        self._add_scopes(network.scopes or [tuple(filter(None, parts)) for parts in names])
        _dissolve(self)
        _compress(self)
        for number in list(self.groups):
            _split(self, number)
        self._finish()
        self.numbers = {group.key: number for number, group in self.groups.items()}

    def open_levels(self, depth: int) -> frozenset[str]:
        """Return keys of the groups to open for `depth` levels; 1 shows only the outermost."""
        return frozenset(g.key for g in self.groups.values() if 0 < g.depth < depth)

    def choose_open(self, boxes: int) -> frozenset[str]:
        """Return the keys of the groups to open for about this number of boxes: complete levels."""
        levels = Counter[int]()
        for g in self.groups.values():
            levels[g.depth] += len(g.members) - (g.depth > 0)  # an open group is not a box
        total = levels[0]
        depth = 1
        while levels[depth] and total + levels[depth] <= boxes:
            total += levels[depth]
            depth += 1
        return self.open_levels(depth)

    def find_partial(self, nodes: Collection[int]) -> frozenset[str]:
        """Return keys of the groups that hold some of these nodes and others."""
        inside = set(nodes)
        return frozenset(
            g.key
            for g in self.groups.values()
            if g.key and 0 < len(inside.intersection(g.leaves)) < g.nodes
        )

    def list_around(self, key: str) -> list[str]:
        """Return the keys of a group and of the groups around it, outermost first."""
        keys = [key]
        number = self.groups[self.numbers[key]].parent
        while number > self.root:
            keys.append(self.groups[number].key)
            number = self.groups[number].parent
        return keys[::-1]

    def find_holder(self, node: int) -> str:
        """Return the key of the innermost group that holds a node; empty at the outermost level."""
        return self.groups[self._parents[self.network.folded.get(node, node)]].key

    def shorten_name(self, name: str, scope: int) -> str:
        """Return a node's name without its first `scope` parts; the whole name if names hold no
        scopes."""
        if not scope or not self._separator:
            return name
        return self._separator.join(list(filter(None, name.split(self._separator)))[scope:])

    # ------------------------------------------------------------ building

    def _add(self, key: str, label: str, members: list[int], scope: int) -> int:
        self._last += 1
        self.groups[self._last] = DrawnGroup(key, label, members, scope)
        return self._last

    def _list_inner(self, members: Iterable[int]) -> list[int]:
        """Return the members that are groups."""
        return [m for m in members if m in self.groups]

    def _list_groups(self, top: int) -> list[int]:
        """Return a group and all groups inside it, outer groups first."""
        order = [top]
        for number in order:
            order += self._list_inner(self.groups[number].members)
        return order

    def _add_scopes(self, scopes: Sequence[Strings]) -> None:
        known: dict[Strings, int] = {(): self.root}
        folded = self.network.folded
        for leaf in range(self.network.leaves):
            if leaf in folded:
                continue
            scope = scopes[leaf] if leaf < len(scopes) else ()
            if scope not in known:
                for depth in range(1, len(scope) + 1):
                    if scope[:depth] not in known:
                        number = self._add("/".join(scope[:depth]), scope[depth - 1], [], depth)
                        known[scope[:depth]] = number
                        self.groups[known[scope[: depth - 1]]].members.append(number)
            self.groups[known[scope]].members.append(leaf)

    def _finish(self) -> None:
        """Set the depth, parent and leaves of each group; outer groups come first."""
        self.groups = {number: self.groups[number] for number in self._list_groups(self.root)}
        seen = set()
        for number, group in self.groups.items():
            while group.key in seen:  # a scope may have the name of an equal share
                group.key += "'"
            seen.add(group.key)
            for m in self._list_inner(group.members):
                self.groups[m].parent = number
                self.groups[m].depth = group.depth + 1
        self._gather(self.root)
        for group in self.groups.values():
            group.nodes = sum(leaf < len(self.network.ops) for leaf in group.leaves)
            inner = self._list_inner(group.members)
            same = Counter(self.groups[m].label for m in inner)
            for m in inner:
                if m in self._ends and same[self.groups[m].label] > 1:
                    self.groups[m].label = _join_both(self._ends[m])
        self._parents = invert((number, group.members) for number, group in self.groups.items())

    def _gather(self, top: int) -> None:
        """Collect the leaves of a group and of the groups inside it."""
        for number in reversed(self._list_groups(top)):
            group = self.groups[number]
            group.leaves = list(flatten(map(self.list_leaves, group.members)))

    # ------------------------------------------------------------ one level

    def list_leaves(self, member: int) -> Sequence[int]:
        """Return the leaves of a member."""
        return self.groups[member].leaves if member in self.groups else (member,)

    def sort_members(
        self, members: Sequence[int]
    ) -> tuple[list[int], dict[tuple[int, int], list[str]]]:
        """Return the members in topological order, and the tensors of each edge (from, to).

        Long fan-outs are omitted. Contracted groups may form cycles; the order then takes the
        member with the first node.
        """
        at = map_leaves(self, members)
        edges: dict[tuple[int, int], list[str]] = {}
        sources = self.network.sources
        wide = self.network.wide
        for leaf, m in at.items():
            for maker, name in sources[leaf]:
                producer = at.get(maker, m)
                if producer != m and (name not in wide or leaf <= wide[name]):
                    row = edges.setdefault((producer, m), [])
                    if name not in row:
                        row.append(name)
        return sort_topologically(
            members, edges, {m: min(self.list_leaves(m)) for m in members}
        ), edges


def _dissolve(tree: Tree) -> None:
    """Remove the scopes from each group in which they do not follow the data.

    Complexity: linear in leaves × levels.
    """
    tree._gather(tree.root)
    for number in list(tree.groups):
        group = tree.groups.get(number)
        order = tree._list_inner(group.members) if group else []
        if group and order and not _follows_data(tree, number):
            for m in order:  # the list grows by the groups inside each group
                order += tree._list_inner(tree.groups.pop(m).members)
            group.members = sorted(group.leaves)


def _compress(tree: Tree) -> None:
    """Replace each group of one member by that member, and the root by its only group."""
    groups = tree.groups
    for number in sorted(groups, reverse=True):
        group = groups[number]
        members = []
        for m in group.members:
            inner = groups.get(m)
            if inner and len(inner.members) == 1:
                del groups[m]
                m = inner.members[0]
                if m in groups:
                    groups[m].label = f"{inner.label}/{groups[m].label}"
            members.append(m)
        group.members = members
    root = groups[tree.root]
    while len(only := tree._list_inner(root.members)) == 1 and all(
        m >= len(tree.network.ops) for m in root.members
    ):
        inner = groups.pop(only[0])
        root.members = [m for m in root.members if m != only[0]] + inner.members


def _follows_data(tree: Tree, number: int) -> bool:
    """Return whether each scope of a group is connected, and few tensors go back among them."""
    group = tree.groups[number]
    order, edges = tree.sort_members(group.members)
    place = {m: k for k, m in enumerate(order)}
    total = sum(map(len, edges.values()))
    backward = sum(len(names) for (a, b), names in edges.items() if place[a] > place[b])
    scopes = [tree.groups[m].leaves for m in tree._list_inner(group.members)]
    joined = sum(map(partial(_count_joined, tree), scopes))
    pairs = sum(len(leaves) - 1 for leaves in scopes)
    return backward <= MAX_BACKWARD * total and joined >= MIN_JOINED * pairs


def _count_joined(tree: Tree, leaves: Sequence[int]) -> int:
    """Return the number of leaves minus the number of parts that are not connected by tensors."""
    left = set(leaves)
    first: dict[str, int] = {}
    near: dict[int, list[int]] = {leaf: [] for leaf in leaves}
    for leaf in leaves:
        for maker, name in tree.network.sources[leaf]:
            source = maker if maker in near else first.setdefault(name, leaf)
            near[leaf].append(source)
            near[source].append(leaf)
    joined = len(leaves)
    for leaf in leaves:
        if leaf in left:
            part = reach([leaf], near.__getitem__)
            left -= part
            joined -= 1
    return joined


def _split(tree: Tree, number: int) -> None:
    """Group the members of a group that holds too many: by cut points, then in equal shares."""
    group = tree.groups[number]
    ends = [m for m in group.members if len(tree.network.ops) <= m < tree.root]
    members = [m for m in group.members if m not in set(ends)]
    limit = MAX_FLAT - len(ends) if tree._list_inner(members) else MAX_FLAT_MEMBERS
    if len(members) <= limit:
        return
    tree._gather(number)
    order, edges = tree.sort_members(members)
    parts = split_into_segments(order, edges)
    if len(parts) == 1 and len(order) <= MAX_FLAT:
        return
    members = [
        _add_part(tree, number, part)
        for part in (parts if len(parts) > 1 else split_evenly(order, MAX_FLAT_MEMBERS))
    ]
    while len(members) > limit:
        members = [
            _add_part(tree, number, part)
            for part in split_evenly(members, max(MAX_FLAT_MEMBERS // 2, int(len(members) ** 0.5)))
        ]
    group.members = ends + members


def _add_part(tree: Tree, parent: int, part: list[int]) -> int:
    """Return a new group of these members; the member itself if it is alone."""
    if len(part) == 1:
        return part[0]
    while len(part) > MAX_FLAT:  # no cut point: equal shares
        part = [_add_part(tree, parent, share) for share in split_evenly(part, MAX_FLAT_MEMBERS)]
    first = _find_first_leaf(tree, part[0])
    last = _find_first_leaf(tree, part[-1])
    names = [
        tree.network.label(m) if m < tree.root else tree.groups[m].label for m in (first, last)
    ]
    above = tree.groups[parent].key
    shared = names[0][: find_shared_start(names)].rstrip("/._ #")
    number = tree._add(
        f"{above}/#{first}-{last}".lstrip("/"),
        shared if len(shared) > 2 else _join_both(names),
        part,
        tree.groups[parent].scope,
    )
    tree._ends[number] = names
    return number


def _find_first_leaf(tree: Tree, member: int) -> int:
    while member in tree.groups:
        member = tree.groups[member].members[0]
    return member


def map_leaves(tree: Tree, members: Iterable[int]) -> dict[int, int]:
    """Return the member of each leaf."""
    return invert((member, tree.list_leaves(member)) for member in members)


def sort_topologically(
    members: Iterable[int], edges: Collection[tuple[int, int]], key: Mapping[int, int]
) -> list[int]:
    """Return a topological order, smallest `key` first, also in a cycle.

    >>> sort_topologically([1, 2, 3], [(3, 1), (1, 2), (2, 1)], {1: 1, 2: 2, 3: 3})
    [3, 1, 2]
    """
    left = dict.fromkeys(members, 0)
    below = group_values(edges)
    for _, b in edges:
        left[b] += 1
    ready = [(key[m], m) for m, n in left.items() if not n]
    heapq.heapify(ready)
    waiting = sorted(((key[m], m) for m in left), reverse=True)
    order: list[int] = []
    done = set()
    while len(order) < len(left):
        while not ready:
            candidate = waiting.pop()
            if candidate[1] not in done:
                ready.append(candidate)
        _, m = heapq.heappop(ready)
        if m in done:
            continue
        done.add(m)
        order.append(m)
        for b in below.get(m, ()):
            left[b] -= 1
            if not left[b] and b not in done:
                heapq.heappush(ready, (key[b], b))
    return order


def split_into_segments(
    order: Sequence[int], edges: Mapping[tuple[int, int], Sequence[str]]
) -> list[list[int]]:
    """Split members in topological order at each tensor that is alone in crossing a cut.

    Branches and the member that joins them are one part. The part also has the members in a row
    that follow, if they are few; a longer row is a separate part. Complexity: linear.
    """
    place = {m: k for k, m in enumerate(order)}
    last: dict[tuple[int, str], int] = {}  # tensor → last reader
    for (a, b), names in edges.items():
        for name in names:
            last[place[a], name] = max(last.get((place[a], name), 0), place[b])
    change = [0] * (len(order) + 1)
    for (first, _), end in last.items():
        if end > first:
            change[first] += 1
            change[end] -= 1
    live = 0
    parts = list[list[int]]([[]])
    for k, m in enumerate(order):
        live += change[k]
        parts[-1].append(m)
        if live <= 1:
            parts.append([])
    done: list[list[int]] = []
    for single, same in groupby(filter(None, parts), lambda part: len(part) == 1):
        if not single:
            done += same
            continue
        row = list(flatten(same))
        if done and len(row) <= MAX_TAIL_NODES:
            done[-1] += row
        else:
            done += split_evenly(row, -(-len(row) // MIN_CHAIN_NODES))
    return done


def split_evenly(row: Sequence[T], number: int) -> list[list[T]]:
    """Return at most `number` consecutive parts of almost equal length.

    >>> split_evenly([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    length = -(-len(row) // max(1, min(number, len(row) or 1)))
    return [list(row[k : k + length]) for k in range(0, len(row), length)]


def find_separator(names: Sequence[str]) -> str:
    """Return the separator of scopes in names; "" if fewer than half of the names have any.

    >>> find_separator(["/layer1/conv/Conv", "/layer1/Relu", ""])
    '/'
    """
    named = sum(map(bool, names))
    for separator in SCOPES:
        if 2 * sum(separator in name.strip(separator) for name in names) >= max(named, 1):
            return separator
    return ""


def _join_both(names: Sequence[str]) -> str:
    return " … ".join(dict.fromkeys(omit_middle(name, 24) for name in names))
