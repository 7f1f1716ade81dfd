"""Kullback-Leibler divergence of the two, each made a distribution as msaccucmp does it; in
nats."""

from __future__ import annotations

import numpy as np

from subgraph.comparison.metrics import compute_dot
from subgraph.types import Array

FLOOR = 2.0**-23  # float32's eps: the least value of an element before normalization


def measure(reference: Array, candidate: Array) -> float:
    """Σ p ln(p/q), p from the candidate and q from the reference; 0 or more, in nats; never NaN.

    msaccucmp's algorithm 4. Each array becomes a distribution: (x - min) / (max - min), at least
    float32's eps, divided by its sum. So values may be negative, and a common factor or offset goes
    unnoticed: x and 3x + 5 have divergence 0.

    Corner cases: a constant array is the uniform distribution, whatever its value.
    """
    p = _normalize(candidate)
    q = _normalize(reference)
    np.divide(p, q, out=q)
    np.log(q, out=q)
    return max(0.0, compute_dot(p, q))


def _normalize(values: Array) -> Array:
    low = float(values.min())
    high = float(values.max())
    if np.isinf(high - low):  # half of the range does not overflow
        values = values / 2
        low = low / 2
        high = high / 2
    if low == high:
        return np.full(values.shape, 1 / values.size)
    scaled = values - low
    scaled /= high - low
    np.maximum(scaled, FLOOR, out=scaled)
    scaled /= scaled.sum()
    return scaled
