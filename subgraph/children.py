"""Child processes: commands that run to their end, and scripts that answer requests.

Each child process is a `system.ProcessGroup`. `runtime.worker` has a third kind of child process,
for code that is not trusted: each read from its pipes has a time limit.
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

MAX_LAST_LINES = 3  # lines of a failed command that may report a full disk
# The messages of the operating system for a full disk, and that of numpy after a short write.
DISK_FULL = re.compile(
    f"{os.strerror(errno.ENOSPC)}|{os.strerror(errno.EDQUOT)}|[0-9]+ requested and [0-9]+ written"
)


class CommandOutput(NamedTuple):
    """The exit code of a command that has ended, -n if signal n ended it, and its output."""

    code: int
    out: bytes
    err: bytes

    def list_last_lines(self, count: int, *skipped: str) -> list[str]:
        """Return the last lines of standard error, or of standard output if there is no error text.

        Empty lines and lines that begin with a text of `skipped` do not count.
        """
        lines = (self.err or self.out).decode(errors="replace").splitlines()
        kept = [line.strip() for line in lines if line.strip() and not line.startswith(skipped)]
        return kept[-count:]

    def require_space(self) -> None:
        """Raise an error if the command failed because a disk is full.

        Raises:
            OutputError: The last lines of the failed command report a full disk.
        """
        said = " ".join(self.list_last_lines(MAX_LAST_LINES))
        if self.code and DISK_FULL.search(said):
            raise OutputError(
                f"a disk is full: {said}",
                "free some space; $TMPDIR is for temporary files",
                code="output.disk-full",
            )


def make_python_command(*words: str | Path, python: Path | None = None) -> list[str]:
    """Return the command line that starts a Python. No other code of subcut builds one.

    This Python imports no module from the current folder or the folder of its script (-P).

    Args:
        words: The arguments of the Python.
        python: Its executable in another environment; None for the Python that runs subcut.
    """
    return [str(python or sys.executable), "-P", *map(str, words)]


def run(
    words: Sequence[str | Path],
    *,
    timeout: float,
    on_line: Callable[[str], None] | None = None,
    **options: Any,
) -> CommandOutput:
    """Run a command without input, and wait until it and all processes that it started have ended.

    Args:
        words: The command line.
        timeout: The time limit in seconds.
        heard: A function that gets each line when the command prints it; standard error is then
            part of the output. None to only collect the output.
        options: Options of `ProcessGroup`.

    Raises:
        OSError: The command cannot be started.
        subprocess.TimeoutExpired: The command took longer than the time limit.
    """
    errors = subprocess.STDOUT if on_line else subprocess.PIPE
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors, **options}
    with ProcessGroup(words, **options) as process:
        if on_line is None:
            out, err = process.communicate(timeout=timeout)
        else:
            out = _listen(process, timeout, on_line)
            err = b""
    return CommandOutput(process.returncode, out, err or b"")


def _listen(process: ProcessGroup, timeout: float, on_line: Callable[[str], None]) -> bytes:
    """Pass each line of a process's output to `heard`, and return the output when it has ended."""
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
            on_line(line.decode(errors="replace").strip())
        process.wait()
    finally:
        timer.cancel()
    if late.is_set():
        raise subprocess.TimeoutExpired(process.args, timeout)
    return b"".join(lines)


class Reply(NamedTuple):
    """The reply of a script: the text of an error, "" for no error, and the data."""

    error: str
    data: bytes


class ScriptProcess:
    """A script that answers requests.

    A request and a reply are each one line of JSON, which is followed by data. The key `bytes` of
    the JSON has the size of the data.
    """

    def __init__(self, words: Sequence[str | Path], **options: Any) -> None:
        """Start the script; `options` are options of `ProcessGroup`."""
        options |= {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
        }
        self.process = ProcessGroup(words, **options)

    def ask(self, request: Fields, data: bytes) -> Reply | None:
        """Send a request, and return the reply; None if the process has ended before it replied.

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
        if len(data) == size:
            return Reply(error, data)
        return None

    def end(self) -> int:
        """Kill the process if it has not ended, and return its exit code."""
        self.process.end()
        self.process.close()
        return self.process.returncode
