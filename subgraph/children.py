"""Commands and scripts as child processes, which run to their end or answer one request after
another. Each is a `system.ProcessGroup`.

`runtime.worker` is a third kind, for code that nobody vouches for: no read from its pipes can wait
without a limit.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from subgraph.errors import InternalError, OutputError
from subgraph.system import ProcessGroup
from subgraph.types import Fields

MAX_LAST_LINES = 3  # of a failed command; they may report a full disk
# The messages of the system, and of numpy after a short write.
DISK_FULL = re.compile(
    f"{os.strerror(errno.ENOSPC)}|{os.strerror(errno.EDQUOT)}|[0-9]+ requested and [0-9]+ written"
)


class Ended(NamedTuple):
    """The end of a command: its exit code, -n if signal n ended it, and its output."""

    code: int
    out: bytes
    err: bytes

    def last_lines(self, count: int, *skipped: str) -> list[str]:
        """Return the last lines of its standard error, or else of its output: none that are empty
        or begin with a text of `skipped`."""
        lines = (self.err or self.out).decode(errors="replace").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.startswith(skipped)][
            -count:
        ]

    def require_space(self) -> None:
        """Raise an error if the command failed because a disk is full.

        Raises:
            OutputError: Its last lines report a full disk.
        """
        said = " ".join(self.last_lines(MAX_LAST_LINES))
        if self.code and DISK_FULL.search(said):
            raise OutputError(
                f"a disk is full: {said}",
                "free some space; $TMPDIR is for temporary files",
                code="output.disk-full",
            )


def make_python_command(*words: str | Path, of: Path | None = None) -> list[str]:
    """Return the command line of a Python, subcut's own or that `of` an environment: the only way
    to start one.

    It imports no module of the current folder or of the folder of the script that it runs (-P).
    """
    return [str(of or sys.executable), "-P", *map(str, words)]


def run(
    words: Sequence[str | Path],
    *,
    timeout: float,
    heard: Callable[[str], None] | None = None,
    **options: Any,
) -> Ended:
    """Run a command without input to its end, which is that of all that it started. `options`: of
    `ProcessGroup`.

    `heard` is given each line that it prints, as it prints it; errors are then part of the output.

    Raises:
        OSError: it cannot be started. subprocess.TimeoutExpired: it took more than `timeout`
            seconds.
    """
    errors = subprocess.STDOUT if heard else subprocess.PIPE
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors, **options}
    with ProcessGroup(words, **options) as process:
        if heard is None:
            out, err = process.communicate(timeout=timeout)
        else:
            out = _listen(process, timeout, heard)
            err = b""
    return Ended(process.returncode, out, err or b"")


def _listen(process: ProcessGroup, timeout: float, heard: Callable[[str], None]) -> bytes:
    """Return the output of a process until its end."""
    assert process.stdout
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(timeout, stop)
    timer.start()
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            heard(line.decode(errors="replace").strip())
        process.wait()
    finally:
        timer.cancel()
    if late.is_set():
        raise subprocess.TimeoutExpired(process.args, timeout)
    return b"".join(lines)


class Reply(NamedTuple):
    """The reply of a script: its error, "" for none, and its data."""

    error: str
    data: bytes


class Answering:
    """A script that answers requests: a line of JSON each way, with `bytes` of data after it."""

    def __init__(self, words: Sequence[str | Path], **options: Any) -> None:
        """`options`: of `ProcessGroup`."""
        options |= {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
        }
        self.process = ProcessGroup(words, **options)

    def ask(self, request: Fields, data: bytes) -> Reply | None:
        """Return the reply; None if the process has ended, or ends.

        Raises:
            InternalError: The reply cannot be read.
        """
        assert self.process.stdin
        try:
            self.process.stdin.write(
                json.dumps({**request, "bytes": len(data)}).encode() + b"\n" + data
            )
            self.process.stdin.flush()
        except OSError:
            return None
        return self._receive()

    def _receive(self) -> Reply | None:
        assert self.process.stdout
        try:
            line = self.process.stdout.readline()
        except OSError:
            return None
        if not line.endswith(b"\n"):
            return None
        try:
            reply = json.loads(line)
            error = str(reply["error"])
            size = int(reply["bytes"])
        except (ValueError, KeyError, TypeError) as e:
            raise InternalError(
                f"the reply of a script is unreadable: {type(e).__name__}: {e}",
                code="worker.unreadable-reply",
            ) from e
        data = self.process.stdout.read(size)
        return Reply(error, data) if len(data) == size else None

    def end(self) -> int:
        """Kill it, if it has not ended; its exit code."""
        self.process.end()
        self.process.close()
        return self.process.returncode
