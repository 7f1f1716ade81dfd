"""A .pt of torch.save -> its tensors, never unpickled: opcodes locate the bytes of each tensor.

They are those that `torch.load(weights_only=True)` takes for tensors, dicts and lists; no other is
followed, and no function is called but the three below.
"""

from __future__ import annotations

import math
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np

from subgraph.recordings.dump_files import Files, is_possible_shape
from subgraph.recordings.dumps import parse_pairs
from subgraph.storage.tensors import find_dtype
from subgraph.types import Array, Shape

SAVE_AS_NPY = "save its tensors with numpy.save(name, tensor.detach().cpu().numpy())"
MAX_PICKLE = 16 << 20  # bytes of the list of tensors
STORAGES = parse_pairs(
    "FloatStorage float32 DoubleStorage float64 HalfStorage float16 BFloat16Storage bfloat16"
    " LongStorage int64 IntStorage int32 ShortStorage int16 CharStorage int8 ByteStorage uint8"
    " BoolStorage bool"
)
OPCODES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
FOLLOWED = frozenset(
    "PROTO FRAME STOP MARK GLOBAL REDUCE BUILD BINPERSID BINPUT LONG_BINPUT MEMOIZE BINGET"
    " LONG_BINGET BINUNICODE SHORT_BINUNICODE BININT BININT1 BININT2 LONG1 BINFLOAT NEWTRUE"
    " NEWFALSE NONE EMPTY_TUPLE EMPTY_LIST EMPTY_DICT TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS"
    " SETITEM SETITEMS".split()
)


class UnreadableError(ValueError):
    """An archive that torch did not write, or that holds more than tensors, dicts and lists."""


class TorchTensor(NamedTuple):
    """A tensor in an archive; `offset`, `strides`: in elements of the storage."""

    storage: str
    dtype: str
    offset: int
    shape: Shape
    strides: Shape


def read_tensors(files: Files, name: str) -> dict[str, TorchTensor]:
    """Read the tensors by name; a lone tensor has the name "".

    Raises:
        InputError: it is damaged, or not of this kind.
    """
    reading = files.reading(name, "a .pt is never unpickled: ", SAVE_AS_NPY)
    with reading, zipfile.ZipFile(files.path(name)) as archive:
        info = next((i for i in archive.infolist() if i.filename.endswith("/data.pkl")), None)
        if info is None or info.file_size > MAX_PICKLE or info.compress_type != zipfile.ZIP_STORED:
            raise UnreadableError("no archive of torch.save")
        return dict(_iter_tensors(_Unpickler(BytesIO(archive.read(info))).load()))


def read_array(files: Files, name: str, tensor: TorchTensor) -> Array:
    """Return the tensor's values.

    Raises:
        InputError: the archive does not hold as many.
    """
    with files.reading(name), zipfile.ZipFile(files.path(name)) as archive:
        end = f"/data/{tensor.storage}"
        info = next(i for i in archive.infolist() if i.filename.endswith(end))
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > files.sizes[name]:
            raise UnreadableError("a compressed storage")
        flat = np.frombuffer(bytearray(archive.read(info)), find_dtype(tensor.dtype))
    shape = tensor.shape
    strides = tensor.strides
    count = math.prod(shape)
    last = tensor.offset
    if count:
        last += sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
    is_inside = count <= flat.size and 0 <= last < max(flat.size, 1)
    if not is_inside or min(tensor.offset, *strides, 0) < 0:
        raise files.make_error(
            name, f"its storage of {flat.size} values does not fill {list(shape)}"
        )
    steps = [s * flat.itemsize for s in strides]
    view = np.lib.stride_tricks.as_strided(flat[tensor.offset :], shape, steps)
    return np.ascontiguousarray(view)


def _iter_tensors(value: Any) -> Iterator[tuple[str, TorchTensor]]:
    """Yield the tensors of nested dicts and lists, by their joined keys."""
    stack = [("", value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, TorchTensor):
            yield path, item
        elif isinstance(item, dict | list | tuple):
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            inside = reversed(list(pairs))
            stack += [(f"{path}.{key}".removeprefix("."), inner) for key, inner in inside]


class _Function(str):
    """The name of a function or type, which is not looked up."""

    def __call__(self, *_: Any) -> Any:
        raise UnreadableError(f"it calls {self}")


def _rebuild(
    storage: tuple[str, str], offset: Any, shape: Any, strides: Any, *_: Any
) -> TorchTensor:
    key, dtype = storage
    dims = tuple(map(int, shape))
    steps = tuple(map(int, strides))
    if not is_possible_shape(dims) or len(dims) != len(steps):
        raise UnreadableError(f"a tensor of shape {list(dims)}")
    return TorchTensor(key, dtype, int(offset), dims, steps)


FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("collections", "OrderedDict"): OrderedDict,
}


class _Actions(dict[int, Any]):
    """The action for each opcode that is followed."""

    def __missing__(self, code: int) -> Any:
        raise UnreadableError(f"it holds more than tensors ({OPCODES.get(code, code)})")


class _Unpickler(pickle._Unpickler):
    """Python's own, of which only those opcodes are left that build tensors, dicts and lists."""

    dispatch = _Actions(
        {code: act for code, act in pickle._Unpickler.dispatch.items() if OPCODES[code] in FOLLOWED}
    )
    # BUILD sets attributes of a dict, such as the versions of a state dict: they are dropped.
    dispatch[pickle.BUILD[0]] = lambda self: self.stack.pop()

    def find_class(self, module: str, name: str) -> Any:
        return FUNCTIONS.get((module, name), _Function(f"{module} {name}"))

    def persistent_load(self, words: Any) -> tuple[str, str]:
        """Return (key, element type) of `("storage", TYPE, KEY, DEVICE, COUNT)`."""
        _, kind, key, *_ = words
        dtype = STORAGES.get(kind.rpartition(" ")[2], "") if isinstance(kind, _Function) else ""
        if not dtype:
            raise UnreadableError(f"a storage of {kind}")
        return str(key), dtype
