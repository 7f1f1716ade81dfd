"""Text files of numbers, NAME.txt and NAME.csv, one or several per line; the shape from the model, else flat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from subgraph.recordings.dumps import BARE, NONE, DumpEntry, DumpHints, _npy, _text, checked_arrays, unreadable
from subgraph.recordings.dumps._raw import fit_size, nbytes
from subgraph.recordings.files import Files
from subgraph.storage.folders import safe_names
from subgraph.storage.tensors import Tensors

HOLDS = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
         "bool")  # fmt: skip
PRINTED = {"float32": "%.9g", "float64": "%.17g"}  # as many digits as make the printed value exact

ENDS = (".txt", ".csv")
plain = _npy.plain


def detect(files: Files) -> int:
    """By .txt or .csv files that begin with numbers and nothing else, but for a line of titles in a .csv."""
    return BARE if any(_titles(files, n) is not None for n in files.ending(*ENDS)) else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """One per file of numbers; others (logs, lists) hold no tensors."""
    for file in files.ending(*ENDS):
        titles = _titles(files, file)
        if titles is None:
            continue
        stem = file[: -len(ENDS[0])]
        side, _, base = stem.rpartition("/")
        stem = f"{stem}_csv" if file != f"{stem}.txt" and f"{stem}.txt" in files.names else stem
        spec = hints.find(base, plain)
        if len(titles) > 1:
            lacks = f"which of its columns holds the values? ({', '.join(titles)[:80]})"
            yield DumpEntry(file, unreadable, tensor=base, side=side, stem=stem, lacks=lacks)
            continue
        skip = len(titles)
        dtype = spec.dtype if spec.dtype in HOLDS else "int64" if _text.is_whole(files, file, skip) else "float32"
        if spec.shape is not None and None in spec.shape:
            count = _text.values(files, file, dtype, skip).size
            fixed = tuple(d for d in spec.shape if d is not None)
            shape = fit_size(spec.shape, dtype, nbytes(dtype, count))[0] if count else fixed
            spec = replace(spec, shape=shape)
        entry = _text.entry(files, file, dtype, spec, _text.step(files, file, skip), skip)
        yield replace(entry, tensor=base, side=side, stem=stem)


def _titles(files: Files, file: str) -> list[str] | None:
    """The titles in the first line of a .csv, [] where there are none; None if it holds no numbers."""
    if _text.is_numeric(files, file):
        return []
    line = files.head(file).partition(b"\n")[0]
    if file.lower().endswith(".txt") or not _text.is_numeric(files, file, 1):
        return None
    return [word.strip().strip('"') for word in line.decode("utf-8-sig", "replace").split(",")]


def write(tensors: Tensors, folder: Path) -> None:
    """One .txt per tensor, one value per line, with as many digits as its type has.

    Raises:
        InputError: a value is no array of numbers.
    """
    stems = safe_names(tensors)
    for name, _, array in checked_arrays(tensors, HOLDS, "a text file holds an array of numbers"):
        form = PRINTED.get(array.dtype.name, "%d" if array.dtype.kind in "iub" else "%.9g")
        (folder / f"{stems[name]}.txt").write_text(_text.lines(array, form), encoding="ascii")
