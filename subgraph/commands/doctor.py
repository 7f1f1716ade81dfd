"""`subcut doctor`: what works here, and what each candidate lacks."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from subgraph import plugins
from subgraph.case import versions
from subgraph.commands import Result
from subgraph.errors import SubcutError
from subgraph.text import clean

PATIENCE = 120.0  # seconds for a runtime to be imported


def doctor() -> Result:
    """Say what works here and what each candidate lacks.

    Each backend is started in a process of its own. Exit code 4 if onnxruntime, which everything needs, does not work.
    """
    names = plugins.names("backends")
    with ThreadPoolExecutor(max_workers=2) as executor:
        rows = list(executor.map(_look, names))
    usable = next(r["usable"] for r in rows if r["name"] == "ort")
    own = versions()
    width = max(map(len, names))
    lines = [f"python {own['python']} on {sys.platform}, subcut {own['subcut']}, onnx {own['onnx']}"]
    for r in rows:
        word = "ok" if r["usable"] else "lacks"
        lines += [f"{r['name']:<{width}}  {word}  {clean(r['says'])}".rstrip()]
    code = 0 if usable else 4
    document = {"schema": "subcut.doctor/1", "exit_code": code, "versions": own, "backends": rows}
    return Result(document, "\n".join(lines), code)


def _look(name: str) -> dict[str, Any]:
    from subgraph.worker import Worker

    try:
        with Worker(name, timeout=PATIENCE) as worker:
            about = worker.ask("about", options={})
    except SubcutError as e:
        says = f"{e.what}{f' ({e.hint})' if e.hint else ''}"
        return {"name": name, "usable": False, "version": "", "says": says}
    return {"name": name, "usable": True, "version": about["version"], "says": about["version"]}
