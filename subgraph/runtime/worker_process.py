"""The process of a worker: its start, the lines in its pipes, its limits and its end.

The child leads a separate session (process group), so that killing the group kills all that it
started. It ends when its lifeline or its standard input closes: no child outlives a killed parent,
even in the middle of a run (`system.posix` explains the lifeline). The parent enforces the limits
of time and memory. One loop does all the waiting: it sends, receives, keeps the last output of the
child, and checks the limits.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from pathlib import Path

from subgraph import children
from subgraph.environments import releases
from subgraph.errors import BackendError, OutputError, WorkerDied, explain_os_error
from subgraph.plugins import HOME
from subgraph.runtime.backends import capabilities
from subgraph.runtime.protocol import CHANNEL_LOST, SCRATCH, describe_process_end
from subgraph.storage import folders
from subgraph.system import Pipes, ProcessGroup, name_crash

KEPT_BYTES = 16 << 10  # of the child's standard error
SHOWN_LINES = 8  # of these bytes
MAX_REPLY = 64 << 20  # bytes; that of a model of 80,000 nodes, all captured at once, has 20 MB
BURST = 16  # chunks read in a row from a flood, before the limits are checked again
POLL = 0.1  # seconds between two checks of a child that does not reply
# Seconds between the end of a pipe and the end of its process, which closes its files first.
EXIT_SECONDS = 1.0
CHANNEL = "the pipe to subcut"


class ReplyBuffer:
    """Bytes that arrive in chunks, and are taken line by line.

    Attributes:
        data: The bytes that were not taken.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self._searched = 0  # bytes searched for the end of a line

    def has_line(self) -> bool:
        """Return whether a complete line has arrived; if so, it ends at `_searched`."""
        end = self.data.find(b"\n", self._searched)
        self._searched = len(self.data) if end < 0 else end
        return end >= 0

    def take_line(self) -> bytes:
        """Take the line that `has_line` has found."""
        line = bytes(self.data[: self._searched])
        del self.data[: self._searched + 1]
        self._searched = 0
        return line


