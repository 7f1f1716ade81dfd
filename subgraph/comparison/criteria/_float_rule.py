"""The ruling of floats that differ: whether rounding explains the error, and whether the values are
usable. For `noise`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from subgraph.comparison import (
    JUMPS,
    MAX_HEALTHY_ERROR,
    MAX_KERNEL_ERROR,
    MIN_REL_TOL,
    RANKS,
    STEPS,
)
from subgraph.comparison.criteria import MAX_BATCH_NUMBERS, MIN_ELEMENTS, Noise, Ruling, agree, fail
from subgraph.comparison.criteria._decisions import Flips, find_class_axis, find_flips
from subgraph.comparison.criteria._floats import (
    FP32,
    LIMIT,
    PRECISION_LOST,
    Floats,
    OutputErrors,
    compute_difference,
    compute_sizes,
    describe_error,
    format_number,
    mask,
    measure_errors,
)
from subgraph.comparison.pair import Pair
from subgraph.errors import ModelError
from subgraph.precision import Precision
from subgraph.text import count
from subgraph.types import Array
from subgraph.verdict import Status

EARLY_FAIL_RATIO = 10.0  # times the limit: fails after one run
# times the error of rounding after every node: perturbed runs that move farther are scaled down
MAX_NOISE_RATIO = 10.0
JUMP_QUANTILE = 0.9  # one of eight runs is expected to show 1.3 % of its elements beyond it
MAX_SHARE = 2.0  # times the share of elements that jump in perturbed runs
MAX_USEFUL_NOISE = 0.5  # of the scale: noise that explains a larger error would explain anything
# perturbed runs; those downstream of a choice or steps
NOISE_RUNS = 4
JUMP_RUNS = 8
# of an element's own value, and of the cap: with a larger error, one element alone may be wrong
MAX_ELEMENT_SHARE = 0.5
# share of the elements, and of the cap: with larger errors, so large a share may be wrong
MANY = (0.5, 0.1)
MIN_CLEAR_ERROR = 1.0  # of the scale: without noise, a smaller error is unresolved in low precision
SHAPE_VARIES = Ruling(Status.UNRESOLVED, why="the shape of this output depends on rounding")


def judge_floats(floats: Floats) -> Ruling:
    """Return the ruling of elements of which at least one is finite and differs."""
    difference = compute_difference(floats)
    error = _find_largest(difference)
    scale = floats.pair.scale if floats.part is None else _find_largest(compute_sizes(floats))
    most = MIN_REL_TOL * scale
    if error <= most:  # no slice is held to less: the slices need not be measured
        return agree(describe_error(floats.subject, error, scale, LIMIT, most))
    output = measure_errors(floats, difference)
    if output.explains(output.last_rounding):
        return _judge_explained(output, output.last_rounding, drawn=False)
    noise = floats.context.noise
    if not noise:
        return _judge_without_noise(output)
    # as few runs as needed: rounding after every node, one perturbed run, the others
    rounded = _compute_rounding(output, noise)
    jumps = noise.depends_on_choice()
    if (
        rounded is not None
        and not jumps
        and output.explains(n := _compute_noise(output, rounded, []))
    ):
        return _judge_explained(output, n)
    runs = JUMP_RUNS if jumps or noise.depends_on_steps() else NOISE_RUNS
    if runs == NOISE_RUNS:
        # One run shows a clear failure: the other three would have to move ten times as far.
        moved = _compute_deviations(output, noise.perturb(output.floats.context.claim, 1))
        if (
            moved
            and (
                output.errors
                > EARLY_FAIL_RATIO
                * output.compute_explained_limits(n := _compute_noise(output, rounded, moved))
            ).any()
        ):
            return _judge_ties(output, noise) or _judge_unexplained(output, n, rounded)
    moved = _compute_deviations(output, noise.perturb(output.floats.context.claim, runs))
    if moved is None:
        return SHAPE_VARIES
    if jumps:
        return _judge_jumps(output, rounded, moved)
    n = _compute_noise(output, rounded, moved)
    if output.explains(n):
        return _judge_explained(output, n)
    return _judge_ties(output, noise) or _judge_unexplained(output, n, rounded)


def judge_floats_without_noise(floats: Floats, why: str) -> Ruling:
    """Return the ruling for noise that could not be measured: unresolved, unless the numbers
    decide."""
    output = measure_errors(floats, compute_difference(floats))
    if (output.errors > output.usable_limits).any():
        place = output.worst(output.usable_limits)
        return fail(output.sentence(f"{LIMIT}; {why}", output.usable_limits, place))
    limits = np.maximum(
        MAX_HEALTHY_ERROR * output.scales, output.compute_explained_limits(output.last_rounding)
    )
    place = output.worst(limits)
    # Only noise shows whether rounding changes a winner.
    if (output.errors > limits).any() or _find_flips(output):
        return Ruling(Status.UNRESOLVED, why=output.sentence(f"; {why}", limits, place))
    return agree(output.sentence(LIMIT, limits))


def _compute_noise(output: OutputErrors, rounded: Array | None, moved: Sequence[Array]) -> Array:
    """Compute n of each slice from how far its elements move in perturbed runs and by rounding."""
    if moved:
        largest = output.slices.largest(np.max(moved, axis=0))
    else:
        largest = np.zeros(output.scales.shape)
    # Not by steps, which move it farther than any rounding.
    if rounded is not None and not output.tolerance.stepped:
        exact = output.slices.largest(rounded)
        most = MAX_NOISE_RATIO * (exact[0] + output.last_rounding[0])
        largest = np.maximum(largest * min(1.0, most / largest[0] if largest[0] else 1.0), exact)
    return np.asarray(largest + output.last_rounding)


def _judge_jumps(output: OutputErrors, rounded: Array | None, moved: Sequence[Array]) -> Ruling:
    """Judge elements downstream of a choice, which can jump.

    They agree if they jump no farther than in perturbed runs, and not many more of them do.

    A jump is a difference beyond k times what most elements move in perturbed runs. Elements
    that do not jump are judged by the noise without jumps.
    """
    counted = slice(None) if output.counted is None else output.counted
    typical = float(np.quantile(np.max(moved, axis=0)[counted], JUMP_QUANTILE)) + float(
        output.last_rounding[0]
    )
    largest = max(float(run.max(initial=0.0)) for run in moved)
    jump_from = output.tolerance.k * typical
    jumped = output.difference > jump_from
    if not jumped.any() or largest <= jump_from:
        n = _compute_noise(output, rounded, moved)
        return _judge_by_noise(output, n, rounded)
    share = MAX_SHARE * max(float((run > typical)[counted].mean()) for run in moved)
    allowed = int(share * output.slices.sizes[0]) + 1
    if int(jumped.sum()) > allowed or output.errors[0] > output.tolerance.k * (
        largest + output.last_rounding[0]
    ):
        jumps = f"; {count(int(jumped.sum()), 'element')} moved far, as a changed choice does"
        most = output.tolerance.k * largest / (float(output.scales[0]) or 1.0)
        why = output.sentence(jumps)
        return fail(f"{why}; rounding explains {allowed}, by up to {most:.2g} of the scale")
    part = output.floats.part
    floats = replace(output.floats, part=~jumped if part is None else part & ~jumped)
    others = measure_errors(floats, compute_difference(floats))
    without_jumps = [np.where(run > jump_from, 0.0, run) for run in moved]
    rounded_without_jumps = None if rounded is None else np.where(rounded > jump_from, 0.0, rounded)
    n = _compute_noise(others, rounded_without_jumps, without_jumps)
    ruling = _judge_by_noise(others, n, rounded)
    label = JUMPS if ruling.agrees and ruling.label == "agrees" else ruling.label
    why = f"{ruling.why}; {int(jumped.sum())} more moved far, as in perturbed runs"
    return replace(ruling, label=label, why=why)


def _judge_by_noise(output: OutputErrors, noise: Array, rounded: Array | None) -> Ruling:
    """Return the ruling if the noise is known."""
    if output.explains(noise):
        return _judge_explained(output, noise)
    return _judge_unexplained(output, noise, rounded)


def _compute_deviations(output: OutputErrors, runs: Sequence[Array]) -> list[Array] | None:
    """Compute |perturbed − reference| of each run, flat, 0 if not finite; None if
    a shape differs."""
    if any(values.shape != output.floats.pair.reference.shape for values in runs):
        return None
    if not runs:
        raise ModelError("no perturbed run returned finite values", code="noise.not-finite")
    pairs = (Pair(output.floats.pair.reference, values) for values in runs)
    return [mask(pair.zero_unless_finite(pair.difference), output.counted) for pair in pairs]


def _compute_rounding(output: OutputErrors, noise: Noise) -> Array | None:
    """Compute X: how far rounding after every node moves the elements, flat; None if unknown."""
    context = output.floats.context
    if context.claim is FP32:
        return None
    try:
        values = noise.round_nodes(context.claim)
    except ModelError:
        return None
    moved = _compute_deviations(output, [values])
    if moved is None:
        return None
    pair = output.floats.pair
    lost = pair.finite & ~Pair(pair.reference, values).finite  # beyond the range: off by anything
    claim = context.claim
    return np.asarray(np.where(lost, claim.largest if claim.narrow else pair.scale, moved[0]))


def _judge_ties(output: OutputErrors, noise: Noise) -> Ruling | None:
    """Return an agreement if equal sums may differ; None after a choice, which ties decide."""
    if noise.depends_on_choice():
        return None
    tolerance = output.tolerance
    try:
        runs = noise.break_ties(output.floats.context.claim, NOISE_RUNS, tolerance.k)
    except ModelError:  # such runs could only excuse the error
        return None
    moved = _compute_deviations(output, runs) if runs else None
    if not moved:
        return None
    last = tolerance.k * float(output.last_rounding[0])
    size, mean = (max(map(norm, moved)) + last for norm in (_find_largest, _compute_rms))
    if output.errors[0] > size or _compute_rms(output.difference) > mean:
        return None
    noise_of_ties = np.full(output.scales.shape, size / tolerance.k)
    if tolerance.claim is not FP32:  # there a softmax of large equal numbers may turn over
        ruling = _judge_explained(output, noise_of_ties)
        if not ruling.agrees:
            return ruling
    elif (output.errors > output.usable_limits).any():
        relation = "; rounding moves it by {noise} where sums are equal, which would hide any bug"
        return output.ruling(Status.UNRESOLVED, output.hidden, 0, relation, noise_of_ties, True)
    limit = np.array([size])
    why = output.sentence(f"{LIMIT}: rounding moves it this far where sums are equal", limit)
    ratio = {"noise_ratio": tolerance.k * float(output.errors[0]) / size}
    return Ruling(Status.AGREE, "ties", why, noise=size / tolerance.k, metrics=ratio)


def _judge_explained(output: OutputErrors, noise: Array, drawn: bool = True) -> Ruling:
    """Judge an error that rounding explains: it agrees if the values, and what is decided by them,
    are still useful."""
    error = output.errors[0]
    scale = output.scales[0]
    ruling = None
    if flips := _find_flips(output):
        ruling = _judge_flips(output, flips, noise, drawn)
    elif output.must_be_usable and (output.errors > output.usable_limits).any():
        place = output.worst(output.usable_limits)
        relation = "; rounding explains that, but values off by more than {} are useless"
        limits = output.usable_limits
        ruling = output.ruling(Status.FAIL, PRECISION_LOST, place, relation, noise, drawn, limits)
    undecided = (
        ruling.label == PRECISION_LOST if ruling else bool(noise[0] > output.usable_limits[0])
    )
    tolerance = output.tolerance
    if tolerance.stepped and output.floats.context.is_model_output and undecided:
        relation = "; the model turns one quantization step into {noise} of its output"
        return output.ruling(Status.UNRESOLVED, STEPS, 0, relation, noise, drawn)
    sampled = output.floats.context.noise
    if ruling and ruling.label == PRECISION_LOST and sampled and sampled.depends_on_ranks():
        relation = "; rounding changes the order in which TopK and the like pick values"
        return output.ruling(Status.UNRESOLVED, RANKS, 0, relation, noise, drawn)
    if ruling:
        return ruling
    if scale and error > MAX_USEFUL_NOISE * scale:
        relation = "; rounding alone moves it by {noise}, which would hide any bug"
        return output.ruling(Status.UNRESOLVED, output.hidden, 0, relation, noise, drawn)
    if doubt := _describe_doubtful_element(output):
        return output.ruling(Status.UNRESOLVED, "", 0, doubt, noise, drawn)
    limits = output.compute_explained_limits(noise)
    place = output.worst(limits)
    finer = "agrees" if tolerance.claim is tolerance.model_precision else "precision"
    finer = STEPS if tolerance.stepped else finer
    label = finer if error > MAX_KERNEL_ERROR * scale else "agrees"
    relation = LIMIT
    if label != "agrees" and output.judged_together and output.floats.pair.size < MAX_BATCH_NUMBERS:
        relation += f"; {output.numbers} were judged together, more samples show more"
    return output.ruling(Status.AGREE, label, place, relation, noise, drawn, limits)


def _describe_doubtful_element(output: OutputErrors) -> str:
    """Return a sentence about an element that may be wrong although all of them together are not.

    Returns "" if no element is in doubt.
    """
    if not output.judged_together:
        return ""
    own = compute_sizes(output.floats)
    lost = output.difference > MAX_ELEMENT_SHARE * own
    cap = output.usable_limits[0]
    doubtful = lost & (output.difference > MAX_ELEMENT_SHARE * cap)
    many, small = MANY
    if np.count_nonzero(lost & (output.difference > small * cap)) >= many * output.floats.pair.size:
        doubtful = lost
    if not doubtful.any():
        return ""
    place = int(np.argmax(np.where(doubtful, output.difference, 0.0)))
    error, size = (format_number(float(values[place]), 2) for values in (output.difference, own))
    off = f"element {place}, {size} in size, deviates by {error}"
    alike = int(np.count_nonzero(doubtful))
    more = f", {alike} of them deviate by more than half of themselves" if alike > 1 else ""
    return (
        f"; {output.numbers}{more}: {off}; {MIN_ELEMENTS} samples or more show whether rounding"
        " does that"
    )


def _find_flips(output: OutputErrors) -> Flips | None:
    """Return the changed winners of an output by which a model decides.

    Returns None if the output has no classes, or no winner changed.
    """
    pair = output.floats.pair
    context = output.floats.context
    if not context.is_model_output or pair.kind != "float" or not pair.finite.all():
        return None
    if (axis := find_class_axis(context.name, pair.reference)) is None:
        return None
    flips = find_flips(
        pair.reference,
        pair.candidate,
        axis,
        output.tolerance.claim.eps,
        output.tolerance.step,
        output.tolerance.floor,
    )
    return flips if flips.places.size else None


def _judge_flips(output: OutputErrors, flips: Flips, noise: Array, drawn: bool) -> Ruling:
    """Judge a changed winner: it is a bug if rounding cannot have changed it; else precision is
    lost."""
    source = output.floats.context.noise
    number = JUMP_RUNS if output.tolerance.stepped else NOISE_RUNS
    runs = source.perturb(output.floats.context.claim, number) if source else []
    runs = [values for values in runs if values.shape == output.floats.pair.reference.shape]
    if runs:
        wrong = ~flips.find_explained(output.floats.pair.reference, runs)
    else:
        wrong = np.zeros(flips.places.shape, bool)
    first = int(np.argmax(wrong))
    which = (
        f"expected class {flips.winners[first]}, got {flips.others[first]}"
        f" ({flips.margins[first]:.1e} less)"
    )
    what = (
        f"{flips.places.size} of {count(flips.rows, 'decision')} along axis {flips.axis}"
        f" changed: {which}"
    )
    if wrong.any():
        says = f"; {what}; rounding does not explain {int(wrong.sum())} of them"
        return output.ruling(Status.FAIL, "fail", 0, says, noise, drawn)
    return output.ruling(
        Status.FAIL, PRECISION_LOST, 0, f"; rounding explains that, but {what}", noise, drawn
    )


def _judge_unexplained(output: OutputErrors, noise: Array, rounded: Array | None) -> Ruling:
    """Return the ruling of an error that rounding does not explain.

    An error as small as those of approximate kernels has a separate label. If rounding after every
    node destroys the output, no candidate of this precision could be right.
    """
    limits = output.compute_explained_limits(noise)
    place = output.worst(limits)
    own = 0.0 if rounded is None else _find_largest(rounded)
    context = output.floats.context
    if context.is_model_output and own > output.usable_limits[0]:
        if own >= Precision.FP16.largest:
            far = "far"
        else:
            far = f"by {format_number(100 * own / output.scales[0], 2)} % of its largest value"
        relation = f"; {context.claim} itself moves the tensor {far}"
        return output.ruling(Status.FAIL, PRECISION_LOST, place, relation, noise, True)
    label = "fail"
    if context.claim is FP32 and (output.errors <= MAX_KERNEL_ERROR * output.scales).all():
        label = "approximate kernel"
    return output.ruling(Status.FAIL, label, place, LIMIT, noise, True, limits)


def _judge_without_noise(output: OutputErrors) -> Ruling:
    """Judge an error that is beyond what the last rounding explains, if no noise is known."""
    limits = output.compute_explained_limits(output.last_rounding)
    place = output.worst(limits)
    if output.floats.context.claim is FP32:
        why = f"{LIMIT}: rounding noise could not be measured"
        return fail(output.sentence(why, limits, place))
    if output.errors[0] > MIN_CLEAR_ERROR * output.scales[0]:
        return fail(output.sentence(""))
    if output.must_be_usable and (output.errors > output.usable_limits).any():
        place = output.worst(output.usable_limits)
        relation = "; rounding may explain that, but values off by more than {} are useless"
        noise = output.last_rounding
        caps = output.usable_limits
        return output.ruling(Status.FAIL, PRECISION_LOST, place, relation, noise, False, caps)
    doubt = (
        f"; {output.tolerance.claim} may explain that or not: rounding noise could not be measured"
    )
    return Ruling(Status.UNRESOLVED, why=output.sentence(doubt, limits, place))


def _find_largest(values: Array) -> float:
    return float(values.max(initial=0.0))


def _compute_rms(values: Array) -> float:
    if values.size:
        return math.sqrt(float((values**2).mean()))
    return 0.0
