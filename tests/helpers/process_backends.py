"""Backends as Python files, and the processes that they leave: found by a mark, in whatever session
they are."""

from __future__ import annotations

import contextlib
import os
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.helpers.run_command import PATIENCE

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


def backend(
    folder: Path, *, top: str = "", load: str = "pass", run: str = "pass", name: str = "backend"
) -> str:
    """The path of a backend that executes these lines at import, load and run, and whose only
    output is `y`."""
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
    """The command lines of the processes that carry this mark, without those that have ended and
    are not yet reaped."""
    command_lines = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.environ().get(MARK) == word:
                command_lines.append(" ".join(process.cmdline()))
    return command_lines


def until(
    holds: Callable[[], object], what: Callable[[], object] | str = "it never came to it"
) -> None:
    """Wait until `holds()`, on a busy machine too; if it never does, fail with `what`."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.005)


def all_gone(word: str) -> None:
    """Fail if a process with this mark lives on."""
    until(lambda: not living(word), lambda: living(word))


def wait_for(path: Path) -> None:
    """Until a file is there."""
    until(path.exists, f"no {path}")


def ended(process: int) -> bool:
    """Has this process, a child of this one, ended? It need not be reaped."""
    if hasattr(os, "waitid"):  # psutil says so on Linux when its first thread has ended
        return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)


class Interrupted(BaseException):
    """In the place of Ctrl-C."""


@contextlib.contextmanager
def interrupted_at(path: Path) -> Iterator[None]:
    """Interrupt the block once this file exists; the block must end so."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    def watch() -> None:
        wait_for(path)
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    watching = threading.Thread(target=watch)
    try:
        with pytest.raises(Interrupted):
            watching.start()
            yield
    finally:
        watching.join()
        signal.signal(signal.SIGALRM, before)
