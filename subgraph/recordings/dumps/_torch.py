"""A .pt of torch.save -> its tensors, never unpickled: a few opcodes say which bytes of the archive each one is.

They are those that `torch.load(weights_only=True)` takes for tensors, dicts and lists; no other is followed.
"""

from __future__ import annotations

import pickletools
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from subgraph.recordings.files import Files, possible
from subgraph.storage.tensors import np_dtype
from subgraph.types import Array

ZIP = b"PK\x03\x04"
ZIP_ERRORS = (OSError, RuntimeError, NotImplementedError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)
SAVE_AS_NPY = "save its tensors with numpy.save(name, tensor.detach().cpu().numpy())"
MAX_PICKLE = 16 << 20  # bytes of the list of tensors
STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
_REBUILD = "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_DICT = "collections OrderedDict"
_MARK = object()


class NotRead(ValueError):
    """An archive that is none of torch's, or holds more than tensors, dicts and lists."""


@dataclass(frozen=True)
class TorchTensor:
    """A tensor in an archive; `offset`, `strides`: in elements of the storage."""

    storage: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def tensors(files: Files, name: str) -> dict[str, TorchTensor]:
    """By name; a lone tensor has the name "".

    Raises:
        InputError: it is damaged, or not of this kind.
    """
    try:
        with zipfile.ZipFile(files.path(name)) as archive:
            info = next((i for i in archive.infolist() if i.filename.endswith("/data.pkl")), None)
            if info is None or info.file_size > MAX_PICKLE or info.compress_type != zipfile.ZIP_STORED:
                raise NotRead("no archive of torch.save")
            return dict(_named(_followed(archive.read(info)), ""))
    except (*ZIP_ERRORS, IndexError, KeyError, TypeError) as e:
        raise files.damaged(name, f"{e}; a .pt is never unpickled", SAVE_AS_NPY) from e


def array(files: Files, name: str, tensor: TorchTensor) -> Array:
    """The tensor's values.

    Raises:
        InputError: the archive does not hold as many.
    """
    try:
        with zipfile.ZipFile(files.path(name)) as archive:
            end = f"/data/{tensor.storage}"
            info = next(i for i in archive.infolist() if i.filename.endswith(end))
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > files.sizes[name]:
                raise NotRead("a compressed storage")
            flat = np.frombuffer(bytearray(archive.read(info)), np_dtype(tensor.dtype))
    except (*ZIP_ERRORS, StopIteration) as e:
        raise files.damaged(name, e) from e
    shape, strides, count = tensor.shape, tensor.strides, int(np.prod(tensor.shape, dtype=object))
    last = tensor.offset + sum((d - 1) * s for d, s in zip(shape, strides, strict=True)) if count else tensor.offset
    if count > flat.size or not 0 <= last < max(flat.size, 1) or min(strides, default=0) < 0 or tensor.offset < 0:
        raise files.damaged(name, f"its storage of {flat.size} values is no {list(shape)}")
    steps = [s * flat.itemsize for s in strides]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat[tensor.offset :], shape, steps))


def _named(value: Any, name: str) -> Iterator[tuple[str, TorchTensor]]:
    """The tensors of nested dicts and lists, by their joined keys."""
    stack = [(name, value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, TorchTensor):
            yield path, item
        elif isinstance(item, dict | list | tuple):
            pairs = item.items() if isinstance(item, dict) else enumerate(item)
            stack += [(f"{path}.{key}" if path else str(key), inner) for key, inner in reversed(list(pairs))]


def _followed(data: bytes) -> Any:
    """The value that the opcodes build of tensors, dicts, lists, texts and numbers.

    Raises NotRead: an opcode or a function that none of these needs.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for opcode, value, _ in pickletools.genops(data):
        name = opcode.name
        if name == "STOP":
            return stack.pop()
        if name in _REMEMBERING:
            memo[len(memo) if value is None else int(value)] = stack[-1]
        elif name in _RECALLING:
            stack.append(memo[int(value or 0)])
        elif name in _NEW:
            stack.append(_NEW[name](value))
        elif name in _ACTIONS:
            _ACTIONS[name](stack)
        elif name not in _IDLE:
            raise NotRead(f"it holds more than tensors ({name})")
    raise NotRead("it ends early")


class _Name(str):
    """The name of a function, which is not looked up."""


def _since_mark(stack: list[Any]) -> list[Any]:
    at = max(k for k, item in enumerate(stack) if item is _MARK)
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _add(stack: list[Any], items: list[Any]) -> None:
    container = stack[-1]
    if isinstance(container, list):
        container += items
    elif isinstance(container, dict):
        container.update({str(k): v for k, v in zip(items[::2], items[1::2], strict=True)})
    else:
        raise NotRead("it holds more than tensors, dicts and lists")


def _storage(words: Any) -> tuple[str, str]:
    """(key, element type) of `("storage", TYPE, KEY, DEVICE, COUNT)`."""
    _, kind, key, *_ = words
    dtype = STORAGES.get(str(kind).rpartition(" ")[2], "") if isinstance(kind, _Name) else ""
    if not dtype:
        raise NotRead(f"a storage of {kind}")
    return str(key), dtype


def _built(function: Any, arguments: Any) -> Any:
    if not isinstance(function, _Name):
        raise NotRead("it calls what is no function")
    if function == _DICT:
        return {}
    if function == _PARAMETER:
        return arguments[0]
    if function != _REBUILD:
        raise NotRead(f"it calls {function}")
    (key, dtype), offset, shape, strides, *_ = arguments
    shape, strides = tuple(map(int, shape)), tuple(map(int, strides))
    if not possible(shape) or len(shape) != len(strides):
        raise NotRead(f"a tensor of shape {list(shape)}")
    return TorchTensor(key, dtype, int(offset), shape, strides)


def _join(stack: list[Any], count: int) -> None:
    stack[-count:] = [tuple(stack[-count:])]


def _reduce(stack: list[Any]) -> None:
    arguments = stack.pop()
    stack.append(_built(stack.pop(), arguments))


_IDLE = ("PROTO", "FRAME")
_REMEMBERING = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
_RECALLING = ("BINGET", "LONG_BINGET")
_VALUES = ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_NEW: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_VALUES, lambda value: value),
    "GLOBAL": lambda value: _Name(value),
    "MARK": lambda _: _MARK,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "NONE": lambda _: None,
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: {},
}
_ACTIONS: dict[str, Callable[[list[Any]], object]] = {
    "TUPLE": lambda stack: stack.append(tuple(_since_mark(stack))),
    "TUPLE1": lambda stack: _join(stack, 1),
    "TUPLE2": lambda stack: _join(stack, 2),
    "TUPLE3": lambda stack: _join(stack, 3),
    "APPEND": lambda stack: _add(stack, [stack.pop()]),
    "SETITEM": lambda stack: _add(stack, [stack.pop(-2), stack.pop()]),
    "APPENDS": lambda stack: _add(stack, _since_mark(stack)),
    "SETITEMS": lambda stack: _add(stack, _since_mark(stack)),
    "BINPERSID": lambda stack: stack.append(_storage(stack.pop())),
    "REDUCE": _reduce,
    "BUILD": lambda stack: stack.pop(),  # attributes of a dict, such as a state dict's versions
}
