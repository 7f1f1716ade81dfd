"""Claimed precisions (fp32, fp16, bf16, int8) and float types: unit roundoff, largest value, smallest step.

eps is the unit roundoff: rounding to nearest changes x by at most eps·|x|. For int8 it is one of 255 steps over the
tensor's range.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from subgraph.types import Array

# 1 + 23 stored bits (binary32), 1 + 10 (binary16), 1 + 7 (bfloat16): IEEE 754-2019, table 3.5.
EPS = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "int8": 1 / 255}
FLOATS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # unit roundoff by type
LARGEST = {"fp16": 65504.0, "bf16": 3.3895313892515355e38}
TYPE_OF = {"fp16": "float16", "bf16": "bfloat16"}
CLAIM_OF = {"float64": "fp32", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
HALF_STEP = {"fp16": 2.0**-25}  # half of the smallest step; values of tensors do not reach that of other types
# A mask's plateau: its least size; the other values, at most so much of it; its width, at least so much of it. Models
# use 1e4, 65504, 1e9 and the lowest float.
MIN_PLATEAU, MAX_REST, MIN_WIDTH = 1e3, 1e-2, 1e-6


def coarsest(types: Iterable[str]) -> str:
    """The float type with the largest unit roundoff among `types`; float64 if none is a float type.

    >>> coarsest(["float32", "int64", "float16"])
    'float16'
    """
    return max((t for t in types if t in FLOATS), key=FLOATS.__getitem__, default="float64")


def coarser_claim(claim: str, dtype: str) -> str:
    """The claim that a candidate can be held to: no finer than the coarsest float type of its tensors.

    A correct run of a float16 model has float16's rounding errors, though the candidate computes in fp32.

    >>> coarser_claim("fp32", "float16"), coarser_claim("int8", "float16"), coarser_claim("fp32", "float64")
    ('fp16', 'int8', 'fp32')
    """
    return max(claim, CLAIM_OF[dtype], key=EPS.__getitem__)


def wider(dtype: str) -> str:
    """The type in which values of a float type are perturbed: float64 for itself, float32 for the others."""
    return "float64" if dtype == "float64" else "float32"


def mask_plateau(values: Array) -> Array | None:
    """Where values stand for minus infinity, as in attention masks (scores + −10⁴); None if there are no such values.

    They are all negative, at least `MIN_PLATEAU` in size and a hundred times the other values, and spread no wider than
    those. A scale or range that includes the mask says nothing about the scores. Values that are not finite are
    neither.
    """
    flat = values.reshape(-1)
    finite = np.isfinite(flat)
    lowest = float(flat.min(where=finite, initial=0.0))
    if lowest > -MIN_PLATEAU:
        return None
    plateau = finite & (flat <= lowest / 2)
    rest = float(np.abs(flat).max(where=finite & ~plateau, initial=0.0))
    spread = float(flat.max(where=plateau, initial=lowest)) - lowest
    if not 0 < rest <= MAX_REST * -lowest or spread > max(4 * rest, MIN_WIDTH * -lowest):
        return None
    return plateau.reshape(values.shape)
