"""A network and the groups that are open -> `Layout`: boxes, lines and stubs in pixels.

An open group is laid out by itself and takes its place as one box in the group around it, so that opening one costs the
layouts of that group and of those around it; the others are kept. A tensor that enters or leaves an open group passes a
port on its frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from subgraph.drawing.groups import Tree
from subgraph.drawing.level import NAME, PAD, PORT, Cell, Crossing, Level, crossing, level, size, stub_rows, stub_text
from subgraph.drawing.network import Network
from subgraph.text import clean, short

WIDTH = 1200.0  # of a page
MARGIN = 10.0
MOST_KEPT = 20_000  # layouts of groups
SHOWN = 60  # boxes, if nothing tells which groups are open


class Box(NamedTuple):
    """A node, an input, an output, or a group; `x`, `y`: its upper left corner.

    Attributes:
        key: `#17` of a node, `input:NAME`, `output:NAME`, or the group's.
        kind: node, input, output, group (closed), or open.
        label, detail: what is written into it; `title`: its whole name.
        nodes: indices of the nodes inside; constants count to their first reader.
        parent: key of the group around it. depth: groups around it.
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
    depth: int


class Line(NamedTuple):
    """One or more tensors from box to box: points of which the odd steps are curves, and a text beside the line.

    `source`, `target`: keys of boxes; that of an open group, where the line ends at or begins from its frame.
    `text` is empty where there is no room, or where the tensor has its text elsewhere.
    """

    source: str
    target: str
    tensors: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    text: str
    x: float
    y: float


