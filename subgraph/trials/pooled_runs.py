"""Regions -> verdicts, run as disconnected cuts of few models: for candidates that start slowly and
take such models.

Agreement in a pool is not proof, since the cuts may influence each other: the search confirms it
with the region alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from subgraph.graph.merged_cuts import MergedCut, merge_cuts, partition
from subgraph.graph.region import Region
from subgraph.runtime.cached_runs import load_or_run
from subgraph.runtime.run_result import Job, RunResult
from subgraph.storage.digest import digest
from subgraph.trials.trial import Trials
from subgraph.verdict import Status, Verdict

POOL_PART = 4  # the tensors and weights of one pool may take this part of a worker's memory


def verdicts(trials: Trials, regions: Sequence[Region]) -> list[Verdict]:
    """The verdict on each region. One that does not agree in its pool, or has none, is run alone.

    Raises:
        BackendError: the candidate cannot be used. ModelError: the reference cannot give the
            values.
    """
    return [
        verdict if verdict and verdict.status is Status.AGREE else trials.verdict(region)
        for region, verdict in zip(regions, pooled_verdicts(trials, regions), strict=True)
    ]


def pooled_verdicts(trials: Trials, regions: Sequence[Region]) -> list[Verdict | None]:
    """The verdict on each region in its pool; None for regions that need several cuts.

    Raises: as `verdicts`.
    """
    return [
        replace(trials.judge.verdict(region, result), pooled=True) if result else None
        for region, result in zip(regions, pooled_results(trials, regions), strict=True)
    ]


def pooled_results(
    trials: Trials, regions: Sequence[Region], *, is_extra: bool = True
) -> list[RunResult | None]:
    """What the candidate makes of each region in its pool; None for regions that need several cuts.

    `is_extra`: new runs are counted as extra ones; otherwise the caller counts them.

    Raises: as `verdicts`.
    """
    trials.model.values.need([n for r in regions for n in (*r.inputs, *r.shapes, *r.outputs)])
    groups = [(region, trials.model.sample_groups(region)) for region in regions]
    cuts = [trials.model.cut(region, group[0][1]) for region, group in groups if len(group) == 1]
    found: dict[tuple[int, ...], RunResult] = {}
    memory = trials.runtime.workers.memory
    for some in partition(cuts, most_bytes=memory and memory // POOL_PART) if cuts else ():
        results = _run_pool(trials, merge_cuts(some), is_extra)
        for cut, result in zip(some, results, strict=True):
            found[cut.region.nodes] = result
    return [found.get(region.nodes) for region in regions]


def _run_pool(trials: Trials, merged: MergedCut, is_extra: bool) -> list[RunResult]:
    """The result of each cut of a pool; the whole time is divided among them equally."""
    records = trials.model.values.records
    key = digest("pool/1", [trials.processes.key(cut.region, records) for cut in merged.pieces])
    result, _ = load_or_run(trials.model.store, [key], partial(_run_model, trials, merged))
    if is_extra and not result.stored:
        trials.log.add_extra_run()
    if result.failure:
        return [result] * len(merged.pieces)
    build = result.build / len(merged.pieces)
    run = result.run / len(merged.pieces)
    others = ((),) * len(records)
    per_piece = zip(*map(merged.split, result.tensors), strict=True)
    return [
        replace(result, tensors=tensors, others=others, build=build, run=run)
        for tensors in per_piece
    ]


def _run_model(trials: Trials, merged: MergedCut, into: Path) -> RunResult:
    feeds = [merged.feeds(sample) for sample in trials.model.values.records]
    with trials.model.temporary_folder() as folder:
        merged.save(folder / "model.onnx")
        job = Job(
            folder / "model.onnx",
            feeds,
            merged.output_names,
            into,
            options=trials.runtime.candidate.options,
        )
        return trials.runtime.workers.run(job)
