"""Largest absolute difference over the largest reference value: relative to the tensor's scale."""

from __future__ import annotations

import math

import numpy as np

from subgraph.comparison.pair import Pair
from subgraph.types import Array


def measure(reference: Array, candidate: Array) -> float:
    """max|c - r| / max|r|; no unit.

    An error relative to each element would explode at zeros, where rounding of the sum that gave the zero is all there
    is; relative to the tensor's scale it compares with the precision of the arithmetic. `ulp` is the one that goes
    element by element.

    Corner cases: all zeros in both: 0; a reference of zeros alone, and any other candidate: infinite. Never NaN.
    """
    distance = candidate - reference
    return _ratio(float(max(distance.max(), -distance.min())), float(np.abs(reference).max()))


def of_pair(pair: Pair) -> float:
    """The same, exact for 64-bit integers too. NaN: nothing to compare, or no numbers."""
    return _ratio(pair.error, pair.scale) if pair.measurable else math.nan


def _ratio(error: float, scale: float) -> float:
    if error == 0:
        return 0.0
    return error / scale if scale else math.inf
