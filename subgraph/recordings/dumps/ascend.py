"""Ascend's NPU dump: one file per op, a protobuf header DumpData and the raw blobs after it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from subgraph.errors import InputError
from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _ascend, _raw
from subgraph.storage import dtypes
from subgraph.types import Shape, Strings

NANO = b"\x5a\x5a\x5a\x5a"
# Bytes after a blob's values: the NPU's memory has blocks of 32 bytes, and 32 bytes after them.
MAX_PADDING = 64
MAX_TRIED = 20  # files of such a name that are opened to detect the format
MAX_HEADER = 64 << 20  # bytes; real ones have hundreds
OTHER_ORDERS = ("NHWC", "NDHWC", "HWCN")  # of a model's axes, in addition to NCHW
_OVERFLOWS = "Opdebug.Node_OpDebug"
plain = _ascend.plain


def detect(files: Files) -> int:
    """Detect the format by files OP.NODE.TASK.STREAM.TIME, or listed in mapping.csv, whose header
    is a DumpData."""
    real_names = _ascend.read_real_names(files)
    candidates = [n for n in files.names if _parse_name(n, real_names)][:MAX_TRIED]
    if any(_is_dump(files, n) for n in candidates):
        return MARKED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield inputs and outputs of each op, of its latest dump; with origins from an `atc` JSON."""
    real_names = _ascend.read_real_names(files)
    origins = _ascend.read_origins(files)
    # The latest dump of each op in each folder: its time, file and parsed name.
    latest: dict[Strings, tuple[int, str, re.Match[str]]] = {}
    for file in files.names:
        if name := _parse_name(file, real_names):
            key = (file.rpartition("/")[0], *name.group("op", "node", "task", "stream", "more"))
            dump = (int(name["time"]), file, name)
            latest[key] = max(latest.get(key, dump), dump, key=lambda d: d[:2])
    for _, file, name in latest.values():
        yield from _iter_file_entries(files, file, name["node"], origins)


def _parse_name(file: str, real_names: dict[str, str]) -> re.Match[str] | None:
    """Return the parts of a dump's file name; None for other files."""
    base = real_names.get(file, file).rpartition("/")[2]
    if base.startswith(_OVERFLOWS):
        return None
    return _ascend.NAME.fullmatch(base)


def _is_dump(files: Files, file: str) -> bool:
    try:
        _read_head(files, file)
    except InputError:
        # A nano dump is recognized, so that `entries` reports that it is not read.
        return files.head(file, 4) == NANO
    return True


def _read_head(files: Files, file: str) -> tuple[Any, int]:
    """Read the header, which follows 8 bytes with its length, and the offset of the first blob.

    Raises InputError: there is no header, or it promises more bytes than the file has.
    """
    size = files.sizes[file]
    if files.head(file, 4) == NANO:
        hint = "convert it with msaccucmp convert -t npy"
        raise files.make_error(file, "a nano dump, which is not read", hint)
    length = int.from_bytes(files.head(file, 8), "little")
    if not 0 < length <= min(size - 8, MAX_HEADER):
        raise files.make_error(file, f"no dump: its header would have {length} bytes")
    try:
        head = _ascend.make_message_class().FromString(files.bytes(file, 8, length))
    except (DecodeError, UnicodeDecodeError) as e:
        raise files.make_error(file, f"its header is not a DumpData: {e}") from e
    blobs = (*head.input, *head.output, *head.buffer, *head.space)
    end = 8 + length + sum(int(blob.size) for blob in blobs)
    if end > size:
        raise files.make_error(file, f"its header promises {end} bytes; it has {size}")
    if not head.version or not (head.output or head.input):
        raise files.make_error(file, "its header is not a DumpData with tensors")
    return head, 8 + length


def _iter_file_entries(
    files: Files, file: str, node: str, origins: dict[tuple[str, int], _ascend.Origin]
) -> Iterator[DumpEntry]:
    head, at = _read_head(files, file)
    inputs = [("input", *numbered) for numbered in enumerate(head.input)]
    outputs = [("output", *numbered) for numbered in enumerate(head.output)]
    for role, index, blob in (*inputs, *outputs):
        dtype = _ascend.DTYPES.get(blob.data_type, "")
        shape, missing = _find_shape(blob, dtype)
        entry = DumpEntry(
            file,
            partial(_raw.read, files, file, dtype, shape or (), at),
            dtype,
            shape,
            layout=_ascend.FORMATS.get(blob.format, str(blob.format)),
            node=str(head.op_name) or node,
            role=role,
            index=index,
            original_shape=tuple(int(d) for d in blob.original_shape.dim) or None,
            side=file.rpartition("/")[0],
            stem=f"{file}.{role}.{index}",
            missing=missing,
        )
        if role == "output":
            entry = _add_origin(entry, blob.original_op, origins.get((plain(node), index)))
        yield entry
        at += blob.size


def _find_shape(blob: Any, dtype: str) -> tuple[Shape | None, str]:
    """Return the shape as stored, and why it cannot be read; without a shape, values are flat."""
    size = int(blob.size)
    if not dtype:
        names = dict(enumerate(_ascend.TYPE_NAMES))
        return None, f"element type {names.get(blob.data_type, blob.data_type)} is not read"
    shape = tuple(int(d) for d in blob.shape.dim) or (size * 8 // dtypes.count_bits(dtype),)
    if not 0 <= size - _raw.count_bytes(dtype, math.prod(shape)) <= MAX_PADDING:
        return shape, f"{size} bytes do not fill {dtype} {list(shape)}"
    return shape, ""


def _add_origin(entry: DumpEntry, op: Any, origin: _ascend.Origin | None) -> DumpEntry:
    """Return an output with the facts of the header and the JSON about the tensor in the model."""
    if origin is None:
        return replace(
            entry,
            originals=(str(op.name),) if op.name else (),
            original_index=int(op.output_index),
            original_layout=_ascend.FORMATS[op.format] if op.name and op.format == 1 else "",
        )
    return replace(
        origin.apply_to(entry),
        original_shape=entry.original_shape or origin.shape,
        original_layout=origin.layout if origin.layout in OTHER_ORDERS else "",
        note="" if origin.fused else "inserted by the compiler",
    )
