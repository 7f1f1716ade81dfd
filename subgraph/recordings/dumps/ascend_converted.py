"""Ascend's dump after `msaccucmp convert`, and MindSpore's: DUMPFILE.output.0.npy, or .bin.

MindSpore names an operator by the cells around it, `Default_layer1-Block_conv1-Conv2d_BiasAdd-op0`,
`_` for `/`: the last operator that runs in a cell produces the cell's output. Exporters name it by
the cell's path, `layer1.conv1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import (
    MARKED,
    NONE,
    DumpEntry,
    DumpHints,
    TensorSpec,
    _ascend,
    _npy,
    _raw,
)
from subgraph.storage import dtypes, layouts
from subgraph.storage.tensors import NOT_NUMPY
from subgraph.types import JsonObject, Shape, frozen

plain = _ascend.plain
_NAME = re.compile(
    r"(?P<dump>.+)\.(?P<role>input|output|in|out)\.(?P<index>\d+)"
    r"(?:\.(?P<shape>\d+(?:[x_]\d+)*))?(?:\.(?P<first>[A-Za-z][A-Za-z0-9_]*))?"
    r"(?:\.(?P<second>[A-Za-z][A-Za-z0-9_]*))?\.(?P<end>npy|bin)"
)

_SCOPE = re.compile(r"Default_(?P<cells>(?:\w+?-[A-Za-z0-9]+_)+)(?P<op>[A-Za-z0-9]+)-op\d+")
_CELL = re.compile(r"(\w+?)-[A-Za-z0-9]+_")


@frozen
class _FileName:
    """The parts of a file's name, as stored; None and "" if it does not have them."""

    node: str
    time: int
    role: str
    index: int
    shape: Shape | None
    layout: str
    dtype: str


def detect(files: Files) -> int:
    """Detect the format by names DUMPFILE.output.0 … .npy or .bin, of a DUMPFILE that is an NPU
    dump's name."""
    real_names = _ascend.read_real_names(files)
    if any(_parse_name(n, real_names) for n in files.ending(".npy", ".bin")):
        return MARKED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield one entry per file; an `atc` JSON among them adds origins and shapes in the model."""
    real_names = _ascend.read_real_names(files)
    origins = _ascend.read_origins(files)
    parsed = ((file, _parse_name(file, real_names)) for file in files.ending(".npy", ".bin"))
    names = {file: name for file, name in parsed if name}
    cells = _find_cells(names)
    for file, name in names.items():
        entry = _make_entry(files, file, name, origins.get((plain(name.node), name.index)))
        last, cell = cells.get(file, ("", ""))
        inside = replace(entry, note=f"inside the cell {cell}") if cell else entry
        yield replace(entry, node=cell) if file == last else inside


def _find_cells(names: Mapping[str, _FileName]) -> dict[str, tuple[str, str]]:
    """Find the last operator of the cell of each file, if each kind of operator runs there once.

    Else the cell can have been called several times, and the name of an operator does not identify
    its call.
    """
    # (folder, cell) -> kind of operator -> (time, file) of each operator of this kind.
    operators: dict[tuple[str, str], dict[str, list[tuple[int, str]]]] = {}
    for file, name in names.items():
        scope = _SCOPE.fullmatch(name.node)
        if scope and name.role == "output" and name.index == 0:
            cell = ".".join(_CELL.findall(scope["cells"]))
            kinds = operators.setdefault((file.rpartition("/")[0], cell), {})
            kinds.setdefault(scope["op"], []).append((name.time, file))
    last_operators: dict[str, tuple[str, str]] = {}
    for (_, cell), kinds in operators.items():
        if all(len(each) == 1 for each in kinds.values()):
            ran = [each[0] for each in kinds.values()]
            last_operators |= {file: (max(ran)[1], cell) for _, file in ran}
    return last_operators


def _parse_name(file: str, real_names: dict[str, str]) -> _FileName | None:
    """Return the parts of a converted file's name; None for other files."""
    name = _NAME.fullmatch(real_names.get(file, file).rpartition("/")[2])
    dump = _ascend.NAME.fullmatch(real_names.get(name["dump"], name["dump"])) if name else None
    if not name or not dump:
        return None
    # .bin files have the type before the format; those of MindSpore have it after the format.
    words = [word for word in (name["first"], name["second"]) if word]
    dtype = next((w.lower() for w in words if w.lower() in dtypes.TYPE_NUMBERS), "")
    layout = next((layouts.normalize_name(w) for w in words if w.lower() != dtype), "")
    shape = tuple(int(d) for d in re.split("[x_]", name["shape"])) if name["shape"] else None
    role = "input" if name["role"].startswith("in") else "output"
    time = int(dump["time"])
    return _FileName(dump["node"], time, role, int(name["index"]), shape, layout, dtype)


def _make_entry(
    files: Files, file: str, name: _FileName, origin: _ascend.Origin | None
) -> DumpEntry:
    fields: JsonObject = {
        "tensor": "",
        "node": name.node,
        "role": name.role,
        "index": name.index,
        "layout": name.layout,
        "original_shape": None,
        "side": file.rpartition("/")[0],
    }
    if file.endswith(".npy"):
        dtype = name.dtype if name.dtype in NOT_NUMPY else ""
        entry = _npy.make_entry(files, file, DumpHints(), dtype, **fields)
    else:
        spec = TensorSpec(name.dtype, name.shape)
        entry = _raw.make_entry(files, file, spec, DumpHints(), **fields)
    if not origin or name.role == "input":
        return entry
    shape = origin.shape if name.layout in layouts.BLOCKED else None
    return replace(origin.apply_to(entry), original_shape=shape or None)
