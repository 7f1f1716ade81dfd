"""The change that would make two tensors equal that disagree: another layout, axes or channels in
another order, a scale and an offset, another sample.

An explanation is given only if it explains nearly everything: the remaining error is small relative
to the spread of the values, in the worst element and on average, and far smaller than the error.
If many explanations fit equally well (symmetric values), none is given; nor for tensors with few
different values.

Each explanation is checked on a fixed sample of elements first, and then on all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from subgraph.comparison.noise.perturb import LEVELS_OF_8_BITS, has_even_steps, round_to_claim
from subgraph.comparison.pair import compute_differences
from subgraph.comparison.similarity.rearranged import find_rearrangements
from subgraph.precision import Precision
from subgraph.types import Array, Arrays, frozen

MAX_RESIDUAL = 1e-2  # of the spread: wrong transformations move values by all of it
MAX_ROUNDING = 16  # times eps of the claimed precision: what the rounding of a region may leave
MAX_RESIDUAL_RATIO = 10.0  # times the residual of the best explanation
MIN_RESIDUAL = 1e-6  # of the spread: no residual counts as smaller
MAX_EXPLANATIONS = 3  # that fit equally well; more explain nothing
MIN_DIFFERENT = 8  # different values, and wrong values: with fewer, anything fits
MAX_SAMPLE = 4096  # elements
NO_NUMBERS = "OUSTMmcb"  # kinds of types
MIN_OVERFLOW_RATIO = 1.1  # times the largest number of a type: no rounding brings such a value back
MIN_ELEMENTS = 16  # that a straight line is fitted to
MAX_IGNORED_OFFSET = 1e-3  # offset, of the spread
MIN_DROP = 20.0  # times smaller than before: then a change explains the distance
MIN_VALUES = 32  # other than 0; fewer may lie on a grid by chance
MAX_OWN = 0.5  # of the reference's values may lie on it as well
MIN_LEVELS = 8
MIN_FINER = 4  # times as many values in the reference: else it is quantized itself


@frozen
class Explanation:
    """A reason why a candidate's values differ.

    Attributes:
        text: one phrase for people, `axes 0 and 1 exchanged: transposed` for example.
        residual: the unexplained error of the worst element, divided by the spread of the
            candidate.
        grid: the precision to which all values were rounded. None without rounding.
        beyond_range: whether large values became infinite.
    """

    text: str
    residual: float = 0.0
    grid: Precision | None = None
    beyond_range: bool = False

    @property
    def narrows(self) -> bool:
        """Whether the values are those of a narrower type; otherwise they were moved or
        transformed."""
        return self.beyond_range or self.grid is not None


def find_explanations(
    reference: Array,
    candidate: Array,
    others: Arrays | None = None,
    claim: Precision = Precision.FP32,
) -> list[Explanation]:
    """Return the explanations of the candidate's values, the best one first; can be empty.

    Args:
        reference: numbers of any type.
        candidate: numbers of any type; the shapes can differ, but not the number of elements.
        others: arrays that the candidate may hold instead, by their description: other samples.
        claim: the precision that the candidate claims.

    Complexity: linear in the elements for each explanation that fits; 1 s for 10 million.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(2, 3, 8, 8))
    >>> [e.text for e in find_explanations(x, x[:, ::-1])]
    ['channels 0 and 2 of axis 1 exchanged: RGB for BGR']
    """
    pair = _make_tensor_pair(reference, candidate, claim)
    explanations = []
    with np.errstate(all="ignore"):
        if overflow := _describe_overflow(reference, candidate):
            explanations = [Explanation(overflow, beyond_range=True)]
        elif pair and pair.is_conclusive():
            explanations = pair.explanations(others or {})
        if pair and (grid := find_grid(reference, candidate)):
            explanations.append(Explanation(grid[1], grid=grid[0]))
    return explanations


def find_matching_tensors(
    reference: Array,
    candidate: Array,
    others: Arrays,
    claim: Precision = Precision.FP32,
) -> list[Explanation]:
    """Find the other arrays, by their description, that the candidate holds unchanged; as in
    `find_explanations`."""
    pair = _make_tensor_pair(reference, candidate, claim)
    with np.errstate(all="ignore"):
        if pair and pair.is_conclusive():
            return _select_best(pair.iter_other_tensors(others))
        return []


def _make_tensor_pair(reference: Array, candidate: Array, claim: Precision) -> _TensorPair | None:
    """Make the pair; None if the sizes differ, or if there are too few elements or no numbers."""
    if (
        reference.size != candidate.size
        or reference.size < MIN_ELEMENTS
        or not _are_numbers(reference, candidate)
    ):
        return None
    unexplained = Distance(math.inf, math.inf)
    if reference.shape == candidate.shape:
        with np.errstate(all="ignore"):
            unexplained = measure_distance(reference, candidate)
    allowed = max(MAX_RESIDUAL, MAX_ROUNDING * claim.eps)
    return _TensorPair(reference, candidate, allowed, unexplained)


def _select_best(explanations: Iterable[Explanation]) -> list[Explanation]:
    """Select the explanations that fit equally well; empty if there are many, or none."""
    ranked = sorted(explanations, key=lambda e: e.residual)
    equal = [
        e
        for e in ranked
        if e.residual <= max(MIN_RESIDUAL, MAX_RESIDUAL_RATIO * ranked[0].residual)
    ]
    return equal if len(equal) <= MAX_EXPLANATIONS else []


def _are_numbers(*arrays: Array) -> bool:
    return all(a.dtype.kind not in NO_NUMBERS for a in arrays)


@frozen
class _TensorPair:
    """Reference and candidate, of equal size.

    Attributes:
        allowed: The residual that an explanation may leave.
        unexplained: The distance without an explanation; infinite if the shapes differ.
    """

    reference: Array
    candidate: Array
    allowed: float
    unexplained: Distance

    def is_conclusive(self) -> bool:
        """Return whether both hold enough different values, and enough of them disagree."""
        for values in map(_sample_finite, (self.reference, self.candidate)):
            if (
                np.unique(values).size < MIN_DIFFERENT
                or np.ptp(values) <= MIN_RESIDUAL * np.abs(values).max()
            ):
                return False
        if not self.same_shape:
            return True
        wrong = int(np.count_nonzero(self.reference != self.candidate))
        return self.unexplained.largest > MIN_RESIDUAL and wrong >= MIN_DIFFERENT

    @property
    def same_shape(self) -> bool:
        return bool(self.reference.shape == self.candidate.shape)

    def explanations(self, others: Arrays) -> list[Explanation]:
        """Return the best of those that hold."""
        reasons = list(self.iter_other_tensors(others))
        for moved in find_rearrangements(self.reference, self.candidate):
            reasons += self.check(*moved)
        line = fit_line(*sample(self.reference, self.candidate)) if self.same_shape else None
        if line:  # the rounding of a healthy kernel is not a line
            says = line.describe(float(np.ptp(_sample_finite(self.candidate))))
            reasons += self.check(says, line.apply(self.reference), self.candidate)
        return _select_best(reasons)

    def iter_other_tensors(self, others: Arrays) -> Iterator[Explanation]:
        """Yield other tensors, unchanged."""
        for text, other in others.items():
            if other.size == self.candidate.size and _are_numbers(other):
                yield from self.check(text, other.reshape(self.candidate.shape), self.candidate)

    def check(self, text: str, x: Array, y: Array) -> Iterator[Explanation]:
        """Yield the explanation that y is x, if it holds."""
        sampled = measure_distance(*sample(x, y))
        if not max(sampled.largest, sampled.mean) > 2 * self.allowed:  # also if they are NaN
            distance = measure_distance(x, y)
            if distance.explains(self.unexplained, self.allowed):
                yield Explanation(text, distance.largest)


def _sample_finite(values: Array) -> Array:
    (some,) = sample(values)
    return some[np.isfinite(some)]


def _describe_overflow(reference: Array, candidate: Array) -> str:
    """Describe a candidate that is infinite exactly where the reference is beyond float16's range.

    Returns:
        "" for any other, also for one that holds a number well beyond that range.
    """
    if reference.shape != candidate.shape or reference.dtype.kind in f"iub{NO_NUMBERS}":
        return ""
    lost = np.isinf(candidate) & np.isfinite(reference)
    held = np.abs(reference[np.isfinite(reference) & ~lost])
    if (
        not lost.any()
        or (np.abs(reference[lost]) <= Precision.FP16.largest).any()
        or (held > MIN_OVERFLOW_RATIO * Precision.FP16.largest).any()
        or np.isnan(candidate).any()
    ):
        return ""
    return (
        f"infinite where the reference is beyond {Precision.FP16.largest:.0f}, float16's largest"
        " number"
    )


def join_explanations(explanations: Iterable[Explanation]) -> str:
    """Join explanations that fit equally well into one line."""
    return ", or ".join(e.text for e in explanations)


@frozen
class Distance:
    """Distance of two arrays. largest: over the spread (largest less smallest value) of the second
    array. mean: over its mean distance from its mean."""

    largest: float
    mean: float

    def explains(self, before: Distance, allowed: float) -> bool:
        """Return whether both numbers are within `allowed`, and far smaller than before."""
        drops = self.largest * MIN_DROP <= before.largest and self.mean * MIN_DROP <= before.mean
        return max(self.largest, self.mean) <= allowed and drops


def measure_distance(x: Array, y: Array) -> Distance:
    """Measure the distance of equally shaped arrays.

    It is infinite if NaN or infinity of y differ from x, and NaN if only those of x differ.
    """
    y = y.reshape(-1).astype(np.float64, copy=False)
    d = np.abs(compute_differences(x.reshape(-1), y))
    finite = np.isfinite(y)
    if not finite.all():
        d[~finite & (d != 0)] = np.inf
        y = y[finite]
    if not y.size:
        return Distance(math.inf, math.inf)
    spread = float(np.ptp(y))
    deviation = float(np.abs(y - y.mean()).mean())
    largest = float(d.max())
    mean = float(d.mean())
    return Distance(
        largest / spread if spread else math.inf, mean / deviation if deviation else math.inf
    )


@frozen
class LinearMap:
    """candidate = scale · reference + offset."""

    scale: float
    offset: float

    def apply(self, x: Array) -> Array:
        """Return what the line makes of an array."""
        return np.asarray(self.scale * x.astype(np.float64) + self.offset)

    def describe(self, spread: float) -> str:
        """Return the line as a formula, without an offset that is negligible compared with the
        spread of the candidate's values."""
        offset = f" {self.offset:+.4g}" if abs(self.offset) > MAX_IGNORED_OFFSET * spread else ""
        return f"candidate = {self.scale:.5g} · reference{offset}".replace("-", "−")


