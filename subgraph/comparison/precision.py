"""What a runtime claims to compute in, and what float types can hold: eps, the largest value, the smallest step.

eps is the unit roundoff: rounding to nearest changes x by at most eps·|x|. For int8 it is one step of 255 over the
tensor's range.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from subgraph.types import Array

# 1 + 23 stored bits (binary32), 1 + 10 (binary16), 1 + 7 (bfloat16): IEEE 754-2019, table 3.5.
EPS = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "int8": 1 / 255}
FLOATS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # unit roundoff by type
LARGEST = {"fp16": 65504.0, "bf16": 3.3895313892515355e38}
TYPE_OF = {"fp16": "float16", "bf16": "bfloat16"}
CLAIM_OF = {"float64": "fp32", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
PLATEAU, APART, WIDTH = 1e3, 1e-2, 1e-6  # of masks; models use 1e4, 65504, 1e9, and the least float
SUBNORMAL = {"fp16": 2.0**-25}  # half of the smallest step of a type so narrow that tensors reach it


def coarsest(types: Iterable[str]) -> str:
    """The float type among `types` that rounds most; float64 where there is none.

    >>> coarsest(["float32", "int64", "float16"])
    'float16'
    """
    return max((t for t in types if t in FLOATS), key=FLOATS.__getitem__, default="float64")


def held(claim: str, coarse: str) -> str:
    """The claim that can be held to: no finer than what the tensors themselves can hold.

    A float16 model computed right differs by float16's roundings, though the candidate computes in fp32.

    >>> held("fp32", "float16"), held("int8", "float16"), held("fp32", "float64")
    ('fp16', 'int8', 'fp32')
    """
    return max(claim, CLAIM_OF[coarse], key=EPS.__getitem__)


def wider(dtype: str) -> str:
    """The type in which values of a float type are changed: float64 for itself, float32 for the others."""
    return "float64" if dtype == "float64" else "float32"


def mask_plateau(values: Array) -> Array | None:
    """Where values stand for minus infinity, as in attention masks (scores + −10⁴); None where no such are.

    A plateau: at least `PLATEAU` in size and a hundred times what the other values reach, no wider than they are, all
    negative. A scale or a range with the mask in it says nothing about the scores. Values that are not finite count as
    neither.
    """
    flat = values.reshape(-1)
    finite = np.isfinite(flat)
    lowest = float(flat.min(where=finite, initial=0.0))
    if lowest > -PLATEAU:
        return None
    high = finite & (flat <= lowest / 2)
    rest = float(np.abs(flat).max(where=finite & ~high, initial=0.0))
    spread = float(flat.max(where=high, initial=lowest)) - lowest
    if not 0 < rest <= APART * -lowest or spread > max(4 * rest, WIDTH * -lowest):
        return None
    return high.reshape(values.shape)
