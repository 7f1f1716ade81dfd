"""The candidate's outputs of a region -> the model's outputs, when the reference computes
everything else.

Insight: a region that was run on captured values lacks its own error if a path leaves it and
comes back. To first order errors add: the error of the region at the outputs by itself, and, for
each such detour, the reference's propagation of the error that leaves the region there. This takes
no run of the candidate. For all nodes but the culprits it is the error that remains once these are
right (measured deviation: 4e-4 of it in the median).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import product

import numpy as np

from subgraph.comparison.criteria import OutputContext
from subgraph.comparison.judge import judge
from subgraph.errors import NoRegion, SubcutError
from subgraph.graph import region as regions
from subgraph.graph.merged_cuts import merge_cuts, partition
from subgraph.graph.region import Region
from subgraph.graph.walks import find_ancestors, find_descendants, iter_predecessors
from subgraph.iterables import restrict
from subgraph.precision import Precision
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.search.passes.shrink import split_components
from subgraph.storage.tensors import Record, Records, Value, list_arrays, write_value
from subgraph.trials.reference_model import ReferenceModel, compute_region_noise, has_forms_of
from subgraph.trials.trial import Trials
from subgraph.types import Array


def propagate(model: ReferenceModel, region: Region, outputs: Feeds) -> Feeds:
    """Return the model's values, per sample, when the region has these outputs. Other values are
    the captured ones, or those of the reference below the region.

    Complexity: one run of the reference, and two more for each detour to which an error leads.

    Raises:
        ModelError: the reference cannot run these values.
    """
    graph = model.graph
    inside = set(region.nodes)
    needed = set(model.whole().nodes)
    outside = (find_descendants(graph, inside) & needed) - inside
    returning = outside & find_ancestors(graph, inside)
    values = _send_on(model, outside - returning, outputs)
    # The detours are weakly connected parts, in topological order of their first node.
    parents = {i: list(iter_predecessors(graph, i)) for i in returning}
    parts = split_components(parents, returning)
    for detour in sorted(parts, key=lambda part: min(map(graph.rank.__getitem__, part))):
        piece = find_region_of(model, detour)
        if piece is None or not differ(model, piece.inputs, outputs):
            continue
        left = model.run_on_reference(piece, outputs)
        sent = _send_on(model, (find_descendants(graph, detour) & needed) - detour, left)
        values = [
            _add_sent(model, *row) for row in zip(model.values.records, values, sent, strict=True)
        ]
    return values


def find_region_of(model: ReferenceModel, nodes: Collection[int]) -> Region | None:
    """Return the region of some nodes.

    Returns:
        None without nodes, or with only random ones, whose values are the captured ones.
    """
    try:
        if nodes:
            return regions.build_region(model.graph, nodes)
        return None
    except NoRegion:
        return None


def _send_on(model: ReferenceModel, nodes: set[int], feeds: Feeds) -> Feeds:
    """Return all values when the reference runs these nodes on the values that it is fed."""
    below = find_region_of(model, nodes)
    outputs = model.run_on_reference(below, feeds) if below else [{}] * len(feeds)
    return model.make_values(feeds, outputs)


def differ(model: ReferenceModel, names: Sequence[str], outputs: Feeds) -> bool:
    """Return whether any value of these tensors differs from the captured one."""
    pairs = zip(model.values.records, outputs, strict=True)
    return any(
        n in tensors and not _equal(captured[n], tensors[n])
        for (captured, tensors), n in product(pairs, names)
    )


def _add_sent(
    model: ReferenceModel,
    captured: Records,
    values: Records,
    changed: Records,
) -> Records:
    """Return the values with the difference that `changed` adds to the model's outputs."""
    added = {}
    for name in model.graph.outputs:
        if not _equal(captured[name], changed[name]):
            parts = [some[name].value(mapped=True) for some in (captured, values, changed)]
            combined = _sum(*parts)
            added[name] = write_value(
                name, combined, model.new_folder(), "sum", values[name].type_text
            )
    return {**values, **added}


