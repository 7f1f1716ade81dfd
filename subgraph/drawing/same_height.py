"""Two drawings beside each other: what corresponds stands at the same height.

Insight: between two rows of boxes a drawing can be pulled apart without breaking anything, as only
lines cross there. So each matched pair of boxes, from the top down, moves the rows from there on in
the drawing where it stands higher.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from subgraph.drawing.layout import Box, Layout
from subgraph.drawing.network import Network
from subgraph.drawing.svg import FRAMES

HEAD = 21.0  # height of a frame's header

Shift = tuple[float, float]  # from this y on, so many pixels down


def same_height(
    drawings: tuple[Layout, Layout], networks: tuple[Network, Network], pairs: Mapping[str, str]
) -> tuple[Layout, Layout]:
    """The drawings, pulled apart where it takes that. `pairs`: matched tensors.

    Where what corresponds is in another order, the most that keeps the order counts. Complexity: n
    log n in the boxes.
    """
    rows = [_rows(drawing.boxes) for drawing in drawings]
    shifts: tuple[list[Shift], list[Shift]] = ([(-1.0, 0.0)], [(-1.0, 0.0)])
    for boxes in _in_order(_matched(drawings, networks, pairs)):
        starts = [row[bisect_right(row, box.y) - 1] for row, box in zip(rows, boxes, strict=True)]
        if any(start <= of[-1][0] for start, of in zip(starts, shifts, strict=True)):
            continue  # in one row with the pair before
        middles = [
            box.y + box.height / 2 + of[-1][1] for box, of in zip(boxes, shifts, strict=True)
        ]
        for start, middle, of in zip(starts, middles, shifts, strict=True):
            of.append((start, of[-1][1] + max(middles) - middle))
    one, other = (_pulled(drawing, of) for drawing, of in zip(drawings, shifts, strict=True))
    return one, other


def _rows(boxes: Iterable[Box]) -> list[float]:
    """Where rows begin: y at which a box or header begins, and no other goes on."""
    spans = sorted((box.y, box.y + (HEAD if box.kind in FRAMES else box.height)) for box in boxes)
    starts = []
    end = -1.0
    for y, low in spans:
        if y > end:
            starts.append(y)
        end = max(end, low)
    return starts


def _matched(
    drawings: tuple[Layout, Layout], networks: tuple[Network, Network], pairs: Mapping[str, str]
) -> list[tuple[Box, Box]]:
    """Boxes that make most of each other's matched tensors."""
    made = [_makers(drawing, network) for drawing, network in zip(drawings, networks, strict=True)]
    shared = Counter(
        (made[0][a], made[1][b]) for a, b in pairs.items() if a in made[0] and b in made[1]
    )
    best: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for (a, b), _ in shared.most_common():
        best[0].setdefault(a, b)
        best[1].setdefault(b, a)
    known = [{box.key: box for box in drawing.boxes} for drawing in drawings]
    return [(known[0][a], known[1][b]) for a, b in best[0].items() if best[1][b] == a]


def _makers(drawing: Layout, network: Network) -> dict[str, str]:
    """Tensor → the key of the box that makes it; of an output, the box that it is."""
    made = {name: box.key for box in drawing.boxes for n in box.nodes for name in network.makes[n]}
    return made | {box.title: box.key for box in drawing.boxes if box.kind == "input"}


def _in_order(boxes: Sequence[tuple[Box, Box]]) -> list[tuple[Box, Box]]:
    """The longest part of these pairs that goes down in both drawings."""
    order = sorted(boxes, key=lambda pair: (pair[0].y, pair[1].y))
    ends: list[float] = []  # of the best chain of each length, y in the other drawing
    lengths = []
    for _, box in order:
        k = bisect_left(ends, box.y)
        ends[k : k + 1] = [box.y]
        lengths.append(k)
    chain: list[tuple[Box, Box]] = []
    wanted = len(ends) - 1
    for pair, length in zip(reversed(order), reversed(lengths), strict=True):
        if length == wanted and (not chain or pair[1].y < chain[-1][1].y):
            chain.append(pair)
            wanted -= 1
    return chain[::-1]


def _pulled(drawing: Layout, shifts: Sequence[Shift]) -> Layout:
    starts = [y for y, _ in shifts]

    def at(y: float) -> float:
        return round(y + shifts[bisect_right(starts, y) - 1][1], 1)

    boxes = tuple(
        b._replace(y=at(b.y), height=round(at(b.y + b.height) - at(b.y), 1)) for b in drawing.boxes
    )
    lines = tuple(
        line._replace(points=tuple((x, at(y)) for x, y in line.points), y=at(line.y))
        for line in drawing.lines
    )
    before, after = ({box.key: box.y for box in row} for row in (drawing.boxes, boxes))
    stubs = tuple(s._replace(y=round(s.y + after[s.key] - before[s.key], 1)) for s in drawing.stubs)
    return Layout(drawing.width, at(drawing.height), boxes, lines, stubs)
