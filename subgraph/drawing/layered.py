"""A small graph -> positions of its boxes, edges and edge labels, top to bottom by topological rank.

Sugiyama's layered drawing. An edge is a chain of items, one in each layer between its ends, and its label is one of
these items. Items of a layer are kept apart, so boxes, labels and passing edges never overlap. Positions within a layer
are the least squares to the neighbours' positions with the order kept (pool adjacent violators).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

GAP = 18.0  # between two items of a layer
THIN = 6.0  # width of an edge that passes a layer
SWEEPS = 8  # passes over all layers
MARGIN = 8.0

Edge = tuple[int, int]


class LayoutItem(NamedTuple):
    """A node (`edge` is None), or the part of an edge in one layer."""

    node: int
    edge: Edge | None = None
    layer: int = 0


@dataclass(frozen=True)
class GraphLayout:
    """Pixels. `boxes`, `labels`: centres; `paths`: points from source to target, every second step goes straight."""

    width: float
    height: float
    boxes: dict[int, tuple[float, float]]
    labels: dict[Edge, tuple[float, float]]
    paths: dict[Edge, list[tuple[float, float]]]


def layered(
    widths: Mapping[int, float], labels: Mapping[Edge, float], box: float = 44.0, between: float = 50.0
) -> GraphLayout:
    """Place nodes (number → width) and edges (→ width of the label); numbers are in topological order.

    `box`: a node's height; `between`: from one row of boxes to the next. Edges that go back are left out. Complexity:
    linear in items, of which a layer holds each edge that passes it.
    """
    edges = [edge for edge in labels if edge[0] < edge[1] and set(edge) <= widths.keys()]
    ranks = _ranks(sorted(widths), edges)
    chains = {edge: _chain(edge, ranks) for edge in edges}
    wide = {LayoutItem(n): w for n, w in widths.items()}
    for edge, chain in chains.items():
        wide |= dict.fromkeys(chain[1:-1], THIN) | {chain[1]: labels[edge]}
    layers = _layers(widths, ranks, chains)
    joined = _neighbours(chains.values())
    _order(layers, joined)
    x = _places(layers, joined, wide)
    left = min((x[i] - wide[i] / 2 for i in wide), default=0.0) - MARGIN
    x = {item: at - left for item, at in x.items()}
    y = {item: MARGIN + box / 2 + depth * (box + between) / 2 for depth, layer in enumerate(layers) for item in layer}
    return GraphLayout(
        width=max((x[i] + wide[i] / 2 for i in wide), default=0.0) + MARGIN,
        height=max(y.values(), default=0.0) + box / 2 + MARGIN,
        boxes={n: (x[LayoutItem(n)], y[LayoutItem(n)]) for n in widths},
        labels={edge: (x[chain[1]], y[chain[1]]) for edge, chain in chains.items()},
        paths={edge: list(_path(chain, x, y, box, between)) for edge, chain in chains.items()},
    )


def _ranks(nodes: Sequence[int], edges: Iterable[Edge]) -> dict[int, int]:
    """Length of the longest path from above; a source is one rank above its first reader."""
    above: dict[int, list[int]] = {n: [] for n in nodes}
    below: dict[int, list[int]] = {n: [] for n in nodes}
    for source, target in edges:
        above[target].append(source)
        below[source].append(target)
    ranks: dict[int, int] = {}
    for n in nodes:
        ranks[n] = 1 + max((ranks[p] for p in above[n]), default=-1)
    for n in nodes:
        if not above[n] and below[n]:
            ranks[n] = min(ranks[r] for r in below[n]) - 1
    return ranks


def _chain(edge: Edge, ranks: Mapping[int, int]) -> list[LayoutItem]:
    """The items of an edge; nodes are in the even layers."""
    source, target = edge
    between = range(2 * ranks[source] + 1, 2 * ranks[target])
    return [LayoutItem(source), *(LayoutItem(source, edge, layer) for layer in between), LayoutItem(target)]


def _layers(
    nodes: Iterable[int], ranks: Mapping[int, int], chains: Mapping[Edge, Sequence[LayoutItem]]
) -> list[list[LayoutItem]]:
    layers: list[list[LayoutItem]] = [[] for _ in range(2 * max(ranks.values(), default=0) + 1)]
    for n in sorted(nodes):
        layers[2 * ranks[n]].append(LayoutItem(n))
    for edge in sorted(chains):
        for item in chains[edge][1:-1]:
            layers[item.layer].append(item)
    return layers


def _neighbours(
    chains: Iterable[Sequence[LayoutItem]],
) -> tuple[dict[LayoutItem, list[LayoutItem]], dict[LayoutItem, list[LayoutItem]]]:
    """The neighbours of each item: above, and below."""
    above: dict[LayoutItem, list[LayoutItem]] = {}
    below: dict[LayoutItem, list[LayoutItem]] = {}
    for chain in chains:
        for one, other in pairwise(chain):
            above.setdefault(other, []).append(one)
            below.setdefault(one, []).append(other)
    return above, below


def _order(
    layers: list[list[LayoutItem]],
    joined: tuple[dict[LayoutItem, list[LayoutItem]], dict[LayoutItem, list[LayoutItem]]],
) -> None:
    """Reduce crossings: sort each layer by the mean position of the neighbours, downwards and upwards in turn."""
    for sweep in range(SWEEPS):
        side = joined[sweep % 2]
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            place = {item: k for one in layers for k, item in enumerate(one)}
            now = {item: float(place[item]) for item in layer}
            layer.sort(key=lambda item: _mean([place[o] for o in side.get(item, ())], now[item]))


def _places(
    layers: list[list[LayoutItem]],
    joined: tuple[dict[LayoutItem, list[LayoutItem]], dict[LayoutItem, list[LayoutItem]]],
    wide: Mapping[LayoutItem, float],
) -> dict[LayoutItem, float]:
    x: dict[LayoutItem, float] = {}
    for layer in layers:
        x.update(zip(layer, spread([0.0] * len(layer), [wide[i] for i in layer]), strict=True))
    for sweep in range(SWEEPS):
        sides = joined if sweep >= SWEEPS - 2 else (joined[sweep % 2],)
        for layer in layers[:: -1 if sweep % 2 else 1]:
            targets = [_mean([x[o] for side in sides for o in side.get(item, ())], x[item]) for item in layer]
            x.update(zip(layer, spread(targets, [wide[i] for i in layer]), strict=True))
    return x


def spread(targets: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Centres in the given order, with `GAP` between items, nearest to `targets` (least squares).

    >>> spread([0.0, 0.0], [10.0, 10.0])
    [-14.0, 14.0]
    """
    offsets = [0.0]
    for one, other in pairwise(widths):
        offsets.append(offsets[-1] + (one + other) / 2 + GAP)
    blocks: list[tuple[float, int]] = []  # sum and count of items that touch
    for target, offset in zip(targets, offsets, strict=False):
        total, size = target - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / size:
            before, others = blocks.pop()
            total, size = total + before, size + others
        blocks.append((total, size))
    flat = [total / size for total, size in blocks for _ in range(size)]
    return [at + offset for at, offset in zip(flat, offsets, strict=False)]


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _path(
    chain: Sequence[LayoutItem],
    x: Mapping[LayoutItem, float],
    y: Mapping[LayoutItem, float],
    box: float,
    between: float,
) -> Iterable[tuple[float, float]]:
    """Points from box to box; straight through the rows in between."""
    half = {True: box / 2, False: between / 8}  # of a row of boxes, of a row of labels
    first, last = chain[0], chain[-1]
    yield x[first], y[first] + box / 2
    for item in chain[1:-1]:
        deep = half[item.layer % 2 == 0]
        yield x[item], y[item] - deep
        yield x[item], y[item] + deep
    yield x[last], y[last] - box / 2