class Stub(NamedTuple):
    """A tensor that is named at a box (`key`) instead of drawn as a line; `way` is in or out; `x`, `y`: of the text.

    `others`: leaves at the tensor's other ends, as keys of boxes in a drawing with all groups open.
    """

    key: str
    way: str
    tensors: tuple[str, ...]
    text: str
    x: float
    y: float
    others: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """A drawing in pixels, all within (0, 0) and (width, height). Outer boxes come before inner ones."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    stubs: tuple[Stub, ...]

    def to_json(self) -> dict[str, object]:
        """Plain data: a list per kind, an object per element."""
        rows: dict[str, Sequence[Box | Line | Stub]] = {"boxes": self.boxes, "lines": self.lines, "stubs": self.stubs}
        plain = {kind: [element._asdict() for element in row] for kind, row in rows.items()}
        return {"width": self.width, "height": self.height, **plain}


class Drawer:
    """Lays a network out again and again, with other groups open: keeps the layouts of groups that did not change.

    >>> network = Network(["a", "b"], ["Relu", "Abs"], [["x"], ["y"]], [["y"], ["z"]], ["x"], ["z"])
    >>> picture = Drawer(network).layout()
    >>> [box.label for box in picture.boxes], [line.tensors for line in picture.lines]
    (['x', 'Relu', 'Abs', 'z'], [('x',), ('y',), ('z',)])
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.tree = Tree(network)
        self._crossings: dict[int, Crossing] = {}
        self._kept: dict[tuple[int, frozenset[int], float, bool], Level] = {}

    def layout(
        self, open_groups: Collection[str] | None = None, width: float = WIDTH, top: str = "", *, tall: bool = False
    ) -> Layout:
        """The drawing with these groups open (keys); None: as many levels as give about `SHOWN` boxes.

        A group that is open inside a closed one is not seen. No row of boxes is wider than `width`; a page of 400
        pixels, for example, shows the drawing at full size. `top`: the group that is drawn, open; all by default.
        `tall`: boxes have room for `Marks.values`.

        Raises:
            KeyError: no group has such a key.
        """
        if open_groups is None:
            open_groups = self.tree.shown(SHOWN)
        if len(self._kept) > MOST_KEPT:
            self._kept.clear()
        groups, begin = self.tree.groups, self.tree.numbers[top]
        numbers = {self.tree.numbers[key] for key in open_groups}
        seen = [begin]
        for number in seen:
            seen += [m for m in groups[number].members if m in numbers]
        inner: dict[int, frozenset[int]] = {}
        levels: dict[int, Level] = {}
        for number in reversed(seen):
            inside = [m for m in groups[number].members if m in levels]
            inner[number] = frozenset(inside).union(*(inner[m] for m in inside))
            room = width - 2 * MARGIN - 2 * PAD * groups[number].depth
            kept = (number, inner[number], room, tall)
            if kept not in self._kept:
                if number not in self._crossings:
                    self._crossings[number] = crossing(self.tree, number)
                opened = {m: levels[m] for m in inside}
                self._kept[kept] = level(self.tree, number, self._crossings[number], opened, room, tall=tall)
            levels[number] = self._kept[kept]
        return self._assembled(begin, levels, tall)

    def _assembled(self, begin: int, levels: dict[int, Level], tall: bool) -> Layout:
        """All open groups at their places."""
        tree = self.tree
        boxes: list[Box] = []
        lines: list[Line] = []
        stubs: list[Stub] = []
        waiting = [(begin, MARGIN, MARGIN)]
        if begin != tree.root:
            frame = Cell(begin, short(clean(tree.groups[begin].label), NAME))
            at, parent = levels[begin], tree.groups[begin].parent
            boxes.append(self._box(frame, at, MARGIN + at.anchor, MARGIN + at.height / 2, parent, tall))
        for number, left, top in waiting:
            at = levels[number]
            x, y = left + at.shift[0], top + at.shift[1]
            for cell, place in zip(at.cells, at.placed.at, strict=True):
                if cell.member == PORT:
                    continue
                inner = levels.get(cell.member)
                box = self._box(cell, inner, x + place[0], y + place[1], number, tall)
                boxes.append(box)
                stubs += self._stubs(cell, box)
                if inner:
                    waiting.append((cell.member, box.x, box.y))
            lines += _lines(
                at, [self.key(c.member) if c.member != PORT else tree.groups[number].key for c in at.cells], x, y
            )
        whole = levels[begin]
        return Layout(whole.width + 2 * MARGIN, whole.height + 2 * MARGIN, tuple(boxes), tuple(lines), tuple(stubs))

    def key(self, member: int) -> str:
        """The key of a member: `#17` of a node, `input:NAME`, `output:NAME`, or the group's."""
        network = self.network
        if member in self.tree.groups:
            return self.tree.groups[member].key
        if member < len(network.ops):
            return f"#{member}"
        way = "input" if member < len(network.ops) + len(network.inputs) else "output"
        return f"{way}:{network.label(member)}"

    def _box(self, cell: Cell, inner: Level | None, x: float, y: float, parent: int, tall: bool) -> Box:
        network, group = self.network, self.tree.groups.get(cell.member)
        nodes = [] if inner else [n for n in self.tree.leaves(cell.member) if n < len(network.ops)]
        item, folded = size(self.tree, cell, inner, tall=tall), self._folded
        kind = "open" if inner else "group" if group else "node" if nodes else self.key(cell.member).partition(":")[0]
        return Box(
            key=self.key(cell.member),
            kind=kind,
            x=round(x - item.left, 1),
            y=round(y - item.height / 2, 1),
            width=round(item.left + item.right, 1),
            height=round(item.height, 1),
            label=cell.label,
            detail=cell.detail,
            title=clean(group.key if group else network.label(cell.member)),
            nodes=tuple(sorted([*nodes, *(c for n in nodes for c in folded.get(n, ()))] if folded else nodes)),
            parent=self.tree.groups[parent].key,
            depth=self.tree.groups[parent].depth + (parent != self.tree.root),
        )

    def _stubs(self, cell: Cell, box: Box) -> Iterator[Stub]:
        for k, (way, tensors) in enumerate(stub_rows(cell.stubs)):
            others = (
                [self.network.maker[t] for t in tensors]
                if way == "in"
                else [r for t in tensors for r in self.network.readers[t]]
            )
            keys = tuple(dict.fromkeys(map(self.key, others)))
            x, y = box.x + box.width + 4, box.y + 10 + 11 * k
            yield Stub(box.key, way, tensors, stub_text(way, tensors), x, y, keys)

    @cached_property
    def _folded(self) -> dict[int, list[int]]:
        folded: dict[int, list[int]] = {}
        for constant, reader in self.network.folded.items():
            folded.setdefault(reader, []).append(constant)
        return folded


def _lines(at: Level, keys: Sequence[str], x: float, y: float) -> Iterator[Line]:
    for wire, path, label in zip(at.wires, at.placed.paths, at.placed.labels, strict=True):
        points = tuple((round(x + px, 1), round(y + py, 1)) for px, py in path)
        tx, ty = (round(x + label[0], 1), round(y + label[1], 1)) if label else (0.0, 0.0)
        yield Line(keys[wire.source], keys[wire.target], wire.tensors, points, wire.text if label else "", tx, ty)
