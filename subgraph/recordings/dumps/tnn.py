"""TNN: files per blob of a DUMP build, model_check's cpu_ and device_ files, and its text file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from itertools import product

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _text, replace_characters
from subgraph.types import Array, JsonObject, Shape

TEXT_STEP = 1e-9  # of a DUMP build: "%.9f"
FILE_STEP = 1e-6  # of model_check and its tensor file: "%0.6f"
# COUNT-LAYER-in-0-BLOB-dims-1-8-16-16.txt; of several `-in-0-` the first divides layer and blob
_DUMPED = re.compile(r"(\d{5,})-(.+?)-(in|out)-(\d+)-(.+)-dims((?:-\d+)*)\.txt")
plain = replace_characters(r"[/:]")
_SIDES = ("cpu_", "device_", "tnn-")
_DTYPES = {0: "float32", 2: "int8", 3: "int32"}
_MAX_ELEMENTS = 1 << 40  # of one tensor


def detect(files: Files) -> int:
    """Detect the format by the names of its dump, by both cpu_*.txt and device_*.txt, or by a
    described text file."""
    names = [n.rpartition("/")[2] for n in files.ending(".txt")]
    if any(_DUMPED.fullmatch(n) for n in names):
        return MARKED
    if {"cpu_", "device_"} <= {side for side, n in product(_SIDES, names) if n.startswith(side)}:
        return MARKED
    if any(_is_described(files, n) for n in files.ending(".txt")):
        return MARKED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield outputs and inputs of each layer, in the order of the run."""
    for file in files.ending(".txt"):
        side, _, base = file.rpartition("/")
        dumped = _DUMPED.fullmatch(base)
        if dumped:
            yield _make_blob_entry(files, file, dumped, side)
        elif _is_described(files, file):
            yield from _iter_tensors(files, file)
        elif base.startswith(_SIDES) and _text.is_numeric(files, file):
            # model_check writes values without a shape: cpu_BLOB.txt and device_BLOB.txt.
            tool = next(s for s in _SIDES if base.startswith(s))
            blob = base[len(tool) : -len(".txt")]
            names: JsonObject = {"tensor": blob, "side": tool.strip("_-")}
            spec = hints.find(blob, plain)
            yield _text.make_entry(files, file, "float32", spec, step=FILE_STEP, **names)


def _make_blob_entry(files: Files, file: str, name: re.Match[str], side: str) -> DumpEntry:
    shape = tuple(int(d) for d in name[6].split("-")[1:])
    dtype = "int32" if files.sizes[file] and _text.is_whole(files, file) else "float32"
    return DumpEntry(
        file,
        _text.make_loader(files, file, dtype, shape),
        dtype,
        shape,
        tensor=name[5],
        node=name[2],
        role="input" if name[3] == "in" else "output",
        index=int(name[4]),
        side=side,
        step=TEXT_STEP if dtype == "float32" else 0.0,
    )


def _is_described(files: Files, file: str) -> bool:
    """Return whether a file has a number, then `NAME RANK DIMS… TYPE` and values of each."""
    lines = files.head(file, 1024).split(b"\n")
    try:
        is_count = len(lines) > 1 and int(lines[0]) > 0 and b"_" not in lines[0]
        return is_count and bool(_parse_header(lines[1].split()))
    except ValueError:
        return False


def _parse_header(words: list[bytes]) -> tuple[str, Shape, str]:
    """Parse name, shape and element type of `data 4 1 3 16 16 0`, else raise ValueError."""
    rank = int(words[1]) if len(words) > 2 else -1
    if rank < 0 or len(words) != 3 + rank:
        raise ValueError("no header of a tensor")
    shape = tuple(int(w) for w in words[2:-1])
    if any(d < 0 for d in shape) or math.prod(shape) > _MAX_ELEMENTS:
        raise ValueError(f"shape {list(shape)}")
    return words[0].decode(), shape, _DTYPES.get(int(words[-1]), "")


def _iter_tensors(files: Files, file: str) -> Iterator[DumpEntry]:
    """Yield the tensors of a tensor file; each header has the number of lines that follow."""
    data = files.read(file).split(b"\n")
    at = 1
    for _ in range(min(int(data[0]), len(data))):
        with files.reading(file, f"line {at + 1}: "):
            name, shape, dtype = _parse_header(data[at].split())
        count = math.prod(shape)
        if at + 1 + count > len(data):
            raise files.make_error(
                file, f"{name}: {len(data) - at - 1} lines are not {list(shape)} values"
            )
        stem = f"{file[: -len('.txt')]}/{plain(name)}"
        load = partial(_read_values, files, file, (at + 1, count), dtype, shape)
        missing = "" if dtype else "an element type that TNN does not have"
        step = FILE_STEP if dtype == "float32" else 0.0
        yield DumpEntry(
            file, load, dtype, shape, tensor=name, stem=stem, step=step, missing=missing
        )
        at += 1 + count


def _read_values(files: Files, file: str, part: tuple[int, int], dtype: str, shape: Shape) -> Array:
    data = files.read(file).split(b"\n")[part[0] : part[0] + part[1]]
    flat = _text.parse_numbers(files, file, b"\n".join(data), dtype)
    return files.reshape(file, flat, shape)
