"""One open group -> its members, ports and edges, placed by `place_in_layers`: lines if there is
room, else stubs.

The bodies of a node, branches of an If for example, are drawings in the node's frame, instead of
its box. Each body is a separate network, in a frame with its name; the frames are in a row if there
is room, else one below the other. Its nodes are numbered on from those around it, and its names
begin with the node's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias

from subgraph.drawing.groups import Tree, map_leaves
from subgraph.drawing.layered import Edge, Item, Placed, place_in_layers
from subgraph.drawing.network import Network
from subgraph.iterables import flatten, ungroup
from subgraph.text import clean, count, count_columns, make_distinct_labels, omit_middle
from subgraph.types import Shapes, StringMap, Strings, frozen

# Pixels of a character at 11 px in the widest of the usual monospace fonts (0.602 em).
LETTER_WIDTH = 6.7
# The columns of a text in a box. The title of the box has the full text.
MAX_NAME_COLUMNS = 26
MAX_NARROW_NAME_COLUMNS = 19
MAX_STUB_COLUMNS = 14
MAX_TYPE_COLUMNS = 30
MAX_NARROW_WIDTH = 480.0  # a page of at most this many pixels has shorter names
MIN_BOX_WIDTH = 64.0
BOX_HEIGHT = 36.0
LINE_HEIGHT = 14.0  # added to a box for an error, and for a line on its weights
BAR_ROOM = 6.0  # on each side of a tall box; the bar is on the left side
# An open group has a line with its name, and room between its frame and its members.
HEADER_HEIGHT = 22.0
FRAME_PADDING = 8.0
MAX_PORTS = 10  # lines through an open group's frame, each way; other tensors become stubs
MAX_STUB_ROWS = 3  # rows of stubs at a box; the last row counts the tensors that have no row

# By member, the tensors that are named at it, each with its way: in or out.
NamedTensors: TypeAlias = dict[int, dict[tuple[str, str], None]]
PORT = -1
SIGNS = {"in": "◂", "out": "▸"}  # the sign of a stub that enters or leaves its box


class StubRow(NamedTuple):
    """Tensors that are named at a box; `way` is in or out."""

    way: str
    tensors: Strings
    text: str


@frozen
class Cell:
    """A member, or a port (`member` is PORT), with its texts and the tensors named at it."""

    member: int
    label: str = ""
    detail: str = ""
    note: str = ""
    stubs: Sequence[StubRow] = ()


@frozen
class Wire:
    """Tensors from cell to cell, and their text."""

    source: int
    target: int
    tensors: Strings
    text: str = ""


@frozen
class Level:
    """The layout of an open group, in pixels from the upper left corner of its frame.

    Attributes:
        width: The width of the frame.
        height: The height of the frame.
        anchor: The x of its trunk.
        ports_in: The x of each tensor that enters.
        ports_out: The x of each tensor that leaves.
        cells: The members and ports at the positions of `placed`.
        wires: The tensors at the paths of `placed`.
        placed: The positions.
        shift: The x and y of the origin of `placed`.
    """

    width: float
    height: float
    anchor: float
    ports_in: Mapping[str, float]
    ports_out: Mapping[str, float]
    cells: Sequence[Cell]
    wires: Sequence[Wire]
    placed: Placed
    shift: tuple[float, float]


@frozen
class Crossing:
    """The tensors between the members of a group, open or closed.

    Attributes:
        order: The members in topological order.
        edges: The tensors of each pair (from, to).
        entering: The members that read each tensor.
        leaving: The producer of each tensor.
        named: The ways and tensors with many readers of each member.
    """

    order: list[int]
    edges: Mapping[tuple[int, int], Sequence[str]]
    entering: Shapes
    leaving: Mapping[str, int]
    named: NamedTensors


def lay_out_group(
    tree: Tree,
    number: int,
    crossing: Crossing,
    inner: Mapping[int, Level],
    room: float,
    *,
    tall: bool = False,
) -> Level:
    """Lay out one group; `inner`: its open members. No row is wider than `room` pixels, if no
    member is.

    `tall`: boxes of nodes and groups have room for an error.

    Complexity: see `place_in_layers`.
    """
    order = crossing.order
    entering = crossing.entering
    leaving = crossing.leaving
    named = {m: dict(ways) for m, ways in crossing.named.items() if m not in inner}
    ways_in = list(entering)[:MAX_PORTS]
    ways_out = list(leaving)[:MAX_PORTS]
    members = [PORT] * len(ways_in) + order + [PORT] * len(ways_out)
    at = {m: len(ways_in) + k for k, m in enumerate(order)}
    readers = ungroup((way, entering[way[1]]) for way in enumerate(ways_in))
    wires = [Wire(k, at[m], (name,)) for (k, name), m in readers]
    for (a, b), names in crossing.edges.items():
        single = a in inner or b in inner  # an open group has a port for each tensor
        wires += [
            Wire(at[a], at[b], part)
            for part in ([(n,) for n in names] if single else [tuple(names)])
        ]
    wires += [
        Wire(at[leaving[n]], len(members) - len(ways_out) + k, (n,)) for k, n in enumerate(ways_out)
    ]
    unseen = [("in", n, m) for n, m in ungroup(list(entering.items())[MAX_PORTS:])]
    for way, name, m in unseen + [("out", n, leaving[n]) for n in list(leaving)[MAX_PORTS:]]:
        _name(named, m, way, name, inner)
    wires = _add_texts(tree, sorted(wires, key=lambda w: (w.source, w.target, w.tensors)), members)
    label = _make_labels(
        tree,
        number,
        order,
        MAX_NAME_COLUMNS if room > MAX_NARROW_WIDTH else MAX_NARROW_NAME_COLUMNS,
    )
    while True:
        texts = make_distinct_labels(
            [clean(name) for _, name in flatten(named.values())], MAX_STUB_COLUMNS
        )
        cells = [_make_cell(tree, m, label, list_stub_rows(named.get(m, ()), texts)) for m in order]
        items = [Item(4.0, 4.0, 0.0, top=True)] * len(ways_in)
        for cell in cells:
            columns = (count_columns(row.text) for row in cell.stubs)
            beside = max((n * LETTER_WIDTH + 6 for n in columns), default=0.0)
            alone = measure_member(tree, cell, inner.get(cell.member), tall=tall)
            items.append(alone._replace(right=alone.right + beside))
        items += [Item(4.0, 4.0, 0.0, bottom=True)] * len(ways_out)
        joined = [_make_edge(wire, members, inner) for wire in wires]
        placed = place_in_layers(tuple(items), tuple(filter(None, joined)), room)
        paths = iter(placed.paths)
        lost = [
            wire for wire, edge in zip(wires, joined, strict=True) if not (edge and next(paths))
        ]
        if not lost:
            break
        for wire in lost:
            for name in wire.tensors:
                _name(named, members[wire.source], "out", name, inner)
                _name(named, members[wire.target], "in", name, inner)
        wires = [wire for wire in wires if wire not in lost]
    port = Cell(PORT)
    cells = [*[port] * len(ways_in), *cells, *[port] * len(ways_out)]
    return _add_frame(tree, number, cells, wires, placed, ways_in, ways_out)


def find_crossing(tree: Tree, number: int) -> Crossing:
    """Return the tensors between the members of a group. Linear in the group's leaves."""
    sources = tree.network.sources
    wide = tree.network.wide
    order, edges = tree.sort_members(tree.groups[number].members)
    at = map_leaves(tree, order)
    entering: dict[str, list[int]] = {}
    named: NamedTensors = {}
    for leaf, m in at.items():
        for maker, name in sources[leaf]:
            if name in wide and leaf > wide[name]:
                if at.get(maker) != m:
                    named.setdefault(m, {})["in", name] = None
            elif maker not in at and m not in (row := entering.setdefault(name, [])):
                row.append(m)
    return Crossing(order, edges, entering, _find_leaving(tree.network, at, named), named)


