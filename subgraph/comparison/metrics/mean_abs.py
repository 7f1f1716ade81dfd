"""Mean absolute difference, in the tensor's own unit."""

from __future__ import annotations

import numpy as np

from subgraph.types import Array

SYMMETRIC = True


def measure(reference: Array, candidate: Array) -> float:
    """Σ|c - r| / n; msaccucmp's MeanAbsoluteError. Infinite if the sum overflows; never NaN."""
    distance = candidate - reference
    return float(np.abs(distance, out=distance).mean())
