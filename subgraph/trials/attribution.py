"""Region that fails -> the share of the candidate's final error that it accounts for.

D is the candidate's error at the model's outputs. P is the error that the reference makes there
when the region's outputs are replaced by the candidate's. The share of D that P accounts for is P·D
/ |D|². A region that fails only when it is cut out has an error that leads nowhere (share near 0)
or somewhere else (|P| far above |D|). If that is unclear, the region is put right inside the
candidate's run: the reference runs the region, the candidate all nodes upstream and downstream of
it, and the part of D that disappears is the *gain*.
"""

from __future__ import annotations

import math

import numpy as np

from subgraph.comparison.pair import compute_scaled_differences
from subgraph.errors import ModelError
from subgraph.graph.kinds import CONSTANT, find_kinds
from subgraph.graph.region import Region
from subgraph.graph.walks import iter_predecessors
from subgraph.precision import Precision
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.storage.tensors import Records
from subgraph.trials.judge import Judge
from subgraph.trials.propagation import find_region_of, propagate
from subgraph.trials.reference_model import ReferenceModel, has_forms_of
from subgraph.trials.trial import Trials
from subgraph.types import Array, frozen
from subgraph.verdict import ENDED, Verdict

# Measured on 20 real bugs and their false culprits: single culprits 1.00, the weaker of two serial
# ones 0.43, of two int8 ones 0.28; regions that were not culprits at most 0.251.
MIN_CULPRIT_SHARE = 0.27
# Each of k culprits on one path has a share of 1/k. So a share between these two limits counts if
# the gain is at least `MIN_GAIN_RATIO` of it. A region that fails only when it is cut out has no
# gain.
MIN_GAIN_CHECKED_SHARE = 0.05
MIN_GAIN_RATIO = 0.5
MIN_WORSE_RATIO = 1.01  # of the squared final errors: from here on the errors cancel each other
MAX_PHASES = 12  # runs for one gain
# |P| / |D| above which the region behaves otherwise inside the model: culprits at most 1.15.
MAX_LENGTH_RATIO = 3.0
# |D − D' − P| / |P|, where D' is the final error without the region: found in a simulation. It is 1
# if the region is right inside the model.
MAX_SUPERPOSED_RESIDUAL = 0.4
MIN_OTHER_RESIDUAL = 0.75
# An element's error is clipped to this part of its output's scale, also if it is not finite.
MAX_ELEMENT_ERROR = 10.0
OTHER_KINDS = frozenset("cOUS")  # kinds of numpy's types: complex numbers and strings


@frozen
class Attribution:
    """The share of the final error for which a region accounts.

    Attributes:
        share: P·D / |D|²; 1 if the region accounts for all of the final error.
        ratio: |P| / |D|. Beyond `MAX_LENGTH_RATIO`, P shows nothing about the full model, and
            `share` is the gain.
        gain: Part of D that disappears when the region is right inside the candidate's run,
            negative if D grows. None if it was not computed or cannot be known.
        made: The part that the region causes alone, P·D / |D|², if `share` is the gain only because
            errors are clipped (NaN, infinite): of three nodes that are fused, any two cause
            nothing, and without any one of them all is healed. None otherwise.
    """

    share: float
    ratio: float
    gain: float | None = None
    made: float | None = None

    @property
    def culprit(self) -> bool | None:
        """Whether the region is to blame; None if that depends on a gain that is unknown."""
        if self.ratio <= MAX_LENGTH_RATIO:
            if not MIN_GAIN_CHECKED_SHARE <= self.share < MIN_CULPRIT_SHARE:
                return self.share >= MIN_CULPRIT_SHARE
            if self.gain is None:
                return None
            return self.gain >= MIN_GAIN_RATIO * self.share
        if self.gain is None:
            return None
        return self.gain >= MIN_CULPRIT_SHARE


@frozen
class Target:
    """The error that is to be explained.

    Attributes:
        values: The model's outputs with that error, per sample; empty if the candidate returns no
            output.
        right: Nodes that the reference runs, because they are known culprits.
    """

    values: Feeds
    right: frozenset[int] = frozenset()


