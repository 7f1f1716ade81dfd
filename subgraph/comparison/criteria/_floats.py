"""Errors of floats, slice by slice, and the limits that a precision sets them. For `noise`."""

from __future__ import annotations

import math

import numpy as np

from subgraph.comparison import MAX_KERNEL_ERROR, MIN_REL_TOL
from subgraph.comparison.criteria import MIN_ELEMENTS, OutputContext, Ruling
from subgraph.comparison.criteria._slices import Slices, find_probability_axis, find_slices
from subgraph.comparison.float_types import FLOATS
from subgraph.comparison.pair import Pair
from subgraph.precision import Precision
from subgraph.text import count
from subgraph.types import Array, frozen
from subgraph.verdict import NOTHING, Signature, Status

FP32 = Precision.FP32
K = dict.fromkeys(Precision, 3.0) | {FP32: 10.0}  # times the noise: explained
# Of a slice's scale: errors up to this leave it usable.
CAP = dict.fromkeys(Precision, 0.2) | {
    FP32: 1e-2,
    Precision.TF32: 0.1,
    Precision.FP16: 0.1,
}
# Least scale of values that all lie within 0 … 1: scores below are as good as 0.
MIN_SCORE_SCALE = 0.05
PRECISION_LOST = "fail, precision"
WHOLE = "the tensor"
LIMIT = "; limit {}"
MIN_IN_FULL = 1e-7  # smaller numbers are written with an exponent


@frozen
class Floats:
    """The floats of an output, or of a part of it that is judged by a separate scale.

    Attributes:
        pair: The two values.
        context: Facts about the output.
        k_option: The user's `k`. None for the default.
        floor_option: The user's `floor`. None for the default.
        part: The elements: booleans, flat, one per element (two per complex one). None for all.
        subject: Their name in sentences.
    """

    pair: Pair
    context: OutputContext
    k_option: float | None = None
    floor_option: float | None = None
    part: Array | None = None
    subject: str = WHOLE

    @property
    def counted(self) -> Array | None:
        """The elements that count, flat; None for all."""
        finite = self.pair.finite
        if self.part is not None:
            return self.part & finite
        return None if finite.all() else finite


def mask(values: Array, counted: Array | None) -> Array:
    """Return flat values, with 0 at each element that does not count."""
    if counted is None:
        return values
    return np.where(counted, values, 0.0)


def compute_difference(floats: Floats) -> Array:
    """Return |candidate − reference|, flat, 0 at each element that does not count."""
    pair = floats.pair
    return mask(pair.zero_unless_finite(pair.difference), floats.counted)


def compute_sizes(floats: Floats) -> Array:
    """Return |reference|, flat, 0 at each element that does not count."""
    pair = floats.pair
    counted = floats.counted
    if counted is None and pair.reference.dtype.name == "float32":
        return np.abs(pair.reference.reshape(-1))  # half as much memory as the pair's float64
    return mask(pair.zero_unless_finite(np.abs(pair.values[0])), counted)


@frozen
class Tolerance:
    """The precision to which an output is held.

    Attributes:
        claim: The precision that the candidate can be held to.
        model_precision: The coarsest of the float types that the output depends on: a correct run
            of a float16 model has float16's rounding errors, though the candidate computes in fp32.
        stepped: Whether the region quantizes its values. Then its own steps are the limit, whatever
            else rounds.
        k: How many times the noise is explained.
        floor: The share of a slice's scale that is explained without noise.
        step: q: half of the smallest step of the claimed type.
    """

    claim: Precision
    model_precision: Precision
    stepped: bool
    k: float
    floor: float
    step: float

    @property
    def limited_as(self) -> Precision:
        """The precision whose limits apply: int8 for a region that quantizes itself."""
        if self.stepped:
            return Precision.INT8
        return self.claim


def find_tolerance(floats: Floats) -> Tolerance:
    """Return the precision to which an output is held."""
    context = floats.context
    noise = context.noise
    coarsest = noise.coarsest_type() if noise else floats.pair.reference.dtype.name
    own = Precision.from_dtype(coarsest)
    claim = max(context.claim, own, key=Precision.roundoff)
    stepped = bool(noise and noise.quantizes())
    k = K[Precision.INT8 if stepped else claim]
    floor = MAX_KERNEL_ERROR if context.claim is FP32 else 0.0
    half_step = noise.half_step() if noise else 0.0
    return Tolerance(
        claim,
        own,
        stepped,
        k if floats.k_option is None else floats.k_option,
        floor if floats.floor_option is None else floats.floor_option,
        max(claim.half_step, context.half_step, half_step),
    )


