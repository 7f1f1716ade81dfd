"""The candidate's outputs of a region -> the model's outputs, when the reference computes everything else.

Insight: a region that was run on captured values does not know its own error where a path leaves it and comes back. To
first order errors add: what the region gives at the outputs by itself, and, for each such detour, what the reference
makes of the error that leaves the region there. This takes no run of the candidate. For all nodes but the culprits it
is the error that is left once these are right (measured: off by 4e-4 of it in the median).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from subgraph.errors import NoRegion
from subgraph.graph import region as regions
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.runtime.run_result import Feeds
from subgraph.storage.tensors import Record, Value, load, save
from subgraph.trials.trial import Trials
from subgraph.types import Array


def propagated(trials: Trials, region: Region, outputs: Feeds) -> list[Mapping[str, Record]]:
    """The model's values, per sample, when the region has these outputs. Other values are the captured ones, or those
    of the reference below the region.

    Complexity: one run of the reference, and two more for each detour to which an error leads.

    Raises:
        ModelError: the reference cannot run these values.
    """
    graph, inside, needed = trials.graph, set(region.nodes), set(trials.whole().nodes)
    outside = (graph.descendants(inside) & needed) - inside
    returning = outside & graph.ancestors(inside)
    values = _sent_on(trials, outside - returning, outputs)
    for detour in _parts(graph, returning):
        piece = region_of(trials, detour)
        if piece is None or not _differ(trials, piece, outputs):
            continue
        left = trials.run_on_reference(piece, outputs)
        sent = _sent_on(trials, (graph.descendants(detour) & needed) - detour, left)
        values = [_added(trials, *row) for row in zip(trials.values.records, values, sent, strict=True)]
    return values


def region_of(trials: Trials, nodes: Collection[int]) -> Region | None:
    """The region of some nodes; None if there are none, or only random ones, whose values are the captured ones."""
    try:
        return regions.of_nodes(trials.graph, nodes) if nodes else None
    except NoRegion:
        return None


def _sent_on(trials: Trials, nodes: set[int], feeds: Feeds) -> list[Mapping[str, Record]]:
    """All values when the reference runs these nodes on what it is fed."""
    below = region_of(trials, nodes)
    outputs = trials.run_on_reference(below, feeds) if below else [{}] * len(feeds)
    return [{**k, **f, **o} for k, f, o in zip(trials.values.records, feeds, outputs, strict=True)]


def _parts(graph: Graph, nodes: set[int]) -> Iterator[set[int]]:
    """The weakly connected parts of some nodes, in topological order of their first node."""
    left = set(nodes)
    for start in graph.in_order(nodes):
        part, stack = set(), [start] if start in left else []
        while stack:
            i = stack.pop()
            if i in left:
                left.remove(i)
                part.add(i)
                stack += [*graph.predecessors(i), *graph.successors(i)]
        if part:
            yield part


def _differ(trials: Trials, piece: Region, outputs: Feeds) -> bool:
    """Does any value that enters a piece differ from the captured one?"""
    pairs = zip(trials.values.records, outputs, strict=True)
    return any(not _equal(_read(k[n]), _read(o[n])) for k, o in pairs for n in piece.inputs if n in o)


def _added(
    trials: Trials, known: Mapping[str, Record], values: Mapping[str, Record], sent: Mapping[str, Record]
) -> Mapping[str, Record]:
    """The values with what `sent` adds to the model's outputs."""
    added = {}
    for name in trials.graph.outputs:
        reference, value, other = (_read(some[name]) for some in (known, values, sent))
        if not _equal(reference, other):
            record, folder = values[name], trials.new_folder()
            both = _sum(reference, value, other)
            saved = save(name, both, record.type_text, folder, "sum")
            added[name] = saved.within(str(folder))
    return {**values, **added}


def _sum(reference: Value, value: Value, other: Value) -> Value:
    """value + (other − reference); `other` where these are no numbers; `value` where their shapes differ."""
    if not all(isinstance(v, np.ndarray) for v in (reference, value, other)):
        return other
    a, b, c = (np.asarray(v) for v in (reference, value, other))
    if not a.shape == b.shape == c.shape or b.dtype != a.dtype:
        return value
    if a.dtype.kind in "OUSTb":
        return np.asarray(np.where(b == a, c, b))
    with np.errstate(all="ignore"):
        wide: Array = b.astype(np.float64) + (c.astype(np.float64) - a.astype(np.float64))
        return np.asarray(np.where(c == a, b, wide.astype(a.dtype)))


def _read(record: Record) -> Value:
    return load(record, Path("/"), mapped=True)


def _equal(x: Value, y: Value) -> bool:
    """Equal shapes and elements; NaN equals NaN."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.shape == y.shape and x.dtype == y.dtype and bool(((x == y) | ((x != x) & (y != y))).all())
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(map(_equal, x, y))
    return x is y
