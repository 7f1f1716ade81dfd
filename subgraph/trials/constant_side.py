"""The nodes that make constants of a region, such as dequantized weights -> those that its fault
needs.

A cut holds these nodes because optimizers look at them, but they are not items of a search: no
value of the model's inputs passes through them. So each one is asked for apart: is the fault still
there if the constant that it makes replaces it?
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from subgraph.errors import SubcutError
from subgraph.graph.graph import CONSTANT, Graph
from subgraph.graph.region import Region
from subgraph.trials.trial import Trials
from subgraph.verdict import Signature, Status, Verdict

MAX_MAKERS = 32  # nodes that are asked for, with a run each
SMALLER = 4.0  # times smaller is another error
WITH_OUTPUTS = (Signature.MISMATCH, Signature.NAN, Signature.PRECISION, Signature.SHAPE)


def find_needed_makers(trials: Trials, region: Region, verdict: Verdict) -> list[int]:
    """Find the nodes that make constants of a region and without which its fault vanishes.

    Args:
        trials: the candidate, which runs the region once for each of these nodes.
        region: a region that fails alone.
        verdict: how it fails.

    Returns:
        Their indices in topological order. None if they cannot be asked for one by one.

    Raises:
        BackendError: the candidate cannot be used.
    """
    graph = trials.graph
    makers = [i for i in region.pulled if graph.ops[i] != "Constant"]
    can_fold = trials.model.freeze and not trials.runtime.own_model and not trials.runtime.is_manual
    if not can_fold or len(makers) > MAX_MAKERS:
        return []
    needed: list[int] = []
    folded: set[str] = set()
    for i in reversed(makers):  # the readers of a constant before the node that makes it
        made = set(graph.makes[i])
        if made.isdisjoint(_read_constants(graph, region, folded)):
            continue  # only a folded constant needs it
        piece = _fold_constants(graph, region, folded | made)
        try:
            found = trials.judge.verdict(piece, trials.run_extra(piece))
        except SubcutError:  # a constant of this type cannot be written
            continue
        if fails_alike(found, verdict):
            folded |= made
        else:
            needed.append(i)
    return needed[::-1]


def fails_alike(found: Verdict, verdict: Verdict) -> bool:
    """Return whether a region fails as before; another constant or input may change its error a
    little."""
    if verdict.signature not in WITH_OUTPUTS:
        return (found.status, found.signature) == (verdict.status, verdict.signature)
    fails = found.status is Status.FAIL and found.signature in WITH_OUTPUTS
    is_smaller = _error(found) * SMALLER < _error(verdict)  # not so of NaN
    return fails and not is_smaller


def _error(verdict: Verdict) -> float:
    return max((judged.errors.get("max_rel", math.inf) for judged in verdict.outputs), default=0.0)


def _fold_constants(graph: Graph, region: Region, folded: Collection[str]) -> Region:
    """The region with these constants as values of its cut, without the nodes that make them."""
    read = _read_constants(graph, region, folded)
    kept = read.difference(folded)
    pulled = tuple(i for i in region.pulled if not kept.isdisjoint(graph.makes[i]))
    weights = {n for n in graph.iter_inputs((*region.nodes, *pulled)) if graph.is_weight(n)}
    shapes = (*region.shapes, *sorted(read.intersection(folded)))
    return replace(region, pulled=pulled, shapes=shapes, weights=tuple(sorted(weights)))


def _read_constants(graph: Graph, region: Region, folded: Collection[str]) -> set[str]:
    """The constants that nodes make and that the region needs, where some are folded."""
    found: set[str] = set()
    stack = list(graph.iter_inputs(region.nodes))
    while stack:
        name = stack.pop()
        if name in found or name not in graph.maker or graph.kinds([name])[name] != CONSTANT:
            continue
        found.add(name)
        if name not in folded:
            stack += graph.reads[graph.maker[name]]
    return found
