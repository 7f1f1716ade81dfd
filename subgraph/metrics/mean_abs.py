"""Mean absolute difference, in the tensor's own unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

SYMMETRIC = True


def measure(reference: Array, candidate: Array) -> float:
    """Σ|c - r| / n; msaccucmp's MeanAbsoluteError. Infinite where the sum leaves float64; never NaN."""
    import numpy as np

    distance = candidate - reference
    return float(np.abs(distance, out=distance).mean())
