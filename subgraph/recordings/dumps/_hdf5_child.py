"""The child's half of `hdf5`: h5py's C library reads an untrusted file in a process of its own.

`python _hdf5_child.py FILE BYTES PIPE`, with the limit of memory. It is asked for the number of a dataset, and sends an
error, or nothing, and then the values; of a number below 0 a JSON with the datasets.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import h5py
import numpy as np

SECONDS = 600  # of processor time
MAX_DEPTH = 100  # groups in groups; hard links may make a circle
MAX_RATIO = 1100  # times that deflate makes values smaller; its limit is 1,032
WORDS = {"S": "bytes", "V": "records or raw bytes", "O": "objects"}


def main() -> None:
    """Answer until the other end closes."""
    limit(resource.RLIMIT_DATA, int(sys.argv[2]))
    limit(resource.RLIMIT_CPU, SECONDS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it as well, and ends this process
    connection, found = Connection(int(sys.argv[3])), list[tuple[str, h5py.Dataset]]()
    with suppress(EOFError, ConnectionError):
        while True:
            number, error, data = int(connection.recv_bytes()), "", b""
            try:
                found = found or list(datasets(h5py.File(sys.argv[1], "r", locking=False), "", ()))
                data = (
                    values(found[number][1]) if number >= 0 else json.dumps([describe(*one) for one in found]).encode()
                )
            except (OSError, RuntimeError, ValueError, KeyError) as e:
                error = str(e) or type(e).__name__
            connection.send_bytes(error.encode())
            connection.send_bytes(data)


def values(dataset: h5py.Dataset) -> bytes:
    """A dataset's, little-endian."""
    array = np.ascontiguousarray(dataset[()])
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def limit(kind: int, amount: int) -> None:
    """Lower a limit of this process, where it is not lower already."""
    hard = resource.getrlimit(kind)[1]
    least = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (least, hard))


def datasets(group: h5py.Group, path: str, above: tuple[h5py.Group, ...]) -> Iterator[tuple[str, h5py.Dataset]]:
    """Every dataset once, by its path; links by name, also into other files, are not followed."""
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            continue
        item, inner = group[name], f"{path}/{name}" if path else name
        if isinstance(item, h5py.Dataset):
            yield inner, item
        elif isinstance(item, h5py.Group) and item not in (*above, group) and len(above) < MAX_DEPTH:
            yield from datasets(item, inner, (*above, group))


def describe(name: str, dataset: h5py.Dataset) -> dict[str, Any]:
    """Name, type and shape, and why its values are not read."""
    dtype, stored = dataset.dtype, dataset.id.get_storage_size()
    size = dataset.size or 0
    lacks = ""
    if dataset.is_virtual or dataset.external:
        lacks = "its values lie in another file, which is not read"
    elif dataset.shape is None or (size and not stored):
        lacks = "no values were written to it"
    elif dtype.kind in WORDS:
        lacks = f"it holds {WORDS[dtype.kind]}"
    elif size * dtype.itemsize > MAX_RATIO * stored:
        lacks = f"{stored} bytes are no {list(dataset.shape)} values"
    return {"name": name, "dtype": dtype.name, "shape": dataset.shape or (), "lacks": lacks}


if __name__ == "__main__":
    main()
