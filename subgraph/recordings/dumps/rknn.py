"""RKNN's accuracy_analysis: a folder with map_name_to_file.txt, golden, simulator and runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import (
    MARKED,
    NONE,
    DumpEntry,
    DumpHints,
    _npy,
    _text,
    replace_characters,
)
from subgraph.types import JsonObject

MAP = "map_name_to_file.txt"
ERRORS = "error_analysis.txt"
SIDES = ("golden", "simulator", "runtime")
HALF = True  # the NPU and its simulator compute floats in float16
TEXT_STEP = 1e-6  # "%.6f"
plain = replace_characters(r"[/.]")
INSERTED = ("-rs", "_int8", "_mm", "_pad", "_tp", "_sw")


def detect(files: Files) -> int:
    """Detect the format by its list of names and files, or by its error_analysis.txt next to
    golden/."""
    listed = any(n.rpartition("/")[2] == MAP for n in files.names)
    golden = any("golden/" in n for n in files.names)
    if listed or (golden and any(n.endswith(ERRORS) for n in files.names)):
        return MARKED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Each tensor on each side: the .npy if there is one, else the text."""
    lists = [n.rpartition("/") for n in files.names if n.rpartition("/")[2] in (MAP, ERRORS)]
    for folder in dict.fromkeys(f"{folder}{slash}" for folder, slash, _ in lists):
        names = _read_names(files, f"{folder}{MAP}")
        for side in SIDES:
            yield from _iter_side(files, f"{folder}{side}/", side, names, hints)


def _read_names(files: Files, file: str) -> dict[str, str]:
    """Read the tensor's name by the stem of a file; rows are split at two blanks or more."""
    if file not in files.sizes:
        return {}
    rows = [re.split(r"\s{2,}", line.strip()) for line in files.text(file).splitlines()]
    pairs = (row for row in rows if len(row) == 2 and row[1].endswith(".txt"))
    return {file.removesuffix(".txt"): name for name, file in pairs}


def _iter_side(
    files: Files, folder: str, side: str, names: dict[str, str], hints: DumpHints
) -> Iterator[DumpEntry]:
    inside = [n[len(folder) :] for n in files.names if n.startswith(folder)]
    typed = {
        n.removeprefix("npy/")[: -len(".npy")]: n
        for n in inside
        if re.fullmatch(r"(npy/)?[^/]+\.npy", n)
    }
    printed = {n[: -len(".txt")]: n for n in inside if re.fullmatch(r"[^/]+\.txt", n)}
    tensors = set(names.values())
    for stem in dict.fromkeys((*names, *typed, *printed)):
        name = names.get(stem, stem)
        bases = (b for b in map(name.removesuffix, INSERTED) if b != name and b in tensors)
        note = next((f"inserted by the toolkit next to {base}" for base in bases), "")
        fields: JsonObject = {
            "tensor": name,
            "originals": (name,) if stem in names else (),
            "side": side,
            "note": note,
            "stem": f"{folder}{stem}",
        }
        if stem in typed:
            yield _npy.make_entry(files, folder + typed[stem], hints, node="", index=0, **fields)
        elif stem in printed:
            spec = hints.find(name, plain)
            file = folder + printed[stem]
            yield _text.make_entry(files, file, "float32", spec, step=TEXT_STEP, **fields)
