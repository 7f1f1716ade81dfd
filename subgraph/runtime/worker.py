"""A backend in a child process: start, request, kill. Requests and replies are JSON lines, tensors are .npy
files. Replies are sealed (`runtime.protocol`).

This is the parent's half, `worker_main` is the child's. The child leads a session (process group) of its own, so that
killing the group kills all that it started. It ends when its lifeline or its standard input closes: a killed parent
leaves no child behind, even in the middle of a run (`docs/why/lifeline.md`). The parent enforces the limits of time and
memory. One loop does all the waiting: it sends, receives, keeps the end of the child's output, and checks the limits.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from subgraph.documents import to_json
from subgraph.errors import BackendError, OutOfTime, OutputError, SubcutError, WorkerDied, from_json
from subgraph.runtime.inputs import Sample
from subgraph.runtime.processes import (
    MARK,
    SCRATCH,
    end_others,
    import_path,
    open_pipe,
    process_end,
    resident_memory,
    signal_name,
    starting,
    workers,
)
from subgraph.runtime.protocol import CHANNEL_LOST, KEY_BYTES, BackendInfo, ModelRun, opened
from subgraph.storage import folders
from subgraph.storage.tensors import Record

KEPT_BYTES = 16 << 10  # of the child's standard error
SHOWN_LINES = 8  # of these bytes
CHUNK = 1 << 16  # bytes; the capacity of a pipe on Linux
MAX_REPLY = 64 << 20  # bytes; that of a model of 80,000 nodes, all captured at once, has 20 MB
BURST = 16  # chunks read in a row from a flood, before the limits are checked again
POLL = 0.1  # seconds between two checks of a child that does not reply
EXIT_SECONDS = 1.0  # from the end of a pipe to the end of the process; processes close their files first
START_SECONDS = 120.0  # for importing the runtime, before the first request's own time begins

T = TypeVar("T")
CHANNEL = "the pipe to subcut"
TASKS = {"load": "load the model", "run": "run the model", "drop": "drop a model", "about": "say what the backend is"}
TASKS |= {"sources": "say what it imported", "names": "say what it knows of the model"}


class Worker:
    """One child process that loads models on one backend and runs them. Use it as a context manager.

    The process starts with the constructor and imports the runtime while the parent goes on. Requests of several
    threads wait for each other; any thread may close the worker. Every request raises WorkerDied if the process
    crashed, exceeded a limit or was closed; the error says how, with the end of standard error.

    `timeout`: seconds per request, counted once the runtime is imported. `memory`: bytes of resident memory of the
    child and all that it started. `bounded`: as `memory`, but of what the child may allocate at all; 0: no more than is
    free now. It breaks runtimes that reserve addresses. `python`: of another environment, with numpy and the runtime.

    Raises:
        BackendError: the process, or a folder for its files, cannot be created.
    """

    def __init__(
        self, backend: str = "ort", *, timeout: float | None = None, memory: int | None = None,
        bounded: int | None = None, python: Path | None = None,
    ) -> None:  # fmt: skip
        self.timeout, self.memory = timeout, memory
        self.deadline = math.inf  # of `time.monotonic`, for all requests
        self._mark, self._key = uuid.uuid4().hex, os.urandom(KEY_BYTES)
        self._is_ort = backend == "ort" and python is None  # starts no processes of its own, writes no files
        self._has_sources = backend.endswith(".py") or backend == "torch"
        self._cleanup = contextlib.ExitStack()
        scratch = "" if self._is_ort else str(self._cleanup.enter_context(_scratch()))
        lifeline, self._lifeline = open_pipe()
        try:
            with starting:
                self._process = subprocess.Popen(
                    [str(python or sys.executable), "-P", "-m", "subgraph.runtime.worker_main", backend, str(lifeline)]
                    + ([] if bounded is None else [str(bounded)]),
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    pass_fds=[lifeline],
                    env={
                        **os.environ,
                        "PYTHONPATH": import_path(python, scratch),
                        MARK: self._mark,
                        SCRATCH: scratch,
                    },
                )
                workers.add(self._process.pid)
        except OSError as e:
            os.close(self._lifeline)
            self._cleanup.close()
            raise BackendError(f"cannot start a process: {e.strerror or e}", "are there too many?") from e
        finally:
            os.close(lifeline)
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        self._pipes = [pipe for pipe in pipes if pipe is not None]
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in self._pipes)
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(BrokenPipeError):  # it ended already; the first request says so
            os.write(self._stdin, self._key.hex().encode() + b"\n")
        self._unsent = b""
        self._received, self._searched = bytearray(), 0  # bytes searched for the end of a line
        self._replies = 0
        self._printed = bytearray()  # the end of standard error
        self._starting = True
        self._pending = False  # a request has no reply yet, or was given up
        self._ended = self._closing = self._closed = False
        self._request_lock, self._kill_lock = threading.Lock(), threading.Lock()

    # ------------------------------------------------------------------------------------------------ requests

    def about(self, options: Mapping[str, Any]) -> BackendInfo:
        """What the backend says about itself.

        Raises:
            BackendError: the runtime is not installed or does not start.
        """
        return self._ask(BackendInfo.from_json, "about", options=dict(options))

    def load(self, key: str, model: Path, options: Mapping[str, Any]) -> float:
        """Convert and build `model` under the name `key`; the seconds that it took.

        Raises:
            Refused: the backend does not accept the model. BackendError: it cannot be used at all.
        """
        return self._ask(_seconds, "load", key=key, model=str(model), options=dict(options))

    def names(self, of: str, model: Path, options: Mapping[str, Any]) -> list[str]:
        """What the backend's function of this name, `tensors` or `passes`, names of a model.

        Raises:
            BackendError: the backend cannot be used.
        """
        return self._ask(
            lambda reply: list(map(str, reply["names"])), "names", of=of, model=str(model), options=dict(options)
        )

    def run(self, key: str, into: Path, outputs: Mapping[str, str], feeds: Iterable[Record] | Sample) -> ModelRun:
        """Run `key` once; write `outputs` (name → file stem) into the folder. Files of `feeds` are relative to it.

        Raises:
            InputError: an input does not fit. ModelError: the run failed.
        """
        fed = {"sample": to_json(feeds)} if isinstance(feeds, Sample) else {"feeds": [r.to_json() for r in feeds]}
        return self._ask(ModelRun.from_json, "run", key=key, into=str(into), outputs=dict(outputs), **fed)

    def sources(self) -> dict[str, str]:
        """What the backend's Python file has imported from outside the installed packages: file → digest."""
        return self._ask(lambda reply: dict(reply["sources"]), "sources") if self._has_sources else {}

    def drop(self, key: str) -> None:
        """Forget a model; its memory is free again."""
        self._ask(dict, "drop", key=key)

    def _ask(self, read: Callable[[Mapping[str, Any]], T], do: str, **arguments: object) -> T:
        """Send one request, wait for its reply; `read` makes of its document what the caller wants.

        Raises:
            SubcutError: the error that the child reports. WorkerDied: there is no reply.
        """
        with self._request_lock:
            if self._ended or self._pending:
                raise WorkerDied(f"the process that should {TASKS[do]} was stopped before", process=process_end([]))
            self._read_stderr()
            self._printed.clear()
            self._unsent = json.dumps({"do": do, **arguments}).encode() + b"\n"
            self._pending = True
            if self._starting:
                self._receive_reply(do, None if self.timeout is None else max(self.timeout, START_SECONDS), dict)
                self._starting = False
            reply = self._receive_reply(do, self.timeout, lambda found: _error(found) or read(found))
            self._pending = False
            if not isinstance(reply, SubcutError):
                return reply
            error = reply
            if isinstance(error, WorkerDied):  # a process that the child started; what it printed arrived here
                error.process = process_end(self.last_lines()) | error.process
            raise error

    def _receive_reply(self, do: str, limit: float | None, read: Callable[[Mapping[str, Any]], T]) -> T:
        """What `read` makes of the next reply, which must be the child's own and of the right shape."""
        text = opened(self._key, self._replies, self._read_line(do, limit))
        self._replies += 1
        if text is None:
            raise self._stop(do, "crash", f"wrote into {CHANNEL}: what it says cannot be believed")
        try:
            return read(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._stop(do, "crash", "gave an answer that is none") from None

    def last_lines(self) -> list[str]:
        """The last lines that the child and its processes printed during the last request."""
        if not self._closed:
            self._read_stderr()
        return bytes(self._printed).decode(errors="replace").strip().splitlines()[-SHOWN_LINES:]

    @property
    def alive(self) -> bool:
        """Does it take another request?"""
        return not self._pending and not self._ended and not self._has_exited()

    def _has_exited(self) -> bool:
        """Without reaping the process: until `_kill`, its number and its group's must not be used again."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _read_line(self, do: str, limit: float | None) -> bytes:
        """The next line of the replies, after all of the request was sent.

        A child that died is noticed although other processes may hold its pipes open.
        """
        end = min(math.inf if limit is None else time.monotonic() + limit, self.deadline)
        check = time.monotonic() + POLL
        poll = select.poll()
        for number, events in ((self._stdout, select.POLLIN), (self._stderr, select.POLLIN)):
            poll.register(number, events)
        if self._unsent:
            poll.register(self._stdin, select.POLLOUT)
        while not self._has_line():
            self._serve_pipes(do, poll, max(min(check, end) - time.monotonic(), 0))
            if time.monotonic() >= check:
                self._check_memory(do)
                check = time.monotonic() + POLL
            if time.monotonic() >= end and not self._has_line():
                if end == self.deadline:
                    self._kill()
                    raise OutOfTime("the time is used up", "the same command with more goes on")
                raise self._stop(do, "timeout", f"was stopped after {limit or 0:g} s")
        line = bytes(self._received[: self._searched])
        del self._received[: self._searched + 1]
        self._searched = 0
        return line

    def _has_line(self) -> bool:
        """Is a whole line there? Then it ends at `_searched`."""
        end = self._received.find(b"\n", self._searched)
        self._searched = len(self._received) if end < 0 else end
        return end >= 0

    def _serve_pipes(self, do: str, poll: select.poll, seconds: float) -> None:
        """Wait until a pipe is ready, then send and receive without blocking."""
        ready = [number for number, _ in poll.poll(math.ceil(seconds * 1000))]
        if self._stdin in ready and self._send(do):
            poll.unregister(self._stdin)
        if self._stderr in ready and not self._read_stderr():
            poll.unregister(self._stderr)
        if self._stdout in ready:
            self._receive(do)
        elif self._has_exited():
            self._receive(do)
            if not self._has_line():
                raise self._pipe_closed(do)

    def _send(self, do: str) -> bool:
        """Send as much as the pipe takes; True when nothing is left."""
        try:
            self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            raise self._pipe_closed(do) from None
        return not self._unsent

    def _receive(self, do: str) -> None:
        try:
            chunk = os.read(self._stdout, CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            raise self._pipe_closed(do)
        self._received += chunk
        if len(self._received) > MAX_REPLY:
            raise self._stop(do, "crash", f"wrote into {CHANNEL} without an end")

    def _read_stderr(self) -> bool:
        """Keep the end of what the child has printed by now. False at the end of the pipe."""
        for _ in range(BURST):
            try:
                chunk = os.read(self._stderr, CHUNK)
            except BlockingIOError:
                return True
            self._printed += chunk
            del self._printed[:-KEPT_BYTES]
            if len(chunk) < CHUNK:
                return bool(chunk)
        return True

    def _check_memory(self, do: str) -> None:
        if self.memory is not None and (held := resident_memory(self._process.pid)) > self.memory:
            raise self._stop(do, "crash", f"was stopped at {held >> 20} MiB, above {self.memory >> 20}")

    # ------------------------------------------------------------------------------------------------ the end

    def _pipe_closed(self, do: str) -> WorkerDied:
        end = time.monotonic() + EXIT_SECONDS
        while not self._has_exited() and time.monotonic() < end:
            time.sleep(0.001)
        if self._closing:
            return self._stop(do, "crash", "was stopped: its answer is no longer wanted")
        if not self._has_exited():
            return self._stop(do, "crash", f"closed {CHANNEL}")
        self._kill()
        code = self._process.returncode
        if code == CHANNEL_LOST:
            return self._death(do, "crash", f"closed {CHANNEL}", None, code)
        if code < 0:
            name = signal_name(-code)
            return self._death(do, "crash", f"was ended by {name}", name, None)
        return self._death(do, "crash", f"ended with exit code {code}", None, code)

    def _stop(self, do: str, signature: str, how: str) -> WorkerDied:
        self._kill()
        return self._death(do, signature, how, None, None)

    def _death(self, do: str, signature: str, how: str, name: str | None, code: int | None) -> WorkerDied:
        lines = self.last_lines()
        last = f": {' | '.join(lines[-3:])}" if lines else ""
        what = f"the process that should {TASKS[do]} {how}{last}"
        hint = "the runtime itself crashed" if name else ""
        return WorkerDied(what, hint, signature=signature, process=process_end(lines, name, code))

    def _kill(self) -> None:
        """End the child and everything that it started, in other sessions too. Only once: the system uses its number
        again."""
        with self._kill_lock:
            if self._ended:
                return
            if not self._is_ort:
                self._signal_group(signal.SIGSTOP)  # it starts no more processes, and stays the parent of all orphans
                end_others(self._process.pid, self._mark)
            self._signal_group(signal.SIGKILL)
            self._process.wait()
            workers.discard(self._process.pid)
            self._ended = True

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End the child and everything that it started; a thread that waits for a reply gets WorkerDied."""
        self._closing = True
        self._kill()
        with self._request_lock:  # a waiting thread notices the end before the pipes are closed
            if self._closed:
                return
            self._closed = True
            self._read_stderr()
            os.close(self._lifeline)
            for pipe in self._pipes:
                pipe.close()
            self._cleanup.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _error(reply: Mapping[str, Any]) -> SubcutError | None:
    return from_json(reply["error"]) if "error" in reply else None


def _seconds(reply: Mapping[str, Any]) -> float:
    return float(reply["seconds"])


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for temporary files; folders that killed runs have left are removed with it."""
    try:
        with folders.scratch(Path(tempfile.gettempdir()), "subcut-worker") as folder:
            yield folder
    except OutputError as e:
        raise BackendError(f"no temporary folder: {e.what}", "free some space, or set $TMPDIR") from e
