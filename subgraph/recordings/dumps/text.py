"""Files of numbers, NAME.txt, NAME.csv and NAME.tsv, one or several per line; the shape from the model, else flat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from subgraph.recordings.dumps import BARE, NONE, DumpEntry, DumpHints, _npy, _text, checked_arrays
from subgraph.recordings.files import Files
from subgraph.storage.folders import safe_names
from subgraph.storage.tensors import Tensors

HOLDS = _text.HOLDS
PRINTED = {"float32": "%.9g", "float64": "%.17g"}  # as many digits as make the printed value exact

ENDS = (".txt", ".csv", ".tsv")
plain = _npy.plain


def detect(files: Files) -> int:
    """By files that begin with numbers and nothing else, but for a title of one word."""
    return BARE if any(_text.title_lines(files, n) is not None for n in files.ending(*ENDS)) else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """One per file of numbers; others (logs, lists) hold no tensors."""
    for file in files.ending(*ENDS):
        yield from _text.number_file(files, file, hints, plain)


def write(tensors: Tensors, folder: Path) -> None:
    """One .txt per tensor, one value per line, with as many digits as its type has.

    Raises:
        InputError: a value is no array of numbers.
    """
    stems = safe_names(tensors)
    for name, _, array in checked_arrays(tensors, HOLDS, "a text file holds an array of numbers"):
        form = PRINTED.get(array.dtype.name, "%d" if array.dtype.kind in "iub" else "%.9g")
        (folder / f"{stems[name]}.txt").write_text(_text.lines(array, form), encoding="ascii")
