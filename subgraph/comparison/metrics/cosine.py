"""Cosine of the angle between the two: 1 same direction, 0 at right angles, -1 opposite."""

from __future__ import annotations

import math

import numpy as np

from subgraph.comparison.metrics import compute_dot, compute_norm
from subgraph.types import Array

IDEAL = 1.0
SYMMETRIC = True
# Their products stay well inside float64.
MIN_LENGTH = 1e-100
MAX_LENGTH = 1e100


def measure(reference: Array, candidate: Array) -> float:
    """Σcr / (|c|₂ |r|₂), within -1 … 1; no unit. msaccucmp's CosineSimilarity, the usual metric of
    quantizers.

    Blind to a common factor: 2x has cosine 1 with x, and so have any two positive numbers.

    Corner cases: all zeros in both: 1. NaN: all zeros in one of the two.
    """
    first = compute_norm(reference)
    second = compute_norm(candidate)
    if first == 0 or second == 0:
        return 1.0 if first == second else math.nan
    if all(MIN_LENGTH < length < MAX_LENGTH for length in (first, second)):
        product = compute_dot(reference, candidate) / (first * second)
    else:
        reference, candidate = (v / np.abs(v).max() for v in (reference, candidate))
        product = compute_dot(reference, candidate) / (
            compute_norm(reference) * compute_norm(candidate)
        )
    return min(1.0, max(-1.0, product))
