"""Elements of less than a byte: packed as ONNX's raw_data has them (one after another, lowest bit first), and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from subgraph import wire
from subgraph.tensors import from_bits

if TYPE_CHECKING:
    import numpy as np


def pack(bits: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Low bits of each byte → packed bytes, flat; the last byte is filled with zeros."""
    import numpy as np

    each = np.unpackbits(bits.reshape(-1, 1), axis=1, bitorder="little")
    return np.packbits(each[:, : _width(dtype)], bitorder="little")


def unpack(data: np.ndarray[Any, Any], dtype: str, count: int) -> np.ndarray[Any, Any]:
    """`count` elements of the true type from packed bytes, flat."""
    import numpy as np

    width = _width(dtype)
    each = np.unpackbits(data, count=count * width, bitorder="little").reshape(count, width)
    return from_bits(np.packbits(each, axis=1, bitorder="little").reshape(count), dtype)


def _width(dtype: str) -> int:
    return wire.TYPES[wire.TYPE_NUMBERS[dtype]][1]
