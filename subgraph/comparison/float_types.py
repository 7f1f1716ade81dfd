"""Float types: unit roundoff, which is coarsest; values that represent minus infinity, as in
attention masks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from subgraph.precision import Precision
from subgraph.types import Array

# Unit roundoff by type.
FLOATS = {"float64": 2.0**-53} | {
    p.dtype: p.eps for p in (Precision.FP32, Precision.FP16, Precision.BF16)
}
# A mask's plateau: its least size; the other values, at most so much of it; its width, at least so
# much of it. Models use 1e4, 65504, 1e9 and the lowest float.
MIN_PLATEAU = 1e3
MAX_REST = 1e-2
MIN_WIDTH = 1e-6


def find_coarsest(types: Iterable[str]) -> str:
    """Return the float type with the largest unit roundoff among `types`; float64 if none is a
    float type.

    >>> find_coarsest(["float32", "int64", "float16"])
    'float16'
    """
    return max((t for t in types if t in FLOATS), key=FLOATS.__getitem__, default="float64")


def find_wider(dtype: str) -> str:
    """Return the type in which values of a float type are perturbed: float64 for itself, float32
    for the others."""
    return "float64" if dtype == "float64" else "float32"


def mask_plateau(values: Array) -> Array | None:
    """Return the mask of values that represent minus infinity, as in attention masks (scores +
    −10⁴); None if there are no such values.

    They are all negative, at least `MIN_PLATEAU` in size and a hundred times the other values, and
    spread no wider than those. A scale or range that includes the mask is not that of the scores.
    Values that are not finite are neither.
    """
    flat = values.reshape(-1)
    finite = np.isfinite(flat)
    lowest = float(flat.min(where=finite, initial=0.0))
    if lowest > -MIN_PLATEAU:
        return None
    plateau = finite & (flat <= lowest / 2)
    largest_other = float(np.abs(flat).max(where=finite & ~plateau, initial=0.0))
    spread = float(flat.max(where=plateau, initial=lowest)) - lowest
    if not 0 < largest_other <= MAX_REST * -lowest or spread > max(
        4 * largest_other, MIN_WIDTH * -lowest
    ):
        return None
    return plateau.reshape(values.shape)
