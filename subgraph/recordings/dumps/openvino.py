"""OpenVINO's CPU plugin built with debug capabilities: .ieb blobs, binary or text.

Source: node_dumper.cpp and blob_dump.cpp in src/plugins/intel_cpu/src/utils of
openvinotoolkit/openvino (OV_CPU_BLOB_DUMP_DIR).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import (
    MARKED,
    NONE,
    DumpEntry,
    DumpHints,
    TensorSpec,
    _raw,
    _text,
    parse_pairs,
)
from subgraph.storage import dtypes
from subgraph.types import Shape

MAGIC = b"IEB0"
_HEADER = struct.Struct("<4sHBB7IB3x")
_PLACES = struct.Struct("<4Q")  # of the data and of scales: offset and bytes
_SHORT_PLACES = struct.Struct("<4I")  # `unsigned long` of Windows, until 2024
# ov::element::Type_t by number; renumbered twice: when u2, u3 and u6 were added, and when
# `undefined` was removed.
_2021 = (
    "- - bool bfloat16 float16 float32 float64 int4 int8 int16 int32 int64 - uint4 uint8 uint16"
    " uint32 uint64"
).split()
_2024 = [*_2021[:12], *"- uint2 - uint4 - uint8 uint16 uint32 uint64".split()]
_2025 = _2024[1:]
# InferenceEngine::Precision, until 2023
_ENGINE = parse_pairs(
    "10 float32 11 float16 12 bfloat16 13 float64 30 int16 40 uint8 41 bool 50 int8 60 uint16"
    " 70 int32 72 int64 73 uint64 74 uint32"
)
NUMBERINGS = (
    {int(number): name for number, name in _ENGINE.items()},
    *(dict(enumerate(names)) for names in (_2025, _2024, _2021)),
)
# "#12_Convolution_conv1_out0.ieb", "…_conv1_iter3_out0.ieb" if inferences are counted; older
# builds leave the type of the node out
_NAME = re.compile(
    r"#(?P<step>\d+)_(?P<node>.+?)(?:_iter(?P<run>\d+))?_(?P<role>in|out|blb)(?P<index>\d+)\.ieb"
)
_TYPED = re.compile(r"(?P<op>[A-Z]\w*?)_(?P<node>.+)")
_PRINTED = re.compile(rb"(\w+) (\d+)D shape: ([\d ]*)\((\d+)\) by address")
_WORDS = parse_pairs(
    "f32 float32 fp32 float32 bf16 float32 f16 float32 fp16 float32 i32 int32 i8 int8 u8 uint8"
    " i64 int64 u32 uint32 u16 uint16 i16 int16 boolean bool"
)
_ROLES = {"in": "input", "out": "output", "blb": "constant"}
TEXT_STEP = 1e-6  # relative to 1: C++ prints six digits
Header = tuple[int, Shape, int, int]  # number of the element type, shape, offset, bytes


def detect(files: Files) -> int:
    """Detect the format by the magic number IEB0, or by the first line of the text form."""
    blobs = files.ending(".ieb")
    is_dump = any(_is_binary(files, name) or _parse_printed_head(files, name) for name in blobs)
    return MARKED if is_dump else NONE


def plain(name: str) -> str:
    r"""Return a name in which `/`, `\` and blanks are `_`, and `:` is `-`."""
    return re.sub(r"[/\\ ]", "_", name).replace(":", "-")


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield inputs, outputs and inner blobs (weights) of each node, in the order of the run."""
    binary = [n for n in files.ending(".ieb") if _is_binary(files, n)]
    headers = [_read_header(files, n) for n in binary]
    # the one with the right size most often: 3 was bfloat16, is float16 today; 10 is float32 in
    # the oldest, int32 in later ones (if nothing else decides, a network has floats)
    numbering = max(NUMBERINGS, key=lambda n: sum(bool(_find_fitting_type(h, n)) for h in headers))
    for file in files.ending(".ieb"):
        printed = _parse_printed_head(files, file)
        if file in binary:
            entry = _make_blob_entry(files, file, numbering)
        elif printed:
            word, shape = printed
            dtype = _WORDS.get(word, "")
            missing = "" if dtype else f"element type {word}"
            load = _text.make_loader(files, file, dtype, shape, 1)
            entry = DumpEntry(file, load, dtype, shape, step=TEXT_STEP, missing=missing)
        else:
            raise files.make_error(file, "it has no header of an .ieb")
        yield _add_names(entry, hints)


def _add_names(entry: DumpEntry, hints: DumpHints) -> DumpEntry:
    """Return the entry with the node, role and index of its file name."""
    side, _, base = entry.file.rpartition("/")
    name = _NAME.fullmatch(base)
    if not name:
        return replace(entry, node=base.removesuffix(".ieb"), side=side)
    node = name["node"]
    run = f"iter{name['run']}" if name["run"] else ""
    side = "/".join(filter(None, (side, run)))
    typed = _TYPED.fullmatch(node)
    # Otherwise, the model's own name begins like a type.
    if typed and hints.find(node, plain) == TensorSpec():
        node = typed["node"]
    role = _ROLES[name["role"]]
    return replace(entry, node=node, role=role, index=int(name["index"]), side=side)


def _is_binary(files: Files, file: str) -> bool:
    return files.head(file, 4) == MAGIC


def _read_header(files: Files, file: str) -> Header:
    """Return the header of a blob. Raises InputError: it is damaged."""
    short = _HEADER.size + _SHORT_PLACES.size
    if files.sizes[file] < short:
        raise files.make_error(file, "it ends within its header")
    _, version, precision, rank, *dims, _ = _HEADER.unpack(files.bytes(file, 0, _HEADER.size))
    if version != 256 or rank > 7:
        raise files.make_error(file, f"version {version}, {rank} dimensions")
    offset, size, *_ = _SHORT_PLACES.unpack(files.bytes(file, _HEADER.size, _SHORT_PLACES.size))
    if offset != short:
        if files.sizes[file] < _HEADER.size + _PLACES.size:
            raise files.make_error(file, "it ends within its header")
        offset, size, *_ = _PLACES.unpack(files.bytes(file, _HEADER.size, _PLACES.size))
    if offset + size > files.sizes[file]:
        held = files.sizes[file]
        raise files.make_error(file, f"its header promises {size} bytes at {offset}; it has {held}")
    return precision, tuple(dims[:rank]), offset, size


def _find_fitting_type(header: Header, numbering: Mapping[int, str]) -> str:
    """Return the element type of a blob in one numbering; "" if its size is another's."""
    precision, shape, _, size = header
    dtype = numbering.get(precision, "")
    is_type = dtype in dtypes.TYPE_NUMBERS
    if is_type and _raw.count_bytes(dtype, math.prod(shape)) == size:
        return dtype
    return ""


def _make_blob_entry(files: Files, file: str, numbering: Mapping[int, str]) -> DumpEntry:
    header = _read_header(files, file)
    precision, shape, offset, size = header
    fitting = (_find_fitting_type(header, n) for n in (numbering, *NUMBERINGS))
    dtype = next(filter(None, fitting), "")
    wrong = f"element type {precision} of shape {list(shape)} does not have {size} bytes"
    load = partial(_raw.read, files, file, dtype, shape, offset)
    return DumpEntry(file, load, dtype, shape, missing="" if dtype else wrong)


def _parse_printed_head(files: Files, file: str) -> tuple[str, Shape] | None:
    """Return (element type, shape) of the text form."""
    head = _PRINTED.match(files.head(file, 512))
    if not head:
        return None
    shape = tuple(int(d) for d in head[3].split())
    fits = len(shape) == int(head[2]) and math.prod(shape) == int(head[4])
    return (head[1].decode().lower(), shape) if fits else None
