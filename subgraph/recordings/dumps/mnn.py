"""MNN: the folders of testMNNFromOnnx.py, and what MNNV2Basic.out leaves in output/."""

from __future__ import annotations

import re
from collections.abc import Iterator

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import (
    BARE,
    MARKED,
    NONE,
    DumpEntry,
    DumpHints,
    TensorSpec,
    _text,
    replace_characters,
)
from subgraph.types import JsonObject

LIST = "input.json"
TEXT_STEP = 1e-6  # relative to 1: C++ prints six digits
plain = replace_characters(r"[/.: ]")
_OP = re.compile(r"(?P<fed>Input_)?(?P<node>.+)_(?P<index>\d+)")


def detect(files: Files) -> int:
    """Detect the format by an input.json with inputs and outputs; by files of numbers Input_OP_0
    and OP_0."""
    if _read_lists(files):
        return MARKED
    ops = [m for m in (_match_op(files, n) for n in files.names) if m]
    if any(m["fed"] for m in ops):
        return MARKED
    if ops:
        return BARE
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield inputs and outputs that input.json lists; and a tensor per other file, all as
    floats."""
    for folder, data in _read_lists(files).items():
        yield from _iter_listed(files, folder, data, hints)
    for file in files.names:
        op = _match_op(files, file)
        if op:
            yield _text.make_entry(
                files,
                file,
                "float32",
                hints.find(op["node"], plain),
                step=TEXT_STEP,
                node=op["node"],
                role="input" if op["fed"] else "output",
                index=int(op["index"]),
                side=file.rpartition("/")[0],
                stem=file,
                note="after fusion a node of this name may hold another tensor",
            )


def _match_op(files: Files, file: str) -> re.Match[str] | None:
    base = file.rpartition("/")[2]
    op = _OP.fullmatch(base)
    if op and _text.is_numeric(files, file):
        return op
    return None


def _read_lists(files: Files) -> dict[str, JsonObject]:
    """Read the input.json of each folder ("" or ending in `/`)."""
    lists = {}
    for name in files.names:
        if name.rpartition("/")[2] == LIST:
            data = files.read_json_if_there(name)
            if (
                isinstance(data, dict)
                and isinstance(data.get("inputs"), list)
                and "outputs" in data
            ):
                lists[name[: -len(LIST)]] = data
    return lists


def _iter_listed(
    files: Files, folder: str, data: JsonObject, hints: DumpHints
) -> Iterator[DumpEntry]:
    with files.reading(f"{folder}{LIST}"):
        inputs = {str(i["name"]): tuple(int(d) for d in i["shape"]) for i in data["inputs"]}
        outputs = [str(name) for name in data["outputs"]]
    for name in (*inputs, *outputs):
        file = f"{folder}{name}.txt"
        if file not in files.sizes:
            continue
        spec = TensorSpec("float32", inputs[name]) if name in inputs else hints.find(name, plain)
        if min(spec.closed_shape or (), default=0) < 0:
            raise files.make_error(f"{folder}{LIST}", f"{name} has shape {list(spec.shape or ())}")
        yield _text.make_entry(
            files,
            file,
            "float32",
            spec,
            tensor=name,
            role="input" if name in inputs else "output",
            originals=(name,),
            side=folder.strip("/"),
        )
