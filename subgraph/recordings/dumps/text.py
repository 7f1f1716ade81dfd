"""Files of numbers, NAME.txt, NAME.csv and NAME.tsv, one or several per line; the shape from the
model, else flat."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import BARE, NONE, DumpEntry, DumpHints, TensorSpec, _npy, _text
from subgraph.recordings.dumps._raw import count_bytes, fit_size

HOLDS = _text.HOLDS

# `# Array shape: (4, 11, 5)`; Tengine's `Shape is {1 8 28 28}, data type is fp32`
_SHAPE = re.compile(rb"^(?:#.*?)?shape\b[^\d\n]*\d[\d, x]*", re.M | re.I)
ENDS = (".txt", ".csv", ".tsv")
plain = _npy.plain


def detect(files: Files) -> int:
    """Detect the format by files that begin with numbers and nothing else, but for a title of one
    word."""
    counts = (_count_title_lines(files, name) for name in files.ending(*ENDS))
    if any(count is not None for count in counts):
        return BARE
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield one per file of numbers, which has its tensor's name; others (logs, lists) hold no
    tensors.

    Numbers in several columns with titles are not read.
    """
    for file in files.ending(*ENDS):
        side, _, base = file.rpartition(".")[0].rpartition("/")
        titles = files.head(file).partition(b"\n")[0].strip()
        if (skip := _count_title_lines(files, file)) is not None:
            entry = _make_entry(files, file, skip, hints.find(base, plain))
            yield replace(entry, tensor=base, side=side)
        elif re.search(rb"[,\t]", titles) and _text.is_numeric(files, file, 1):
            missing = (
                "several columns, of which any can hold the values"
                f" ({titles[:80].decode('utf-8-sig', 'replace')})"
            )
            yield DumpEntry(file, tensor=base, side=side, missing=missing)


def _count_title_lines(files: Files, file: str) -> int | None:
    """Count the lines of words above a file's numbers: 0 or 1; None if it holds anything else."""
    if _text.is_numeric(files, file):
        return 0
    titled = not re.search(rb"[,\t\d]", files.head(file).partition(b"\n")[0]) and _text.is_numeric(
        files, file, 1
    )
    return 1 if titled else None


def _make_entry(files: Files, file: str, skip: int, spec: TensorSpec) -> DumpEntry:
    """Make the entry of the numbers below a title; a comment, else `spec`, has the shape."""
    if files.head(file, 2) == b",0" and files.head(file).partition(b"\n")[2].startswith(b"0,"):
        missing = (
            "its first row and column count the others, as pandas does: save it with header=False,"
            " index=False"
        )
        return DumpEntry(file, dtype="", missing=missing)
    whole = _text.is_whole(files, file, skip)
    if spec.dtype in HOLDS:
        dtype = spec.dtype
    elif whole:
        dtype = "int64"
    else:
        dtype = "float32"
    if said := _SHAPE.search(files.head(file)):
        spec = TensorSpec(dtype, tuple(map(int, re.findall(rb"\d+", said[0]))))
    elif spec.shape is not None and None in spec.shape:
        count = _text.read_values(files, file, dtype, skip).size
        fixed = tuple(d for d in spec.shape if d is not None)
        spec = replace(
            spec,
            shape=fit_size(spec.shape, dtype, count_bytes(dtype, count))[0] if count else fixed,
        )
    stem = file.rpartition(".")[0]
    beside = not file.endswith(".txt") and f"{stem}.txt" in files.names
    return _text.make_entry(
        files,
        file,
        dtype,
        spec,
        skip,
        step=_text.measure_step(files, file, skip),
        stem=f"{stem}_csv" if beside else "",
    )
