"""A backend in a child process: start, request, kill. Requests and replies are JSON lines, tensors
are .npy files. Replies are sealed (`runtime.protocol`).

An error has one of three kinds. A `SubcutError` is one that the child reports. A `WorkerDied` has
the end of its process, or the damage of its code to the pipe. An `InternalError` is raised if this
module cannot read a reply, or the child a request: that is no fault of a candidate.

This is the parent's half, `worker_main` is the child's. The child leads a separate session (process
group), so that killing the group kills all that it started. It ends when its lifeline or its
standard input closes: no child outlives a killed parent, even in the middle of a run
(`system.posix` explains the lifeline). The parent enforces the limits of time and memory. One loop
does all the waiting: it sends, receives, keeps the end of the child's output, and checks the
limits.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar, cast

from subgraph import children
from subgraph.documents import from_json, to_json
from subgraph.environments import releases
from subgraph.errors import (
    BackendError,
    InputError,
    InternalError,
    ModelError,
    OutputError,
    WorkerDied,
    name_setting,
)
from subgraph.errors import from_json as error_from_json
from subgraph.plugins import HOME
from subgraph.runtime.backends import capabilities
from subgraph.runtime.deadline import Deadline
from subgraph.runtime.inputs import Sample
from subgraph.runtime.protocol import (
    CHANNEL_LOST,
    SCRATCH,
    WORD_BYTES,
    AboutRequest,
    BackendInfo,
    Done,
    DropRequest,
    ErrorReply,
    InternalReply,
    Loaded,
    LoadRequest,
    ModelRun,
    Names,
    NamesRequest,
    Request,
    RunRequest,
    Sources,
    SourcesRequest,
    process_end,
    seal,
)
from subgraph.storage import folders
from subgraph.storage.tensors import Record
from subgraph.system import Pipes, ProcessGroup, crash_name
from subgraph.system.shared import Closable
from subgraph.types import Fields, StringMap, Strings

KEPT_BYTES = 16 << 10  # of the child's standard error
SHOWN_LINES = 8  # of these bytes
MAX_REPLY = 64 << 20  # bytes; that of a model of 80,000 nodes, all captured at once, has 20 MB
BURST = 16  # chunks read in a row from a flood, before the limits are checked again
POLL = 0.1  # seconds between two checks of a child that does not reply
# from the end of a pipe to the end of the process; processes close their files first
EXIT_SECONDS = 1.0
START_SECONDS = 120.0  # for importing the runtime, before the first request's own time begins

T = TypeVar("T")
CHANNEL = "the pipe to subcut"


class Worker(Closable):
    """A child process that loads models on one backend and runs them; use it as a context manager.

    The process starts with the constructor and imports the runtime while the parent goes on.
    Requests of several threads wait for each other; any thread may close the worker. Every request
    raises WorkerDied if the process crashed, exceeded a limit or was closed; the error has the
    reason and the end of standard error.

    Args:
        backend: The backend.
        timeout: Seconds per request, counted once the runtime is imported.
        memory: Bytes of resident memory of the child and all that it started.
        bounded: Bytes that the child may allocate; it breaks runtimes that reserve addresses.
        python: The interpreter of another environment, with numpy and the runtime.

    Raises:
        BackendError: The process, or a folder for its files, cannot be created.
    """

    def __init__(
        self,
        backend: str = "ort",
        *,
        timeout: float | None = None,
        memory: int | None = None,
        bounded: int | None = None,
        python: Path | None = None,
    ) -> None:
        self.timeout = timeout
        self.memory = memory
        self.deadline = Deadline()  # of all requests
        self.is_late = False  # it was ended at the deadline
        self._word = os.urandom(WORD_BYTES).hex().encode()
        self._is_alone = capabilities(backend).alone and python is None
        self._has_sources = backend.endswith(".py") or bool(capabilities(backend).script)
        self._cleanup = contextlib.ExitStack()
        scratch = ""
        if not self._is_alone:
            try:
                scratch = str(self._cleanup.enter_context(folders.temporary("subcut-worker")))
            except OutputError as e:
                raise BackendError(
                    f"no temporary folder: {e.what}",
                    "free some space, or set $TMPDIR",
                    code="output.no-temporary-folder",
                ) from e
        try:
            self._process = ProcessGroup(
                children.python("-m", "subgraph.runtime.worker_main", backend, of=python),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": _import_path(python, scratch), SCRATCH: scratch},
                memory=bounded,
            )
        except OSError as e:
            self._cleanup.close()
            raise BackendError(
                f"cannot start a process: {e.strerror or e}",
                "are there too many?",
                code="process.not-started",
            ) from e
        self._cleanup.callback(self._process.close)
        self._pipes = Pipes(self._process)
        self._cleanup.callback(self._pipes.close)
        self._pipes.send(self._word + b"\n")
        self._received = bytearray()
        self._searched = 0  # bytes searched for the end of a line
        self._replies = 0
        self._printed = bytearray()  # the end of standard error
        self._starting = True
        self._task = ""  # of the present request
        self._pending = False  # a request has no reply yet, or was given up
        self._ended = self._closing = self._closed = False
        self._request_lock = threading.Lock()
        self._kill_lock = threading.Lock()

    # ------------------------------------------------------------ requests

    def about(self, options: Fields) -> BackendInfo:
        """Return the properties of the backend.

        Raises:
            BackendError: the runtime is not installed or does not start.
        """
        return self._ask(AboutRequest(options), BackendInfo)

    def load(self, key: str, model: Path, options: Fields) -> float:
        """Convert and build `model` under the name `key`; return the seconds that it took.

        Raises:
            Refused: the backend does not accept the model. BackendError: it cannot be used at all.
        """
        return self._ask(LoadRequest(key, model, options), Loaded).seconds

    def names(self, of: str, model: Path, options: Fields) -> Strings:
        """Return the names that the backend's function `of`, `tensors` or `passes`, returns for a
        model.

        Raises:
            BackendError: the backend cannot be used.
        """
        return self._ask(NamesRequest(of, model, options), Names).names

    def run(
        self,
        key: str,
        into: Path,
        outputs: StringMap,
        feeds: Iterable[Record] | Sample,
        earlier: Iterable[Record] = (),
    ) -> ModelRun:
        """Run `key` once; write `outputs` (name → file stem) into the folder.

        Files of `feeds` are relative to it. The record of an `earlier` run of the same sample
        replaces an output of the same bits.

        Raises:
            InputError: An input does not fit.
            ModelError: The run failed.
        """
        fed = feeds if isinstance(feeds, Sample) else tuple(feeds)
        with name_setting(getattr(feeds, "setting", "")):
            return self._ask(RunRequest(key, into, outputs, fed, tuple(earlier)), ModelRun)

    def sources(self) -> StringMap:
        """Return the files that the backend's Python file has imported from outside the installed
        packages, with their digests."""
        return self._ask(SourcesRequest(), Sources).sources if self._has_sources else {}

    def drop(self, key: str) -> None:
        """Forget a model, so that its memory is free again; nothing if the time is used up."""
        if not self.deadline.has_passed:
            self._ask(DropRequest(key), Done)

    def _ask(self, request: Request, kind: type[T]) -> T:
        """Send a request, and return its reply, which is of this kind.

        Raises:
            SubcutError: The error that the child reports.
            WorkerDied: There is no reply, or code of the backend has written one.
            InternalError: The request or the reply cannot be read.
            BackendError: The runtime, or a process that it started, reports a full disk.
            OutOfTime: The deadline has passed. A request that was under way was ended.
        """
        self.deadline.require()
        with self._request_lock:  # the pipes are closed by whoever has it
            try:
                return self._exchange(request, kind)
            except (ModelError, WorkerDied) as e:
                if not any(map(children.DISK_FULL.search, (e.what, *self.last_lines()))):
                    raise
                raise BackendError(
                    f"a disk that the runtime writes to is full: {e.what}",
                    "free some space where it writes; $TMPDIR is its folder for temporary files",
                    code="output.disk-full",
                ) from e

    def _exchange(self, request: Request, kind: type[T]) -> T:
        if self._ended or self._pending:
            raise WorkerDied(
                f"the process that should {request.task} was stopped before",
                process=process_end([]),
                code="worker.stopped",
            )
        self._read_stderr()
        self._printed.clear()
        line = json.dumps(to_json(request)).encode() + b"\n"
        self._task = request.task
        self._pending = True  # before it is sent: Ctrl-C may come at once
        self._pipes.send(line)
        if self._starting:
            limit = None if self.timeout is None else max(self.timeout, START_SECONDS)
            self._receive_reply(Done, limit)
            self._starting = False
        reply = self._receive_reply(kind, self.timeout)
        self._pending = False
        if not isinstance(reply, ErrorReply):
            return reply
        error = error_from_json(reply.error)
        if isinstance(error, WorkerDied):  # of a process that the child started, which prints here
            error.process = process_end(self.last_lines()) | error.process
        raise error

    def _receive_reply(self, kind: type[T], limit: float | None) -> T | ErrorReply:
        """Return the next reply, which must be the child's own.

        Raises:
            WorkerDied: Code of the backend has written into the pipe.
            InternalError: The child cannot read the request, or fails in subcut's own code; or its
                reply is not of this kind.
        """
        line = self._read_line(limit)
        expected = seal(self._word, self._replies)
        self._replies += 1
        try:
            document = json.loads(line.removeprefix(expected))
        except ValueError:
            document = None
        if document is None or not line.startswith(expected):
            how = f"wrote into {CHANNEL}: what it says cannot be believed"
            raise self._end(how, code="worker.wrote-into-pipe")
        try:
            reply = from_json(ErrorReply | InternalReply | kind, document)  # type: ignore[arg-type]
        except InputError as e:
            self._kill()
            raise InternalError(
                f"the reply to the request to {self._task} is unreadable: {e.what}",
                code="worker.unreadable-reply",
            ) from e
        if isinstance(reply, InternalReply):
            self._kill()
            raise InternalError(
                f"the process that should {self._task}: {reply.failure}",
                code="worker.failed-inside",
            )
        return cast("T | ErrorReply", reply)

    def last_lines(self) -> list[str]:
        """Return the last lines that the child and its processes printed in the last request."""
        if not self._closed:
            self._read_stderr()
        return bytes(self._printed).decode(errors="replace").strip().splitlines()[-SHOWN_LINES:]

    @property
    def alive(self) -> bool:
        """Whether it takes another request."""
        return not self._pending and not self._ended and not self._process.has_exited()

    def _read_line(self, limit: float | None) -> bytes:
        """Return the next line of the replies, after all of the request was sent.

        A child that died is noticed although other processes may hold its pipes open.
        """
        latest = self.deadline.at
        end = latest if limit is None else min(time.monotonic() + limit, latest)
        check = time.monotonic() + POLL
        while not self._has_line():
            self._serve_pipes(max(min(check, end) - time.monotonic(), 0))
            if time.monotonic() >= check:
                self._check_memory()
                check = time.monotonic() + POLL
            if time.monotonic() >= end and not self._has_line():
                if end == latest:
                    self._kill()
                    self.is_late = True
                    self.deadline.require()
                how = f"was stopped after {limit or 0:g} s"
                raise self._end(how, code="worker.died", signature="timeout")
        line = bytes(self._received[: self._searched])
        del self._received[: self._searched + 1]
        self._searched = 0
        return line

    def _has_line(self) -> bool:
        """Return whether a complete line has arrived, which ends at `_searched`."""
        end = self._received.find(b"\n", self._searched)
        self._searched = len(self._received) if end < 0 else end
        return end >= 0

    def _serve_pipes(self, seconds: float) -> None:
        """Wait until a pipe is ready, then send and receive without blocking."""
        try:
            ready = self._pipes.wait(seconds)
        except BrokenPipeError:
            raise self._pipe_closed() from None
        self._read_stderr()
        if ready:
            self._receive()
        elif self._process.has_exited():
            self._receive()
            if not self._has_line():
                raise self._pipe_closed()

    def _receive(self) -> None:
        chunk = self._pipes.read()
        if chunk is None:
            return
        if not chunk:
            raise self._pipe_closed()
        self._received += chunk
        if len(self._received) > MAX_REPLY:
            raise self._end(f"wrote into {CHANNEL} without an end", code="worker.wrote-into-pipe")

    def _read_stderr(self) -> None:
        """Keep the end of the child's standard error."""
        for _ in range(BURST):
            if not (chunk := self._pipes.read_errors()):
                return
            self._printed += chunk
            del self._printed[:-KEPT_BYTES]

    def _check_memory(self) -> None:
        if self.memory is not None and (resident := self._process.resident_memory()) > self.memory:
            how = f"was stopped at {resident >> 20} MiB, above {self.memory >> 20}"
            error = self._end(how, code="worker.died", signature="memory")
            error.process["memory"] = self.memory
            raise error

    # ------------------------------------------------------------ the end

    def _pipe_closed(self) -> WorkerDied:
        end = time.monotonic() + EXIT_SECONDS
        while not (exited := self._process.has_exited()) and time.monotonic() < end:
            time.sleep(0.001)
        if self._closing:
            how = "was stopped: its answer is no longer wanted"
            return self._end(how, code="worker.stopped")
        ended = None
        if exited:
            self._kill()
            ended = self._process.returncode
        if ended is None or ended == CHANNEL_LOST:
            return self._end(f"closed {CHANNEL}", code="worker.closed-pipe", exit_code=ended)
        name = crash_name(ended)
        how = f"was ended by {name}" if name else f"ended with exit code {ended}"
        return self._end(how, code="worker.died", exit_code=ended)

    def _end(
        self, how: str, *, signature: str = "crash", code: str, exit_code: int | None = None
    ) -> WorkerDied:
        """End the process, and return the error.

        Args:
            how: The predicate of the sentence.
            signature: As of `WorkerDied`.
            code: The code of the error.
            exit_code: How the process ended by itself, as `subprocess` has it; None if it did not.
        """
        self._kill()
        lines = self.last_lines()
        last = f": {' | '.join(lines[-3:])}" if lines else ""
        by_signal = None if exit_code is None else crash_name(exit_code)
        hint = "the runtime itself crashed" if by_signal else ""
        process = process_end(lines, by_signal, None if by_signal else exit_code)
        return WorkerDied(
            f"the process that should {self._task} {how}{last}",
            hint,
            signature=signature,
            process=process,
            code=code,
        )

    def _kill(self) -> None:
        """End the child and everything that it started, in other sessions too. Only once: the
        system uses its number again."""
        with self._kill_lock:
            if not self._ended:
                self._process.end(strays=not self._is_alone)
                self._ended = True

    def close(self) -> None:
        """End the child and everything that it started; a thread that waits for a reply gets
        WorkerDied."""
        self._closing = True
        self._kill()
        with self._request_lock:  # a waiting thread notices the end before the pipes are closed
            if self._closed:
                return
            self._closed = True
            self._read_stderr()
            self._cleanup.close()


def _import_path(python: Path | None, scratch: str) -> str:
    """Return $PYTHONPATH of a worker, with the folder of this package first.

    The child must run the same code. The interpreter of another environment sees only this package
    and the packages that read models, linked into a folder.
    """
    if python:
        folder = Path(scratch, "import")
        releases.lend(folder, python)
        return str(folder)
    own = str(HOME.resolve().parent)
    users = os.environ.get("PYTHONPATH")
    return f"{own}{os.pathsep}{users}" if users else own
