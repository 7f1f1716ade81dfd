"""Element types of ONNX: number, name in numpy or ml_dtypes, bits of one element.

Integer codes <-> real values: `Scale`.
"""

from __future__ import annotations

from typing import Any

from subgraph.lazy import np
from subgraph.types import Array, frozen

# The types in the order of their numbers in TensorProto.DataType, which begin at 1, of IR 14.
_NAMES_AND_BITS = (
    "float32:32 uint8:8 int8:8 uint16:16 int16:16 int32:32 int64:64 string:0 bool:8 float16:16"
    " float64:64 uint32:32 uint64:64 complex64:64 complex128:128 bfloat16:16 float8_e4m3fn:8"
    " float8_e4m3fnuz:8 float8_e5m2:8 float8_e5m2fnuz:8 uint4:4 int4:4 float4_e2m1fn:4"
    " float8_e8m0fnu:8 uint2:2 int2:2 float6_e2m3fn:6 float6_e3m2fn:6"
).split()
# TensorProto.DataType -> (numpy or ml_dtypes name, bits of one element).
TYPES: dict[int, tuple[str, int]] = {}
for _number, _entry in enumerate(_NAMES_AND_BITS, 1):
    _name, _, _bits = _entry.partition(":")
    TYPES[_number] = _name, int(_bits)

TYPE_NUMBERS = {name: number for number, (name, _) in TYPES.items()}


def count_bits(dtype: str) -> int:
    """Return the bits of one element; 0 for strings.

    >>> count_bits("int4")
    4

    Raises:
        KeyError: ONNX has no such type.
    """
    return TYPES[TYPE_NUMBERS[dtype]][1]


def find_code_range(dtype: str) -> tuple[int, int]:
    """Return the least and the greatest number of an integer type.

    >>> find_code_range("int4")
    (-8, 7)
    """
    codes = 1 << count_bits(dtype)
    low = 0 if dtype.startswith("u") else -codes // 2
    return low, low + codes - 1


def count_number_bits(number: int) -> int:
    """Return the bits of one element of the type with this `TensorProto.DataType`.

    0 for strings, and for a number that ONNX does not define (yet).
    """
    return TYPES.get(number, ("", 0))[1]


def name_of(number: int, default: str = "") -> str:
    """Name of the type with this `TensorProto.DataType`; `default` for a number that ONNX does not
    define (yet)."""
    return TYPES.get(number, (default, 0))[0]


@frozen
class Scale:
    """real = (stored − zero) · step. One value each for the whole tensor, or one per channel along
    `axis`."""

    step: tuple[float, ...]
    zero: tuple[int, ...]
    axis: int = 1

    def _align_shape(self, values: tuple[Any, ...], rank: int) -> Array:
        shape = [1] * rank
        if len(values) > 1:
            shape[self.axis] = len(values)
        return np.asarray(values, np.float64).reshape(shape)

    def dequantize(self, stored: Array) -> Array:
        """Dequantize values, as float32."""
        rank = stored.ndim
        with np.errstate(all="ignore"):  # the scale of a table that holds infinities is infinite
            codes = stored.astype(np.float64) - self._align_shape(self.zero, rank)
            return (codes * self._align_shape(self.step, rank)).astype(np.float32)

    def steps(self, real: Array) -> Array:
        """Return quantized values, rounded half to even, before they are clipped to a
        type's range."""
        with np.errstate(all="ignore"):
            steps = np.rint(real / self._align_shape(self.step, real.ndim))
        return steps + self._align_shape(self.zero, real.ndim)

    def quantize(self, real: Array, dtype: str) -> Array:
        """Return the codes of QuantizeLinear; `dtype` is an integer type."""
        info = np.iinfo(dtype)
        with np.errstate(invalid="ignore"):
            return np.clip(self.steps(real), info.min, info.max).astype(dtype)

    def compute_saturated_share(self, real: Array, dtype: str) -> float:
        """Compute the share of the values that quantization to `dtype` clips."""
        info = np.iinfo(dtype)
        steps = self.steps(real)
        if real.size:
            return float(np.mean((steps < info.min) | (steps > info.max)))
        return 0.0