class WorkerProcess:
    """A child process that reads and writes lines.

    Attributes:
        task: The present task, as an infinitive for errors: `load the model`.
        has_ended: Whether this object has ended the process.
    """

    def __init__(self, backend: str, *, bounded: int | None, python: Path | None) -> None:
        self._is_alone = capabilities(backend).alone and python is None
        scratch = ""
        with contextlib.ExitStack() as cleanup:
            if not self._is_alone:
                try:
                    scratch = str(cleanup.enter_context(folders.make_temporary("subcut-worker")))
                except OutputError as e:
                    raise BackendError(
                        f"no temporary folder: {e.what}",
                        "free some space, or set $TMPDIR",
                        code="output.no-temporary-folder",
                    ) from e
            what = "cannot start a process"
            hint = "are there too many?"
            with explain_os_error(BackendError, what, hint, code="process.not-started"):
                self._process = ProcessGroup(
                    children.make_python_command(
                        "-m", "subgraph.runtime.worker_main", backend, python=python
                    ),
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={
                        **os.environ,
                        "PYTHONPATH": _find_import_path(python, scratch),
                        SCRATCH: scratch,
                    },
                    memory=bounded,
                )
            cleanup.callback(self._process.close)
            self._pipes = Pipes(self._process)
            cleanup.callback(self._pipes.close)
            self._cleanup = cleanup.pop_all()
        self._replies = ReplyBuffer()
        self._printed = bytearray()  # the end of standard error
        self.task = ""
        self.has_ended = False
        self._is_closing = False
        self._is_closed = False
        self._kill_lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return not self.has_ended and not self._process.has_exited()

    def begin(self, task: str) -> None:
        """Begin a task, and forget what was printed before."""
        self._read_stderr()
        self._printed.clear()
        self.task = task

    def send(self, line: bytes) -> None:
        """Send a line, as far as the pipe takes it; `read_line` sends what remains."""
        self._pipes.send(line)

    def read_line(self, end: float, memory: int | None) -> bytes | None:
        """Return the next line of the replies, after all of the request was sent.

        A child that died is noticed although other processes may hold its pipes open.

        Args:
            end: The latest time, as of `time.monotonic`.
            memory: Bytes of resident memory of the child and all that it started.

        Returns:
            The line; None if the time is used up.

        Raises:
            WorkerDied: The child has ended, or exceeds the memory.
        """
        check = time.monotonic() + POLL
        while not self._replies.has_line():
            try:  # nothing blocks but this wait
                ready = self._pipes.wait(max(min(check, end) - time.monotonic(), 0))
            except BrokenPipeError:
                raise self._explain_closed_pipe() from None
            self._read_stderr()
            has_exited = not ready and self._process.has_exited()
            if ready or has_exited:
                self._receive()
            if has_exited and not self._replies.has_line():
                raise self._explain_closed_pipe()
            if time.monotonic() >= check:
                resident = 0 if memory is None else self._process.resident_memory()
                if memory is not None and resident > memory:
                    how = f"was stopped at {resident >> 20} MiB, above {memory >> 20}"
                    error = self.end(how, code="worker.died", signature="memory")
                    error.process["memory"] = memory
                    raise error
                check = time.monotonic() + POLL
            if time.monotonic() >= end and not self._replies.has_line():
                self.kill()
                return None
        return self._replies.take_line()

    def _receive(self) -> None:
        chunk = self._pipes.read()
        if chunk is None:
            return
        if not chunk:
            raise self._explain_closed_pipe()
        self._replies.data += chunk
        if len(self._replies.data) > MAX_REPLY:
            raise self.end(f"wrote into {CHANNEL} without an end", code="worker.wrote-into-pipe")

    def _read_stderr(self) -> None:
        """Keep the end of the child's standard error."""
        for _ in range(BURST):
            if not (chunk := self._pipes.read_errors()):
                return
            self._printed += chunk
            del self._printed[:-KEPT_BYTES]

    def last_lines(self) -> list[str]:
        """Return the last lines that the child and its processes printed in the last request."""
        if not self._is_closed:
            self._read_stderr()
        return bytes(self._printed).decode(errors="replace").strip().splitlines()[-SHOWN_LINES:]

    def _explain_closed_pipe(self) -> WorkerDied:
        """End the process whose pipe is closed, and return the error."""
        end = time.monotonic() + EXIT_SECONDS
        while not (exited := self._process.has_exited()) and time.monotonic() < end:
            time.sleep(0.001)
        if self._is_closing:
            how = "was stopped: its answer is no longer wanted"
            return self.end(how, code="worker.stopped")
        exit_code = None
        if exited:
            self.kill()
            exit_code = self._process.returncode
        if exit_code is None or exit_code == CHANNEL_LOST:
            return self.end(f"closed {CHANNEL}", code="worker.closed-pipe", exit_code=exit_code)
        name = name_crash(exit_code)
        how = f"was ended by {name}" if name else f"ended with exit code {exit_code}"
        return self.end(how, code="worker.died", exit_code=exit_code)

    def end(
        self, how: str, *, signature: str = "crash", code: str, exit_code: int | None = None
    ) -> WorkerDied:
        """End the process, and return the error.

        Args:
            how: The predicate of the sentence.
            signature: As of `WorkerDied`.
            code: The code of the error.
            exit_code: How the process ended by itself, as `subprocess` has it; None if it did not.
        """
        self.kill()
        lines = self.last_lines()
        last = f": {' | '.join(lines[-3:])}" if lines else ""
        by_signal = None if exit_code is None else name_crash(exit_code)
        hint = "the runtime itself crashed" if by_signal else ""
        process = describe_process_end(lines, by_signal, None if by_signal else exit_code)
        return WorkerDied(
            f"the process that should {self.task} {how}{last}",
            hint,
            signature=signature,
            process=process,
            code=code,
        )

    def kill(self) -> None:
        """End the child and everything that it started, in other sessions too.

        It does so only once, because the system uses the number of an ended process again.
        """
        with self._kill_lock:
            if not self.has_ended:
                self._process.end(strays=not self._is_alone)
                self.has_ended = True

    def stop(self) -> None:
        """End the process, whose reply is no longer wanted."""
        self._is_closing = True
        self.kill()

    def close(self) -> None:
        """Close the pipes of the ended process, and remove its folder."""
        if not self._is_closed:
            self._is_closed = True
            self._read_stderr()
            self._cleanup.close()


def _find_import_path(python: Path | None, scratch: str) -> str:
    """Return $PYTHONPATH of a worker, with the folder of this package first.

    The child must run the same code. The interpreter of another environment sees only this package
    and the packages that read models, linked into a folder.
    """
    if python:
        folder = Path(scratch, "import")
        releases.lend(folder, python)
        return str(folder)
    own = str(HOME.resolve().parent)
    users_path = os.environ.get("PYTHONPATH")
    return f"{own}{os.pathsep}{users_path}" if users_path else own
