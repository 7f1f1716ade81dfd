"""RKNN's accuracy_analysis: a snapshot folder with map_name_to_file.txt, golden, simulator and runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _npy, _text
from subgraph.recordings.files import Files

MAP = "map_name_to_file.txt"
ERRORS = "error_analysis.txt"
SIDES = ("golden", "simulator", "runtime")
STEP = 1e-6  # "%.6f"
INSERTED = ("-rs", "_int8", "_mm", "_pad", "_tp", "_sw")
_ROW = re.compile(r"\[(?P<op>[^\]]*)\]\s+(?P<name>\S+)(?P<numbers>(?:\s+[-+.\deE|]+|\s+\w*(?:nan|inf)\w*|\s+\|)*)\s*$")


def plain(name: str) -> str:
    """`/` and `.` become `_`."""
    return re.sub(r"[/.]", "_", name)


def detect(files: Files) -> int:
    """By its list of names and files, or by its error_analysis.txt beside golden/."""
    listed = any(n.rpartition("/")[2] == MAP for n in files.names)
    golden = any("golden/" in n for n in files.names)
    return MARKED if listed or (golden and any(n.endswith(ERRORS) for n in files.names)) else NONE


def entries(files: Files, known: DumpHints) -> Iterator[DumpEntry]:
    """Each tensor on each side: the .npy where there is one, else the text."""
    for home in _homes(files):
        names = _names(files, f"{home}{MAP}")
        for side in SIDES:
            yield from _side(files, f"{home}{side}/", side, names, known)


def _homes(files: Files) -> list[str]:
    """Folders (each with a `/` behind, or "") in which a snapshot lies."""
    found = [n.rpartition("/") for n in files.names if n.rpartition("/")[2] in (MAP, ERRORS)]
    return list(dict.fromkeys(f"{folder}{slash}" for folder, slash, _ in found))


def _names(files: Files, file: str) -> dict[str, str]:
    """File's stem -> the tensor's name; rows are split at two blanks or more."""
    if file not in files.sizes:
        return {}
    rows = [re.split(r"\s{2,}", line.strip()) for line in files.text(file).splitlines()]
    return {row[1].removesuffix(".txt"): row[0] for row in rows if len(row) == 2 and row[1].endswith(".txt")}


def _side(files: Files, folder: str, side: str, names: dict[str, str], known: DumpHints) -> Iterator[DumpEntry]:
    inside = [n[len(folder) :] for n in files.names if n.startswith(folder)]
    typed = {n.removeprefix("npy/")[: -len(".npy")]: n for n in inside if re.fullmatch(r"(npy/)?[^/]+\.npy", n)}
    printed = {n[: -len(".txt")]: n for n in inside if re.fullmatch(r"[^/]+\.txt", n)}
    known_tensors = set(names.values())
    for stem in dict.fromkeys((*names, *typed, *printed)):
        name = names.get(stem, stem)
        more: dict[str, Any] = {"tensor": name, "side": side, "stem": f"{folder}{stem}"}
        more |= {"originals": (name,) if stem in names else (), "note": _note(name, known_tensors)}
        if stem in typed:
            yield _npy.of_file(files, folder + typed[stem], known, **more)
        elif stem in printed:
            file = folder + printed[stem]
            dims = known.find(name, plain).shape
            shape = None if dims is None or None in dims else tuple(d for d in dims if d is not None)
            yield DumpEntry(file, _text.loader(files, file, "float32", shape), "float32", shape, step=STEP, **more)


def _note(name: str, names: set[str]) -> str:
    for end in INSERTED:
        if name.endswith(end) and name.removesuffix(end) in names:
            return f"inserted by the toolkit beside {name.removesuffix(end)}"
    return ""


def errors(files: Files, file: str = ERRORS) -> list[dict[str, Any]]:
    """The rows of error_analysis.txt: op, layer, numbers in their order (none of a layer that was fused into another).

    Raises:
        InputError: it is no text.
    """
    found = []
    for line in files.text(file).splitlines():
        row = _ROW.match(line.strip())
        if row:
            words = row["numbers"].replace("|", " ").split()
            found.append({"op": row["op"], "name": row["name"], "numbers": [_number(w) for w in words]})
    return found


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:  # q_nan, s_nan, rt_inf
        return float("inf") if "inf" in word else float("nan")
