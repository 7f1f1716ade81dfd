"""A network and the groups that are open -> `Layout`: boxes, lines and stubs in pixels.

An open group is laid out by itself and takes its place as one box in the group around it, so that
opening one costs the layouts of that group and of those around it; the others are kept. A tensor
that enters or leaves an open group passes a port on its frame. A node with bodies opens as a group
does, and shows a drawing of each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from subgraph.drawing.groups import Tree
from subgraph.drawing.level import (
    FRAME_PADDING,
    HEADER_HEIGHT,
    MAX_NAME_COLUMNS,
    PORT,
    Cell,
    Crossing,
    Inner,
    Level,
    find_crossing,
    find_node,
    frame_bodies,
    lay_out_group,
    measure_member,
    share_keys,
)
from subgraph.drawing.network import Network, find_kind
from subgraph.iterables import flatten, group_values
from subgraph.text import clean, omit_middle
from subgraph.types import Strings, frozen

WIDTH = 1200.0  # the width of a page in pixels
MARGIN = 10.0
MAX_KEPT_LAYOUTS = 20_000  # cached layouts of groups
MAX_BOXES = 60  # about this many boxes are shown if the caller names no open groups


class Box(NamedTuple):
    """A node, an input, an output, or a group.

    Attributes:
        key: `#17` for a node, `input:NAME`, `output:NAME`, or the key of a group.
        kind: node, input, output, group (closed), open (a group or node), or body (the frame of a
            body in an open node).
        x: The left end in pixels.
        y: The upper end in pixels.
        label: The first text in it.
        detail: The second text in it.
        note: A text on the weights of a node.
        title: The full name.
        nodes: The indices of the nodes inside. A constant belongs to its first reader, a node in a
            body to the node that has the body.
        parent: The key of the group around it.
        family: The kind of a node's operator; empty for another box.
    """

    key: str
    kind: str
    x: float
    y: float
    width: float
    height: float
    label: str
    detail: str
    title: str
    nodes: tuple[int, ...]
    parent: str
    family: str = ""
    note: str = ""


class Line(NamedTuple):
    """A line from box to box for one or more tensors.

    Attributes:
        source: The key of the box at its start; an open group if it starts at the group's frame.
        target: The key of the box at its end; an open group if it ends at the group's frame.
        tensors: The names of the tensors.
        points: The points of the line, of which the odd steps are curves.
        text: The text on the line; empty without room, or if the tensor has its text elsewhere.
    """

    source: str
    target: str
    tensors: Strings
    points: tuple[tuple[float, float], ...]
    text: str
    x: float
    y: float


class Stub(NamedTuple):
    """Tensors that are named at a box instead of drawn as a line.

    Attributes:
        key: The key of the box.
        way: "in" or "out".
        tensors: The names of the tensors.
        text: The text at the box.
        x: The x of the text in pixels.
        y: The y of the text in pixels.
    """

    key: str
    way: str
    tensors: Strings
    text: str
    x: float
    y: float


@frozen
class Layout:
    """A drawing in pixels, from (0, 0) to (width, height).

    Outer boxes come before inner boxes.
    """

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    stubs: tuple[Stub, ...]

    def to_json(self) -> dict[str, object]:
        """Return plain data: a list per kind, an object per element."""
        return {
            "width": self.width,
            "height": self.height,
            "boxes": [box._asdict() for box in self.boxes],
            "lines": [line._asdict() for line in self.lines],
            "stubs": [stub._asdict() for stub in self.stubs],
        }


class Drawer:
    """A network that can be laid out with any groups open; the layouts of groups are cached.

    Attributes:
        openable: The key of each group and of each node with bodies → the key of the group or node
            around it, which comes before it.
        holders: The key of the innermost group or node around each node, or empty. Nodes in bodies
            come last.

    >>> network = Network(["a", "b"], ["Relu", "Abs"], [["x"], ["y"]], [["y"], ["z"]], ["x"], ["z"])
    >>> picture = Drawer(network).layout()
    >>> [box.label for box in picture.boxes], [line.tensors for line in picture.lines]
    (['x', 'Relu', 'Abs', 'z'], [('x',), ('y',), ('z',)])
    """

    def __init__(
        self,
        network: Network,
        bodies: Mapping[int, Sequence[Inner]] | None = None,
        notes: Mapping[int, str] | None = None,
    ) -> None:
        """Group the nodes of a network.

        Args:
            network: The network.
            bodies: The bodies of nodes. The key of a node, `#17`, opens its bodies.
            notes: The texts that follow the operators of nodes, by node.
        """
        self.network = network
        self.bodies = bodies or {}
        self.tree = Tree(network, self.bodies, notes)
        self._inner = {
            n: [(b, Drawer(b.network, b.bodies, b.notes)) for b in row]
            for n, row in self.bodies.items()
        }
        self._folded = group_values((node, constant) for constant, node in network.folded.items())
        self._crossings: dict[int, Crossing] = {}
        self._kept: dict[tuple[int, frozenset[object], float, bool], Level] = {}
        groups = self.tree.groups
        self.openable = {g.key: groups[g.parent].key for g in groups.values() if g.parent >= 0}
        self.holders = [self.tree.find_holder(node) for node in range(len(network.ops))]
        for node, inside in self._inner.items():
            key = f"#{node}"
            self.openable[key] = self.tree.find_holder(node)
            for body, drawer in inside:
                self.openable |= {
                    body.outer(k): body.outer(above) if above else key
                    for k, above in drawer.openable.items()
                }
                self.holders += [body.outer(above) if above else key for above in drawer.holders]

    def choose_open(self) -> frozenset[str]:
        """Return keys to open for about `MAX_BOXES` boxes: complete levels, then nodes with
        bodies."""
        keys = self.tree.choose_open(MAX_BOXES)
        visible = [g for g in self.tree.groups.values() if g.key in keys or not g.key]
        left = MAX_BOXES - sum(len(g.members) for g in visible)
        for node in [m for m in flatten(g.members for g in visible) if m in self._inner]:
            inside = sum(len(d.tree.groups[d.tree.root].members) for _, d in self._inner[node])
            if inside <= left:
                keys = keys | {f"#{node}"}
                left = left - inside
        return keys

    def layout(
        self,
        open_groups: Collection[str] | None = None,
        width: float = WIDTH,
        *,
        tall: bool = False,
    ) -> Layout:
        """Return the drawing with these groups open (keys); None: as many levels as give about
        `MAX_BOXES` boxes.

        A group that is open inside a closed one is not seen. No row of boxes is wider than `width`;
        a page of 400 pixels, for example, shows the drawing at full size. `tall`: boxes have room
        for `Marks.values`.

        Raises:
            KeyError: No group has such a key.
        """
        if open_groups is None:
            open_groups = self.choose_open()
        if len(self._kept) > MAX_KEPT_LAYOUTS:
            self._kept.clear()
        tree = self.tree
        groups = tree.groups
        own, inside_of = share_keys(open_groups, list(flatten(self.bodies.values())))
        nodes = {n for key in own if (n := find_node(key)) in self._inner}
        numbers = {tree.numbers[key] for key in own if find_node(key) not in self._inner}
        visible = [tree.root]
        for number in visible:
            visible += [m for m in groups[number].members if m in numbers]
        inner: dict[int, frozenset[object]] = {}
        levels: dict[int, Level] = {}
        drawn: dict[int, list[Layout]] = {}
        for number in reversed(visible):
            room = width - 2 * MARGIN - 2 * FRAME_PADDING * groups[number].depth
            for node in nodes.intersection(groups[number].members):
                levels[node], drawn[node] = self._open_node(node, inside_of, room, tall)
                inner[node] = frozenset(
                    (b.prefix, inside_of.get(b.prefix)) for b in self.bodies[node]
                )
            inside = [m for m in groups[number].members if m in levels]
            inner[number] = frozenset[object](inside).union(*(inner[m] for m in inside))
            kept = (number, inner[number], room, tall)
            if kept not in self._kept:
                if number not in self._crossings:
                    self._crossings[number] = find_crossing(tree, number)
                opened = {m: levels[m] for m in inside}
                self._kept[kept] = lay_out_group(
                    tree, number, self._crossings[number], opened, room, tall=tall
                )
            levels[number] = self._kept[kept]
        return self._assemble(levels, drawn, tall)

    def _open_node(
        self, node: int, keys: Mapping[str, frozenset[str]], room: float, tall: bool
    ) -> tuple[Level, list[Layout]]:
        """Return the frame of a node with bodies, and the layouts in it, from its corner."""
        inside = self._inner[node]
        network = self.network
        pictures = [
            drawer.layout(keys.get(body.prefix, ()), room - 2 * FRAME_PADDING, tall=tall)
            for body, drawer in inside
        ]
        sizes = [(p.width, p.height) for p in pictures]
        body_words = [body.word for body, _ in inside]
        tensors = [name for _, name in network.sources[node]], network.makes[node]
        at, frames = frame_bodies(sizes, body_words, tensors, self._format_title(node), room)
        rows = zip(inside, pictures, frames, strict=True)
        return at, [
            _place_body(body, picture, f"#{node}", frame) for (body, _), picture, frame in rows
        ]

    def _format_title(self, node: int) -> str:
        """Return the text in the header of an open node."""
        label = omit_middle(clean(self.network.label(node)), MAX_NAME_COLUMNS)
        return f"{label} · {clean(self.network.ops[node])}"

    def _assemble(
        self,
        levels: dict[int, Level],
        drawn: Mapping[int, Sequence[Layout]],
        tall: bool,
    ) -> Layout:
        """Return all open groups at their places."""
        tree = self.tree
        boxes = []
        lines = []
        stubs = []
        waiting = [(tree.root, MARGIN, MARGIN)]
        for number, left, top in waiting:
            at = levels[number]
            x = left + at.shift[0]
            y = top + at.shift[1]
            for cell, place in zip(at.cells, at.placed.at, strict=True):
                if cell.member == PORT:
                    continue
                inner = levels.get(cell.member)
                box = self._make_box(cell, inner, x + place[0], y + place[1], number, tall)
                boxes.append(box)
                side = box.x + box.width + 4
                stubs += [
                    Stub(box.key, *row, side, box.y + 10 + 11 * k)
                    for k, row in enumerate(cell.stubs)
                ]
                if cell.member in drawn:
                    for picture in drawn[cell.member]:
                        moved = _move(picture, box)
                        boxes += moved[0]
                        lines += moved[1]
                        stubs += moved[2]
                elif inner:
                    waiting.append((cell.member, box.x, box.y))
            lines += _iter_lines(
                at,
                [
                    self.key(c.member) if c.member != PORT else tree.groups[number].key
                    for c in at.cells
                ],
                x,
                y,
            )
        outermost = levels[tree.root]
        return Layout(
            outermost.width + 2 * MARGIN,
            outermost.height + 2 * MARGIN,
            tuple(boxes),
            tuple(lines),
            tuple(stubs),
        )

    def key(self, member: int) -> str:
        """Return the key of a member: `#17`, `input:NAME`, `output:NAME`, or that of a group."""
        network = self.network
        if member in self.tree.groups:
            return self.tree.groups[member].key
        if member < len(network.ops):
            return f"#{member}"
        kind = "input" if member < len(network.ops) + len(network.inputs) else "output"
        return f"{kind}:{network.label(member)}"

    def _make_box(
        self, cell: Cell, inner: Level | None, x: float, y: float, parent: int, tall: bool
    ) -> Box:
        network = self.network
        member = cell.member
        group = self.tree.groups.get(member)
        if inner and group:
            nodes = []
        else:
            nodes = [n for n in self.tree.list_leaves(member) if n < len(network.ops)]
        item = measure_member(self.tree, cell, inner, tall=tall)
        nested = list[int]()
        if not inner:
            for body in flatten(self.bodies.get(n, ()) for n in nodes):
                nested += range(body.first, body.first + body.size)
        constants = flatten(self._folded.get(n, ()) for n in nodes)
        family = ""
        if member in self.bodies:
            family = "control"
        elif member < len(network.ops):
            family = find_kind(network.ops[member])
        if inner:
            kind = "open"
        elif group:
            kind = "group"
        elif nodes:
            kind = "node"
        else:
            kind = self.key(member).partition(":")[0]
        return Box(
            key=self.key(member),
            kind=kind,
            x=round(x - item.left, 1),
            y=round(y - item.height / 2, 1),
            width=round(item.left + item.right, 1),
            height=round(item.height, 1),
            label=self._format_title(member) if inner and not group else cell.label,
            detail=cell.detail,
            title=clean(group.key if group else network.label(member)),
            nodes=(*sorted([*nodes, *constants]), *nested),
            parent=self.tree.groups[parent].key,
            family=family,
            note=cell.note,
        )


def _place_body(
    body: Inner, picture: Layout, holder: str, frame: tuple[float, float, float, float]
) -> Layout:
    """Return the drawing of a body in its frame.

    Keys, numbers and names are those of the drawing around the body.
    """
    x, y, width, height = frame
    around = body.outer("").rstrip("/")
    outer = body.outer
    before = clean(body.prefix)
    box = Box(around, "body", x, y, width, height, clean(body.word), "", clean(around), (), holder)
    boxes, lines, stubs = _move(
        picture, box._replace(x=x + (width - picture.width) / 2, y=y + HEADER_HEIGHT)
    )
    for k, b in enumerate(boxes):
        nodes = tuple(body.first + n for n in b.nodes)
        parent = outer(b.parent) if b.parent else around
        boxes[k] = b._replace(
            key=outer(b.key), title=f"{before}{b.title}", parent=parent, nodes=nodes
        )
    for k, line in enumerate(lines):
        tensors = tuple(body.prefix + name for name in line.tensors)
        lines[k] = line._replace(
            source=outer(line.source), target=outer(line.target), tensors=tensors
        )
    for k, s in enumerate(stubs):
        tensors = tuple(body.prefix + name for name in s.tensors)
        stubs[k] = s._replace(key=outer(s.key), tensors=tensors)
    return Layout(width, height, (box, *boxes), tuple(lines), tuple(stubs))


def _move(picture: Layout, corner: Box) -> tuple[list[Box], list[Line], list[Stub]]:
    """Move boxes, lines and stubs by the corner of the box that they are in."""
    x = corner.x
    y = corner.y
    return (
        [b._replace(x=round(x + b.x, 1), y=round(y + b.y, 1)) for b in picture.boxes],
        [
            line._replace(
                points=tuple((round(x + px, 1), round(y + py, 1)) for px, py in line.points),
                x=round(x + line.x, 1),
                y=round(y + line.y, 1),
            )
            for line in picture.lines
        ],
        [s._replace(x=round(x + s.x, 1), y=round(y + s.y, 1)) for s in picture.stubs],
    )


def _iter_lines(at: Level, keys: Sequence[str], x: float, y: float) -> Iterator[Line]:
    for wire, path, label in zip(at.wires, at.placed.paths, at.placed.labels, strict=True):
        points = tuple((round(x + px, 1), round(y + py, 1)) for px, py in path)
        tx, ty = (round(x + label[0], 1), round(y + label[1], 1)) if label else (0.0, 0.0)
        yield Line(
            keys[wire.source],
            keys[wire.target],
            wire.tensors,
            points,
            wire.text if label else "",
            tx,
            ty,
        )