def _find_leaving(network: Network, at: Mapping[int, int], named: NamedTensors) -> dict[str, int]:
    """Return tensors that leave the members' group; put those that are read far below into
    `named`."""
    readers = network.readers
    wide = network.wide
    leaving = {}
    for leaf, m in at.items():
        for name in network.list_made(leaf):
            last = wide.get(name, network.leaves)
            for r in readers.get(name, ()):
                if r > last:
                    if at.get(r) != m:
                        named.setdefault(m, {})["out", name] = None
                elif r not in at:
                    leaving[name] = m
    return leaving


def _name(
    named: NamedTensors, member: int, way: str, name: str, inner: Mapping[int, Level]
) -> None:
    """Name a tensor at a member; an open group without a port for it names it inside."""
    if member == PORT:
        return
    level = inner.get(member)
    if level is None or name in (level.ports_in if way == "in" else level.ports_out):
        named.setdefault(member, {})[way, name] = None


def _add_texts(tree: Tree, wires: Sequence[Wire], members: Sequence[int]) -> list[Wire]:
    """Write each tensor's type once: at its first line, unless a port, input or output shows it."""
    nodes = len(tree.network.ops)
    root = tree.root
    types = tree.network.types
    named: set[str] = set()
    done = []
    for wire in wires:
        ends = (members[wire.source], members[wire.target])
        if all(m != PORT and not nodes <= m < root for m in ends) and wire.tensors[0] not in named:
            named.update(wire.tensors)
            more = f" +{len(wire.tensors) - 1}" if len(wire.tensors) > 1 else ""
            text = omit_middle(clean(types.get(wire.tensors[0], "")), MAX_TYPE_COLUMNS) + more
            wire = Wire(wire.source, wire.target, wire.tensors, text)
        done.append(wire)
    return done


