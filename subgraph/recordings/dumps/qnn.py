"""Qualcomm's QNN and SNPE: Result_0, Result_1 … of .raw files; float32 unless `_native` stands in the name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from subgraph.errors import InputError
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _raw
from subgraph.recordings.files import Files
from subgraph.storage.folders import safe_names
from subgraph.storage.tensors import Tensors

HOLDS = ("float32",)
LIST = "input_list.txt"
_RESULT = re.compile(r"(?P<side>(?:.*/)?Result_\d+)/(?P<name>.+?)(?P<native>_native)?\.raw")


def detect(files: Files) -> int:
    """By folders Result_N that hold .raw files, or by an input_list.txt that names some."""
    if any(_RESULT.fullmatch(n) for n in files.ending(".raw")):
        return MARKED
    return MARKED if _listed(files) else NONE


def plain(name: str) -> str:
    """Characters outside [A-Za-z0-9_] become `_`; a `_` may stand in front. SNPE's `:0` counts as one more of them."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name).strip("_")


def entries(files: Files, known: DumpHints) -> Iterator[DumpEntry]:
    """Outputs of each run; else the inputs that input_list.txt names. Shapes from the model or a manifest.json."""
    said = _raw.said(files)
    results = [m for m in map(_RESULT.fullmatch, files.ending(".raw")) if m]
    for m in results:
        name, spec = said.get(m[0], (m["name"], known.find(m["name"], plain)))
        usual = "" if m[0] in said or m["native"] else "float32"
        yield _raw.entry(files, m[0], spec, known, usual, tensor=name, side=m["side"])
    for run, name, file in [] if results else _listed(files):
        spec = known.find(name, plain)
        own = said[file][1] if file in said else spec
        usual = "" if file in said else "float32"
        yield _raw.entry(files, file, own, known, usual, tensor=name, role="input", side=run)


def _listed(files: Files) -> list[tuple[str, str, str]]:
    """(which run, tensor, file) of input_list.txt: a line per run, `NAME:=PATH` or a path per input."""
    if LIST not in files.sizes:
        return []
    try:
        lines = [line for line in files.text(LIST).splitlines() if line.strip() and line[0] not in "#%"]
    except InputError:
        return []
    found = []
    for run, line in enumerate(lines):
        for word in line.split():
            name, sep, path = word.rpartition(":=")
            file = path.removeprefix("./")
            if file in files.sizes:
                found.append((str(run) if len(lines) > 1 else "", name if sep else Path(file).stem, file))
    return found


def write(tensors: Tensors, folder: Path) -> None:
    """Inputs for qnn-net-run and snpe-net-run: float32 .raw files and input_list.txt with paths relative to it.

    Raises:
        InputError: a tensor that is no float32, or a name that the list cannot hold.
    """
    import numpy as np

    stems = safe_names(tensors)
    words = []
    for name, value in tensors.items():
        array = np.asarray(value)
        if value is None or isinstance(value, list) or array.dtype != np.float32:
            raise InputError(f"{name}: {LIST} names float32 files", "subcut export --dtype float32")
        if not name or name.split() != [name] or ":=" in name or name[0] in "#%":
            raise InputError(f"'{name}': {LIST} cannot hold this name")
        (folder / f"{stems[name]}.raw").write_bytes(np.ascontiguousarray(array, "<f4").tobytes())
        words.append(f"{name}:={stems[name]}.raw")
    (folder / LIST).write_text(" ".join(words) + "\n", encoding="utf-8")