@frozen
class OutputErrors:
    """The errors of floats, and what they are measured by, per slice.

    Attributes:
        floats: The values.
        tolerance: The precision to which they are held.
        counted: The elements that count, flat. None for all.
        difference: |candidate − reference|, flat, 0 at each element that does not count.
        slices: The slices.
        errors: E: the largest difference of each slice; 0 for a slice that is not judged.
        scales: S: the largest |reference| of each slice.
        last_rounding: eps·S + q: the effect of rounding the output itself. Perturbed runs show the
            effect of a narrower type before it.
        usable_limits: The largest error with which the values are usable.
    """

    floats: Floats
    tolerance: Tolerance
    counted: Array | None
    difference: Array
    slices: Slices
    errors: Array
    scales: Array
    last_rounding: Array
    usable_limits: Array

    def compute_explained_limits(self, noise: Array) -> Array:
        """Compute the largest error of each slice that rounding explains if it moves the slices by
        `noise`."""
        explained = self.tolerance.k * self.slices.widening * noise
        return np.asarray(
            np.maximum(
                np.maximum(explained, self.tolerance.floor * self.scales),
                MIN_REL_TOL * self.scales[0],
            )
        )

    def explains(self, noise: Array) -> bool:
        return bool((self.errors <= self.compute_explained_limits(noise)).all())

    def worst(self, limits: Array) -> int:
        """Return the slice to name, whose error is among the largest relative to its limit."""
        return self.slices.find_most_specific(np.where(self.errors > 0, self.errors / limits, 0.0))

    def sentence(
        self, relation: str, limits: Array | None = None, place: int = 0, noise: float = 0.0
    ) -> str:
        """Return the error of the full tensor: `max error 0.27, 28 % of the tensor's largest …`.

        A slice is named only if the full tensor is within its limit.

        Args:
            relation: The end; `{}` is the limit, `{noise}` the noise.
            limits: The largest error of each slice that is allowed; None without a limit.
            place: The slice that decides; 0 for the full tensor.
            noise: How far rounding moves the full tensor.
        """
        allowed = np.zeros(1) if limits is None else limits
        if not place or self.errors[0] > allowed[0]:
            error, scale, limit = (float(v[0]) for v in (self.errors, self.scales, allowed))
            return describe_error(self.floats.subject, error, scale, relation, limit, noise)
        error, scale, limit = (float(v[place]) for v in (self.errors, self.scales, allowed))
        full = describe_error(self.floats.subject, float(self.errors[0]), float(self.scales[0]))
        name = self.slices.name(place, self.floats.subject)
        share, most = _describe_share(error, scale, limit)
        own = f"{share} its own largest value {format_number(scale, 3)}" if scale else share
        return (
            f"{full}; {name} deviates by"
            f" {own}{relation.format(most, noise=format_number(noise, 2))}"
        )

    def ruling(
        self,
        status: Status,
        label: str,
        place: int,
        relation: str,
        noise: Array,
        drawn: bool,
        limits: Array | None = None,
    ) -> Ruling:
        """Return a ruling for which the slice at `place` decides; an agreement never names it.

        `drawn`: the noise was measured; the other arguments are those of `sentence`.
        """
        kind = Signature.PRECISION if label == PRECISION_LOST else Signature.MISMATCH
        signature = kind if status is Status.FAIL else None
        named = 0 if status is Status.AGREE else place
        why = self.sentence(relation, limits, named, float(noise[0]))
        if not drawn:
            return Ruling(status, label, why, signature)
        error = float(self.errors[place])
        size = float((self.slices.widening * noise)[place])
        without_noise = math.inf if error else 0.0
        ratio = error / size if size else without_noise
        return Ruling(status, label, why, signature, size, {"noise_ratio": ratio})

    @property
    def judged_together(self) -> bool:
        """Whether the numbers of a model's output are judged in low precision by one scale,
        although each of them is the only one of its kind."""
        alone = (
            self.floats.context.is_model_output
            and not self.slices.axes
            and self.floats.context.samples < MIN_ELEMENTS
        )
        return alone and self.tolerance.limited_as is not FP32 and self.floats.pair.kind == "float"

    @property
    def numbers(self) -> str:
        """`6 numbers of one sample`."""
        samples = "one sample" if self.floats.context.samples == 1 else "few samples"
        return f"{count(self.floats.pair.size, 'number')} of {samples}"

    @property
    def must_be_usable(self) -> bool:
        """Whether the values must be usable.

        In low precision intermediate tensors can have any value if the model's outputs are usable.
        """
        return self.floats.context.is_model_output or self.tolerance.limited_as is FP32

    @property
    def hidden(self) -> str:
        """The label of an output whose limit would hide any bug: `NOTHING` for a model's output,
        else ""."""
        if self.floats.context.is_model_output:
            return NOTHING
        return ""


