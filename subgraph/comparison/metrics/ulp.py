"""Largest distance in units in the last place of the reference, in the tensor's own type."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from subgraph.comparison.pair import Pair
from subgraph.types import Array

FLOAT32 = 23, -126  # bits after the point, smallest exponent of a normal number


def measure(reference: Array, candidate: Array) -> float:
    """max |c - r| / ulp(r), as Goldberg (1991) counts errors, for float32: ulp(r) =
    2^(max(⌊log₂|r|⌋, -126) - 23).

    1 is a last bit; rounding to nearest costs 0.5. Errors explode at zeros: the ulp of 0 is the
    smallest subnormal number, 2⁻¹⁴⁹, so a candidate of 1e-7 for a reference of 0 is 7e37 off.
    Infinite if that overflows; never NaN.
    """
    return _find_largest(reference, candidate, FLOAT32)


def of_pair(pair: Pair) -> float:
    """Measure a pair in ulps of the tensor's own type (float16, bfloat16, float64, fp8 …).

    The ulp of integers is 1. NaN if there are no numbers to compare.
    """
    if not pair.measurable:
        return math.nan
    if not pair.floating:
        return pair.error
    dtype = pair.reference.dtype  # of complex numbers, the format of their parts
    is_native = issubclass(dtype.type, np.inexact)
    find_info: Any = np.finfo if is_native else ml_dtypes.finfo
    info = find_info(dtype)
    return _find_largest(*pair.values, (int(info.nmant), int(info.minexp)))


def _find_largest(reference: Array, candidate: Array, kind: tuple[int, int]) -> float:
    bits, smallest = kind
    _, exponent = np.frexp(reference)  # |r| = m·2^e with m in [0.5, 1), so ⌊log₂|r|⌋ = e - 1
    exponent -= 1
    exponent[reference == 0] = smallest
    np.maximum(exponent, smallest, out=exponent)
    distance = candidate - reference
    np.abs(distance, out=distance)
    # |d| / 2^(e - bits); float64 may not hold the divisor
    return float(np.ldexp(distance, bits - exponent, out=distance).max())
