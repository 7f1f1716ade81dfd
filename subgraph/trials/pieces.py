"""Regions -> what each of them shows alone on reference values, within a limited number of runs and
a limited time.

A region runs as part of a pool if the candidate takes merged cuts and the result is conclusive
there; otherwise alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from subgraph.errors import ModelError, OutOfTime
from subgraph.graph.graph import VALUE, Graph
from subgraph.graph.quantization import makes_steps
from subgraph.graph.region import Region, above_until
from subgraph.runtime.run_result import RunResult
from subgraph.trials.pooled_runs import pooled_results
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.trial import Trials

POOL = 256  # regions that are cut before the candidate runs them, in as few pools as hold them
MAX_SECONDS, MAX_WHOLE = (
    60.0,
    10,
)  # limit of all runs: the longer of a time, and of so many runs of the full model

Shown = TypeVar("Shown")


def run_pieces(
    trials: Trials,
    regions: Sequence[Region],
    judge: Callable[[Region, RunResult], Shown],
    is_conclusive: Callable[[Shown], bool],
    most: float = math.inf,
    part: float = 1.0,
) -> Iterator[Shown | None]:
    """Judge each region; None where the candidate was not asked.

    Args:
        judge: turns the result of a region into what it shows.
        is_conclusive: whether this suffices if the region ran in a pool; otherwise it is run alone.
        most: number of new runs after which no further one is made.
        part: share of the time limit that these regions may take.
    """
    whole = trials.verdict(trials.model.whole())
    limit = part * max(MAX_SECONDS, MAX_WHOLE * (whole.build + whole.run))
    end = time.monotonic() + trials.runtime.workers.deadline.timeout(limit)
    most += trials.log.extra_runs

    def is_over() -> bool:
        return time.monotonic() > end or trials.log.extra_runs >= most

    for first in range(0, len(regions), POOL):
        some = regions[first : first + POOL]
        can_pool = len(some) > 1 and trials.ask.takes_merged_cuts and not is_over()
        pooled = _pooled(trials, some) if can_pool else [None] * len(some)
        for region, result in zip(some, pooled, strict=True):
            try:
                shown = judge(region, result) if result else None
                if shown is None or not is_conclusive(shown):
                    shown = None if is_over() else judge(region, trials.run_extra(region))
                yield shown
            except (ModelError, OutOfTime):
                yield None


def _pooled(trials: Trials, regions: Sequence[Region]) -> Sequence[RunResult | None]:
    """The result of each region in its pool, where it has one."""
    try:
        return pooled_results(trials, regions)
    except (ModelError, OutOfTime):
        return [None] * len(regions)


def pieces_between_quantizers(model: ReferenceModel) -> list[Region]:
    """For each quantizer and each model output, the region that computes it from the quantized
    values before it.

    A region ends with the nodes that dequantize its codes, as runtimes fuse them. Codes that are
    only quantized again have no region: the second quantizer's has both.
    """
    graph = model.graph
    whole = model.whole()
    quantizers = [i for i in whole.nodes if makes_steps(graph.nodes[i])]
    kinds = graph.kinds(graph.makes[i][0] for i in quantizers)
    quantized = [graph.makes[i] for i in quantizers if kinds[graph.makes[i][0]] == VALUE]
    names = {name for some in quantized for name in some}
    ends = [(_dequantized(graph, some), names - _requantized(graph, some)) for some in quantized]
    ends += [((name,), names) for name in whole.outputs if name not in names]
    regions = [above_until(graph, some, stops.__contains__) for some, stops in ends]
    return [region for region in regions if region]


def _dequantized(graph: Graph, codes: Sequence[str]) -> Sequence[str]:
    """What all readers of codes dequantize; the codes themselves if others read them."""
    readers = [i for name in codes for i in graph.readers.get(name, ())]
    are_undone = readers and all(graph.ops[i] == "DequantizeLinear" for i in readers)
    if not are_undone or not {*codes}.isdisjoint(graph.outputs):
        return codes
    return [name for i in readers for name in graph.makes[i]]


def _requantized(graph: Graph, codes: Sequence[str]) -> set[str]:
    """The codes themselves, and those that are dequantized to make them: a runtime may drop one of
    the two quantizers."""
    source = graph.maker.get(graph.reads[graph.maker[codes[0]]][0])
    if source is None or graph.ops[source] != "DequantizeLinear":
        return {*codes}
    return {*codes, graph.reads[source][0]}
