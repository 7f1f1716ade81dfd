"""HDF5: groups in groups, the joined path is the tensor's name; read by h5py (an extra) in a child with limits.

h5py is what writes these files; its C library may crash on damaged ones, so it runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.children import Answering
from subgraph.errors import InputError
from subgraph.recordings.dumps import BARE, NONE, DumpEntry, DumpHints, _npy, dtype_of
from subgraph.recordings.files import Files, possible
from subgraph.storage.folders import safe_names
from subgraph.system import memory
from subgraph.types import Array

ENDS = (".h5", ".hdf5", ".hdf")
MAGIC = b"\x89HDF\r\n\x1a\n"
MEMORY_SHARE, SECONDS = 0.5, 600  # of the machine's memory, and of processor time, for the child
CHILD = Path(__file__).with_name("_hdf5_child.py")
# No filter is loaded from a library beside h5py's own; a folder that is read-only cannot be locked.
ENVIRONMENT = {"HDF5_PLUGIN_PRELOAD": "::", "HDF5_USE_FILE_LOCKING": "FALSE"}
plain = _npy.plain


def detect(files: Files) -> int:
    """By the magic number of files with one of the ends; unsure, because a model of Keras lies beside many a dump."""
    return BARE if any(files.head(n, len(MAGIC)) == MAGIC for n in files.ending(*ENDS)) else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """One per dataset of each file. Where each of several files has one, the files' names are the tensors'.

    Raises:
        InputError: h5py is not installed, or a file is damaged.
    """
    if importlib.util.find_spec("h5py") is None:
        raise InputError("reading HDF5 takes h5py, which is not installed", "pip install 'subcut[hdf5]'")
    found = {file: list(_entries(files, file)) for file in files.ending(*ENDS)}
    alone = len(found) > 1 and all(len(listed) == 1 for listed in found.values())
    for file, listed in found.items():
        side, _, name = file.rpartition(".")[0].rpartition("/")
        yield from (replace(e, tensor=name, side=side, stem="") if alone else e for e in listed)


def _entries(files: Files, file: str) -> Iterator[DumpEntry]:
    reader = _Reader(files, file)
    listed = reader.listing()
    stem = file.rpartition(".")[0]
    stems = safe_names([item["name"] for item in listed])
    for number, item in enumerate(listed):
        dtype, shape, name = str(item["dtype"]), tuple(int(d) for d in item["shape"]), str(item["name"])
        known = dtype_of(np.dtype(dtype)) if not item["lacks"] else dtype
        lacks = item["lacks"] or ("" if known else f"ONNX has no element type {dtype}")
        if not possible(shape):
            raise files.damaged(file, f"{name} has the shape {list(shape)}")
        load = partial(reader.values, number, dtype, shape)
        yield DumpEntry(file, load, known, shape, tensor=name, side=stem, stem=f"{stem}/{stems[name]}", lacks=lacks)


class _Reader:
    """A child that has one file open. It ends with this object."""

    def __init__(self, files: Files, file: str) -> None:
        self.files, self.file = files, file
        self._lock = threading.Lock()
        self._child: Answering | None = None

    def listing(self) -> list[dict[str, Any]]:
        """Name, type and shape of each dataset. Raises InputError: the file is damaged."""
        with self._lock:
            return self._ask("list")[0]["datasets"]  # type: ignore[no-any-return]

    def values(self, number: int, dtype: str, shape: tuple[int, ...]) -> Array:
        """A dataset's values. Raises InputError: they cannot be read."""
        with self._lock:
            if self._child is None:
                self._ask("list")
            data = self._ask("read", number=number)[1]
        array = np.frombuffer(bytearray(data), np.dtype(dtype).newbyteorder("<"))
        return self.files.shaped(self.file, _npy.native(array, dtype), shape)

    def _ask(self, do: str, **arguments: int) -> tuple[dict[str, Any], bytes]:
        """The child's answer and the bytes behind it.

        Raises:
            InputError: it reports an error, or ended.
        """
        child = self._child = self._child or self._start()
        answer = child.ask({"do": do, **arguments})
        if answer is None:
            self._child = None
            why = f"h5py ended with code {child.end()}, by a crash or at its limit of time or memory"
            raise self.files.damaged(self.file, why)
        if "error" in answer[0]:
            raise self.files.damaged(self.file, answer[0]["error"])
        return answer

    def _start(self) -> Answering:
        command = [sys.executable, "-P", str(CHILD), str(self.files.path(self.file).resolve())]
        limits = {"memory": memory(MEMORY_SHARE), "seconds": SECONDS}
        child = Answering(command, env=os.environ | ENVIRONMENT, **limits)
        weakref.finalize(self, child.end)
        return child
