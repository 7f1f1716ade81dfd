"""Distance of two arrays in units of their own spread; the straight line between their values;
samples of elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from subgraph.comparison.pair import differences
from subgraph.types import Array

MAX_SAMPLE = 4096  # elements
MIN_ELEMENTS = 16  # that a straight line is fitted to
NEGLIGIBLE = 1e-3  # offset, of the spread
MIN_DROP = 20.0  # times smaller than before: then a change explains the distance


@dataclass(frozen=True)
class Distance:
    """Distance of two arrays. largest: over the spread (largest less smallest value) of the second
    array. mean: over its mean distance from its mean."""

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
    """Of equally shaped arrays. Infinite if NaN or infinity of y differ from x; NaN if those of x
    alone do."""
    y = y.reshape(-1).astype(np.float64, copy=False)
    d = np.abs(differences(x.reshape(-1), y))
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


@dataclass(frozen=True)
class LinearMap:
    """candidate = scale · reference + offset."""

    scale: float
    offset: float

    def apply(self, x: Array) -> Array:
        """Return what the line makes of an array."""
        return np.asarray(self.scale * x.astype(np.float64) + self.offset)

    def describe(self, spread: float) -> str:
        """Return the line as a formula; without an offset that is small beside the spread of the
        candidate's values."""
        offset = f" {self.offset:+.4g}" if abs(self.offset) > NEGLIGIBLE * spread else ""
        return f"candidate = {self.scale:.5g} · reference{offset}".replace("-", "−")


def fit_line(x: Array, y: Array) -> LinearMap | None:
    """Fit the least-squares line over the elements finite in both; None if x is constant or there
    are too few."""
    finite = np.isfinite(x) & np.isfinite(y)
    if np.count_nonzero(finite) < MIN_ELEMENTS:
        return None
    x, y = x[finite], y[finite]
    centered = x - x.mean()
    variance = float(centered @ centered)
    scale = float(centered @ y) / variance if variance else 0.0
    return LinearMap(scale, float(y.mean() - scale * x.mean())) if scale else None


def sample(*arrays: Array) -> tuple[Array, ...]:
    """The same elements of equally shaped arrays, flat, float64: all if there are few, else a fixed
    sample."""
    if arrays[0].size <= MAX_SAMPLE:
        return tuple(a.reshape(-1).astype(np.float64) for a in arrays)
    rng = np.random.default_rng(0)
    at = tuple(rng.integers(0, size, MAX_SAMPLE) for size in arrays[0].shape)
    return tuple(a[at].astype(np.float64) for a in arrays)