def _make_labels(tree: Tree, number: int, members: Sequence[int], length: int) -> Mapping[int, str]:
    """Return the names of members, short, and different where they differ."""
    scope = tree.groups[number].scope
    names = {}
    for m in members:
        if m in tree.groups:
            names[m] = clean(tree.groups[m].label)
        else:
            names[m] = tree.shorten_name(clean(tree.network.label(m)), scope)
    labels = make_distinct_labels(names.values(), length)
    return {m: labels[name] for m, name in names.items()}


def _make_cell(tree: Tree, member: int, label: Mapping[int, str], stubs: Sequence[StubRow]) -> Cell:
    """Return the texts of a member."""
    network = tree.network
    if member in tree.groups:
        nodes = count(tree.groups[member].nodes, "node")
        return Cell(member, label[member], nodes, stubs=stubs)
    if member >= len(network.ops):
        type_text = clean(network.types.get(network.label(member), ""))
        return Cell(member, label[member], omit_middle(type_text, MAX_TYPE_COLUMNS), stubs=stubs)
    sign = "+ " if member in tree.holders else ""
    op = sign + omit_middle(clean(network.ops[member]), MAX_NAME_COLUMNS)
    note = omit_middle(clean(tree.notes.get(member, "")), MAX_NAME_COLUMNS)
    return Cell(member, op, label[member], note, stubs)


def measure_member(tree: Tree, cell: Cell, inner: Level | None, *, tall: bool = False) -> Item:
    """Return the box of a member, without its stubs."""
    weight = len(tree.list_leaves(cell.member))
    if inner:
        return Item(inner.anchor, inner.width - inner.anchor, inner.height, weight)
    group = cell.member in tree.groups
    tall = tall and (group or cell.member < len(tree.network.ops))
    beside = 2 * BAR_ROOM if tall else 0.0
    longest = max(
        count_columns(cell.label) + 2 * group, count_columns(cell.detail), count_columns(cell.note)
    )
    half = max(MIN_BOX_WIDTH, longest * LETTER_WIDTH + 14) / 2 + beside / 2
    return Item(half, half, BOX_HEIGHT + LINE_HEIGHT * (tall + bool(cell.note)), weight)


def list_stub_rows(stubs: Iterable[tuple[str, str]], texts: StringMap) -> list[StubRow]:
    """Return at most `MAX_STUB_ROWS` rows; the last one counts the others, which can be of both
    ways.

    Args:
        stubs: Ways and tensors.
        texts: The short text of each tensor.
    """
    rows = sorted(stubs, key=lambda stub: stub[0])
    shown = rows if len(rows) <= MAX_STUB_ROWS else rows[: MAX_STUB_ROWS - 1]
    stub_rows = [StubRow(way, (name,), f"{SIGNS[way]}{texts[clean(name)]}") for way, name in shown]
    if unshown := rows[len(shown) :]:
        way = unshown[0][0]
        names = tuple(name for _, name in unshown)
        stub_rows.append(StubRow(way, names, f"{SIGNS[way]}{len(unshown)} more"))
    return stub_rows


def _make_edge(wire: Wire, members: Sequence[int], inner: Mapping[int, Level]) -> Edge | None:
    """Make an edge; None if a tensor has no port at an open group, which names it itself."""
    leave = arrive = 0.0
    source = inner.get(members[wire.source])
    target = inner.get(members[wire.target])
    tensor = wire.tensors[0]
    if source:
        if tensor not in source.ports_out:
            return None
        leave = source.ports_out[tensor] - source.anchor
    if target:
        if tensor not in target.ports_in:
            return None
        arrive = target.ports_in[tensor] - target.anchor
    return Edge(
        wire.source,
        wire.target,
        count_columns(wire.text) * LETTER_WIDTH if wire.text else 0.0,
        leave,
        arrive,
    )


