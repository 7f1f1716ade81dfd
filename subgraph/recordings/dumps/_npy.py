"""A .npy file: what its header says, checked against the file's size before any memory is taken."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from subgraph.recordings.dumps import DumpEntry, DumpHints, dtype_of
from subgraph.recordings.files import Files, possible
from subgraph.storage import dtypes
from subgraph.storage.tensors import NOT_NUMPY, NPY_ERRORS

if TYPE_CHECKING:
    import numpy as np

    from subgraph.types import Array

MAGIC = b"\x93NUMPY"
# msaccucmp's and msit's golden side: NODE.OUTPUT.TIMESTAMP.npy, of 16 digits
_GOLDEN = re.compile(r"(?P<node>[^/]+)\.(?P<index>\d+)\.\d{16}$")
MAX_HEADER = 16 << 10  # bytes; numpy's reader takes 10,000


class BadHeader(ValueError):
    """A header that cannot be believed; the caller knows the file's name."""


@dataclass(frozen=True)
class Header:
    """Shape, order and type of a .npy, and where its values begin (`offset`), of `nbytes`."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int
    nbytes: int

    def array(self, values: Array) -> Array:
        """The values' bytes as the array."""
        return values.view(self.dtype).reshape(self.shape, order="F" if self.fortran else "C")


def parse(data: bytes, size: int) -> Header:
    """From the first bytes of a .npy of `size` bytes.

    Raises:
        BadHeader: it is none, holds Python objects, or promises more than the file has.
    """
    from numpy.lib import format as npy

    file = BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except NPY_ERRORS as e:
        raise BadHeader(f"no .npy: {e}") from e
    if dtype.hasobject or dtype.names is not None:
        raise BadHeader("it holds Python objects or records, which are not read")
    if not possible(shape) or not dtype.itemsize:
        raise BadHeader(f"its header says shape {list(shape)} of {dtype}")
    found = Header(shape, fortran, dtype, file.tell(), math.prod(shape) * dtype.itemsize)
    if found.offset + found.nbytes > size:
        raise BadHeader(f"its header says {found.nbytes} bytes of values; it has {size - found.offset}")
    return found


def header(files: Files, name: str) -> Header:
    """The header of a file.

    Raises:
        InputError: it cannot be believed.
    """
    try:
        return parse(files.head(name, MAX_HEADER), files.sizes[name])
    except BadHeader as e:
        raise files.damaged(name, e) from e


def loader(files: Files, name: str, dtype: str) -> Callable[[], Array]:
    """What reads the array of a file, as `dtype` where it holds raw bits of that."""

    def load() -> Array:
        found = header(files, name)
        return native(found.array(files.mapped(name, found.offset, found.nbytes)), dtype)

    return load


def native(array: Array, dtype: str) -> Array:
    """The array in this machine's byte order; as bf16, fp8 … where its elements are raw bits of that."""
    from subgraph.storage.tensors import are_bits, from_bits, np_dtype

    if dtype == "string":
        return array.astype(object)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if dtype in NOT_NUMPY and are_bits(array.dtype, np_dtype(dtype)):
        return from_bits(array, dtype)
    return array


def plain(name: str) -> str:
    """As msaccucmp and RKNN name files: `/`, `.`, `:`, blanks and backslashes become `_`; none at the ends counts."""
    return re.sub(r"[/\\.: ]", "_", name).strip("_")


def of_file(files: Files, name: str, known: DumpHints, **more: Any) -> DumpEntry:
    """What one .npy is."""
    stem = name[: -len(".npy")]
    own, _, side = stem.rpartition("/")[::-1]
    golden = _GOLDEN.fullmatch(own)
    if "tensor" not in more and "node" not in more:
        more |= {"node": golden["node"], "index": int(golden["index"])} if golden else {"tensor": own}
    more = {"side": side, "stem": stem, **more}
    found = header(files, name)
    dtype = more.pop("dtype", "") or _bits_of(dtype_of(found.dtype), known.find(own, plain).dtype)
    dtype = dtype or dtype_of(found.dtype)
    lacks = "" if dtype else f"ONNX has no element type {found.dtype}"
    return DumpEntry(name, loader(files, name, dtype), dtype, found.shape, lacks=lacks, **more)


def _bits_of(have: str, want: str) -> str:
    """The model's type where the file holds the raw bits of a type that numpy lacks."""
    width = dtypes.bits_of(want) if want in NOT_NUMPY else 0
    return want if have == f"uint{max(width, 8)}" and want in NOT_NUMPY else ""
