"""The precision that a candidate claims to compute in."""

from __future__ import annotations

import math
from enum import StrEnum


class Precision(StrEnum):
    """The known properties of the arithmetic; the finest comes first.

    Attributes:
        eps: The unit roundoff: rounding to nearest changes x by at most eps·|x|. For int8, one of
            255 steps over the range of the tensor.
        dtype: The element type with this rounding.
        largest: The largest finite value; infinite for float32, in which the reference computes.
        half_step: Half of the smallest step; 0 for types whose smallest step no tensor reaches.

    >>> Precision("fp16").eps, max(Precision.FP16, Precision.FP32, key=Precision.roundoff).dtype
    (0.00048828125, 'float16')
    """

    eps: float
    dtype: str
    largest: float
    half_step: float

    # 1 + 23 stored bits (binary32), 1 + 10 (binary16), 1 + 7 (bfloat16): IEEE 754-2019, table 3.5.
    FP32 = "fp32", 2.0**-24, "float32"
    # TF32: 1 + 10 with the range of binary32, what NVIDIA's tensor cores round factors to.
    TF32 = "tf32", 2.0**-11, "tf32"
    FP16 = "fp16", 2.0**-11, "float16", 65504.0, 2.0**-25
    BF16 = "bf16", 2.0**-8, "bfloat16", 3.3895313892515355e38
    INT8 = "int8", 1 / 255, "int8"

    def __new__(
        cls,
        word: str,
        eps: float = 0.0,
        dtype: str = "",
        largest: float = math.inf,
        half_step: float = 0.0,
    ) -> Precision:
        made = str.__new__(cls, word)
        made._value_ = word
        made.eps = eps
        made.dtype = dtype
        made.largest = largest
        made.half_step = half_step
        return made

    @property
    def narrow(self) -> bool:
        """Whether it is a float type of 16 bits."""
        return math.isfinite(self.largest)

    @property
    def bits(self) -> int:
        """The bits of the significand of a float type, with the leading one."""
        return -round(math.log2(self.eps))

    def roundoff(self) -> float:
        """Return `eps`, as a key for `max`: the coarsest of several."""
        return self.eps

    @classmethod
    def from_dtype(cls, dtype: str) -> Precision:
        """Return the precision of correct arithmetic in an element type."""
        return next((p for p in cls if p.dtype == dtype), cls.FP32)
