"""Folders of .npy and .npz files, as numpy writes them; MindStudio's golden files are of this
kind."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO

import numpy as np

from subgraph.recordings.dump_files import ZIP, Files
from subgraph.recordings.dumps import NONE, TYPED, DumpEntry, DumpHints, _npy, _raw
from subgraph.storage.folders import make_safe_names
from subgraph.types import Array

plain = _npy.plain
MAX_RATIO = 1100  # times that deflate makes a file smaller; its limit is 1,032


def detect(files: Files) -> int:
    """Detect the format by the magic number of .npz files; by the end .npy."""
    named = files.ending(".npy", ".npz")
    if any(n.endswith(".npy") or files.head(n, 4) == ZIP for n in named):
        return TYPED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield one per .npy; one per member of a .npz."""
    scales = _raw.read_exported_scales(files)
    for name in files.ending(".npy"):
        yield _npy.make_entry(files, name, hints, scale=scales.get(name))
    for name in files.ending(".npz"):
        yield from _iter_members(files, name)


def _iter_members(files: Files, name: str) -> Iterator[DumpEntry]:
    with files.reading(name), zipfile.ZipFile(files.path(name)) as archive:
        infos = [i for i in archive.infolist() if i.filename.endswith(".npy")]
    stems = make_safe_names(dict.fromkeys(i.filename[: -len(".npy")] for i in infos))
    for info in {i.filename: i for i in infos}.values():
        base = info.filename[: -len(".npy")]
        with _open_member(files, name, info) as (_, header):
            dtype = header.element_type
        stem = name[: -len(".npz")]
        yield header.entry(
            name,
            partial(_read_member, files, name, info, dtype),
            dtype,
            tensor=base,
            side=stem,
            stem=f"{stem}/{stems[base]}",
        )


def _read_member(files: Files, name: str, info: zipfile.ZipInfo, dtype: str) -> Array:
    with _open_member(files, name, info) as (member, header):
        member.seek(header.offset)
        data = member.read(header.nbytes)
        if len(data) != header.nbytes:
            raise _npy.HeaderError(f"{info.filename} ends early")
        return _npy.convert_to_native(header.array(np.frombuffer(bytearray(data), np.uint8)), dtype)


@contextmanager
def _open_member(
    files: Files, name: str, info: zipfile.ZipInfo
) -> Iterator[tuple[IO[bytes], _npy.Header]]:
    """Open a member; sizes that the archive cannot hold are refused."""
    with files.reading(name):
        if info.compress_size > files.sizes[name] or info.file_size > MAX_RATIO * (
            info.compress_size + 1
        ):
            raise _npy.HeaderError(f"{info.filename} says {info.file_size} bytes")
        with zipfile.ZipFile(files.path(name)) as archive, archive.open(info) as member:
            yield member, _npy.parse(member.read(_npy.MAX_HEADER), info.file_size)
