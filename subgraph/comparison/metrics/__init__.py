"""One file per metric: `measure(reference, candidate) -> float`.

Both are one-dimensional float64 arrays of equal length, at least one element, all finite. NaN means: not defined here.
numpy's floating-point warnings are off while a metric is asked.

A metric's file may also say:
    IDEAL: its value for two equal arrays; 0 unless said.
    SYMMETRIC: True where exchanging the two changes nothing; False unless said.
    of_pair(pair): asked instead of `measure`, for any `Pair`, by metrics that must know the element type, the NaN, or
        integers that float64 cannot hold.
"""

from __future__ import annotations

import math

import numpy as np

from subgraph.types import Array

# Squares outside of these leave float64, or lose bits in its subnormal numbers.
_SMALL, _LARGE = 1e-280, 1e280


def dot(first: Array, second: Array) -> float:
    """Σxy. Not BLAS's: that wakes a thread per core, and on a busy machine waits 20 ms for one of them."""
    return float(np.einsum("i,i->", first, second))


def norm(values: Array) -> float:
    """Euclidean norm sqrt(Σx²), without overflow or underflow on the way; 0 for no elements.

    >>> import numpy as np
    >>> norm(np.array([0.0, -2e200]))
    2e+200
    """
    with np.errstate(all="ignore"):
        square = dot(values, values)
    if _SMALL < square < _LARGE:
        return math.sqrt(square)
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0 or math.isinf(largest):
        return largest
    scaled = values / largest
    return largest * math.sqrt(dot(scaled, scaled))