def _add_frame(
    tree: Tree,
    number: int,
    cells: Sequence[Cell],
    wires: Sequence[Wire],
    placed: Placed,
    ways_in: Sequence[str],
    ways_out: Sequence[str],
) -> Level:
    """Return the level with its frame; the root has none."""
    root = number == tree.root
    above = HEADER_HEIGHT if ways_in else HEADER_HEIGHT + FRAME_PADDING / 2
    x, y = (0.0, 0.0) if root else (FRAME_PADDING, above)
    below = 0.0 if root or ways_out else FRAME_PADDING
    head = (
        0.0
        if root
        else count_columns(omit_middle(clean(tree.groups[number].label), MAX_NAME_COLUMNS))
        * LETTER_WIDTH
        + 30
    )
    return Level(
        width=max(placed.width + 2 * x, head),
        height=y + placed.height + below,
        anchor=x + placed.trunk,
        ports_in={name: x + placed.at[k][0] for k, name in enumerate(ways_in)},
        ports_out={
            name: x + placed.at[len(cells) - len(ways_out) + k][0]
            for k, name in enumerate(ways_out)
        },
        cells=cells,
        wires=wires,
        placed=placed,
        shift=(x, y),
    )


@frozen
class Inner:
    """A body of a node.

    Attributes:
        word: The name at the node, `then_branch`.
        prefix: The start of its names in the drawing around it, `if1/then_branch/`.
        first: The number there of its first node.
        size: The number of nodes in it, those in its own bodies included.
        network: The network of the body.
        bodies: The bodies of its nodes, by their numbers in `network`.
        notes: The texts after the operators of its nodes.
    """

    word: str
    prefix: str
    first: int
    size: int
    network: Network
    bodies: Mapping[int, Sequence[Inner]]
    notes: Mapping[int, str] = field(default_factory=dict)

    def outer(self, key: str) -> str:
        """Return a key of a box inside, as the drawing around calls it."""
        number = find_node(key)
        return f"{self.prefix}{key}" if number is None else f"#{self.first + number}"


def share_keys(
    keys: Iterable[str], bodies: Sequence[Inner]
) -> tuple[set[str], dict[str, frozenset[str]]]:
    """Return the keys of the outer drawing, and those of each body by its prefix, as it calls them.

    `bodies`: ascending by `first`. Linear in the keys.
    """
    firsts = [body.first for body in bodies]
    by_prefix = {body.prefix: body for body in bodies}
    own = set()
    inside: dict[str, set[str]] = {}
    for key in keys:
        number = find_node(key)
        body = None
        if number is not None:
            place = bisect_right(firsts, number) - 1
            if place >= 0 and number < firsts[place] + bodies[place].size:
                body = bodies[place]
        else:
            ends = (k + 1 for k, letter in enumerate(key) if letter == "/")
            body = next((by_prefix[key[:end]] for end in ends if key[:end] in by_prefix), None)
        if body is None:
            own.add(key)
        else:
            name = key[len(body.prefix) :] if number is None else f"#{number - body.first}"
            inside.setdefault(body.prefix, set()).add(name)
    return own, {prefix: frozenset(inner_keys) for prefix, inner_keys in inside.items()}


def find_node(key: str) -> int | None:
    """Return the number of the node that a box of this key shows; None for another box.

    >>> find_node("#17"), find_node("#3-17"), find_node("stem")
    (17, None, None)
    """
    return int(key[1:]) if key[:1] == "#" and key[1:].isdecimal() and key[1:].isascii() else None


def frame_bodies(
    sizes: Sequence[tuple[float, float]],
    labels: Sequence[str],
    tensors: tuple[Collection[str], Collection[str]],
    label: str,
    room: float,
) -> tuple[Level, list[tuple[float, float, float, float]]]:
    """Return the frame of a node whose bodies are drawings of these sizes, and per body: x, y,
    width and height of its frame.

    `tensors`: that enter and leave the node.
    """
    wide = [
        max(width, count_columns(word) * LETTER_WIDTH + 14)
        for (width, _), word in zip(sizes, labels, strict=True)
    ]
    beside = sum(wide) + FRAME_PADDING * (len(wide) + 1) <= room
    frames = []
    x = FRAME_PADDING
    y = HEADER_HEIGHT + FRAME_PADDING
    for (_, height), width in zip(sizes, wide, strict=True):
        frames.append((x, y, width, height + HEADER_HEIGHT))
        x, y = (
            (x + width + FRAME_PADDING, y)
            if beside
            else (x, y + height + HEADER_HEIGHT + FRAME_PADDING)
        )
    whole = max(
        max(x + w for x, _, w, _ in frames) + FRAME_PADDING,
        count_columns(clean(label)) * LETTER_WIDTH + 30,
    )
    bottom = max(y + h for _, y, _, h in frames) + FRAME_PADDING
    enter, leave = (dict.fromkeys(names, whole / 2) for names in tensors)
    nothing = Placed(whole, bottom, [], [], [], whole / 2, [])
    return Level(whole, bottom, whole / 2, enter, leave, (), (), nothing, (0.0, 0.0)), frames
