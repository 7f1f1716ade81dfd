"""`subcut doctor`: what works here, and what each candidate lacks."""

from __future__ import annotations

import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from subgraph import plugins, project
from subgraph.cases.case import versions
from subgraph.commands import Result
from subgraph.errors import SubcutError
from subgraph.text import clean

PATIENCE = 120.0  # seconds for a runtime to be imported


def doctor() -> Result:
    """Say what works here and what each candidate lacks.

    Each backend is started in a process of its own; of the project file's candidates nothing is run. Exit code 4 if
    onnxruntime, which everything needs, does not work.
    """
    names = plugins.names("backends")
    with ThreadPoolExecutor(max_workers=2) as executor:
        rows = list(executor.map(_look, names))
    usable = next(r["usable"] for r in rows if r["name"] == "ort")
    rows += _of_project()
    own = versions()
    width = max(len(clean(r["name"])) for r in rows)
    lines = [f"python {own['python']} on {sys.platform}, subcut {own['subcut']}, onnx {own['onnx']}"]
    for r in rows:
        word = "ok" if r["usable"] else "fails"
        lines += [f"{clean(r['name']):<{width}}  {word}  {clean(r['says'])}".rstrip()]
    code = 0 if usable else 4
    document = {"schema": "subcut.doctor/1", "exit_code": code, "versions": own, "backends": rows}
    return Result(document, "\n".join(lines), code)


def _look(name: str) -> dict[str, Any]:
    from subgraph.runtime.worker import Worker

    try:
        with Worker(name, timeout=PATIENCE) as worker:
            about = worker.about({})
    except SubcutError as e:
        return _row(name, False, _said(e))
    says = "   ".join(filter(None, (about.version, about.caveat)))
    return _row(name, True, says, about.version)


def _of_project() -> list[dict[str, Any]]:
    """The candidates that the project file describes: is what they name there?"""
    from subgraph.runtime import candidate

    try:
        settings = project.load()
    except SubcutError as e:
        return [_row("project file", False, _said(e))]
    rows = []
    for name in settings.values.get("candidates", {}):
        try:
            found = candidate.parse(name, settings)
        except SubcutError as e:
            rows.append(_row(name, False, _said(e)))
            continue
        lacks = [word for word in _programs(found) if not _runs(word, str(found.options.get("folder", "")))]
        says = f"cannot run {', '.join(lacks)}: is it there, and executable?" if lacks else found.backend
        rows.append(_row(name, not lacks, says))
    return rows


def _programs(found: Any) -> list[str]:
    """The first word of each command."""
    return [shlex.split(command)[0] for command in found.commands] if found.backend == "cmd" else []


def _runs(word: str, folder: str) -> bool:
    return shutil.which(Path(folder, word) if "/" in word else word) is not None


def _row(name: str, usable: bool, says: str, version: str = "") -> dict[str, Any]:
    return {"name": name, "usable": usable, "version": version, "says": says}


def _said(e: SubcutError) -> str:
    return f"{e.what}{f' ({e.hint})' if e.hint not in ('', 'subcut doctor') else ''}"
