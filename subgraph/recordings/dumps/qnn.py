"""Qualcomm's QNN and SNPE: Result_0, Result_1 … of .raw files; float32 unless `_native`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from subgraph.recordings.dump_files import Files
from subgraph.recordings.dumps import MARKED, NONE, DumpEntry, DumpHints, _raw, replace_characters

LIST = "input_list.txt"
# A `_` may be in front. SNPE's `:0` counts as one more of these characters.
plain = replace_characters(r"[^A-Za-z0-9_]", strip=True)
_RESULT = re.compile(r"(?:(?P<side>(?:.*/)?Result_\d+)/)?(?P<name>.+?)(?P<native>_native)?\.raw")


def detect(files: Files) -> int:
    """Detect the format by folders Result_N that hold .raw files, or by an input_list.txt that
    names some."""
    if _match_results(files) or _read_input_list(files):
        return MARKED
    return NONE


def entries(files: Files, hints: DumpHints) -> Iterator[DumpEntry]:
    """Yield outputs of each run, else the inputs that input_list.txt names; shapes are the
    model's."""
    listed = _raw.read_manifest(files)
    results = _match_results(files)
    for m in results:
        name, spec = listed.get(m[0], (m["name"], hints.find(m["name"], plain)))
        default = "" if m[0] in listed or m["native"] else "float32"
        side = m["side"] or ""
        yield _raw.make_entry(files, m[0], spec, hints, default, tensor=name, side=side)
    for run, name, file in [] if results else _read_input_list(files):
        spec = listed[file][1] if file in listed else hints.find(name, plain)
        default = "" if file in listed else "float32"
        names = {"tensor": name, "role": "input", "side": run}
        yield _raw.make_entry(files, file, spec, hints, default, **names)


def _match_results(files: Files) -> list[re.Match[str]]:
    """Return the .raw files of folders Result_N; all if the folder itself is one."""
    alone = re.fullmatch(r"Result_\d+", files.root.resolve().name)
    found = [m for m in map(_RESULT.fullmatch, files.ending(".raw")) if m]
    return [m for m in found if alone or m["side"]]


def _read_input_list(files: Files) -> list[tuple[str, str, str]]:
    """Read run, tensor and file from input_list.txt: per line, `NAME:=PATH` or a path per input."""
    if LIST not in files.sizes:
        return []
    lines = [line for line in files.text(LIST).splitlines() if line.strip() and line[0] not in "#%"]
    inputs = []
    for run, line in enumerate(lines):
        for word in line.split():
            name, sep, path = word.rpartition(":=")
            file = path.removeprefix("./")
            if file in files.sizes:
                side = str(run) if len(lines) > 1 else ""
                inputs.append((side, name if sep else Path(file).stem, file))
    return inputs
