"""The .safetensors files of Hugging Face: a JSON header, then the values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from subgraph.recordings.dump_files import Files, is_possible_shape
from subgraph.recordings.dumps import NONE, TYPED, DumpEntry, DumpHints, _npy, _raw, parse_pairs
from subgraph.storage.folders import make_safe_name
from subgraph.types import JsonObject

MAX_HEADER = 100 << 20  # bytes; the format's own limit
DTYPES = parse_pairs(
    "F64 float64 F32 float32 F16 float16 BF16 bfloat16 I64 int64 I32 int32 I16 int16 I8 int8"
    " U64 uint64 U32 uint32 U16 uint16 U8 uint8 BOOL bool F8_E4M3 float8_e4m3fn"
    " F8_E5M2 float8_e5m2"
)
plain = _npy.plain


def detect(files: Files) -> int:
    """Detect the format by the end .safetensors."""
    return TYPED if files.ending(".safetensors") else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield one per tensor of each file."""
    for file in files.ending(".safetensors"):
        start, header = _read_header(files, file)
        for name, item in header.items():
            if name != "__metadata__":
                yield _make_entry(files, file, name, item, start)


def _read_header(files: Files, file: str) -> tuple[int, JsonObject]:
    """Return (offset of the values, the header). Raises InputError: it is damaged."""
    size = int.from_bytes(files.bytes(file, 0, 8), "little")
    if size > min(MAX_HEADER, files.sizes[file] - 8):
        raise files.make_error(file, f"its header promises {size} bytes")
    with files.reading(file, "its header is not JSON: "):
        header = json.loads(files.bytes(file, 8, size))
    if not isinstance(header, dict):
        raise files.make_error(file, "its header lists no tensors")
    return 8 + size, header


def _make_entry(files: Files, file: str, name: str, item: Any, start: int) -> DumpEntry:
    with files.reading(file, f"{name}: "):
        word = str(item["dtype"])
        shape = tuple(int(d) for d in item["shape"])
        begin, end = (int(d) for d in item["data_offsets"])
    dtype = DTYPES.get(word, "")
    missing = "" if dtype else f"element type {word}"
    count = math.prod(shape) if is_possible_shape(shape) else -1
    if not missing and (count < 0 or begin < 0 or _raw.count_bytes(dtype, count) != end - begin):
        raise files.make_error(
            file, f"{name}: {list(shape)} of {dtype} does not take {end - begin} bytes"
        )
    load = partial(_raw.read, files, file, dtype, shape, start + begin)
    stem = file.removesuffix(".safetensors")
    return DumpEntry(
        file,
        load,
        dtype,
        shape,
        tensor=name,
        side=stem,
        stem=f"{stem}/{make_safe_name(name)}",
        missing=missing,
    )
