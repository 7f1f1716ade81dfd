"""The child's half of `hdf5`: h5py's C library reads an untrusted file in a process of its own.

`python _hdf5_child.py FILE` answers requests, as of `children.Answering`: `list` with the `datasets`, or with `error`;
`read` with the values of the dataset `number`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

MAX_DEPTH = 100  # groups in groups; hard links may make a circle
MAX_RATIO = 1100  # times that deflate makes values smaller; its limit is 1,032
WORDS = {"S": "bytes", "V": "records or raw bytes", "O": "objects"}


def main() -> None:
    """Answer until standard input closes."""
    found: list[tuple[str, h5py.Dataset]] = []
    for line in sys.stdin:
        request, answer, data = json.loads(line), dict[str, Any](), b""
        try:
            if request["do"] == "list":
                found = list(datasets(h5py.File(sys.argv[1], "r", locking=False), "", ()))
                answer = {"datasets": [describe(name, d) for name, d in found]}
            else:
                array = np.ascontiguousarray(found[request["number"]][1][()])
                data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        except (OSError, RuntimeError, ValueError, KeyError) as e:
            answer = {"error": str(e)}
        sys.stdout.buffer.write(json.dumps({**answer, "bytes": len(data)}).encode() + b"\n" + data)
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
