"""Ascend's msprobe on PyTorch and MindSpore: dump.json and dump_tensor_data/*.pt, *.npy.

Source: msprobe's documents mindspore_data_dump_instruct.md and pytorch_data_dump_instruct.md of
Ascend/mstt. A call is `Cell.PATH.CLASS.forward.N` in MindSpore, `Module.PATH.CLASS.forward.N` in
PyTorch; of a function `KIND.NAME.N.forward`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _npy, _torch
from subgraph.types import Fields

LIST = "dump.json"
# Module.layer1.0.conv1.Conv2d.forward.0: the module, its class, and which call
_MODULE = re.compile(r"(?:Module|Cell)\.(?P<path>.+)\.\w+\.forward\.(?P<call>\d+)")
_FUNCTION = re.compile(r"(?P<path>\w+\..+\.\d+)\.forward")
plain = _npy.plain


def detect(files: Files) -> int:
    """Detect the format by a dump.json with data, next to a folder dump_tensor_data."""
    return MARKED if _read_lists(files) else NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield outputs and inputs of the forward pass; `_1` follows the path of a second call."""
    for folder, data in _read_lists(files).items():
        for name, call in data.items():
            module = _MODULE.fullmatch(name)
            function = _FUNCTION.fullmatch(name)
            if not isinstance(call, dict) or not (module or function):
                continue
            path = name.removesuffix(".forward")
            if module:
                number = int(module["call"])
                path = f"{module['path']}_{number}" if number else module["path"]
            for role, key in (("input", "input_args"), ("output", "output")):
                for index, file in enumerate(_list_files(call.get(key))):
                    fields = {"node": path, "role": role, "index": index}
                    yield _make_entry(files, folder, file, {"side": folder.rstrip("/"), **fields})


def _make_entry(files: Files, folder: str, name: str, fields: Fields) -> DumpEntry:
    """Return the entry of a file that the dump.json of a folder names."""
    file = f"{folder}dump_tensor_data/{name}"
    if file not in files.sizes:
        what = f"there is no {file.rpartition('/')[2]}"
        return DumpEntry(f"{folder}{LIST}", dtype="", missing=what, **fields)
    if file.endswith(".npy"):
        return _npy.make_entry(files, file, DumpHints(), tensor="", **fields)
    tensor = next(iter(_torch.read_tensors(files, file).values()), None)
    if tensor is None:
        return DumpEntry(file, dtype="", missing="it holds no tensor", **fields)
    load = partial(_torch.read_array, files, file, tensor)
    return DumpEntry(file, load, tensor.dtype, tensor.shape, **fields)


def _read_lists(files: Files) -> dict[str, Fields]:
    """Read the calls in the dump.json of each folder ("" or ending in `/`)."""
    lists = {}
    for name in files.names:
        folder = name.removesuffix(LIST)
        if name.rpartition("/")[2] == LIST and any(
            n.startswith(f"{folder}dump_tensor_data/") for n in files.names
        ):
            data = files.read_json_if_there(name)
            if isinstance(data, dict) and isinstance(data.get("data"), dict):
                lists[folder] = data["data"]
    return lists


def _list_files(values: Any) -> list[str]:
    """Return the names of the files of tensors in a call's arguments or results."""
    items = values if isinstance(values, list) else []
    return [
        str(item["data_name"]) for item in items if isinstance(item, dict) and "data_name" in item
    ]
