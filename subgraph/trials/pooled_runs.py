"""Runs of many regions: as disconnected cuts of few models, or several at once.

A pool is for candidates that start slowly and take such models. Agreement in a pool is not proof,
since the cuts may influence each other: the search confirms it with the region alone. `run_pieces`
has a limited number of runs and a limited time; a region runs alone if the result of its pool is
not conclusive.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from subgraph.errors import ModelError, OutOfTime
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.merged_cuts import MergedCut, merge_cuts, partition
from subgraph.graph.quantization import makes_steps
from subgraph.graph.region import Region, find_upstream_until
from subgraph.graph.walks import skip_operators
from subgraph.iterables import flatten
from subgraph.runtime.run_result import Job, RunResult, load_or_run
from subgraph.storage.digest import digest
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.trial import Trials
from subgraph.verdict import Verdict

MEMORY_DIVISOR = 4  # the tensors and weights of one pool may take this part of a worker's memory
# Regions that are cut before the candidate runs them, in as few pools as hold them.
MAX_POOLED_REGIONS = 256
# limit of all runs: the longer of a time, and of this number of runs of the full model
MAX_SECONDS = 60.0
MAX_WHOLE = 10
Shown = TypeVar("Shown")


def judge_pool(trials: Trials, regions: Sequence[Region]) -> list[Verdict]:
    """Return the verdict on each region. One that does not agree in its pool, or has none, is run
    alone.

    Raises:
        BackendError: the candidate cannot be used. ModelError: the reference cannot give the
            values.
    """
    pooled = [
        trials.judge.verdict(region, result) if result else None
        for region, result in zip(regions, run_pooled(trials, regions), strict=True)
    ]
    return [
        replace(found, pooled=True) if found and found.agrees else trials.verdict(region)
        for region, found in zip(regions, pooled, strict=True)
    ]


def run_pooled(
    trials: Trials, regions: Sequence[Region], *, is_extra: bool = True
) -> list[RunResult | None]:
    """Return the candidate's result of each region in its pool; None for regions that need several
    cuts.

    `is_extra`: new runs are counted as extra ones; otherwise the caller counts them.

    Raises: as `judge_pool`.
    """
    trials.model.capture(*regions)
    groups = [(region, trials.model.sample_groups(region)) for region in regions]
    cuts = [trials.model.cut(region, group[0][1]) for region, group in groups if len(group) == 1]
    found = {}
    memory = trials.runtime.workers.memory
    for some in partition(cuts, most_bytes=memory and memory // MEMORY_DIVISOR) if cuts else ():
        merged = merge_cuts(some)
        records = trials.values.records
        keys = [trials.processes.key(cut.region, records) for cut in merged.pieces]
        run = partial(_run_model, trials, merged)
        result, _ = load_or_run(trials.model.store, [digest("pool/1", keys)], run)
        if is_extra and not result.stored:
            trials.log.add_extra_run()
        results = [result] * len(some)
        if not result.failure:  # the whole time is divided among the cuts equally
            others = ((),) * len(records)
            build = result.build / len(some)
            run_time = result.run / len(some)
            part = replace(result, others=others, build=build, run=run_time)
            per_piece = zip(*map(merged.split, result.tensors), strict=True)
            results = [replace(part, tensors=tensors) for tensors in per_piece]
        for cut, of_cut in zip(some, results, strict=True):
            found[cut.region.nodes] = of_cut
    return [found.get(region.nodes) for region in regions]


def _run_model(trials: Trials, merged: MergedCut, into: Path) -> RunResult:
    feeds = [merged.feeds(sample) for sample in trials.values.records]
    with trials.model.make_temporary_folder() as folder:
        merged.save(folder / "model.onnx")
        job = Job(
            folder / "model.onnx",
            feeds,
            merged.output_names,
            into,
            options=trials.runtime.candidate.options,
        )
        return trials.runtime.workers.run(job)


def run_pieces(
    trials: Trials,
    regions: Sequence[Region],
    judge: Callable[[Region, RunResult], Shown],
    is_conclusive: Callable[[Shown], bool],
    most: float = math.inf,
    part: float = 1.0,
) -> Iterator[Shown | None]:
    """Judge each region; yield None for a region that the candidate did not run.

    Args:
        trials: The trials.
        regions: The regions.
        judge: Function that judges the result of a region.
        is_conclusive: Whether this suffices if the region ran in a pool; otherwise it is run alone.
        most: Number of new runs after which no region is run.
        part: Share of the time limit that these regions may take.
    """
    whole = trials.verdict(trials.full_model)
    limit = part * max(MAX_SECONDS, MAX_WHOLE * (whole.build + whole.run))
    end = time.monotonic() + trials.runtime.workers.deadline.timeout(limit)
    most += trials.log.extra_runs

    def is_over() -> bool:
        return time.monotonic() > end or trials.log.extra_runs >= most

    for first in range(0, len(regions), MAX_POOLED_REGIONS):
        some = regions[first : first + MAX_POOLED_REGIONS]
        can_pool = len(some) > 1 and trials.runner.takes_merged_cuts and not is_over()
        pooled: Sequence[RunResult | None] = [None] * len(some)
        if can_pool:
            with suppress(ModelError, OutOfTime):
                pooled = run_pooled(trials, some)
        for region, result in zip(some, pooled, strict=True):
            try:
                shown = judge(region, result) if result else None
                if shown is None or not is_conclusive(shown):
                    shown = None if is_over() else judge(region, trials.run_extra(region))
                yield shown
            except (ModelError, OutOfTime):
                yield None


def list_pieces_between_quantizers(model: ReferenceModel) -> list[Region]:
    """Return the regions that compute quantizers and model outputs from earlier quantized values.

    A region ends with the nodes that dequantize its codes, as runtimes fuse them. Codes that are
    only quantized again have no region: the second quantizer's has both.
    """
    graph = model.graph
    whole = model.whole()
    quantizers = [i for i in whole.nodes if makes_steps(graph.nodes[i])]
    kinds = find_kinds(graph, (graph.makes[i][0] for i in quantizers))
    quantized = [graph.makes[i] for i in quantizers if kinds[graph.makes[i][0]] == VALUE]
    names = set(flatten(quantized))
    ends: list[tuple[Sequence[str], set[str]]] = []
    for some in quantized:
        # A runtime may drop one of two quantizers: the first one's codes are no end, either.
        source = graph.reads[graph.maker[some[0]]][0]
        before = skip_operators(graph, source, ("DequantizeLinear",))
        own = {*some} if before == source else {*some, before}
        end: Sequence[str] = some
        readers = list(flatten(graph.readers.get(name, ()) for name in some))
        are_undone = readers and all(graph.ops[i] == "DequantizeLinear" for i in readers)
        if are_undone and {*some}.isdisjoint(graph.outputs):
            end = list(graph.iter_outputs(readers))
        ends.append((end, names - own))
    ends += [((name,), names) for name in whole.outputs if name not in names]
    regions = [find_upstream_until(graph, some, stops.__contains__) for some, stops in ends]
    return [region for region in regions if region]


class ParallelRuns:
    """Runs of one candidate, `jobs` at once, first come first served. Use it as a context manager.

    There are twice as many threads: the candidate waits for no cut that is being written.
    A run that has not begun when the block ends is not executed. If the block ends by an error, the
    runs in progress are ended.
    """

    def __init__(self, trials: Trials, jobs: int) -> None:
        self.trials = trials.with_jobs(jobs)
        self.jobs = jobs
        self._executor = ThreadPoolExecutor(max_workers=jobs if jobs == 1 else 2 * jobs)
        self._running: dict[Region, Future[RunResult]] = {}
        self._seconds: dict[Region | None, float] = {}

    def begin(self, *regions: Region) -> None:
        """Run these regions, each once, when it is their turn."""
        for region in regions:
            if region not in self._running:
                self._running[region] = self._executor.submit(self._run, region)

    def result(self, region: Region) -> RunResult:
        """Return a region's result; waits for it.

        Raises:
            BackendError: the candidate cannot be used. ModelError: the reference cannot give the
                values.
        """
        self.begin(region)
        return self._running[region].result()

    def verdict(self, region: Region) -> Verdict:
        """Return the verdict on a region; waits for its run.

        Raises: as `result`.
        """
        return self.trials.judge.verdict(region, self.result(region))

    def verdicts(self, regions: Sequence[Region | None]) -> Iterator[Verdict | None]:
        """Yield the verdict on each region in this order, all of which begin at once; None for
        None.

        Raises: as `result`.
        """
        self.begin(*filter(None, regions))
        for region in regions:
            yield self.verdict(region) if region else None

    def seconds(self, regions: Sequence[Region | None]) -> float:
        """Return the mean time of a build and run of these; 0 for stored results and failures."""
        taken = [self._seconds[region] for region in regions if region in self._seconds]
        return fmean(taken) if taken else 0.0

    def _run(self, region: Region) -> RunResult:
        result = self.trials.run(region)
        self._seconds[region] = 0.0 if result.stored else result.build + result.run
        return result

    def __enter__(self) -> ParallelRuns:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            self.trials.runtime.workers.close()
        self._executor.shutdown(cancel_futures=True)
