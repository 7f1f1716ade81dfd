"""Headerless .bin and .raw files; type, shape, layout and row padding from a manifest.json or the
model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import BARE, NONE, DumpEntry, DumpHints, TensorSpec, _npy, _raw

ENDS = (".bin", ".raw")
read_manifest = _raw.read_manifest


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


def make_listed_entry(files: Files, file: str, name: str, spec: TensorSpec) -> DumpEntry:
    """The entry of a file that subcut's own manifest lists.

    Raises:
        InputError: it is missing or damaged.
    """
    files.path(file)
    if file.endswith(".npy"):
        hints = DumpHints({Path(file).stem: spec})
        entry = replace(_npy.make_entry(files, file, hints), scale=spec.scale)
    else:
        entry = _raw.make_entry(files, file, spec, DumpHints())
        if entry.missing:
            raise files.damaged(file, entry.missing)
    shape = spec.closed_shape
    layout = spec.layout or "NCHW"
    return replace(entry, tensor=name, node="", layout=layout, original_shape=shape)
