"""Ascend's NPU dump: one file per op, a protobuf header DumpData and the raw blobs behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import InputError
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _ascend, _atc, _raw, dtype_of
from subgraph.recordings.files import Files
from subgraph.storage import tensors
from subgraph.storage.folders import safe_names

if TYPE_CHECKING:
    from subgraph.types import Array

HOLDS = tuple(_ascend.NUMBERS)
NANO = b"\x5a\x5a\x5a\x5a"
SLACK = 64  # bytes that a blob may be longer than its values: the NPU's memory comes in 32s, with 32 behind
TRIED = 20  # files that are looked at before it is no dump of this kind
MAX_HEADER = 64 << 20  # bytes; real ones have hundreds
_OVERFLOWS = "Opdebug.Node_OpDebug"
plain = _atc.plain


def detect(files: Files) -> int:
    """By files named OP.NODE.TASK.STREAM.TIME, or listed in mapping.csv, whose header is a DumpData."""
    named = _ascend.real_names(files)
    own = [n for n in files.names if _name(n, named)][:TRIED]
    return MARKED if any(_is_one(files, n) for n in own) else NONE


def entries(files: Files, known: DumpHints) -> Iterator[DumpEntry]:
    """Inputs and outputs of each op, of its latest dump; where an `atc` JSON lies among the files, with origins."""
    named = _ascend.real_names(files)
    origins = _atc.origins(files)
    for name, found in _latest(files, named).items():
        yield from _of_file(files, name, found, origins)


def _name(file: str, named: dict[str, str]) -> Any:
    """The parts of a file's name; None where it is none of a dump."""
    own = named.get(file, file).rpartition("/")[2]
    return None if own.startswith(_OVERFLOWS) else _ascend.NAME.fullmatch(own)


def _latest(files: Files, named: dict[str, str]) -> dict[str, Any]:
    """File -> parts of its name, one per op in each folder: the latest."""
    best: dict[tuple[str, ...], tuple[int, str, Any]] = {}
    for file in files.names:
        found = _name(file, named)
        if found:
            key = (file.rpartition("/")[0], found["op"], found["node"], found["task"], found["stream"], found["more"])
            best[key] = max(best.get(key, (-1, "", None)), (int(found["time"]), file, found), key=lambda b: b[:2])
    return {file: found for _, file, found in best.values()}


@dataclass(frozen=True)
class _Head:
    """A parsed header, and where the first blob begins; blobs stand in the message itself where `data` is -1."""

    message: Any
    data: int

    def blobs(self) -> Iterator[tuple[str, int, Any, int]]:
        """(role, index, what it is, offset) of each input and output."""
        at = self.data
        for role, many in (("input", self.message.input), ("output", self.message.output)):
            for k, one in enumerate(many):
                yield role, k, one, at
                at += one.size

    @property
    def end(self) -> int:
        m = self.message
        return self.data + sum(int(one.size) for many in (m.input, m.output, m.buffer, m.space) for one in many)


def _is_one(files: Files, file: str) -> bool:
    try:
        _head(files, file)
    except InputError:
        return files.head(file, 4) == NANO  # recognised, so that `entries` can say that it is not read
    return True


def _head(files: Files, file: str) -> _Head:
    """The header: 8 bytes of its length before it; or the whole file is one message, as with msaccucmp's -v 1.

    Raises:
        InputError: it is neither, or promises more than the file has.
    """
    size = files.sizes[file]
    if files.head(file, 4) == NANO:
        raise files.damaged(file, "a nano dump, which is not read", "convert it with msaccucmp convert -t npy")
    if size <= 8:
        raise files.damaged(file, f"{size} bytes are no dump")
    length = int.from_bytes(files.bytes(file, 0, 8), "little")
    if length <= min(size - 8, MAX_HEADER):
        head = _Head(_parsed(files, file, 8, length), 8 + length)
        if head.end > size:
            raise files.damaged(file, f"its header says {head.end} bytes; it has {size}")
    else:
        head = _Head(_parsed(files, file, 0, size), -1)
    if not head.message.version or not (head.message.output or head.message.input):
        raise files.damaged(file, "its header is no DumpData with tensors")
    return head


def _parsed(files: Files, file: str, at: int, count: int) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _ascend.message().FromString(files.bytes(file, at, count))
    except (DecodeError, UnicodeDecodeError) as e:
        raise files.damaged(file, f"its header is no DumpData: {e}") from e


