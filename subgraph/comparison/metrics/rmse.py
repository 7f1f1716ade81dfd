"""Root of the mean squared difference, in the tensor's own unit."""

from __future__ import annotations

import math

from subgraph.comparison.metrics import compute_norm
from subgraph.types import Array

SYMMETRIC = True


def measure(reference: Array, candidate: Array) -> float:
    """sqrt(Σ(c - r)² / n); msaccucmp's RootMeanSquareError. Infinite if a difference overflows;
    never NaN."""
    return compute_norm(candidate - reference) / math.sqrt(reference.size)
