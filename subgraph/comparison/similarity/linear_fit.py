"""Distance of two arrays in units of their own spread; the straight line between their values; samples of elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from subgraph.comparison.pair import differences
from subgraph.types import Array

MAX_SAMPLE = 4096  # elements
MIN_ELEMENTS = 16  # that a straight line is fitted to
MIN_DROP = 20.0  # times smaller than before: then a change explains the distance
NEAR_ONE = 0.01  # difference of a scale from 1, below which it has five digits
NEGLIGIBLE = 1e-3  # offsets, of the spread; differences of a scale from 1


@dataclass(frozen=True)
class Distance:
    """Distance of two arrays. largest: over the spread (largest less smallest value) of the second array. mean: over
    its mean distance from its mean."""

    largest: float
    mean: float

    def exceeds(self, limit: float) -> bool:
        """Is one of the numbers larger? Not if they are NaN."""
        return max(self.largest, self.mean) > limit

    def explains(self, before: Distance, allowed: float) -> bool:
        """Are both numbers within `allowed`, and far smaller than before?"""
        drops = self.largest * MIN_DROP <= before.largest and self.mean * MIN_DROP <= before.mean
        return max(self.largest, self.mean) <= allowed and drops


def measure_distance(x: Array, y: Array) -> Distance:
    """Of equally shaped arrays. Infinite if NaN or infinity of y differ from x; NaN if those of x alone do."""
    y = y.reshape(-1).astype(np.float64, copy=False)
    d = np.abs(differences(x.reshape(-1), y))
    finite = np.isfinite(y)
    if not finite.all():
        d[~finite & (d != 0)] = np.inf
        y = y[finite]
    if not y.size:
        return Distance(math.inf, math.inf)
    spread, deviation = float(np.ptp(y)), float(np.abs(y - y.mean()).mean())
    largest, mean = float(d.max()), float(d.mean())
    return Distance(largest / spread if spread else math.inf, mean / deviation if deviation else math.inf)


@dataclass(frozen=True)
class LinearMap:
    """candidate = scale · reference + offset."""

    scale: float
    offset: float

    def __call__(self, x: Array) -> Array:
        return np.asarray(self.scale * x.astype(np.float64) + self.offset)

    def describe(self, spread: float) -> str:
        """In words; `spread`: of the candidate's values, which decides whether an offset is worth mentioning."""
        no_offset = abs(self.offset) <= NEGLIGIBLE * spread
        if abs(self.scale - 1) <= NEGLIGIBLE and not no_offset:
            return f"values {format_number(abs(self.offset))} too {'low' if self.offset < 0 else 'high'}"
        if no_offset and abs(self.scale + 1) <= NEGLIGIBLE:
            return "the sign flipped"
        offset = "" if no_offset else f" {'−' if self.offset < 0 else '+'} {format_number(abs(self.offset))}"
        near_one = abs(self.scale - 1) < NEAR_ONE
        scale = f"{self.scale:.5g}" if near_one else format_number(self.scale)
        return f"candidate = {scale} · reference{offset}"


def fit_line(x: Array, y: Array) -> LinearMap | None:
    """The least-squares line over the elements finite in both; None if x is constant or there are too few."""
    x, y = x.reshape(-1).astype(np.float64), y.reshape(-1).astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    if np.count_nonzero(finite) < MIN_ELEMENTS:
        return None
    x, y = x[finite], y[finite]
    centred = x - x.mean()
    variance = float(centred @ centred)
    scale = float(centred @ y) / variance if variance else 0.0
    return LinearMap(scale, float(y.mean() - scale * x.mean())) if scale else None


def format_number(value: float) -> str:
    """Four digits, and a real minus sign."""
    return f"{value:.4g}".replace("-", "−")


def sample(*arrays: Array) -> tuple[Array, ...]:
    """The same elements of equally shaped arrays, flat, float64: all if there are few, else a fixed sample."""
    if arrays[0].size <= MAX_SAMPLE:
        return tuple(a.reshape(-1).astype(np.float64) for a in arrays)
    rng = np.random.default_rng(0)
    at = tuple(rng.integers(0, size, MAX_SAMPLE) for size in arrays[0].shape)
    return tuple(a[at].astype(np.float64) for a in arrays)