def fit_line(x: Array, y: Array) -> LinearMap | None:
    """Fit the least-squares line over the elements finite in both; None if x is constant or there
    are too few."""
    finite = np.isfinite(x) & np.isfinite(y)
    if np.count_nonzero(finite) < MIN_ELEMENTS:
        return None
    x = x[finite]
    y = y[finite]
    centered = x - x.mean()
    variance = float(centered @ centered)
    scale = float(centered @ y) / variance if variance else 0.0
    if scale:
        return LinearMap(scale, float(y.mean() - scale * x.mean()))
    return None


def sample(*arrays: Array) -> tuple[Array, ...]:
    """Return equal positions of equally shaped arrays, flat, float64: all if there are few, else a
    fixed sample."""
    if arrays[0].size <= MAX_SAMPLE:
        return tuple(a.reshape(-1).astype(np.float64) for a in arrays)
    rng = np.random.default_rng(0)
    at = tuple(rng.integers(0, size, MAX_SAMPLE) for size in arrays[0].shape)
    return tuple(a[at].astype(np.float64) for a in arrays)


def find_grid(reference: Array, candidate: Array) -> tuple[Precision, str] | None:
    """Find the precision (bf16, fp16, int8) of the candidate's grid, and a sentence about it.

    Returns None without a grid. Complexity: a few passes unless a sample excludes a grid; both are
    sorted if the candidate has few values.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=100).astype(np.float32)
    >>> find_grid(x, x.astype(np.float16).astype(np.float32)), find_grid(x, x)
    ((<Precision.FP16: 'fp16'>, "every value is one of float16, the reference's are not"), None)
    """
    if candidate.dtype.name not in ("float32", "float64") or reference.dtype.name not in (
        "float32",
        "float64",
    ):
        return None
    x, y = (
        _select_nonzero(v.reshape(-1)[:: max(1, v.size // MAX_SAMPLE)])
        for v in (reference, candidate)
    )
    if y.size < MIN_VALUES or not x.size:
        return None
    different = np.unique(y).size
    # Every type holds a constant, a mask or small integers: 8 bits must not suffice.
    step = np.ldexp(1.0, np.frexp(np.abs(y).max())[1] - 8)
    needs_floats = different >= MIN_LEVELS and (y % step).any()
    for claim in (Precision.BF16, Precision.FP16):
        if (
            needs_floats
            and _is_on_grid(x, claim).mean() <= MAX_OWN
            and _is_on_grid(y, claim).all()
            and _is_on_grid(_select_nonzero(candidate), claim).all()
        ):
            return claim, f"every value is one of {claim.dtype}, the reference's are not"
    if different > LEVELS_OF_8_BITS:
        return None
    # Evenly spaced values are integers of 8 bits times a scale.
    levels = np.unique(_select_nonzero(candidate)).astype(np.float64)
    is_finer = np.unique(_select_nonzero(reference)).size >= MIN_FINER * levels.size
    if not (levels.size >= MIN_LEVELS and is_finer and has_even_steps(levels)):
        return None
    step = np.diff(levels).min()
    says = f"{levels.size} evenly spaced values, {step:.3g} apart: quantized to 8 bits"
    return Precision.INT8, says


def _select_nonzero(values: Array) -> Array:
    """Return the finite values without 0, which is on every grid."""
    flat = values.reshape(-1)
    return np.asarray(flat[np.isfinite(flat) & (flat != 0)])


def _is_on_grid(values: Array, claim: Precision) -> Array:
    return np.asarray(round_to_claim(values, claim) == values)
