"""Euclidean distance over the reference's length: relative error of the tensor as a whole."""

from __future__ import annotations

import math

from subgraph.comparison.metrics import compute_norm
from subgraph.types import Array


def measure(reference: Array, candidate: Array) -> float:
    """|c - r|₂ / |r|₂; no unit. The usual relative error of numerical analysis; msaccucmp's
    RelativeEuclideanDistance.

    Corner cases: all zeros in both: 0; only in the reference: infinite (0 in msaccucmp). NaN: both
    lengths overflow.
    """
    distance = compute_norm(candidate - reference)
    length = compute_norm(reference)
    if distance == 0:
        return 0.0
    return distance / length if length else math.inf