def _sum(reference: Value, value: Value, other: Value) -> Value:
    """Return value + (other − reference); `other` for no numbers; `value` if shapes differ."""
    if not all(isinstance(array, np.ndarray) for array in (reference, value, other)):
        return other
    captured, base, changed = (np.asarray(array) for array in (reference, value, other))
    if not captured.shape == base.shape == changed.shape or base.dtype != captured.dtype:
        return value
    if captured.dtype.kind in "OUSTb":
        return np.asarray(np.where(base == captured, changed, base))
    with np.errstate(all="ignore"):
        difference = changed.astype(np.float64) - captured.astype(np.float64)
        total: Array = base.astype(np.float64) + difference
        return np.asarray(np.where(changed == captured, base, total.astype(captured.dtype)))


def _equal(record: Record, other: Record) -> bool:
    """Return whether shapes and elements are equal; NaN equals NaN."""
    if (record.form, record.dtype, record.shapes) != (other.form, other.dtype, other.shapes):
        return False
    arrays = list_arrays(record.value(mapped=True))
    others = list_arrays(other.value(mapped=True))
    pairs = zip(arrays, others, strict=True)
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


# ------------------------------------------------------------ local errors
# This finds nodes that are wrong on their actual inputs: their values in the candidate's full run
# are compared with the reference's results for the values that they read there.
#
# All nodes downstream of a culprit are wrong, but only culprits, and the last nodes of fusions that
# are culprits, have a local error: this shows all of them at once. It takes no run of the
# candidate, and one or few of the reference: all nodes in one model, as disconnected pieces.

# Regions that are run: to build more of them takes longer than a few runs of the search.
MAX_REGIONS = 512


def find_locally_wrong(
    trials: Trials, regions: Sequence[Region], profile: RunResult
) -> dict[int, float] | None:
    """Find the regions that are wrong given their actual inputs.

    Args:
        trials: The trials.
        regions: The regions.
        profile: The candidate's run of the full model with intermediate tensors as outputs.

    Returns:
        The positions of these regions, with relative errors. None if there are many regions, if
        they need several cuts, if the reference cannot run on the candidate's values, and in low
        precision, in which most nodes deviate and only their noise would distinguish them.
    """
    if not regions or len(regions) > MAX_REGIONS or trials.judge.precision is not Precision.FP32:
        return None
    trials.model.capture(*regions)
    try:
        return _find_wrong(trials, regions, trials.model.make_values(profile.tensors))
    except SubcutError:
        return None


def _find_wrong(
    trials: Trials, regions: Sequence[Region], values: Feeds
) -> dict[int, float] | None:
    position = {region.nodes: k for k, region in enumerate(regions)}
    cuts = []
    for region in regions:
        if not has_forms_of(trials.model, values, region.inputs):
            continue  # downstream of a wrong shape nothing can be compared
        groups = trials.model.sample_groups(region, values)
        if len(groups) != 1:
            return None
        cuts.append(trials.model.cut(region, groups[0][1]))
    wrong: dict[int, float] = {}
    for pool in partition(cuts) if cuts else ():
        merged = merge_cuts(pool)
        results = trials.model.run_model(
            merged.model, [merged.feeds(sample) for sample in values], merged.output_names
        )
        for sample, outputs in zip(values, results, strict=True):
            for cut, expected in zip(merged.pieces, merged.split(outputs), strict=True):
                errors = _list_errors(trials, cut.region, restrict(expected, sample), sample)
                if errors:
                    place = position[cut.region.nodes]
                    wrong[place] = max(*errors, wrong.get(place, 0.0))
    return wrong


def _list_errors(trials: Trials, region: Region, expected: Records, values: Records) -> list[float]:
    """Return the relative errors of the outputs that fail; 0 for an error that has no measure."""
    noise = compute_region_noise(trials.model, region, {**values, **expected})
    errors = []
    for name, record in expected.items():
        context = OutputContext(
            name,
            trials.judge.precision,
            noise.get_output(name),
            has_fixed_point=trials.judge.has_fixed_point,
        )
        judgement = judge(record.value(), values[name].value(), trials.judge.rule, context)
        if judgement.fails:
            error = judgement.errors.get("max_rel", math.nan)
            errors.append(0.0 if math.isnan(error) else error)
    return errors
