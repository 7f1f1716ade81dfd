"""Text files with one value per line, NAME.txt; the shape from the model, else flat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from subgraph.recordings.dumps import BARE, NONE, DumpEntry, DumpHints, _npy, _text, checked_arrays
from subgraph.recordings.dumps._raw import fit_size, nbytes
from subgraph.recordings.files import Files
from subgraph.storage.folders import safe_names
from subgraph.storage.tensors import Tensors

HOLDS = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
         "bool")  # fmt: skip
PRINTED = {"float32": "%.9g", "float64": "%.17g"}  # as many digits as make the printed value exact

plain = _npy.plain


def detect(files: Files) -> int:
    """By .txt files that begin with numbers and nothing else."""
    return BARE if any(_text.is_numeric(files, n) for n in files.ending(".txt")) else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """One per .txt file of numbers; others (logs, lists) hold no tensors."""
    for file in files.ending(".txt"):
        if not _text.is_numeric(files, file):
            continue
        side, _, base = file[: -len(".txt")].rpartition("/")
        spec = hints.find(base, plain)
        whole = _text.is_whole(files, file)
        dtype = spec.dtype if spec.dtype in HOLDS else "int64" if whole else "float32"
        if spec.shape is not None and None in spec.shape:
            count = _text.values(files, file, dtype).size
            fixed = tuple(d for d in spec.shape if d is not None)
            shape = fit_size(spec.shape, dtype, nbytes(dtype, count))[0] if count else fixed
            spec = replace(spec, shape=shape)
        yield replace(_text.entry(files, file, dtype, spec, _text.step(files, file)), tensor=base, side=side)


def write(tensors: Tensors, folder: Path) -> None:
    """One .txt per tensor, one value per line, with as many digits as its type has.

    Raises:
        InputError: a value is no array of numbers.
    """
    stems = safe_names(tensors)
    for name, _, array in checked_arrays(tensors, HOLDS, "a text file holds an array of numbers"):
        form = PRINTED.get(array.dtype.name, "%d" if array.dtype.kind in "iub" else "%.9g")
        (folder / f"{stems[name]}.txt").write_text(_text.lines(array, form), encoding="ascii")
