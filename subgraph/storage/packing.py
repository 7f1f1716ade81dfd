"""Elements of less than a byte: packed as ONNX's raw_data has them (one after another, lowest bit first), and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from subgraph.storage import dtypes
from subgraph.storage.tensors import from_bits

if TYPE_CHECKING:
    from subgraph.types import Array


def pack(bits: Array, dtype: str) -> Array:
    """Low bits of each byte → packed bytes, flat; the last byte is filled with zeros."""
    import numpy as np

    each = np.unpackbits(bits.reshape(-1, 1), axis=1, bitorder="little")
    return np.packbits(each[:, : _width(dtype)], bitorder="little")


def unpack(data: Array, dtype: str, count: int) -> Array:
    """`count` elements of the true type from packed bytes, flat."""
    import numpy as np

    width = _width(dtype)
    each = np.unpackbits(data, count=count * width, bitorder="little").reshape(count, width)
    return from_bits(np.packbits(each, axis=1, bitorder="little").reshape(count), dtype)


def _width(dtype: str) -> int:
    return dtypes.bits_of(dtype)
