"""Elements of less than a byte: packed as ONNX's raw_data has them (first element lowest), and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from subgraph import wire
from subgraph.tensors import np_dtype

if TYPE_CHECKING:
    import numpy as np


def pack(bits: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Low bits of each byte → packed bytes, flat; the last byte is filled with zeros."""
    import numpy as np

    width = wire.TYPES[wire.TYPE_NUMBERS[dtype]][1]
    per = 8 // width
    flat = np.zeros(-(-bits.size // per) * per, np.uint8)
    flat[: bits.size] = bits.reshape(-1)
    lanes = flat.reshape(-1, per)
    out = np.zeros(len(lanes), np.uint8)
    for i in range(per):
        out |= lanes[:, i] << np.uint8(i * width)
    return out


def unpack(data: np.ndarray[Any, Any], dtype: str, count: int) -> np.ndarray[Any, Any]:
    """`count` elements of the true type from packed bytes, flat."""
    import numpy as np

    width = wire.TYPES[wire.TYPE_NUMBERS[dtype]][1]
    mask, sign = np.uint8((1 << width) - 1), np.uint8(1 << (width - 1))
    lanes = [(data >> np.uint8(i * width)) & mask for i in range(8 // width)]
    flat = np.stack(lanes, axis=-1).reshape(-1)[:count].astype(np.uint8)
    if dtype.startswith("int"):
        return ((flat ^ sign).astype(np.int8) - np.int8(sign)).astype(np_dtype(dtype))
    return flat.view(np_dtype(dtype)) if dtype.startswith("float") else flat.astype(np_dtype(dtype))
