"""trtexec --exportOutput: a JSON list of tensors with name, dimensions and values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints
from subgraph.storage.folders import make_safe_name
from subgraph.types import Array, Shape

TEXT_STEP = 1e-6  # relative to 1: C++ prints six digits
_HEAD = re.compile(rb'\s*\[\s*\{\s*"name"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*"dimensions"\s*:')


def detect(files: Files) -> int:
    """Detect the format by JSON that begins with a tensor's name and dimensions."""
    if any(_HEAD.match(files.head(n)) for n in files.ending(".json")):
        return MARKED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield one per tensor of each file; whole numbers are read as int64."""
    for file in files.ending(".json"):
        if not _HEAD.match(files.head(file)):
            continue
        items = files.read_json_if_there(file)
        if not isinstance(items, list):
            raise files.make_error(file, "it is not JSON, or too large for one")
        for item in items:
            yield _make_entry(files, file, item)


def _make_entry(files: Files, file: str, item: Any) -> DumpEntry:
    with files.reading(file, "a tensor of it lacks "):
        name = str(item["name"])
        values = item["values"]
        shape = tuple(int(d) for d in str(item["dimensions"]).split("x") if d)
        whole = all(isinstance(v, int) for v in values)
    dtype = "int64" if whole and values else "float32"
    load = partial(_make_array, files, file, values, dtype, shape)
    stem = f"{file.removesuffix('.json')}/{make_safe_name(name)}"
    return DumpEntry(
        file, load, dtype, shape, tensor=name, step=0.0 if whole else TEXT_STEP, stem=stem
    )


def _make_array(files: Files, file: str, values: list[Any], dtype: str, shape: Shape) -> Array:
    with files.reading(file, f"its values do not fill {list(shape)}: "):
        return files.reshape(file, np.array(values, dtype), shape)
