"""Largest absolute difference, in the tensor's own unit."""

from __future__ import annotations

import math

from subgraph.comparison.pair import Pair
from subgraph.types import Array

SYMMETRIC = True


def measure(reference: Array, candidate: Array) -> float:
    """max|c - r|; the Chebyshev distance, msaccucmp's MaxAbsoluteError. Never NaN.

    Two finite doubles of opposite sign may be infinitely far apart.
    """
    distance = candidate - reference
    return float(max(distance.max(), -distance.min()))


def of_pair(pair: Pair) -> float:
    """Measure a pair, with exact 64-bit integers. NaN if there are no numbers to compare."""
    return pair.error if pair.measurable else math.nan
