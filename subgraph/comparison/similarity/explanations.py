"""Which transformation would make two tensors that disagree equal: another layout, an offset, another sample, a lost
softmax.

An explanation is given only if it explains nearly everything: the remaining error is small beside the spread of the
values, in the worst element and on average, and far smaller than the error was. If many explanations fit equally well
(symmetric values), none is given; nor for tensors with few different values.

Each explanation is checked on a fixed sample of elements first, and then on all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from subgraph.comparison.pair import differences
from subgraph.comparison.similarity.linear_fit import (
    MAX_SAMPLE,
    MIN_ELEMENTS,
    NEGLIGIBLE,
    Distance,
    LinearMap,
    fit_line,
    format_number,
    measure_distance,
    sample,
    sample_rows,
)
from subgraph.comparison.similarity.quantized import find_grid
from subgraph.comparison.similarity.rearranged import find_rearrangements
from subgraph.precision import Precision
from subgraph.types import Array

MAX_RESIDUAL = 1e-2  # of the spread: wrong transformations move values by all of it
MAX_ROUNDING = 16  # times eps of the claimed precision: what the rounding of a region may leave
EQUALLY_GOOD = 10.0  # times the residual of the best explanation
EXACT = 1e-6  # of the spread: no residual counts as smaller
MAX_EXPLANATIONS = 3  # that fit equally well; more tell nothing
MIN_DIFFERENT = 8  # different values, and wrong values: with fewer, anything fits
SOFTMAX_ROWS = 64  # rows whose sum is checked first
MIN_CHANNEL, MAX_CHANNELS = 16, 4096  # elements of a channel that gets a line of its own; channels
LISTED = 4  # channels whose numbers are listed


@dataclass(frozen=True)
class Explanation:
    """Why a candidate's values differ.

    Attributes:
        text: one phrase for people, `values 128 too low` for example.
        residual: what stays unexplained in the worst element, over the spread of the candidate's values.
        grid: how values were narrowed (fp16, bf16, int8, or "range"); empty where they were moved or transformed.
    """

    text: str
    residual: float = 0.0
    grid: str = ""


def find_explanations(
    reference: Array, candidate: Array, others: Mapping[str, Array] | None = None, claim: Precision = Precision.FP32
) -> list[Explanation]:
    """Explanations of the candidate's values, the best one first; empty if there are none.

    Args:
        reference, candidate: numbers of any type; the shapes may differ, but not the number of elements.
        others: arrays that the candidate may hold instead, by their description: other samples, the region's inputs.
        claim: the precision that the candidate claims.

    Complexity: linear in the elements for each explanation that fits; 1 s for 10 million.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(2, 3, 8, 8))
    >>> [e.text for e in find_explanations(x, x[:, ::-1] - 0.0)], [e.text for e in find_explanations(x, x - 128)]
    (['channels 0 and 2 of axis 1 exchanged: RGB for BGR'], ['values 128 too low'])
    """
    pair = _tensor_pair(reference, candidate, claim)
    if pair is None:
        return []
    with np.errstate(all="ignore"):
        explanations = pair.explanations(others or {}) if pair.conclusive() else []
        overflow = _describe_overflow(reference, candidate)
        grid = find_grid(reference, candidate)
    if overflow:
        explanations = [Explanation(overflow, grid="range")]
    return [*explanations, *([Explanation(grid[1], grid=grid[0])] if grid else [])]


def matching_tensors(
    reference: Array, candidate: Array, others: Mapping[str, Array], claim: Precision = Precision.FP32
) -> list[Explanation]:
    """Which other arrays, by their description, the candidate holds unchanged; as in `find_explanations`."""
    pair = _tensor_pair(reference, candidate, claim)
    with np.errstate(all="ignore"):
        return _best(pair.other_tensors(others)) if pair and pair.conclusive() else []


def _tensor_pair(reference: Array, candidate: Array, claim: Precision) -> _TensorPair | None:
    """None if the sizes differ, or if there are too few elements or no numbers."""
    if reference.size != candidate.size or reference.size < MIN_ELEMENTS or not _are_numbers(reference, candidate):
        return None
    return _TensorPair(reference, candidate, max(MAX_RESIDUAL, MAX_ROUNDING * claim.eps))


def _best(explanations: Iterable[Explanation]) -> list[Explanation]:
    """Those that fit equally well; empty if there are many, or none."""
    ranked = sorted(explanations, key=lambda e: e.residual)
    equal = [e for e in ranked if e.residual <= max(EXACT, EQUALLY_GOOD * ranked[0].residual)]
    return equal if len(equal) <= MAX_EXPLANATIONS else []


def _are_numbers(*arrays: Array) -> bool:
    return all(a.dtype.kind not in "OUSTMmcb" for a in arrays)


@dataclass(frozen=True)
class _TensorPair:
    """Reference and candidate, of equal size; `allowed`: the residual that an explanation may leave."""

    reference: Array
    candidate: Array
    allowed: float

    def conclusive(self) -> bool:
        """Do both hold enough different values, and do enough of them disagree?"""
        for values in map(_finite_sample, (self.reference, self.candidate)):
            if np.unique(values).size < MIN_DIFFERENT or np.ptp(values) <= EXACT * np.abs(values).max():
                return False
        if self.unexplained is None:
            return True
        wrong = int(np.count_nonzero(self.reference != self.candidate))
        return self.unexplained.largest > EXACT and wrong >= MIN_DIFFERENT

    @cached_property
    def unexplained(self) -> Distance | None:
        """The distance without an explanation; None if the shapes differ."""
        return measure_distance(self.reference, self.candidate) if self.same_shape else None

    @property
    def same_shape(self) -> bool:
        return bool(self.reference.shape == self.candidate.shape)

    @cached_property
    def spread(self) -> float:
        """Largest less smallest finite value of the candidate."""
        return float(np.ptp(_finite_sample(self.candidate)))

    @cached_property
    def deviation(self) -> float:
        """Mean distance of the candidate's values from their mean."""
        return _mean_and_deviation(self.candidate)[1]

    def explanations(self, others: Mapping[str, Array]) -> list[Explanation]:
        """The best of the first group in which an explanation fits; simple explanations come first."""
        simple = itertools.chain(self.other_tensors(others), self.single_changes())
        groups = (simple, self.rearranged_lines(), self.channel_lines())
        return next((_best(fits) for group in groups if (fits := list(group))), [])

    def other_tensors(self, others: Mapping[str, Array]) -> Iterator[Explanation]:
        """Other tensors, unchanged."""
        for text, other in others.items():
            if other.size == self.candidate.size and _are_numbers(other):
                yield from self.check(text, other.reshape(self.candidate.shape), self.candidate)

    def single_changes(self) -> Iterator[Explanation]:
        """Rearranged values; or changed values in their places."""
        for moved in find_rearrangements(self.reference, self.candidate, self.distances):
            yield from self.check(*moved)
        if self.same_shape:
            line = fit_line(*sample(self.reference, self.candidate))
            if line:
                yield from self.check(line.describe(self.spread), self.reference, self.candidate, line)
            yield from self.activations()
            yield from self.clipped()

    def rearranged_lines(self) -> Iterator[Explanation]:
        """Rearranged values on a straight line."""
        for text, reference, candidate in find_rearrangements(self.reference, self.candidate, self.distances_from_line):
            line = fit_line(*sample(reference, candidate))
            if line:
                yield from self.check(f"{text}; and {line.describe(self.spread)}", reference, candidate, line)

    def distances(self, slices: Array, row: Array) -> Array:
        """Mean distances of slices (n, m) from one (m,); infinite if beyond what is allowed."""
        d = np.abs(differences(row, slices))
        near = (d.max(axis=1) <= self.allowed * self.spread) & (d.mean(axis=1) <= self.allowed * self.deviation)
        return np.where(near, d.mean(axis=1), np.inf)

    def distances_from_line(self, slices: Array, row: Array) -> Array:
        """The same up to a straight line, which gives the slices the candidate's mean and deviation."""
        (mean, deviation), (other, its) = _mean_and_deviation(self.reference), _mean_and_deviation(self.candidate)
        moved = (slices - mean) * (its / deviation) if deviation else slices - mean
        return np.fmin(self.distances(other + moved, row), self.distances(other - moved, row))

    def check(
        self, text: str, x: Array, y: Array, change: Callable[[Array], Array] = lambda x: x
    ) -> Iterator[Explanation]:
        """The explanation y = change(x), if it holds."""
        some_x, some_y = sample(x, y)
        if not measure_distance(change(some_x), some_y).exceeds(2 * self.allowed):
            whole = measure_distance(change(x), y)
            if whole.explains(self.unexplained or Distance(math.inf, math.inf), self.allowed):
                yield Explanation(text, whole.largest)

    # ------------------------------------------------------------------------------------------ changed values

    def activations(self) -> Iterator[Explanation]:
        """An activation that is missing, or applied once more."""
        a, b = self.reference, self.candidate
        for state, x, y in (("missing", b, a), ("once more", a, b)):
            for name, function in ACTIVATIONS.items():
                yield from self.check(f"{name} {state}", x, y, function)
            for axis in range(a.ndim):
                if _sums_to_one(y, axis):
                    yield from self.check(f"softmax {state} (axis {axis})", _softmax(x, axis), y)
        yield from self.check("ReLU missing", b, a, lambda v: np.maximum(v, 0))

    def clipped(self) -> Iterator[Explanation]:
        """Values cut off at the candidate's smallest or largest value, if several elements have it."""
        a, low, high = self.reference, float(np.nanmin(self.candidate)), float(np.nanmax(self.candidate))
        margin = self.allowed * (high - low)
        under, over = np.count_nonzero(a < low - margin), np.count_nonzero(a > high + margin)
        limits = (("below", low, under), ("above", high, over))
        cuts = [f"{side} {format_number(limit)}" for side, limit, n in limits if n > 1]
        if cuts and math.isfinite(high - low):
            text = f"cut off {' and '.join(cuts)}"
            yield from self.check(text, a, self.candidate, lambda v: np.clip(v, low, high))

    def channel_lines(self) -> Iterator[Explanation]:
        """A straight line for each slice of the second or the last axis."""
        a, b = self.reference, self.candidate
        for axis in dict.fromkeys((1, a.ndim - 1)) if self.same_shape and a.ndim > 1 else ():
            size = a.shape[axis]
            if not (1 < size <= MAX_CHANNELS and a.size >= MIN_CHANNEL * size):
                continue
            x, y = (sample_rows(v, axis, max(2 * MIN_CHANNEL, MAX_SAMPLE // size)) for v in (a, b))
            lines = [fit_line(x[:, k], y[:, k]) or LinearMap(1.0, 0.0) for k in range(size)]
            scales, offsets = np.array([line.scale for line in lines]), np.array([line.offset for line in lines])
            if not measure_distance(scales * x + offsets, y).exceeds(2 * self.allowed):
                x, y = (np.moveaxis(v, axis, -1) for v in (a, b))
                text = _describe_channels(scales, offsets, self.spread, axis)
                yield from self.check(text, scales * x + offsets, y)


def _describe_channels(scales: Array, offsets: Array, spread: float, axis: int) -> str:
    def listed(values: Array) -> str:
        return ", ".join(map(format_number, values[:LISTED])) + (" …" if values.size > LISTED else "")

    if abs(scales - 1).max() <= NEGLIGIBLE:
        return f"an offset per channel of axis {axis} ({listed(offsets)}): a bias lost or added, or a mean"
    if abs(offsets).max() <= NEGLIGIBLE * spread:
        return f"a factor per channel of axis {axis} ({listed(scales)})"
    both = f"{listed(scales)} and {listed(offsets)}"
    return f"scaled and shifted per channel of axis {axis}, by {both}: a mean and a scale?"


def _finite_sample(values: Array) -> Array:
    (some,) = sample(values)
    return some[np.isfinite(some)]


def _mean_and_deviation(values: Array) -> tuple[float, float]:
    """Mean of the finite values, and their mean distance from it."""
    finite = _finite_sample(values)
    mean = float(finite.mean())
    return mean, float(np.abs(finite - mean).mean())


def _sums_to_one(values: Array, axis: int) -> bool:
    """Do the values look like results of a softmax?"""
    if values.shape[axis] < 2:
        return False
    rows = sample_rows(values, axis, SOFTMAX_ROWS)
    return bool((rows >= 0).all() and (np.abs(rows.sum(axis=1) - 1) <= MAX_RESIDUAL).all())


def _softmax(values: Array, axis: int) -> Array:
    wide = values.astype(np.float64)
    power = np.exp(wide - wide.max(axis=axis, keepdims=True))
    return np.asarray(power / power.sum(axis=axis, keepdims=True))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda values: 1 / (1 + np.exp(-values.astype(np.float64))),
    "tanh": lambda values: np.tanh(values.astype(np.float64)),
}


def _describe_overflow(reference: Array, candidate: Array) -> str:
    """Words for a candidate that is infinite exactly where the reference is beyond float16's range; empty otherwise."""
    if reference.shape != candidate.shape or reference.dtype.kind in "iub":
        return ""
    lost = np.isinf(candidate) & np.isfinite(reference)
    if not lost.any() or (np.abs(reference[lost]) <= Precision.FP16.largest).any() or np.isnan(candidate).any():
        return ""
    return f"infinite where the reference is beyond {Precision.FP16.largest:.0f}, float16's largest number"


def join_explanations(explanations: Iterable[Explanation]) -> str:
    """Explanations that fit equally well, in one line."""
    return ", or ".join(e.text for e in explanations)
