"""Element types of ONNX: number, name in numpy or ml_dtypes, bits of one element."""

from __future__ import annotations

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


def bits_of(dtype: str) -> int:
    """Bits of one element; 0 for strings.

    >>> bits_of("int4")
    4

    Raises:
        KeyError: ONNX has no such type.
    """
    return TYPES[TYPE_NUMBERS[dtype]][1]


def name_of(number: int, default: str = "") -> str:
    """Name of the type with this `TensorProto.DataType`; `default` for a number that ONNX does not
    define (yet)."""
    return TYPES.get(number, (default, 0))[0]
