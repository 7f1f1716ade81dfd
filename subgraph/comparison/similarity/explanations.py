"""Two tensors that disagree -> what would make them equal: another layout, an offset, another sample, a lost softmax.

Something is said only where it explains nearly everything: what is left of the error is small beside the spread of the
values, in the worst element and on average, and far smaller than the error was. Where many explanations fit equally
(symmetric values), none is given; of tensors with hardly any different values nothing is said.

Each is tried on a fixed sample of elements, and what fits there on all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from subgraph.comparison.pair import differences
from subgraph.comparison.precision import EPS, LARGEST
from subgraph.comparison.similarity.linear_fit import (
    FEWEST,
    SAMPLE,
    SLIGHT,
    Distance,
    LinearMap,
    fit,
    line,
    picked,
    rows,
    short,
)
from subgraph.comparison.similarity.quantized import coarse
from subgraph.comparison.similarity.rearranged import ways
from subgraph.types import Array

LEFT = 1e-2  # of the spread that an explanation may leave: what is tried moves values by all of it
ROUNDED = 16  # times the claimed precision's eps: what a region that rounds so may leave besides
EQUAL = 10.0  # times as much as the best leaves: those explain it equally well
EXACT = 1e-6  # of the spread: nothing explains better than this
MOST = 3  # explanations that fit equally; of more, none tells anything
VALUES = 8  # different ones, and so many that are wrong: fewer are like anything
ROWS = 64  # of a softmax that are looked at first
FEWEST_EACH, MOST_CHANNELS = 16, 4096  # elements of a channel that is fitted by two numbers; channels
LISTED = 4  # channels that are told
INTEGERS = "iub"


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
    reference: Array, candidate: Array, others: Mapping[str, Array] | None = None, claim: str = "fp32"
) -> list[Explanation]:
    """What the candidate's values are like, best first; empty where nothing explains them.

    Args:
        reference, candidate: numbers of any dtype; shapes may differ, not the number of elements.
        others: arrays that the candidate may hold instead, by their description: other samples, the region's inputs.
        claim: the precision that the candidate claims.

    Complexity: linear in the elements for each explanation that fits; 1 s for 10 million.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(2, 3, 8, 8))
    >>> [e.text for e in find_explanations(x, x[:, ::-1] - 0.0)], [e.text for e in find_explanations(x, x - 128)]
    (['channels 0 and 2 of axis 1 exchanged: RGB for BGR'], ['values 128 too low'])
    """
    if reference.size != candidate.size or reference.size < FEWEST or not _numbers(reference, candidate):
        return []
    with np.errstate(all="ignore"):
        asked = _asked(reference, candidate, claim)
        found = asked.explanations(others or {}) if asked.telling else []
        overflow = _overflow(reference, candidate)
        narrow = coarse(reference, candidate)
    if overflow:
        found = [Explanation(overflow, grid="range")]
    return [*found, *([Explanation(narrow[1], grid=narrow[0])] if narrow else [])]


def matching_tensors(
    reference: Array, candidate: Array, others: Mapping[str, Array], claim: str = "fp32"
) -> list[Explanation]:
    """Which of some other arrays, by their description, the candidate holds as they are; as in `find_explanations`."""
    if reference.size != candidate.size or reference.size < FEWEST or not _numbers(reference, candidate):
        return []
    with np.errstate(all="ignore"):
        asked = _asked(reference, candidate, claim)
        return _best(asked.held(others)) if asked.telling else []


def _asked(reference: Array, candidate: Array, claim: str) -> _TensorPair:
    return _TensorPair(reference, candidate, max(LEFT, ROUNDED * EPS[claim]))


def _best(found: Iterable[Explanation]) -> list[Explanation]:
    """Those that explain it equally well; none where there are many."""
    best = sorted(found, key=lambda one: one.residual)
    equal = [one for one in best if one.residual <= max(EXACT, EQUAL * best[0].residual)]
    return equal if len(equal) <= MOST else []


def _numbers(*arrays: Array) -> bool:
    return all(a.dtype.kind not in "OUSTMmcb" for a in arrays)


@dataclass(frozen=True)
class _TensorPair:
    """Two tensors, and what may be left of the difference."""

    a: Array
    b: Array
    left: float

    @cached_property
    def telling(self) -> bool:
        """Do both hold enough different values, and do enough disagree?"""
        for array in (self.a, self.b):
            (some,) = picked(array)
            finite = some[np.isfinite(some)]
            if np.unique(finite).size < VALUES or np.ptp(finite) <= EXACT * np.abs(finite).max():
                return False
        if self.plain is None:
            return True
        return self.plain.most > EXACT and int(np.count_nonzero(self.a != self.b)) >= VALUES

    @cached_property
    def plain(self) -> Distance | None:
        """The error as it is; None where the shapes differ."""
        return fit(self.a, self.b) if self.a.shape == self.b.shape else None

    @cached_property
    def spread(self) -> float:
        """Of the candidate's finite values: the largest less the least."""
        (some,) = picked(self.b)
        return float(np.ptp(some[np.isfinite(some)]))

    @cached_property
    def bulk(self) -> float:
        """Their mean distance from their mean."""
        return _centre(self.b)[1]

    def explanations(self, others: Mapping[str, Array]) -> list[Explanation]:
        """The first of these groups in which something fits: the simplest explanation."""
        groups = (itertools.chain(self.held(others), self.simple()), self.mixed(), self.per_channel())
        return next((_best(some) for group in groups if (some := list(group))), [])

    def held(self, others: Mapping[str, Array]) -> Iterator[Explanation]:
        """Other tensors, as they are."""
        for says, other in others.items():
            if other.size == self.b.size and _numbers(other):
                yield from self.tried(says, other.reshape(self.b.shape), self.b)

    def simple(self) -> Iterator[Explanation]:
        """Values in other places as they are, or other values in their places."""
        for way in ways(self.a, self.b, self.far):
            yield from self.tried(way.says, way.reference, way.candidate)
        if self.a.shape == self.b.shape:
            straight = line(*picked(self.a, self.b))
            if straight:
                yield from self.tried(straight.says(self.spread), self.a, self.b, straight)
            yield from self.functions()
            yield from self.clipped()

    def mixed(self) -> Iterator[Explanation]:
        """Values in other places, and a straight line besides."""
        for way in ways(self.a, self.b, self.far_but_for_line):
            straight = line(*picked(way.reference, way.candidate))
            if straight:
                says = f"{way.says}; and {straight.says(self.spread)}"
                yield from self.tried(says, way.reference, way.candidate, straight)

    def far(self, slices: Array, row: Array) -> Array:
        """How far some slices are from this one, on average; infinite where more than may be left."""
        d = np.abs(differences(row, slices))
        near = (d.max(axis=1) <= self.left * self.spread) & (d.mean(axis=1) <= self.left * self.bulk)
        return np.where(near, d.mean(axis=1), np.inf)

    def far_but_for_line(self, slices: Array, row: Array) -> Array:
        """The same where a straight line is between them: it makes mean and deviation those of the candidate."""
        (mean, bulk), (other, its) = _centre(self.a), _centre(self.b)
        moved = (slices - mean) * (its / bulk) if bulk else slices - mean
        return np.fmin(self.far(other + moved, row), self.far(other - moved, row))

    def tried(
        self, says: str, x: Array, y: Array, change: Callable[[Array], Array] = lambda x: x
    ) -> Iterator[Explanation]:
        """One explanation: y = change(x); yielded where it holds, first on a sample, then on all."""
        some, given = picked(x, y)
        before = self.plain or Distance(math.inf, math.inf)
        rough = fit(change(some), given)
        if max(rough.most, rough.mean) > 2 * self.left:
            return
        whole = fit(change(x), y)
        if whole.explains(before, self.left):
            yield Explanation(says, whole.most)

    # ------------------------------------------------------------------------------------------ other values

    def functions(self) -> Iterator[Explanation]:
        """An activation that is missing, or there once more."""
        for says, x, y in (("missing", self.b, self.a), ("once more", self.a, self.b)):
            for name, function in FUNCTIONS.items():
                yield from self.tried(f"{name} {says}", x, y, function)
            for axis in range(self.a.ndim):
                if _sums_to_one(y, axis):
                    yield from self.tried(f"softmax {says} (axis {axis})", _softmax(x, axis), y)
        yield from self.tried("ReLU missing", self.b, self.a, _relu)

    def clipped(self) -> Iterator[Explanation]:
        """Cut off at the candidate's largest or least value, where several elements stand."""
        low, high = float(np.nanmin(self.b)), float(np.nanmax(self.b))
        room = self.left * (high - low)
        over, under = np.count_nonzero(self.a > high + room), np.count_nonzero(self.a < low - room)
        says = [f"{word} {short(at)}" for word, at, n in (("below", low, under), ("above", high, over)) if n > 1]
        if says and math.isfinite(high - low):
            yield from self.tried(f"cut off {' and '.join(says)}", self.a, self.b, lambda v: np.clip(v, low, high))

    def per_channel(self) -> Iterator[Explanation]:
        """Each slice of the second or the last axis with a scale and an offset of its own."""
        if self.a.shape != self.b.shape or self.a.ndim < 2:
            return
        for axis in dict.fromkeys((1, self.a.ndim - 1)):
            size = self.a.shape[axis]
            if 1 < size <= MOST_CHANNELS and self.a.size >= FEWEST_EACH * size:
                yield from self.by_channel(axis)

    def by_channel(self, axis: int) -> Iterator[Explanation]:
        """Straight lines, one per slice of this axis."""
        size = self.a.shape[axis]
        x, y = (rows(v, axis, max(2 * FEWEST_EACH, SAMPLE // size)) for v in (self.a, self.b))
        lines = [line(x[:, k], y[:, k]) or LinearMap(1.0, 0.0) for k in range(size)]
        scales, offsets = (np.array([getattr(one, name) for one in lines]) for name in ("scale", "offset"))
        rough = fit(scales * x + offsets, y)
        if max(rough.most, rough.mean) <= 2 * self.left:
            x, y = (np.moveaxis(v, axis, -1) for v in (self.a, self.b))
            yield from self.tried(_by_channel(scales, offsets, self.spread, axis), scales * x + offsets, y)


def _by_channel(scales: Array, offsets: Array, spread: float, axis: int) -> str:
    def told(values: Array) -> str:
        return ", ".join(map(short, values[:LISTED])) + (" …" if values.size > LISTED else "")

    if abs(scales - 1).max() <= SLIGHT:
        return f"an offset per channel of axis {axis} ({told(offsets)}): a bias lost or added, or a mean"
    if abs(offsets).max() <= SLIGHT * spread:
        return f"a factor per channel of axis {axis} ({told(scales)})"
    return f"scaled and shifted per channel of axis {axis}, by {told(scales)} and {told(offsets)}: a mean and a scale?"


def _centre(values: Array) -> tuple[float, float]:
    """Mean, and mean distance from it, of what is finite."""
    (some,) = picked(values)
    finite = some[np.isfinite(some)]
    mean = float(finite.mean())
    return mean, float(np.abs(finite - mean).mean())


def _sums_to_one(values: Array, axis: int) -> bool:
    """Does it look like what a softmax gives?"""
    if values.shape[axis] < 2:
        return False
    some = rows(values, axis, ROWS)
    return bool((some >= 0).all() and (np.abs(some.sum(axis=1) - 1) <= LEFT).all())


def _softmax(values: Array, axis: int) -> Array:
    wide = values.astype(np.float64)
    power = np.exp(wide - wide.max(axis=axis, keepdims=True))
    return np.asarray(power / power.sum(axis=axis, keepdims=True))


def _sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-values.astype(np.float64))))


def _tanh(values: Array) -> Array:
    return np.asarray(np.tanh(values.astype(np.float64)))


def _relu(values: Array) -> Array:
    return np.maximum(values, 0)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {"sigmoid": _sigmoid, "tanh": _tanh}


def _overflow(reference: Array, candidate: Array) -> str:
    """Infinite exactly where the reference is beyond float16's range?"""
    if reference.shape != candidate.shape or reference.dtype.kind in INTEGERS:
        return ""
    if not np.isinf(candidate).any():
        return ""
    beyond = np.abs(reference) > LARGEST["fp16"]
    lost = np.isinf(candidate) & np.isfinite(reference)
    if not lost.any() or (lost & ~beyond).any() or np.isnan(candidate).any():
        return ""
    return f"infinite where the reference is beyond {LARGEST['fp16']:.0f}, float16's largest number"


def join_explanations(explanations: Iterable[Explanation]) -> str:
    """Explanations that fit equally well, in one line."""
    return ", or ".join(e.text for e in explanations)
