"""One level of a graph -> positions of its items, edges and edge labels, top to bottom by
topological rank.

Sugiyama's layered drawing. An edge is a chain of items, one in each layer between its ends, and its
label is one of these items. Items of a layer are kept apart, so boxes, labels and passing edges
never overlap. Positions within a layer are the least squares to the neighbors' positions with the
order kept (pool adjacent violators). The trunk, the longest path, is held at one x. No layer is
wider than `limit`: members go to further layers, edges without room become stubs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import NamedTuple

from subgraph.types import frozen

ITEM_GAP = 14.0  # between two items of a layer
PASSING_EDGE_WIDTH = 2.0  # width of an edge that passes a layer
SWEEPS = 6  # passes over all layers
MAX_EDGE_ROWS = 12  # rows that an edge may pass; a longer one becomes two stubs
LABEL_HEIGHT = 14.0  # height of a label
# height in which an edge moves sideways
MIN_CURVE_HEIGHT = 11.0
MAX_CURVE_HEIGHT = 36.0
EDGE_WEIGHT = 8.0  # weight that keeps the parts of one edge at the same x
TRUNK_WEIGHT = 1e7  # weight of the trunk, relative to that of any other item


class Item(NamedTuple):
    """A box of a level.

    Attributes:
        left: The width to the left of its anchor, in pixels.
        right: The width to the right of its anchor, in pixels.
        height: The height in pixels.
        weight: The number of nodes in it.
        top: Whether it must be in the first row.
        bottom: Whether it must be in the last row.
    """

    left: float
    right: float
    height: float
    weight: int = 1
    top: bool = False
    bottom: bool = False


class Edge(NamedTuple):
    """An edge between two items.

    Attributes:
        source: The position of its first item in topological order.
        target: The position of its second item in topological order.
        label: The width of its label; 0 without a label.
        leave: The x at which it leaves the first item, relative to the anchor of that item.
        arrive: The x at which it reaches the second item, relative to the anchor of that item.
    """

    source: int
    target: int
    label: float = 0.0
    leave: float = 0.0
    arrive: float = 0.0


@frozen
class Placed:
    """The positions of items and edges, in pixels from the upper left corner of the drawing.

    Attributes:
        at: The x of the anchor and the y of the middle of each item.
        paths: The points of each edge from source to target; empty for a stub. Every second step is
            a straight line, the others are curves.
        labels: The left end of the text of each edge, at half its height; None without room.
        trunk: The x of the longest path.
        members: The items on the longest path.
    """

    width: float
    height: float
    at: list[tuple[float, float]]
    paths: list[list[tuple[float, float]]]
    labels: list[tuple[float, float] | None]
    trunk: float
    members: list[int]


@lru_cache(maxsize=2048)
def place_in_layers(items: tuple[Item, ...], edges: tuple[Edge, ...], limit: float) -> Placed:
    """Place items, which are in topological order, in layers at most `limit` pixels wide.

    An edge that goes back becomes a stub. Results are cached, because the blocks of a network are
    alike. Complexity: linear in the items and the parts of edges in all layers.
    """
    limit = max([limit, *(item.left + item.right for item in items)])
    trunk = _find_trunk(items, edges)
    rows = _Rows(items, edges, _compute_ranks(items, edges, limit), set(trunk), limit)
    rows.order()
    x = rows.places()
    left, right = rows.find_extent(x)
    width = right - left
    x = [at - left for at in x]
    height, y = rows.heights(x)
    return Placed(
        width=width,
        height=height,
        at=[(x[i], y[i]) for i in range(len(items))],
        paths=[list(rows.path(e, x, y)) if e in rows.chains else [] for e in range(len(edges))],
        labels=[
            (x[i] + 5, y[i]) if (i := rows.texts.get(e)) is not None else None
            for e in range(len(edges))
        ],
        trunk=x[trunk[0]] if trunk else width / 2,
        members=trunk,
    )


def _find_trunk(items: Sequence[Item], edges: Sequence[Edge]) -> list[int]:
    """Return the items of the path that passes most nodes, from top to bottom."""
    best = [item.weight for item in items]
    before = [-1] * len(items)
    for edge in sorted(edges, key=lambda e: (e.target, e.source)):
        a = edge.source
        b = edge.target
        if a < b and best[a] + items[b].weight > best[b]:
            best[b] = best[a] + items[b].weight
            before[b] = a
    path = [max(range(len(items)), key=lambda i: (best[i], -i))] if items else []
    while path and before[path[-1]] >= 0:
        path.append(before[path[-1]])
    return path[::-1]


def _compute_ranks(items: Sequence[Item], edges: Iterable[Edge], limit: float) -> list[int]:
    """Return the row of each item: the longest path from above; a source is one row above its first
    reader.

    A row that is full passes its items on to the next.
    """
    above: list[list[int]] = [[] for _ in items]
    below: list[list[int]] = [[] for _ in items]
    for edge in edges:
        if edge.source < edge.target:
            above[edge.target].append(edge.source)
            below[edge.source].append(edge.target)
    ranks = [0] * len(items)
    for i in range(len(items)):
        ranks[i] = max((ranks[p] + 1 for p in above[i]), default=0)
    for i, item in enumerate(items):
        if not above[i] and below[i] and not item.top:
            ranks[i] = max(0, min(ranks[r] for r in below[i]) - 1)
    used: dict[int, float] = {}
    last = -1

    def part(i: int) -> tuple[bool, bool]:
        return items[i].bottom, not items[i].top  # the upper rows hold the tops

    order = sorted(range(len(items)), key=lambda i: (part(i), ranks[i], i))
    for _, same in groupby(order, part):
        first = last + 1
        for i in same:
            wide = items[i].left + items[i].right + ITEM_GAP
            row = max([first, ranks[i], *(ranks[p] + 1 for p in above[i])])
            while used.get(row, 0.0) and used[row] + wide > limit + ITEM_GAP:
                row += 1
            used[row] = used.get(row, 0.0) + wide
            ranks[i] = row
            last = max(row, last)
    dense = {row: k for k, row in enumerate(sorted(set(ranks)))}
    return [dense[row] for row in ranks]


class _Rows:
    """The layers of items and of the parts of edges that pass a layer.

    Boxes are in layers with an even number, labels in layers with an odd number.
    """

    def __init__(
        self,
        items: Sequence[Item],
        edges: Sequence[Edge],
        ranks: Sequence[int],
        trunk: set[int],
        limit: float,
    ) -> None:
        self.items = items
        self.edges = edges
        self.limit = limit
        self.left = [item.left for item in items]
        self.right = [item.right for item in items]
        self.layer = [2 * rank for rank in ranks]
        self.layers: list[list[int]] = [[] for _ in range(2 * max(ranks, default=0) + 1)]
        for i, layer in enumerate(self.layer):
            self.layers[layer].append(i)
        self.free = [
            limit - sum(self.left[i] + self.right[i] + ITEM_GAP for i in row) + ITEM_GAP
            for row in self.layers
        ]
        self.chains: dict[int, list[int]] = {}
        self.texts: dict[int, int] = {}
        self.held = set(trunk)
        ways = set(pairwise(sorted(trunk)))
        bent = {e: abs(edge.leave) + abs(edge.arrive) for e, edge in enumerate(edges)}
        spans = [self.layer[edge.target] - self.layer[edge.source] for edge in edges]
        for e in sorted(bent, key=lambda e: (edges[e][:2] not in ways, spans[e], bent[e], e)):
            held = edges[e][:2] in ways
            ways.discard(edges[e][:2])
            self._add_chain(e, held)
        self.above: list[list[tuple[int, float]]] = [[] for _ in self.layer]
        self.below: list[list[tuple[int, float]]] = [[] for _ in self.layer]
        for e in sorted(self.chains):
            chain = self.chains[e]
            edge = edges[e]
            for k, (a, b) in enumerate(pairwise(chain)):
                shift = edge.leave * (k == 0) - edge.arrive * (k == len(chain) - 2)
                self.above[b].append((a, shift))
                self.below[a].append((b, -shift))

    def _add_chain(self, e: int, trunk: bool) -> None:
        """Give an edge a part in each layer that it passes, if there is room."""
        edge = self.edges[e]
        passed = range(self.layer[edge.source] + 1, self.layer[edge.target])
        if (
            edge.source >= edge.target
            or not passed
            or (len(passed) > 2 * MAX_EDGE_ROWS and not trunk)
        ):
            return
        if any(self.free[layer] < PASSING_EDGE_WIDTH + ITEM_GAP for layer in passed):
            return
        chain = [edge.source]
        for k, layer in enumerate(passed):
            width = edge.label + 6 if k == 0 and edge.label else 0.0
            has_text = 0 < width <= self.free[layer] - ITEM_GAP - PASSING_EDGE_WIDTH
            chain.append(len(self.layer))
            if has_text:
                self.texts[e] = chain[-1]
            if trunk:
                self.held.add(chain[-1])
            self.layers[layer].append(chain[-1])
            self.layer.append(layer)
            self.left.append(PASSING_EDGE_WIDTH / 2)
            self.right.append(PASSING_EDGE_WIDTH / 2 + width * has_text)
            self.free[layer] -= self.left[-1] + self.right[-1] + ITEM_GAP
        self.chains[e] = [*chain, edge.target]

    def order(self) -> None:
        """Reduce crossings: sort each layer by the mean position of the neighbors, downwards and
        upwards in turn."""
        place = [0.0] * len(self.layer)
        for layer in self.layers:
            for k, i in enumerate(layer):
                place[i] = k
        wide = [layer for layer in self.layers if len(layer) > 1]
        for sweep in range(SWEEPS):
            side = self.below if sweep % 2 else self.above
            for layer in wide[:: -1 if sweep % 2 else 1]:
                mean = {
                    i: sum(place[o] + d / 1e5 for o, d in side[i]) / len(side[i])
                    if side[i]
                    else place[i]
                    for i in layer
                }
                layer.sort(key=mean.__getitem__)
                for k, i in enumerate(layer):
                    place[i] = k

    def find_extent(self, x: Sequence[float]) -> tuple[float, float]:
        """Return the left end of the leftmost item at these x, and the right end of the
        rightmost."""
        ends = range(len(x))
        return (
            min((x[i] - self.left[i] for i in ends), default=0.0),
            max((x[i] + self.right[i] for i in ends), default=0.0),
        )

    def places(self) -> list[float]:
        """Return the x of each item: 0 for the trunk, near the neighbors for other items."""
        x = [0.0] * len(self.layer)
        free = (float("-inf"), float("inf"))
        moving = [layer for layer in self.layers if not self.held.issuperset(layer)]
        sides = (self.above, self.below)
        for sweep in range(SWEEPS):
            used = sides if sweep >= SWEEPS - 2 else (sides[sweep % 2],)
            for layer in moving[:: -1 if sweep % 2 else 1]:
                self._place(layer, x, free, used)
        low, high = self.find_extent(x)
        if high - low > self.limit:
            begin = min(max(low, -self.limit / 2), high - self.limit)
            for layer in filter(None, self.layers * 2):
                self._place(layer, x, (begin, begin + self.limit), sides)
        return x

    def _place(
        self,
        layer: Sequence[int],
        x: list[float],
        bounds: tuple[float, float],
        sides: Sequence[Sequence[Sequence[tuple[int, float]]]],
    ) -> None:
        targets = []
        weights = []
        boxes = len(self.items)
        for i in layer:  # plain loops: most of a large drawing's time
            if i in self.held:
                targets.append(0.0)
                weights.append(TRUNK_WEIGHT)
                continue
            passing = i >= boxes  # a part of an edge: it stays below the part above
            total = weighted = 0.0
            for side in sides:
                for o, d in side[i]:
                    weight = EDGE_WEIGHT if passing and o >= boxes else 1.0
                    total += weight
                    weighted += (x[o] + d) * weight
            targets.append(weighted / total if total else x[i])
            weights.append(EDGE_WEIGHT if passing else 1.0)
        if len(layer) == 1:
            i = layer[0]
            x[i] = min(max(targets[0], bounds[0] + self.left[i]), bounds[1] - self.right[i])
            return
        extents = [(self.left[i], self.right[i]) for i in layer]
        for i, at in zip(layer, spread(targets, extents, weights, bounds), strict=True):
            x[i] = at

    def heights(self, x: Sequence[float]) -> tuple[float, list[float]]:
        """Return the height of all layers, and the middle of each item's layer.

        Edges that move far sideways get more height.
        """
        far = [0.0] * (len(self.layers) + 1)
        for b, above in enumerate(self.above):
            for a, shift in above:
                far[self.layer[b]] = max(far[self.layer[b]], abs(x[a] + shift - x[b]))
        texts = {self.layer[i] for i in self.texts.values()}
        self.tall: list[float] = []
        at = 0.0
        middles = []
        for k, layer in enumerate(self.layers):
            boxes = (self.items[i].height for i in layer if i < len(self.items))
            tall = max(boxes, default=LABEL_HEIGHT * (k in texts))
            at += min(MIN_CURVE_HEIGHT + far[k] / 12, MAX_CURVE_HEIGHT) if k else 0.0
            middles.append(at + tall / 2)
            self.tall.append(tall)
            at += tall
        return at, [middles[layer] for layer in self.layer]

    def path(self, e: int, x: Sequence[float], y: Sequence[float]) -> Iterator[tuple[float, float]]:
        """Yield the points of a line from box to box, straight through the layers in between."""
        edge = self.edges[e]
        chain = self.chains[e]
        first = chain[0]
        last = chain[-1]
        out = x[first] + edge.leave
        yield out, y[first] + self.items[first].height / 2
        yield out, y[first] + self.tall[self.layer[first]] / 2
        for item in chain[1:-1]:
            half = self.tall[self.layer[item]] / 2
            if self.layer[item] % 2 and not half:
                continue  # a layer of labels without any: one curve instead of two
            yield x[item], y[item] - half
            yield x[item], y[item] + half
        into = x[last] + edge.arrive
        yield into, y[last] - self.tall[self.layer[last]] / 2
        yield into, y[last] - self.items[last].height / 2


def spread(
    targets: Sequence[float],
    extents: Sequence[tuple[float, float]],
    weights: Sequence[float],
    bounds: tuple[float, float] = (float("-inf"), float("inf")),
) -> list[float]:
    """Return anchors in the given order within `bounds`, `ITEM_GAP` between items, nearest to
    `targets`.

    Nearest is the sum of squares with `weights`.

    >>> spread([0.0, 0.0], [(5.0, 5.0), (5.0, 5.0)], [1.0, 1.0])
    [-12.0, 12.0]
    """
    offset = 0.0
    offsets = [0.0]
    for first, second in pairwise(extents):
        offset += first[1] + second[0] + ITEM_GAP
        offsets.append(offset)
    # Weighted sum, weight and count of items that touch.
    blocks: list[tuple[float, float, int]] = []
    for target, offset, weight in zip(targets, offsets, weights, strict=False):
        total = (target - offset) * weight
        heavy = weight
        size = 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / heavy:
            before, others, many = blocks.pop()
            total += before
            heavy += others
            size += many
        blocks.append((total, heavy, size))
    low = bounds[0] + extents[0][0]
    high = bounds[1] - offsets[-1] - extents[-1][1]
    flat = []
    for total, heavy, size in blocks:
        flat += [min(max(total / heavy, low), high)] * size
    return [at + offset for at, offset in zip(flat, offsets, strict=True)]
