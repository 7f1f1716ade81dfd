"""The child's half of `hdf5`: h5py's C library reads an untrusted file in a process of its own.

`python _hdf5_child.py FILE BYTES`, with the limit of memory. It prints a line of JSON with the datasets. For each
number of a dataset on a line of standard input it prints a line with `bytes` or `error`, and the values behind it.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

SECONDS = 600  # of processor time
MAX_DEPTH = 100  # groups in groups; hard links may make a circle
MAX_RATIO = 1100  # times that deflate makes values smaller; its limit is 1,032
WORDS = {"S": "bytes", "V": "records or raw bytes", "O": "objects"}


def main() -> None:
    """List the file, then give values until standard input closes."""
    limit(resource.RLIMIT_DATA, int(sys.argv[2]))
    limit(resource.RLIMIT_CPU, SECONDS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it as well, and ends this process
    try:
        file = h5py.File(sys.argv[1], "r", locking=False)
        found = list(datasets(file, "", ()))
        reply({"datasets": [describe(name, d) for name, d in found]})
    except (OSError, RuntimeError, ValueError, KeyError) as e:
        reply({"error": str(e)})
        return
    for line in sys.stdin:
        try:
            array = np.ascontiguousarray(found[int(line)][1][()])
            data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        except (OSError, RuntimeError, ValueError, KeyError) as e:
            reply({"error": str(e), "bytes": 0})
        else:
            reply({"bytes": len(data)})
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def limit(kind: int, amount: int) -> None:
    """Lower a limit of this process, where it is not lower already."""
    hard = resource.getrlimit(kind)[1]
    least = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (least, hard))


def reply(document: dict[str, Any]) -> None:
    """A line of JSON."""
    sys.stdout.buffer.write(json.dumps(document).encode() + b"\n")
    sys.stdout.buffer.flush()


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
