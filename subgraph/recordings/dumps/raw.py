"""Headerless .bin and .raw files; type, shape, layout and row padding from a manifest.json or the
model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from subgraph.documents import to_json
from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import BARE, NONE, DumpEntry, DumpHints, _raw, iter_checked_arrays
from subgraph.storage import dtypes
from subgraph.storage.convert import encode_raw
from subgraph.storage.folders import safe_names
from subgraph.storage.tensors import Tensors
from subgraph.types import Shape

HOLDS = tuple(name for name in dtypes.TYPE_NUMBERS if name != "string")
ENDS = (".bin", ".raw")


@dataclass(frozen=True)
class ListedFile:
    """A file in the manifest."""

    name: str
    file: str
    dtype: str
    shape: Shape


def detect(files: Files) -> int:
    """By the ends .bin and .raw; or by one headerless file with a manifest that lists it."""
    listed = any(file in files.sizes for file in _raw.read_manifest(files))
    return BARE if listed or files.ending(*ENDS) else NONE


def plain(name: str) -> str:
    """As most tools name files: only letters, digits, `-` and `_`; some keep `.`, which makes no
    difference here."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name).strip(
        "_"
    )


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """The files that the manifest lists, and all other .bin and .raw files."""
    listed = _raw.read_manifest(files)
    for file, (name, spec) in listed.items():
        if not file.endswith(".npy"):
            files.path(file)  # raises for a file outside the folder
            yield replace(_raw.make_entry(files, file, spec, hints), tensor=name, originals=(name,))
    for file in files.ending(*ENDS):
        if file not in listed:
            side, _, base = file.rpartition("/")
            stem = base.rpartition(".")[0]
            yield replace(
                _raw.make_entry(files, file, hints.find(stem, plain), hints), tensor=stem, side=side
            )


def write(tensors: Tensors, folder: Path) -> None:
    """A .bin per tensor, little-endian, and a manifest.json.

    Raises:
        InputError: a value is not an array, or holds texts.
    """
    stems = safe_names(tensors)
    listed = []
    for name, dtype, array in iter_checked_arrays(
        tensors, HOLDS, "a headerless file holds an array of numbers"
    ):
        file = f"{stems[name]}.bin"
        (folder / file).write_bytes(encode_raw(array, dtype))
        listed.append(ListedFile(name, file, dtype, array.shape))
    text = json.dumps({"tensors": to_json(listed)}, indent=1)
    (folder / _raw.MANIFEST).write_text(text + "\n", encoding="ascii")
