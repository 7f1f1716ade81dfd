"""MNN: the folders of testMNNFromOnnx.py (input.json, NAME.txt) and what MNNV2Basic.out leaves in output/."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from subgraph.errors import InputError
from subgraph.recordings.dumps import BARE, MARKED, NONE, DumpEntry, DumpHints, _text
from subgraph.recordings.files import Files
from subgraph.storage.tensors import Tensors

HOLDS = ("float32",)
LIST = "input.json"
STEP = 1e-6  # relative to 1: C++ prints six digits
_OP = re.compile(r"(?P<fed>Input_)?(?P<node>.+)_(?P<index>\d+)")


def detect(files: Files) -> int:
    """By an input.json with inputs and outputs; by files of numbers without an end, Input_OP_0 and OP_0."""
    if _lists(files):
        return MARKED
    ops = [m for m in (_op(files, n) for n in files.names) if m]
    return MARKED if any(m["fed"] for m in ops) else BARE if ops else NONE


def plain(name: str) -> str:
    """`/` and `.` become `_`, as do `:` and blanks."""
    return re.sub(r"[/.: ]", "_", name)


def entries(files: Files, known: DumpHints) -> Iterator[DumpEntry]:
    """Inputs and outputs that input.json lists; else a tensor per file. It holds floats only: `int` is not told."""
    for home, data in _lists(files).items():
        yield from _tested(files, home, data, known)
    for file in files.names:
        found = _op(files, file)
        if found:
            role = "input" if found["fed"] else "output"
            spec = known.find(found["node"], plain)
            shape = _closed(spec.shape)
            load = _text.loader(files, file, "float32", shape)
            more: dict[str, Any] = {"node": found["node"], "index": int(found["index"]), "role": role, "stem": file}
            note = "after fusion a node of this name may hold another tensor"
            yield DumpEntry(file, load, "float32", shape, step=STEP, side=file.rpartition("/")[0], note=note, **more)


def _op(files: Files, file: str) -> re.Match[str] | None:
    own = file.rpartition("/")[2]
    found = _OP.fullmatch(own) if "." not in own else None
    return found if found and _text.is_numeric(files, file) else None


def _lists(files: Files) -> dict[str, dict[str, Any]]:
    """Folder ("" or ending in `/`) -> its input.json."""
    found = {}
    for name in files.names:
        if name.rpartition("/")[2] == LIST:
            data = files.maybe_json(name)
            if isinstance(data, dict) and isinstance(data.get("inputs"), list) and "outputs" in data:
                found[name[: -len(LIST)]] = data
    return found


def _tested(files: Files, home: str, data: dict[str, Any], known: DumpHints) -> Iterator[DumpEntry]:
    try:
        fed = {str(i["name"]): tuple(int(d) for d in i["shape"]) for i in data["inputs"]}
        made = [str(name) for name in data["outputs"]]
    except (KeyError, TypeError, ValueError, OverflowError) as e:
        raise files.damaged(f"{home}{LIST}", f"{type(e).__name__} {e}") from e
    for name in (*fed, *made):
        file = f"{home}{name}.txt"
        if file not in files.sizes:
            continue
        shape = fed[name] if name in fed else _closed(known.find(name, plain).shape)
        if shape is not None and any(d < 0 for d in shape):
            raise files.damaged(f"{home}{LIST}", f"{name} has shape {list(shape)}")
        role = "input" if name in fed else "output"
        more: dict[str, Any] = {"tensor": name, "role": role, "originals": (name,), "side": home.strip("/")}
        note = "" if shape is not None else "its shape is not known"
        yield DumpEntry(file, _text.loader(files, file, "float32", shape), "float32", shape, note=note, **more)


def _closed(dims: tuple[int | None, ...] | None) -> tuple[int, ...] | None:
    return None if dims is None or None in dims else tuple(d for d in dims if d is not None)


def write(tensors: Tensors, folder: Path) -> None:
    """input.json and a .txt per input, as testMNNFromOnnx.py takes them; names with `/` make folders, as there.

    Raises:
        InputError: a tensor that is no float32, or a name that leads out of the folder.
    """
    import numpy as np

    listed = []
    for name, value in tensors.items():
        array = np.asarray(value)
        if value is None or isinstance(value, list) or array.dtype != np.float32:
            raise InputError(f"{name}: MNN's test folders hold float32", "subcut export --dtype float32")
        path = folder / f"{name}.txt"
        if not name or name.startswith("/") or ".." in Path(name).parts or name != Path(name).as_posix():
            raise InputError(f"'{name}': MNN's test folders hold no such name: it leads elsewhere", "rename the tensor")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_text.lines(array, "%.18e"), encoding="ascii")
        listed.append({"name": name, "shape": list(array.shape)})
    (folder / LIST).write_text(json.dumps({"inputs": listed, "outputs": []}, indent=1) + "\n", encoding="utf-8")