def make_full_target(trials: Trials, whole: RunResult | None = None) -> Target:
    """Return the error of the full model. `whole`: its result, if it differs from run to run."""
    whole = whole or trials.run(trials.full_model)
    return Target(() if whole.failure else whole.tensors)


def attribute(
    trials: Trials, region: Region, result: RunResult | None = None, target: Target | None = None
) -> Attribution | None:
    """Return the share of the target's error for which a region accounts; without a target, of the
    full model's.

    `result`: the candidate's outputs of the region, if they differ from run to run; else it is run.
    Cost: one run of the reference; a gain takes one more, and two of the candidate.

    None if the target has no outputs or right ones, if an output of the region is missing, or
    if the patched values cannot be run.

    Raises:
        BackendError: the candidate cannot be used.
    """
    target = target or make_full_target(trials)
    error = compute_error(trials.judge, target.values)
    result = result or trials.run(region)
    died = result.failure is not None and result.failure.signature in ENDED
    if (
        error is None
        or (result.failure and not died)
        or not error.any()
        or lacks_output(trials.model, region, result)
    ):
        return None
    if died or not has_forms_of(trials.model, result.tensors, region.outputs):
        gain = _compute_gain(trials, region, error, target.right)
        if gain is None:
            return None
        return Attribution(gain, math.inf, gain)
    patched = compute_error_alone(trials.judge, region, result)
    if patched is None:
        return None
    share = share_of(patched, error)
    ratio = _compute_length(patched) / _compute_length(error)
    other = trials.runtime.own_model
    # Clipped elements are garbage, which is other garbage the next time.
    has_garbage = bool((np.abs(error) >= MAX_ELEMENT_ERROR).any())
    is_garbage = share < MIN_CULPRIT_SHARE and has_garbage
    # Quantizers of the candidate's model limit an error that the reference passes on.
    is_limited = (
        share < MIN_GAIN_CHECKED_SHARE and other is not None and other.precision is Precision.INT8
    )
    clipped = is_garbage or is_limited
    use_gain = ratio > MAX_LENGTH_RATIO or clipped
    if use_gain or MIN_GAIN_CHECKED_SHARE <= share < MIN_CULPRIT_SHARE:
        gain = _compute_gain(trials, region, error, target.right)
    else:
        gain = None
    attributed = share if gain is None or not use_gain else gain
    return Attribution(
        attributed,
        math.inf if clipped else ratio,
        gain,
        share if clipped and ratio <= MAX_LENGTH_RATIO else None,
    )


def share_of(patched: Array, error: Array) -> float:
    """Return P·D / |D|²."""
    return float(patched @ error) / float(error @ error)


def compute_error_alone(judge: Judge, region: Region, result: RunResult) -> Array | None:
    """Return P: the error at the model's outputs when the region has these outputs.

    The reference computes all other nodes.

    Returns:
        None if the result is a failure, or the reference cannot compute them.
    """
    return compute_error(judge, compute_outputs_with_only(judge.model, region, result) or ())


def compute_outputs_with_only(
    model: ReferenceModel, region: Region, result: RunResult
) -> Feeds | None:
    """Return the model's values when only this region is the candidate's; None if the reference
    cannot go on."""
    if result.failure or lacks_output(model, region, result):
        return None
    try:
        return propagate(model, region, result.tensors)
    except ModelError:
        return None


def superposes(before: Array, left: Array, alone: Array) -> bool | None:
    """Return whether the error that disappeared with a region is the one that it causes alone; None
    if unclear.

    Errors of several culprits add, so that D = P + D' where D' is left without the region; an
    innocent region leaves D' = D. A culprit that the model magnifies or clips misses both.
    """
    if not alone.any():
        return None
    residual = _compute_length(before - left - alone) / _compute_length(alone)
    if residual <= MAX_SUPERPOSED_RESIDUAL:
        return True
    return False if residual >= MIN_OTHER_RESIDUAL else None


