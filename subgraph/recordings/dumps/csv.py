"""CSV tables with the columns tensor, index (one, or one per axis) and value; CSV files of numbers beside them."""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from subgraph.recordings.dumps import BARE, NO_SHAPE, NONE, TYPED, DumpEntry, DumpHints, _npy, _text, unreadable
from subgraph.recordings.files import Files, possible
from subgraph.storage.folders import safe_names
from subgraph.types import Array

ENDS = (".csv", ".tsv")
MAX_TABLE = 64 << 20  # bytes of a table, which is read as a whole
_NAME = re.compile(r"(tensor|layer|node|output|blob)?[_ ]?(name)?(?<=.)", re.I)
_INDEX = re.compile(r"index|idx|i|element|offset|position|[ncdhw]|(dim|axis|index|idx|i|d)_?\d+", re.I)
_VALUE = re.compile(r"values?|data", re.I)
plain = _npy.plain


@dataclass(frozen=True)
class _TableColumns:
    """Which column of a table holds what; `name` -1: the table is of one tensor, that of its file."""

    name: int
    indices: tuple[int, ...]
    value: int


@dataclass(frozen=True)
class _TensorRows:
    """Of one tensor of a table: the values as they are written, and where they belong."""

    words: list[str] = field(default_factory=list)
    places: array[int] = field(default_factory=lambda: array("q"))


def detect(files: Files) -> int:
    """By the header of a table."""
    tables = [columns for n in files.ending(*ENDS) if (columns := _columns(files, n))]
    return TYPED if any(columns.name >= 0 for columns in tables) else BARE if tables else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """One per tensor of a table, one per file of numbers; others (profiles, statistics) hold no tensors."""
    for file in files.ending(*ENDS):
        columns = _columns(files, file)
        yield from _table(files, file, columns, hints) if columns else _text.number_file(files, file, hints, plain)


def _base(file: str) -> str:
    return file.rpartition("/")[2].rpartition(".")[0]


def _delimiter(file: str) -> str:
    return "\t" if file.lower().endswith(".tsv") else ","


def _columns(files: Files, file: str) -> _TableColumns | None:
    """The columns that a header names; None if it is none of a table of tensors."""
    line = files.head(file).partition(b"\n")[0].decode("utf-8-sig", "replace")
    words = [word.strip().strip('"').strip() for word in line.split(_delimiter(file))]
    names = [k for k, word in enumerate(words) if _NAME.fullmatch(word)]
    values = [k for k, word in enumerate(words) if _VALUE.fullmatch(word)]
    indices = tuple(k for k, word in enumerate(words) if _INDEX.fullmatch(word))
    if len(values) != 1 or len(names) > 1 or not indices or len(names) + len(indices) + 1 != len(words):
        return None
    return _TableColumns(names[0] if names else -1, indices, values[0])


def _table(files: Files, file: str, columns: _TableColumns, hints: DumpHints) -> Iterator[DumpEntry]:
    found = _rows(files, file, columns)
    stems = safe_names(found)
    for name, rows in found.items():
        if columns.name < 0:
            side, stem = file.rpartition("/")[0], ""
        else:
            side, stem = file.rpartition(".")[0], f"{file.rpartition('.')[0]}/{stems[name]}"
        yield replace(_entry(files, file, name, rows, len(columns.indices), hints), side=side, stem=stem)


def _rows(files: Files, file: str, columns: _TableColumns) -> dict[str, _TensorRows]:
    """The rows of each tensor. Raises InputError: one of them lacks a column or has no index."""
    if files.sizes[file] > MAX_TABLE:
        raise files.damaged(file, f"{files.sizes[file]} bytes are too many for a table", "write a file per tensor")
    found: dict[str, _TensorRows] = {}
    reader = csv.reader(io.StringIO(files.text(file)), delimiter=_delimiter(file))
    try:
        next(reader)
        for row in filter(None, reader):
            name = row[columns.name] if columns.name >= 0 else _base(file)
            rows = found.setdefault(name, _TensorRows())
            rows.words.append(row[columns.value])
            rows.places.extend(int(row[k]) for k in columns.indices)
    except (csv.Error, IndexError, ValueError, OverflowError) as e:
        raise files.damaged(file, f"line {reader.line_num}: {e}") from e
    return found


def _entry(files: Files, file: str, name: str, rows: _TensorRows, axes: int, hints: DumpHints) -> DumpEntry:
    """`axes`: how many columns say where a value belongs."""
    spec, count = hints.find(name, plain), len(rows.words)
    whole = not any(c in ".eEnNaAiI" for word in rows.words for c in word)
    dtype = spec.dtype if spec.dtype in _text.HOLDS else "int64" if whole else "float32"
    order = np.frombuffer(rows.places, np.int64).reshape(count, axes) if axes else np.arange(count)[:, None]
    shape = tuple(int(d) + 1 for d in order.max(axis=0))
    step = _text.step_of([word.strip().encode() for word in rows.words[: _text.HEAD_WORDS]])
    entry = DumpEntry(file, unreadable, dtype, tensor=name, step=step)
    if order.min() < 0 or not possible(shape) or np.prod(shape, dtype=object) != count:
        return replace(
            entry, lacks=f"{count} values, whose indices say {list(shape)}: some are missing, or there twice"
        )
    flat = np.ravel_multi_index(tuple(order.T), shape)
    if len(np.unique(flat)) != count:
        return replace(entry, lacks="an index stands in it more than once")
    if axes < 2:
        hinted = spec.closed_shape
        shape = hinted if hinted is not None and np.prod(hinted, dtype=object) == count else shape
    load = partial(_array, files, file, rows.words, flat, dtype, shape)
    note = NO_SHAPE if axes < 2 and shape == (count,) else ""
    return replace(entry, load=load, shape=shape, note=note, assumed=axes < 2 and spec.assumed)


def _array(files: Files, file: str, words: list[str], flat: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    values = _text.numbers(files, file, "\n".join(words).encode(), dtype)
    if values.size != len(words):
        raise files.damaged(file, f"{len(words)} rows hold {values.size} values")
    placed = np.empty_like(values)
    placed[flat] = values
    return files.shaped(file, placed, shape)
