"""Polygraphy's JSON: results of --save-outputs, inputs of --save-inputs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _npy
from subgraph.storage.folders import make_safe_name, make_safe_names
from subgraph.types import Array

_CLASS = "polygraphy_class"
_MAGIC = "k05VTVB"  # .npy's magic number in base64


_HEAD = re.compile(
    rb'\s*\{\s*"lst"\s*:'
    rb'|\s*\[\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{\s*"(?:array|values|polygraphy_class)"'
)


class _Row(NamedTuple):
    side: str
    role: str
    name: str
    value: Any  # JSON


def detect(files: Files) -> int:
    """Detect the format by JSON that begins with Polygraphy's `lst`, or that names its classes."""
    if any(_is_polygraphy(files, n) for n in files.ending(".json")):
        return MARKED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield one per tensor of each runner and run, or of each set of inputs."""
    for file in files.ending(".json"):
        if not _is_polygraphy(files, file):
            continue
        with files.reading(file, "no JSON: "):
            data = json.loads(files.read(file))
        rows = list(_iter_rows(data))
        stems = make_safe_names(dict.fromkeys(row.side for row in rows))
        for row in rows:
            folder = file[: -len(".json")] + (f"/{stems[row.side]}/" if len(stems) > 1 else "/")
            yield replace(
                _make_entry(files, file, row.value),
                tensor=row.name,
                role=row.role,
                side=row.side,
                stem=folder + make_safe_name(row.name),
            )


def _is_polygraphy(files: Files, file: str) -> bool:
    return bool(_HEAD.match(files.head(file)))


def _iter_rows(data: Any) -> Iterator[_Row]:
    """Yield the rows of inputs, [{NAME: …}, …], or of results, as far as it is one of these:
    {"lst": [[RUNNER, [{"outputs": {NAME: …}}]], …]}."""
    for k, feeds in enumerate(_get_list(data)):
        for name, value in (feeds if isinstance(feeds, dict) else {}).items():
            if name != _CLASS:
                yield _Row(str(k) if len(data) > 1 else "", "input", name, value)
    for pair in _get_list(data.get("lst") if isinstance(data, dict) else None):
        if len(_get_list(pair)) != 2:
            continue
        runs = _get_list(pair[1])
        for k, run in enumerate(runs):
            side = f"{pair[0]}/{k}" if len(runs) > 1 else str(pair[0])
            outputs = run.get("outputs") if isinstance(run, dict) else None
            for name, value in (outputs if isinstance(outputs, dict) else {}).items():
                yield _Row(side, "output", name, value)


def _get_list(data: Any) -> list[Any]:
    return data if isinstance(data, list) else []


def _make_entry(files: Files, file: str, value: Any) -> DumpEntry:
    for _ in range(3):  # LazyArray around ndarray
        value = value.get("array", value.get("values")) if isinstance(value, dict) else value
    if not isinstance(value, str) or not value.startswith(_MAGIC):
        return DumpEntry(file, dtype="", missing="it is not a numpy array (a torch tensor?)")
    header, _ = _decode(files, file, value, _npy.MAX_HEADER // 3 * 4)
    dtype = header.element_type
    return header.entry(file, partial(_read_array, files, file, value, dtype), dtype)


def _decode(
    files: Files, file: str, text: str, most: int | None = None
) -> tuple[_npy.Header, bytes]:
    """Decode the header of a .npy in base64, and its bytes, at most `most` characters of them."""
    with files.reading(file):
        data = base64.b64decode(text[:most], validate=True)
        return _npy.parse(data[: _npy.MAX_HEADER], len(text) * 3 // 4 - text[-2:].count("=")), data


def _read_array(files: Files, file: str, text: str, dtype: str) -> Array:
    header, data = _decode(files, file, text)
    values = np.frombuffer(bytearray(data), np.uint8, header.nbytes, header.offset)
    return _npy.convert_to_native(header.array(values), dtype)
