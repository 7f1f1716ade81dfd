"""HDF5: groups in groups, the joined path is the tensor's name; read by h5py (an extra) in a child with limits.

h5py is what writes these files; its C library may crash on damaged ones, so it runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.errors import InputError
from subgraph.recordings.dumps import BARE, NONE, DumpEntry, DumpHints, _npy, dtype_of
from subgraph.recordings.files import Files, possible
from subgraph.storage.folders import safe_names
from subgraph.types import Array

ENDS = (".h5", ".hdf5", ".hdf")
MAGIC = b"\x89HDF\r\n\x1a\n"
MEMORY_SHARE = 0.5  # of the machine's memory, for the child
CHILD = Path(__file__).with_name("_hdf5_child.py")
LIST = -1  # asks for the list, in the place of a dataset's number
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
        self._child: tuple[subprocess.Popen[bytes], Connection] | None = None

    def listing(self) -> list[dict[str, Any]]:
        """Name, type and shape of each dataset. Raises InputError: the file is damaged."""
        listed: list[dict[str, Any]] = json.loads(self._ask(LIST))
        return listed

    def values(self, number: int, dtype: str, shape: tuple[int, ...]) -> Array:
        """A dataset's values. Raises InputError: they cannot be read."""
        array = np.frombuffer(bytearray(self._ask(number)), np.dtype(dtype).newbyteorder("<"))
        return self.files.shaped(self.file, _npy.native(array, dtype), shape)

    def _ask(self, number: int) -> bytes:
        """What the child answers. Raises InputError: it reports an error, or ended."""
        with self._lock:
            process, connection = self._child = self._child or self._start()
            try:
                connection.send_bytes(str(number).encode())
                error, data = connection.recv_bytes(), connection.recv_bytes()
            except (OSError, EOFError) as e:
                self._child = None
                _end(process, connection)
                why = f"h5py ended with code {process.returncode}, by a crash or at its limit of time or memory"
                raise self.files.damaged(self.file, why) from e
        if error:
            raise self.files.damaged(self.file, error.decode())
        return data

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        memory = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * MEMORY_SHARE)
        path = self.files.path(self.file).resolve()
        words = [sys.executable, "-P", str(CHILD), str(path), str(memory), str(theirs.fileno())]
        quiet = subprocess.DEVNULL
        with theirs:
            process = subprocess.Popen(
                words, env=os.environ | ENVIRONMENT, pass_fds=[theirs.fileno()], stdin=quiet, stdout=quiet, stderr=quiet
            )
        weakref.finalize(self, _end, process, ours)
        return process, ours


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    process.kill()
    process.wait()
    connection.close()
