"""Which nodes are wrong by what they read? Their values inside the candidate's whole run, against what the reference
makes of the values that they read there.

Everything behind a culprit is wrong, but only culprits, and the last nodes of fusions that are, have an error of their
own: this shows all of them at once. It takes no run of the candidate, and one or few of the reference: all nodes in one
model, as disconnected pieces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from subgraph.comparison.judge import judge
from subgraph.errors import SubcutError
from subgraph.graph.merged_cuts import MergedCut, merge_cuts, partition
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.storage.tensors import Record, load
from subgraph.trials.trial import Trials
from subgraph.verdict import Status

MOST_REGIONS = 512  # that are looked at: of more, building them takes longer than a few runs of the search


def locally_wrong(trials: Trials, regions: Sequence[Region], profile: RunResult) -> dict[int, float] | None:
    """The positions of the regions that are wrong by what they read, with their relative errors; None if unknown.

    `profile`: the candidate's whole run with inner tensors as outputs. Unknown where there are many regions, where they
    need several cuts, where the reference cannot run on the candidate's values, and in low precision, in which most
    nodes are off and only their noise would tell.
    """
    if not regions or len(regions) > MOST_REGIONS or trials.precision != "fp32":
        return None
    trials.values.need([n for r in regions for n in (*r.inputs, *r.shapes, *r.outputs)])
    values = [{**known, **seen} for known, seen in zip(trials.values.records, profile.tensors, strict=True)]
    try:
        return _wrong(trials, regions, values)
    except SubcutError:
        return None


def _wrong(
    trials: Trials, regions: Sequence[Region], values: Sequence[Mapping[str, Record]]
) -> dict[int, float] | None:
    position, cuts = {region.nodes: k for k, region in enumerate(regions)}, []
    for region in regions:
        if not _as_expected(trials, region, values):
            continue
        groups = trials.sample_groups(region, values)
        if len(groups) != 1:
            return None
        cuts.append(trials.cut(region, groups[0][1]))
    wrong: dict[int, float] = {}
    for pool in partition(cuts) if cuts else ():
        merged = merge_cuts(pool)
        for k, expected in enumerate(_on_reference(trials, merged, values)):
            for cut, names in zip(merged.pieces, merged.outputs, strict=True):
                made = {n: replace(expected[piped], name=n) for n, piped in names.items() if n in values[k]}
                errors = _errors(trials, cut.region, made, values[k])
                if errors:
                    place = position[cut.region.nodes]
                    wrong[place] = max(*errors, wrong.get(place, 0.0))
    return wrong


def _as_expected(trials: Trials, region: Region, values: Sequence[Mapping[str, Record]]) -> bool:
    """Has all that enters a region the reference's type and shape? Behind a wrong shape nothing can be compared."""
    pairs = zip(trials.values.records, values, strict=True)
    return all((k[n].dtype, k[n].shapes) == (v[n].dtype, v[n].shapes) for k, v in pairs for n in region.inputs)


def _on_reference(
    trials: Trials, merged: MergedCut, values: Sequence[Mapping[str, Record]]
) -> list[Mapping[str, Record]]:
    """What the reference makes of these values, per sample, by the merged model's names."""
    outputs: list[Mapping[str, Record]] = []
    stems = {name: f"o{i}" for i, name in enumerate(p for names in merged.outputs for p in names.values())}
    with trials.temporary_folder() as folder, trials.reference.exclusive():
        merged.save(folder / "model.onnx")
        trials.reference.load(folder.name, folder / "model.onnx")
        for sample in values:
            feeds = [replace(sample[name], name=p) for names in merged.inputs for name, p in names.items()]
            into = trials.new_folder()
            run = trials.reference.run(folder.name, into, stems, feeds)
            outputs.append({r.name: r.within(str(into)) for r in run.tensors})
        trials.reference.drop(folder.name)
    return outputs


def _errors(
    trials: Trials, region: Region, expected: Mapping[str, Record], values: Mapping[str, Record]
) -> list[float]:
    """The relative errors of the outputs that fail, 0 where there is none to measure."""
    noise = trials.region_noise(region, {**values, **expected})
    errors = []
    for name, record in expected.items():
        reference, candidate = load(record, Path("/")), load(values[name], Path("/"))
        judgement = judge(name, reference, candidate, trials.rule, trials.precision, noise.of(name))
        if judgement.status is Status.FAIL:
            error = judgement.errors.get("max_rel", math.nan)
            errors.append(0.0 if math.isnan(error) else error)
    return errors