def _of_file(files: Files, file: str, found: Any, origins: dict[tuple[str, int], _atc.Origin]) -> Iterator[DumpEntry]:
    head = _head(files, file)
    for role, index, one, at in head.blobs():
        dtype = _ascend.DTYPES.get(one.data_type, "")
        # an empty shape: flat, as msaccucmp has it
        shape, lacks = _shape(one, dtype)
        load = partial(_array, files, file, (role, index, at), dtype, shape or ())
        more = _origin(one, role, origins.get((plain(found["node"]), index)))
        yield DumpEntry(
            file,
            load,
            dtype,
            shape,
            layout=_ascend.FORMATS.get(one.format, str(one.format)),
            node=str(head.message.op_name) or found["node"],
            role=role,
            index=index,
            side=file.rpartition("/")[0],
            stem=f"{file}.{role}.{index}",
            lacks=lacks,
            **more,
        )


def _shape(one: Any, dtype: str) -> tuple[tuple[int, ...] | None, str]:
    """(shape as stored, why it cannot be read)."""
    size = int(one.size or len(one.data))
    if not dtype:
        return None, f"element type {_ascend.OTHER.get(one.data_type, one.data_type)} is not read"
    shape = tuple(int(d) for d in one.shape.dim) or (size * 8 // _raw.bits(dtype),)
    need = _raw.nbytes(dtype, math.prod(shape))
    if not 0 <= size - need <= SLACK:
        return shape, f"{size} bytes are no {dtype} {list(shape)}"
    return shape, ""


def _origin(one: Any, role: str, origin: _atc.Origin | None) -> dict[str, Any]:
    """What header and JSON say of the tensor in the model."""
    dims = tuple(int(d) for d in one.original_shape.dim) or None
    if role == "input":
        return {"original_shape": dims}
    own = one.original_op
    more: dict[str, Any] = {"original_shape": dims, "originals": (str(own.name),) if own.name else ()}
    more |= {
        "original_index": int(own.output_index),
        "original_layout": _ascend.FORMATS[own.format] if own.name and own.format == 1 else "",
    }
    if origin:
        more |= {
            "fused": origin.fused,
            "original_shape": dims or origin.shape,
            "original_layout": _turned(origin.layout),
        }
        more |= {"originals": (origin.name,) if origin.name else (), "original_index": origin.index}
        if not origin.fused:
            more["note"] = "inserted by the compiler"
    return more


def _turned(layout: str) -> str:
    """The model's own layout where it is not NCHW."""
    return layout if layout in ("NHWC", "NDHWC", "HWCN") else ""


def _array(files: Files, file: str, where: tuple[str, int, int], dtype: str, shape: tuple[int, ...]) -> Array:
    import numpy as np

    role, index, at = where
    if at >= 0:
        return _raw.read(files, file, dtype, shape, at)
    data = getattr(_head(files, file).message, role)[index].data
    if len(data) < _raw.nbytes(dtype, math.prod(shape)):
        raise files.damaged(file, f"{len(data)} bytes are no {dtype} {list(shape)}")
    found = np.frombuffer(bytearray(data), tensors.np_dtype(dtype), math.prod(shape))
    return files.shaped(file, found, shape)


def write(values: tensors.Tensors, folder: Path) -> None:
    """One file per tensor, each an op of its name with one output in the model's layout.

    Raises:
        InputError: a value that is no array, or of a type that Ascend does not have.
    """
    import numpy as np

    from subgraph.storage.convert import raw_bytes

    stems = safe_names(plain(name) for name in values)
    for k, (name, value) in enumerate(values.items()):
        array = np.asarray(value)
        dtype = dtype_of(array.dtype)
        if value is None or isinstance(value, list) or dtype not in _ascend.NUMBERS:
            raise InputError(f"{name}: Ascend's dump holds arrays of {', '.join(_ascend.NUMBERS)}")
        data = raw_bytes(array, dtype)
        head = _ascend.message()(version="2.0", op_name=name)
        head.output.add(data_type=_ascend.NUMBERS[dtype], format=2, size=len(data)).shape.dim.extend(array.shape)
        text = head.SerializeToString()
        stem = stems[plain(name)].replace(".", "_").replace("+", "_").replace("@", "_").replace("~", "_")
        (folder / f"Tensor.{stem}.{k}.{10**15}").write_bytes(len(text).to_bytes(8, "little") + text + data)
