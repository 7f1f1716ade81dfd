"""Backends as Python files, and the processes that they leave: found by a mark, whatever group they moved to."""

from __future__ import annotations

import contextlib
import textwrap
import time
from pathlib import Path

MARK = "TEST_CHILDREN"  # in the environment of a test, and so of all that it starts

BACKEND = '''"""A backend of a test."""
import ctypes, os, signal, subprocess, sys, time
import numpy as np
{top}

def load(model, options):
{load}
    def run(feeds):
{run}
        return {{"y": np.arange(2, dtype=np.float32)}}
    return run
'''


def backend(folder: Path, *, top: str = "", load: str = "pass", run: str = "pass", name: str = "backend") -> str:
    """The path of a backend that does this when it is imported, when it loads and when it runs; then it gives `y`."""
    path = folder / f"{name}.py"
    path.write_text(
        BACKEND.format(
            top=textwrap.dedent(top),
            load=textwrap.indent(textwrap.dedent(load), " " * 4),
            run=textwrap.indent(textwrap.dedent(run), " " * 8),
        )
    )
    return str(path)


def living(word: str) -> list[str]:
    """The command lines of processes that carry this mark, those apart that have ended and are not yet reaped."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={word}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text(errors="replace").replace("\0", " "))
    return found


def all_gone(word: str, patience: float = 5.0) -> None:
    """Fail if a process with this mark lives on."""
    deadline = time.monotonic() + patience
    while found := living(word):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def wait_for(path: Path, patience: float = 20.0) -> None:
    """Until a file is there."""
    deadline = time.monotonic() + patience
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.005)
