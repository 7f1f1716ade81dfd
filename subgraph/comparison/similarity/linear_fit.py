"""Two arrays -> how far they are apart in units of their own spread, and the straight line between their values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from subgraph.comparison.pair import differences
from subgraph.types import Array

SAMPLE = 4096  # elements
FEWEST = 16  # that a straight line is fitted to
DROP = 20.0  # times smaller than the error was: only then something explains it
SLIGHT = 1e-3  # of the spread: an offset that is none; of 1: a scale that is none


@dataclass(frozen=True)
class Distance:
    """How far two arrays are apart, in units of the spread of the second: at most, and on average."""

    most: float
    mean: float

    def explains(self, before: Distance, left: float) -> bool:
        """Is it at most `left`, and far smaller than before, in both ways?"""
        small = max(self.most, self.mean) <= left
        return small and self.most * DROP <= before.most and self.mean * DROP <= before.mean


def fit(x: Array, y: Array) -> Distance:
    """Of equally shaped arrays. NaN or an infinity on one side only is infinitely far."""
    y = y.reshape(-1).astype(np.float64, copy=False)
    d = np.abs(differences(x.reshape(-1), y))
    finite = np.isfinite(y)
    if not finite.all():
        d[~finite & (d != 0)] = np.inf
        y = y[finite]
    if not y.size:
        return Distance(math.inf, math.inf)
    spread, bulk = float(np.ptp(y)), float(np.abs(y - y.mean()).mean())
    most, mean = float(d.max()), float(d.mean())  # NaN where x alone is: never small
    return Distance(most / spread if spread else math.inf, mean / bulk if bulk else math.inf)


@dataclass(frozen=True)
class LinearMap:
    """candidate = scale · reference + offset."""

    scale: float
    offset: float

    def __call__(self, x: Array) -> Array:
        return np.asarray(self.scale * x.astype(np.float64) + self.offset)

    def says(self, spread: float) -> str:
        """In words; `spread`: of the candidate's values, beside which an offset counts or not."""
        no_offset = abs(self.offset) <= SLIGHT * spread
        if abs(self.scale - 1) <= SLIGHT:
            return f"values {short(abs(self.offset))} too {'low' if self.offset < 0 else 'high'}"
        if no_offset and abs(self.scale + 1) <= SLIGHT:
            return "the sign flipped"
        offset = "" if no_offset else f" {'−' if self.offset < 0 else '+'} {short(abs(self.offset))}"
        return f"candidate = {short(self.scale)} · reference{offset}"


def line(x: Array, y: Array) -> LinearMap | None:
    """The best straight line, least squares, over what is finite in both; None where x does not vary."""
    x, y = x.reshape(-1).astype(np.float64), y.reshape(-1).astype(np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    if np.count_nonzero(known) < FEWEST:
        return None
    x, y = x[known], y[known]
    centred = x - x.mean()
    variance = float(centred @ centred)
    scale = float(centred @ y) / variance if variance else 0.0
    return LinearMap(scale, float(y.mean() - scale * x.mean())) if scale else None


def short(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}".replace("-", "−")


def picked(*arrays: Array) -> tuple[Array, ...]:
    """The same elements of each, equally shaped: all of few, else a fixed sample; float64, one dimension."""
    if arrays[0].size <= SAMPLE:
        return tuple(a.reshape(-1).astype(np.float64) for a in arrays)
    rng = np.random.default_rng(0)
    at = tuple(rng.integers(0, size, SAMPLE) for size in arrays[0].shape)
    return tuple(a[at].astype(np.float64) for a in arrays)


def rows(values: Array, axis: int, count: int) -> Array:
    """A fixed sample of rows along an axis: (count, size of the axis), float64."""
    rng = np.random.default_rng(0)
    along = np.arange(values.shape[axis])
    at = tuple(along if k == axis else rng.integers(0, n, (count, 1)) for k, n in enumerate(values.shape))
    return np.asarray(values[at].astype(np.float64))
