"""Text files with one value per line, NAME.txt; the shape from the model, else flat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from subgraph.errors import InputError
from subgraph.recordings.dumps import BARE, NONE, DumpEntry, DumpHints, _text, dtype_of
from subgraph.recordings.dumps._raw import fitted, nbytes
from subgraph.recordings.files import Files
from subgraph.storage.folders import safe_names
from subgraph.storage.tensors import Tensors

HOLDS = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
         "bool")  # fmt: skip
PRINTED = {"float32": "%.9g", "float64": "%.17g"}  # digits after which a value comes back as it was


def detect(files: Files) -> int:
    """By .txt files that begin with numbers and nothing else."""
    return BARE if any(_text.is_numeric(files, n) for n in files.ending(".txt")) else NONE


def plain(name: str) -> str:
    """As RKNN, TNN and MNN name files: `/`, `.` and `:` become `_`; none at the ends counts."""
    return "".join("_" if c in "/.:\\ " else c for c in name).strip("_")


def entries(files: Files, known: DumpHints) -> Iterator[DumpEntry]:
    """One per .txt file of numbers; others (logs, lists) are no tensors."""
    for file in files.ending(".txt"):
        if not _text.is_numeric(files, file):
            continue
        stem = file[: -len(".txt")]
        side, _, own = stem.rpartition("/")
        spec = known.find(own, plain)
        whole = _text.is_whole(files, file)
        dtype = spec.dtype if spec.dtype in HOLDS else "int64" if whole else "float32"
        dims = spec.shape
        shape = None
        if dims is not None:
            count = _text.values(files, file, dtype).size if None in dims else 0
            shape = fitted(dims, dtype, nbytes(dtype, count))[0] if count else tuple(d for d in dims if d is not None)
        note = "" if shape is not None else "its shape is not known"
        yield DumpEntry(file, _text.loader(files, file, dtype, shape), dtype, shape, tensor=own, side=side, note=note)


def write(tensors: Tensors, folder: Path) -> None:
    """One .txt per tensor, one value per line, with as many digits as its type has.

    Raises:
        InputError: a value that is no array of numbers.
    """
    import numpy as np

    stems = safe_names(tensors)
    for name, value in tensors.items():
        array = np.asarray(value)
        if value is None or isinstance(value, list) or not dtype_of(array.dtype) or array.dtype.kind not in "fiub":
            raise InputError(f"{name}: a text file holds an array of numbers")
        form = PRINTED.get(array.dtype.name, "%d" if array.dtype.kind in "iub" else "%.9g")
        (folder / f"{stems[name]}.txt").write_text(_text.lines(array, form), encoding="ascii")