def measure_errors(floats: Floats, difference: Array) -> OutputErrors:
    """Measure the slices of an output; `difference`: that of `compute_difference`."""
    pair = floats.pair
    reference = pair.reference
    tolerance = find_tolerance(floats)
    counted = floats.counted
    if pair.kind == "complex":
        slices = find_slices((*reference.shape, 2), {reference.ndim}, counted)
    else:
        slices = find_slices(reference.shape, {find_probability_axis(reference)}, counted)
    scales = slices.largest(compute_sizes(floats))
    own = reference.dtype.name if floats.context.noise else tolerance.model_precision.dtype
    eps = max(floats.context.claim.eps, FLOATS.get(own, FP32.eps))
    values = pair.values[0]
    unit = (
        pair.kind == "float" and float(values.min()) >= 0 and float(values.max()) <= 1 + MIN_REL_TOL
    )
    limited = np.maximum(scales, MIN_SCORE_SCALE) if unit else scales
    limits = np.maximum(
        max(CAP[tolerance.limited_as], tolerance.floor) * limited, MIN_REL_TOL * scales[0]
    )
    return OutputErrors(
        floats,
        tolerance,
        counted,
        difference,
        slices,
        np.where(slices.judged, slices.largest(difference), 0.0),
        scales,
        np.asarray(eps * scales + tolerance.step),
        np.asarray(np.maximum(limits, tolerance.k * tolerance.step)),
    )


def describe_error(
    subject: str,
    error: float,
    scale: float,
    relation: str = "",
    limit: float = 0.0,
    noise: float = 0.0,
) -> str:
    """Return an error and its limit as shares of the scale, which is the largest value.

    A value above the scale is a plain number.

    Args:
        subject: The tensor, or a part of it.
        error: The largest error.
        scale: The largest value.
        relation: As in `OutputErrors.sentence`.
        limit: The largest error that is allowed.
        noise: How far rounding moves the tensor.
    """
    share, most = _describe_share(error, scale, limit)
    if noise <= scale:
        moved = _describe_share(noise, scale, 0.0)[0].removesuffix(" of")
    else:
        moved = format_number(noise, 2)
    end = relation.format(most, noise=moved)
    where, owner = ("", "the tensor's") if subject == WHOLE else (f" in {subject}", "its")
    if not scale:
        return f"max error {share}{where}{end}"
    return (
        f"max error {format_number(error, 2)}{where}, {share} {owner} largest value"
        f" {format_number(scale, 3)}{end}"
    )


def _describe_share(error: float, scale: float, limit: float) -> tuple[str, str]:
    """Return an error relative to its scale, `35 % of` or `more than`, and its limit."""
    if not scale:
        error_text, limit_text = _format_distinctly(error, limit)
        return f"{error_text} where 0 is expected", limit_text
    error_text, limit_text = _format_distinctly(100 * error / scale, 100 * limit / scale)
    share = f"{error_text} % of" if error <= scale else "more than"
    return share, f"{limit_text} %" if limit <= scale else format_number(limit, 2)


def _format_distinctly(error: float, limit: float) -> tuple[str, str]:
    """Return both with the fewest digits, at least two, that show which is larger."""
    for digits in range(2, 18):
        texts = format_number(error, digits), format_number(limit, digits)
        if texts[0] != texts[1]:
            break
    return texts


def format_number(value: float, digits: int) -> str:
    """Return a number with N significant digits; from a millionth to a million in
    full: `0.000012`."""
    if 10**digits - 0.5 <= value < 1e6:
        return f"{value:.0f}"
    if MIN_IN_FULL <= value < 1e-4:
        return np.format_float_positional(float(f"{value:.{digits}g}"), trim="-")
    return f"{value:.{digits}g}"
