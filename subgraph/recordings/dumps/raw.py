"""Headerless .bin and .raw files; type, shape, layout and row padding from a manifest.json or the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from subgraph.errors import InputError
from subgraph.recordings.dumps import BARE, NONE, DumpEntry, DumpHints, _raw, dtype_of
from subgraph.recordings.files import Files
from subgraph.storage import dtypes
from subgraph.storage.folders import safe_names
from subgraph.storage.tensors import Tensors

HOLDS = tuple(name for name in dtypes.TYPE_NUMBERS if name != "string")
ENDS = (".bin", ".raw")


def detect(files: Files) -> int:
    """By the ends .bin and .raw; or by one headerless file with a manifest that lists it."""
    listed = any(file in files.sizes for file in _raw.said(files))
    return BARE if listed or files.ending(*ENDS) else NONE


def plain(name: str) -> str:
    """As most tools name files: only letters, digits, `.`, `-` and `_`."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ".-_") else "_" for c in name).strip("_")


def entries(files: Files, known: DumpHints) -> Iterator[DumpEntry]:
    """What the manifest lists, and all other .bin and .raw files."""
    said = _raw.said(files)
    for file, (name, spec) in said.items():
        if file.endswith(".npy"):
            continue
        yield _raw.entry(files, _present(files, file), spec, known, tensor=name, originals=(name,))
    for file in files.ending(*ENDS):
        if file not in said:
            side, _, own = file.rpartition("/")
            stem = own.rpartition(".")[0]
            yield _raw.entry(files, file, known.find(stem, plain), known, tensor=stem, side=side)


def _present(files: Files, file: str) -> str:
    files.path(file)
    return file


def write(tensors: Tensors, folder: Path) -> None:
    """A .bin per tensor, little-endian, and a manifest.json.

    Raises:
        InputError: a value that is no array, or holds texts.
    """
    import numpy as np

    from subgraph.storage.convert import raw_bytes

    stems = safe_names(tensors)
    listed: list[dict[str, Any]] = []
    for name, value in tensors.items():
        array = np.asarray(value)
        dtype = dtype_of(array.dtype)
        if value is None or isinstance(value, list) or dtype in ("", "string"):
            raise InputError(f"{name}: a headerless file holds an array of numbers")
        file = f"{stems[name]}.bin"
        (folder / file).write_bytes(raw_bytes(array, dtype))
        listed.append({"name": name, "file": file, "dtype": dtype, "shape": list(array.shape)})
    (folder / _raw.MANIFEST).write_text(json.dumps({"tensors": listed}, indent=1) + "\n", encoding="ascii")
