"""Ascend's dump after `msaccucmp convert`, and MindSpore's: DUMPFILE.output.0.npy, .bin with shape, type and format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, TensorSpec, _ascend, _atc, _npy, _raw
from subgraph.recordings.files import Files
from subgraph.storage import dtypes, layouts
from subgraph.storage.tensors import NOT_NUMPY

plain = _atc.plain
_NAME = re.compile(
    r"(?P<dump>.+)\.(?P<role>input|output|in|out)\.(?P<index>\d+)"
    r"(?:\.(?P<shape>\d+(?:[x_]\d+)*))?(?:\.(?P<first>[A-Za-z][A-Za-z0-9_]*))?(?:\.(?P<second>[A-Za-z][A-Za-z0-9_]*))?\.(?P<end>npy|bin)"
)


def detect(files: Files) -> int:
    """By names DUMPFILE.output.0 … .npy or .bin, of a DUMPFILE that is an NPU dump's name."""
    named = _ascend.real_names(files)
    return MARKED if any(_parts(n, named) for n in files.ending(".npy", ".bin")) else NONE


def entries(files: Files, known: DumpHints) -> Iterator[DumpEntry]:
    """One per file; where an `atc` JSON lies among them, with origins and shapes in the model."""
    named = _ascend.real_names(files)
    origins = _atc.origins(files)
    for file in files.ending(".npy", ".bin"):
        parts = _parts(file, named)
        if parts:
            yield _entry(files, file, parts, origins.get((plain(parts["node"]), int(parts["index"]))))


def _parts(file: str, named: dict[str, str]) -> dict[str, Any] | None:
    own = named.get(file, file).rpartition("/")[2]
    found = _NAME.fullmatch(own)
    dump = _ascend.NAME.fullmatch(named.get(found["dump"], found["dump"])) if found else None
    return found.groupdict() | {"node": dump["node"]} if found and dump else None


def _words(parts: dict[str, Any]) -> tuple[str, str]:
    """(layout, element type): .bin has the type before the format, MindSpore behind it."""
    words = [w for w in (parts["first"], parts["second"]) if w]
    dtype = next((w.lower() for w in words if w.lower() in dtypes.TYPE_NUMBERS), "")
    layout = next((layouts.named(w) for w in words if w.lower() not in dtypes.TYPE_NUMBERS), "")
    return layout, dtype


def _entry(files: Files, file: str, parts: dict[str, Any], origin: _atc.Origin | None) -> DumpEntry:
    layout, dtype = _words(parts)
    more: dict[str, Any] = {"node": parts["node"], "index": int(parts["index"]), "side": file.rpartition("/")[0]}
    more |= {"role": "input" if parts["role"].startswith("in") else "output", "stem": file[:-4]}
    if origin and more["role"] == "output":
        more |= {"originals": (origin.name,) if origin.name else (), "fused": origin.fused}
        more["original_index"] = origin.index
    blocked = layout in layouts.BLOCKED
    if origin and origin.shape and blocked and more["role"] == "output":
        more["original_shape"] = origin.shape
    if file.endswith(".npy"):
        return _npy.of_file(files, file, DumpHints(), layout=layout, dtype=dtype if dtype in NOT_NUMPY else "", **more)
    shape = tuple(int(d) for d in re.split("[x_]", parts["shape"])) if parts["shape"] else None
    entry = _raw.entry(files, file, TensorSpec(dtype, shape), DumpHints(), **(more | {"original_shape": None}))
    return replace(entry, layout=layout, original_shape=more.get("original_shape"))
