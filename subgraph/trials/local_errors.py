"""Nodes that are wrong on their actual inputs: their values in the candidate's full run, against
the reference's results for the values that they read there.

Everything behind a culprit is wrong, but only culprits, and the last nodes of fusions that are,
have an error of their own: this shows all of them at once. It takes no run of the candidate, and
one or few of the reference: all nodes in one model, as disconnected pieces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from subgraph.comparison.criteria import OutputContext
from subgraph.comparison.judge import judge
from subgraph.errors import SubcutError
from subgraph.graph.merged_cuts import merge_cuts, partition
from subgraph.graph.region import Region
from subgraph.precision import Precision
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.storage.tensors import Record
from subgraph.trials.reference_model import region_noise
from subgraph.trials.trial import Trials
from subgraph.verdict import Status

MAX_REGIONS = (
    512  # that are looked at: of more, building them takes longer than a few runs of the search
)


def locally_wrong(
    trials: Trials, regions: Sequence[Region], profile: RunResult
) -> dict[int, float] | None:
    """The positions of the regions that are wrong given their actual inputs, with relative errors;
    None if unknown.

    `profile`: the candidate's whole run with intermediate tensors as outputs. Unknown where there
    are many regions, where they need several cuts, where the reference cannot run on the
    candidate's values, and in low precision, in which most nodes are off and only their noise would
    tell.
    """
    if not regions or len(regions) > MAX_REGIONS or trials.judge.precision is not Precision.FP32:
        return None
    trials.model.capture(*regions)
    try:
        return _wrong(trials, regions, trials.model.values_with(profile.tensors))
    except SubcutError:
        return None


def _wrong(trials: Trials, regions: Sequence[Region], values: Feeds) -> dict[int, float] | None:
    position = {region.nodes: k for k, region in enumerate(regions)}
    cuts = []
    for region in regions:
        if not trials.model.has_forms_of(values, region.inputs):
            continue  # behind a wrong shape nothing can be compared
        groups = trials.model.sample_groups(region, values)
        if len(groups) != 1:
            return None
        cuts.append(trials.model.cut(region, groups[0][1]))
    wrong: dict[int, float] = {}
    for pool in partition(cuts) if cuts else ():
        merged = merge_cuts(pool)
        made = trials.model.run_model(
            merged.model, [merged.feeds(sample) for sample in values], merged.output_names
        )
        for sample, outputs in zip(values, made, strict=True):
            for cut, expected in zip(merged.pieces, merged.split(outputs), strict=True):
                errors = _errors(
                    trials, cut.region, {n: r for n, r in expected.items() if n in sample}, sample
                )
                if errors:
                    place = position[cut.region.nodes]
                    wrong[place] = max(*errors, wrong.get(place, 0.0))
    return wrong


def _errors(
    trials: Trials, region: Region, expected: Mapping[str, Record], values: Mapping[str, Record]
) -> list[float]:
    """The relative errors of the outputs that fail, 0 where there is none to measure."""
    noise = region_noise(trials.model, region, {**values, **expected})
    errors = []
    for name, record in expected.items():
        context = OutputContext(
            name,
            trials.judge.precision,
            noise.of(name),
            has_fixed_point=trials.judge.has_fixed_point,
        )
        judgement = judge(record.value(), values[name].value(), trials.judge.rule, context)
        if judgement.status is Status.FAIL:
            error = judgement.errors.get("max_rel", math.nan)
            errors.append(0.0 if math.isnan(error) else error)
    return errors
