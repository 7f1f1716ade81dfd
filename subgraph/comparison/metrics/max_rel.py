"""Largest absolute difference over the largest reference value: relative to the tensor's scale."""

from __future__ import annotations

import math

import numpy as np

from subgraph.comparison.pair import Pair
from subgraph.types import Array


def measure(reference: Array, candidate: Array) -> float:
    """max|c - r| / max|r|; no unit.

    Relative to each element, an error would explode at zeros, which are often sums with nothing but
    rounding left. Relative to the tensor's scale it compares with the precision of the arithmetic.
    `ulp` goes element by element.

    Corner cases: all zeros in both: 0; only in the reference: infinite. Never NaN.
    """
    distance = candidate - reference
    return _divide(float(max(distance.max(), -distance.min())), float(np.abs(reference).max()))


def of_pair(pair: Pair) -> float:
    """Measure a pair, with exact 64-bit integers. NaN if there are no numbers to compare."""
    if pair.measurable:
        return _divide(pair.error, pair.scale)
    return math.nan


def _divide(error: float, scale: float) -> float:
    if error == 0:
        return 0.0
    return error / scale if scale else math.inf
