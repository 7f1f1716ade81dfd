"""Root of the mean squared difference, in the tensor's own unit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from subgraph.metrics import norm

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

SYMMETRIC = True


def measure(reference: Array, candidate: Array) -> float:
    """sqrt(Σ(c - r)² / n); msaccucmp's RootMeanSquareError. Infinite where a difference leaves float64; never NaN."""
    return norm(candidate - reference) / math.sqrt(reference.size)
