"""A .npy file -> its array; the header is checked against the file's size before memory is
taken."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from subgraph.recordings.dump_files import Files, is_possible_shape
from subgraph.recordings.dumps import DumpEntry, DumpHints, find_element_type, replace_characters
from subgraph.storage import dtypes
from subgraph.storage.tensors import NOT_NUMPY, NPY_ERRORS, are_bits, find_dtype, from_bits
from subgraph.types import Array, Shape, frozen

MAGIC = b"\x93NUMPY"
# Golden files of msaccucmp and msit: NODE.OUTPUT.TIMESTAMP.npy, with a timestamp of 16 digits
_GOLDEN = re.compile(r"(?P<node>[^/]+)\.(?P<index>\d+)\.\d{16}$")
MAX_HEADER = 16 << 10  # bytes; numpy's reader takes 10,000


class HeaderError(ValueError):
    """A header that cannot be right; the caller adds the file's name."""


@frozen
class Header:
    """Shape, order and type of a .npy; its values begin at `offset` and take `nbytes`."""

    shape: Shape
    fortran: bool
    dtype: np.dtype[Any]
    offset: int
    nbytes: int

    @property
    def element_type(self) -> str:
        """ONNX's element type; "" if ONNX has none."""
        return find_element_type(self.dtype)

    def entry(self, file: str, load: Callable[[], Array], dtype: str, **parts: Any) -> DumpEntry:
        """Return the entry of an array with this header, which is read as `dtype`."""
        missing = "" if dtype else f"ONNX has no element type {self.dtype}"
        return DumpEntry(file, load, dtype, self.shape, missing=missing, **parts)

    def array(self, data: Array) -> Array:
        """Return the array of the values' bytes."""
        return data.view(self.dtype).reshape(self.shape, order="F" if self.fortran else "C")


def parse(data: bytes, size: int) -> Header:
    """Return the header in the first bytes of a .npy of `size` bytes.

    Raises:
        HeaderError: there is no header, it holds Python objects, or it promises more bytes than the
            file has.
    """
    file = BytesIO(data)
    try:
        version = npy_format.read_magic(file)
        read = npy_format.read_array_header_2_0
        if version == (1, 0):
            read = npy_format.read_array_header_1_0
        shape, fortran, dtype = read(file)
    except NPY_ERRORS as e:
        raise HeaderError(f"no .npy: {e}") from e
    if dtype.hasobject or dtype.names is not None:
        raise HeaderError("it holds Python objects or records, which are not read")
    if not is_possible_shape(shape) or not dtype.itemsize:
        raise HeaderError(f"its header has shape {list(shape)} of {dtype}")
    header = Header(shape, fortran, dtype, file.tell(), math.prod(shape) * dtype.itemsize)
    if header.offset + header.nbytes > size:
        available = size - header.offset
        raise HeaderError(
            f"its header promises {header.nbytes} bytes of values; it has {available}"
        )
    return header


def read_header(files: Files, name: str) -> Header:
    """Return the header of a file.

    Raises:
        InputError: it cannot be right.
    """
    with files.reading(name):
        return parse(files.head(name, MAX_HEADER), files.sizes[name])


def make_loader(files: Files, name: str, dtype: str) -> Callable[[], Array]:
    """Make a function that reads a file; as `dtype` if it holds raw bits of that type."""

    def load() -> Array:
        header = read_header(files, name)
        data = files.map_part(name, header.offset, header.nbytes)
        return convert_to_native(header.array(data), dtype)

    return load


def convert_to_native(array: Array, dtype: str) -> Array:
    """Return an array in this machine's byte order; as bf16, fp8 … if it is raw bits of them."""
    if dtype == "string":
        return array.astype(object)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if dtype in NOT_NUMPY and are_bits(array.dtype, find_dtype(dtype)):
        return from_bits(array, dtype)
    return array


plain = replace_characters(r"[/\\.: ]", strip=True)  # as several tools name files


def make_entry(
    files: Files, name: str, hints: DumpHints, dtype: str = "", **fields: Any
) -> DumpEntry:
    """Return the entry of a .npy: a golden file names node and output, any other the tensor.

    `dtype`: the type whose raw bits the file holds; "" for that of the hints, if they have it.
    `fields`: of the entry, that are known.
    """
    side, _, base = name[: -len(".npy")].rpartition("/")
    header = read_header(files, name)
    stored = header.element_type
    hinted = hints.find(base, plain).dtype
    if not dtype and hinted in NOT_NUMPY and stored == f"uint{max(dtypes.count_bits(hinted), 8)}":
        dtype = hinted  # the file holds its raw bits
    dtype = dtype or stored
    golden = _GOLDEN.fullmatch(base)
    named = {"node": golden["node"], "index": int(golden["index"])} if golden else {"tensor": base}
    known = {"side": side, **named, **fields}
    return header.entry(name, make_loader(files, name, dtype), dtype, **known)
