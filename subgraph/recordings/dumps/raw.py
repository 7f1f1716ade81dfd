"""Headerless .bin and .raw files; type, shape, layout and row padding from a manifest.json or the
model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import (
    BARE,
    NONE,
    DumpEntry,
    DumpHints,
    TensorSpec,
    _npy,
    _raw,
    replace_characters,
)
from subgraph.types import JsonObject

ENDS = (".bin", ".raw")
read_manifest = _raw.read_manifest
# As most tools name files; some keep `.`, which makes no difference here.
plain = replace_characters(r"[^A-Za-z0-9_-]", strip=True)


def detect(files: Files) -> int:
    """Detect the format by the ends .bin and .raw; or by one headerless file with a manifest that
    lists it."""
    listed = any(file in files.sizes for file in _raw.read_manifest(files))
    return BARE if listed or files.ending(*ENDS) else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield the files that the manifest lists, and all other .bin and .raw files."""
    listed = _raw.read_manifest(files)
    for file, (name, spec) in listed.items():
        if not file.endswith(".npy"):
            files.path(file)  # raises for a file outside the folder
            yield _raw.make_entry(files, file, spec, hints, tensor=name, originals=(name,))
    for file in files.ending(*ENDS):
        if file not in listed:
            side, _, base = file.rpartition("/")
            stem = base.rpartition(".")[0]
            spec = hints.find(stem, plain)
            yield _raw.make_entry(files, file, spec, hints, tensor=stem, side=side)


def make_listed_entry(files: Files, file: str, name: str, spec: TensorSpec) -> DumpEntry:
    """Return the entry of a file that subcut's own manifest lists.

    Raises:
        InputError: it is missing or damaged.
    """
    files.path(file)
    layout = spec.layout or "NCHW"
    fields: JsonObject = {"tensor": name, "layout": layout}
    fields["original_shape"] = spec.closed_shape
    if file.endswith(".npy"):
        hints = DumpHints({Path(file).stem: spec})
        return _npy.make_entry(files, file, hints, node="", scale=spec.scale, **fields)
    entry = _raw.make_entry(files, file, spec, DumpHints(), **fields)
    if entry.missing:
        raise files.make_error(file, entry.missing)
    return entry