def restores_outputs(trials: Trials, region: Region) -> bool | None:
    """Return whether a candidate that fails to run the full model succeeds once the reference runs
    this region; None if unknown.

    Raises:
        BackendError: the candidate cannot be used.
    """
    values = _compute_values_without(trials, region)
    if values is None:
        return None
    return not isinstance(values, Verdict)


def _compute_gain(
    trials: Trials, region: Region, error: Array, right: frozenset[int]
) -> float | None:
    """Return the part of D that is gone when the reference runs this region; negative if the
    errors cancel each other."""
    values = _compute_values_without(trials, region, right)
    if values is None or isinstance(values, Verdict):
        return None
    left = compute_error(trials.judge, values)
    if left is None:
        return None
    size = float(error @ error)
    squared = float(left @ left)
    return 1.0 - (
        (squared / size) ** 0.5 if squared > MIN_WORSE_RATIO * size else float(left @ error) / size
    )


def lacks_output(model: ReferenceModel, region: Region, result: RunResult) -> bool:
    """Return whether the candidate omitted an output of the region."""
    kinds = find_kinds(model.graph, region.outputs)
    needed = {n for n in region.outputs if kinds[n] != CONSTANT}
    return any(needed - sample.keys() for sample in result.tensors)


# ------------------------------------------------------------ mixed runs


def _compute_values_without(
    trials: Trials, region: Region, right: frozenset[int] = frozenset()
) -> Feeds | Verdict | None:
    """Compute all values if the reference runs the region and the nodes in `right`.

    The candidate runs all other nodes.

    None if that takes too many phases, or the reference cannot run the values that enter the
    region.
    """
    values: list[Records] = [{} for _ in trials.values.records]
    # Even phases are without these nodes, odd ones of these only. A phase reads only earlier
    # phases: three if the region is convex, more if paths leave it and come back.
    inside = {*region.nodes, *right}
    graph = trials.model.graph
    phase_of: dict[int, int] = {}
    phases: dict[int, set[int]] = {}
    for i in trials.model.whole().nodes:
        own = int(i in inside)
        earlier = [phase_of[b] for b in iter_predecessors(graph, i) if b in phase_of]
        phase_of[i] = max([own, *(p + (p % 2 != own) for p in earlier)])
        phases.setdefault(phase_of[i], set()).add(i)
    if len(phases) > MAX_PHASES:
        return None
    for phase in sorted(phases):
        part = find_region_of(trials.model, phases[phase])
        if part is None:
            continue
        outputs: Feeds
        if phase % 2:
            try:
                outputs = trials.model.run_on_reference(part, values)
            except ModelError:
                return None
        else:
            result = trials.run_extra(part, values)
            if result.failure:
                return result.failure
            outputs = result.tensors
        values = [{**v, **o} for v, o in zip(values, outputs, strict=True)]
    return trials.model.make_values(values)


# ------------------------------------------------------------ errors


def _compute_length(error: Array) -> float:
    return math.sqrt(float(error @ error))


def compute_error(judge: Judge, values: Feeds) -> Array | None:
    """Return the error at all outputs of all samples as one vector, each output in units of its
    scale.

    None if there are no values, if an output is missing, is a sequence or real on one side
    alone, or has another number of elements; without the reference's sequences.
    """
    if not values:
        return None
    parts = []
    for k, (known, sample) in enumerate(zip(judge.model.values.records, values, strict=True)):
        for name in judge.model.outputs:
            if name not in sample:
                return None
            a = known[name].value()
            b = sample[name].value()
            if not isinstance(a, np.ndarray):
                continue
            if (
                not isinstance(b, np.ndarray)
                or a.size != b.size
                or (a.dtype != b.dtype and OTHER_KINDS & {a.dtype.kind, b.dtype.kind})
            ):
                return None
            mask = judge.find_mask(name, k, sample)
            parts.append(
                compute_scaled_differences(
                    a,
                    b if mask is None else np.where(mask, b.reshape(a.shape), a),
                    MAX_ELEMENT_ERROR,
                )
            )
    return np.concatenate(parts) if parts else None
