"""Element types of ONNX: number, name in numpy or ml_dtypes, bits of one element."""

from __future__ import annotations

# TensorProto.DataType -> (numpy or ml_dtypes name, bits of one element), onnx.proto3 of IR 14.
TYPES: dict[int, tuple[str, int]] = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", 0),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8_e4m3fn", 8),
    18: ("float8_e4m3fnuz", 8),
    19: ("float8_e5m2", 8),
    20: ("float8_e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4_e2m1fn", 4),
    24: ("float8_e8m0fnu", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
    27: ("float6_e2m3fn", 6),
    28: ("float6_e3m2fn", 6),
}
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
