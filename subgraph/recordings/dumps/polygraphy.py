"""Polygraphy's JSON: results of --save-outputs, inputs of --save-inputs."""

from __future__ import annotations

import base64
import binascii
import json
import mmap
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _npy, checked_arrays, dtype_of, unreadable
from subgraph.recordings.files import Files
from subgraph.storage import dtypes
from subgraph.storage.folders import safe_name, safe_names
from subgraph.storage.tensors import NOT_NUMPY, Tensors
from subgraph.types import Array

HOLDS = tuple(name for name in dtypes.TYPE_NUMBERS if name not in NOT_NUMPY and name != "string")
MAX_SKELETON = 64 << 20  # bytes of a JSON without its values
# A .npy in base64, which begins with its magic number; found without parsing, so that values stay in the file.
_VALUES = re.compile(rb'"(k05VTVB[A-Za-z0-9+/\\]*={0,2})"')
_CLASS = "polygraphy_class"
_PLACEHOLDER = "\0"  # begins what replaces values in the skeleton; no tool writes it into JSON


class _Row(NamedTuple):
    side: str
    role: str
    name: str
    value: Any  # JSON


def detect(files: Files) -> int:
    """By JSON that begins with Polygraphy's `lst`, or that names its classes."""
    return MARKED if any(_looks(files, n) for n in files.ending(".json")) else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """One per tensor of each runner and run, or of each set of inputs."""
    for file in files.ending(".json"):
        if not _looks(files, file):
            continue
        data = _skeleton(files, file)
        rows = list(_results(data)) if isinstance(data, dict) else list(_inputs(data))
        stems = safe_names(dict.fromkeys(row.side for row in rows))
        for row in rows:
            folder = file[: -len(".json")] + (f"/{stems[row.side]}/" if len(stems) > 1 else "/")
            entry = _entry(files, file, row.value)
            yield replace(entry, tensor=row.name, role=row.role, side=row.side, stem=folder + safe_name(row.name))


def _looks(files: Files, file: str) -> bool:
    head = files.head(file)
    if re.match(rb'\s*\{\s*"lst"\s*:', head):
        return True
    return bool(re.match(rb'\s*\[\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{\s*"(?:array|values|polygraphy_class)"', head))


def _skeleton(files: Files, file: str) -> Any:
    """The JSON with `\\0BEGIN:END` in the place of each array, its offsets in the file.

    Raises:
        InputError: it is damaged, or the skeleton alone is too large.
    """
    parts, at, size = [], 0, 0
    try:
        with files.path(file).open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for found in _VALUES.finditer(data):
                parts += [data[at : found.start(1)], f"\\u0000{found.start(1)}:{found.end(1)}".encode()]
                at = found.end(1)
                size += len(parts[-2])
            if size + len(data) - at > MAX_SKELETON:
                raise files.damaged(file, f"{len(data)} bytes, and hardly any of them are arrays")
            parts.append(data[at:])
        return json.loads(b"".join(parts))
    except (OSError, ValueError, RecursionError) as e:
        raise files.damaged(file, f"no JSON: {e}") from e


def _results(data: dict[str, Any]) -> Iterator[_Row]:
    """The rows of {"lst": [[RUNNER, [{"outputs": {NAME: …}}]], …]}; items of other forms are left out."""
    for pair in _list(data.get("lst")):
        if len(_list(pair)) != 2:
            continue
        runs = _list(pair[1])
        for k, run in enumerate(runs):
            side = f"{pair[0]}/{k}" if len(runs) > 1 else str(pair[0])
            outputs = run.get("outputs") if isinstance(run, dict) else None
            for name, value in (outputs if isinstance(outputs, dict) else {}).items():
                yield _Row(side, "output", name, value)


def _inputs(data: Any) -> Iterator[_Row]:
    """The rows of [{NAME: …}, …]."""
    for k, feeds in enumerate(_list(data)):
        for name, value in (feeds if isinstance(feeds, dict) else {}).items():
            if name != _CLASS:
                yield _Row(str(k) if len(data) > 1 else "", "input", name, value)


def _list(data: Any) -> list[Any]:
    return data if isinstance(data, list) else []


def _entry(files: Files, file: str, value: Any) -> DumpEntry:
    for _ in range(3):  # LazyArray around ndarray
        value = value.get("array", value.get("values")) if isinstance(value, dict) else value
    if not isinstance(value, str) or not value.startswith(_PLACEHOLDER):
        return DumpEntry(file, unreadable, "", lacks="it is no numpy array (a torch tensor?)")
    begin, end = map(int, value[1:].split(":"))
    header = _npy_header(files, file, begin, end)
    dtype = dtype_of(header.dtype)
    lacks = "" if dtype else f"ONNX has no element type {header.dtype}"
    return DumpEntry(file, partial(_array, files, file, begin, end, dtype), dtype, header.shape, lacks=lacks)


def _npy_header(files: Files, file: str, begin: int, end: int) -> _npy.Header:
    """The header of an array in base64, of which only the first bytes are decoded."""
    count = min(end - begin, _npy.MAX_HEADER // 3 * 4) // 4 * 4
    try:
        head = base64.b64decode(files.bytes(file, begin, count), validate=True)
        return _npy.parse(head, (end - begin) * 3 // 4)
    except (_npy.BadHeader, binascii.Error) as e:
        raise files.damaged(file, e) from e


def _array(files: Files, file: str, begin: int, end: int, dtype: str) -> Array:
    try:
        data = bytearray(base64.b64decode(files.bytes(file, begin, end - begin), validate=True))
        header = _npy.parse(bytes(data[: _npy.MAX_HEADER]), len(data))
        values = np.frombuffer(data, np.uint8, header.nbytes, header.offset)
        return _npy.native(header.array(values), dtype)
    except (_npy.BadHeader, ValueError) as e:
        raise files.damaged(file, e) from e


def write(tensors: Tensors, folder: Path) -> None:
    """`outputs.json`, as `polygraphy run --load-outputs` takes it.

    Raises:
        InputError: a value is no array, or of a type that numpy lacks.
    """
    outputs = {}
    what = "Polygraphy's JSON holds arrays of numpy's own types"
    for name, _, array in checked_arrays(tensors, HOLDS, what, "subcut export --dtype"):
        file = BytesIO()
        np.save(file, array, allow_pickle=False)
        text = base64.b64encode(file.getvalue()).decode()
        outputs[name] = {"values": {"array": text, _CLASS: "ndarray"}, _CLASS: "LazyArray"}
    run = {"outputs": outputs, "runtime": None, "runner_name": "subcut", _CLASS: "IterationResult"}
    data = {"lst": [["subcut", [run]]], _CLASS: "RunResults"}
    (folder / "outputs.json").write_text(json.dumps(data), encoding="ascii")
