"""A backend in a child process: start, request, kill. Requests and replies are JSON lines, tensors
are .npy files. Replies are sealed (`runtime.protocol`).

An error has one of three kinds. A `SubcutError` is one that the child reports. A `WorkerDied` has
the end of its process, or the damage of its code to the pipe. An `InternalError` is raised if this
module cannot read a reply, or the child a request: that is no fault of a candidate.

This is the parent's half, `worker_main` is the child's; `worker_process` has the process.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar, cast

from subgraph import children
from subgraph.documents import from_json, to_json
from subgraph.errors import (
    BackendError,
    InputError,
    InternalError,
    ModelError,
    WorkerDied,
    from_json as error_from_json,
    name_setting,
)
from subgraph.runtime.backends import capabilities
from subgraph.runtime.deadline import Deadline
from subgraph.runtime.inputs import Sample
from subgraph.runtime.protocol import (
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
    describe_process_end,
    seal,
)
from subgraph.runtime.worker_process import CHANNEL, WorkerProcess
from subgraph.storage.tensors import Record
from subgraph.system.shared import Closable
from subgraph.types import Fields, StringMap, Strings

START_SECONDS = 120.0  # for importing the runtime, before the first request's own time begins

T = TypeVar("T")


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
        self.is_late = False  # whether it was ended at the deadline
        self.process = WorkerProcess(backend, bounded=bounded, python=python)
        self._word = os.urandom(WORD_BYTES).hex().encode()
        self._has_sources = backend.endswith(".py") or bool(capabilities(backend).script)
        self.process.send(self._word + b"\n")
        self._replies = 0
        self._starting = True
        self._pending = False  # a request has no reply yet, or was given up
        self._request_lock = threading.Lock()  # the pipes are closed by whoever has it

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

    def names(self, function: str, model: Path, options: Fields) -> Strings:
        """Return the names that the backend's `function`, `tensors` or `passes`, returns for a
        model.

        Raises:
            BackendError: the backend cannot be used.
        """
        return self._ask(NamesRequest(function, model, options), Names).names

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
        if self._has_sources:
            return self._ask(SourcesRequest(), Sources).sources
        return {}

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
        with self._request_lock:
            try:
                if self.process.has_ended or self._pending:
                    raise WorkerDied(
                        f"the process that should {request.task} was stopped before",
                        process=describe_process_end([]),
                        code="worker.stopped",
                    )
                line = json.dumps(to_json(request)).encode() + b"\n"
                self._pending = True  # before it is sent: Ctrl-C may come at once
                self.process.begin(request.task)
                self.process.send(line)
                if self._starting:
                    limit = None if self.timeout is None else max(self.timeout, START_SECONDS)
                    self._receive_reply(Done, limit)
                    self._starting = False
                reply = self._receive_reply(kind, self.timeout)
                self._pending = False
                if not isinstance(reply, ErrorReply):
                    return reply
                error = error_from_json(reply.error)
                # A process that the child started prints into the standard error of the child.
                if isinstance(error, WorkerDied):
                    error.process = describe_process_end(self.process.last_lines()) | error.process
                raise error
            except (ModelError, WorkerDied) as e:
                if not any(map(children.DISK_FULL.search, (e.what, *self.process.last_lines()))):
                    raise
                raise BackendError(
                    f"a disk that the runtime writes to is full: {e.what}",
                    "free some space where it writes; $TMPDIR is its folder for temporary files",
                    code="output.disk-full",
                ) from e

    def _receive_reply(self, kind: type[T], limit: float | None) -> T | ErrorReply:
        """Return the next reply, which must be the child's own.

        Raises:
            WorkerDied: Code of the backend has written into the pipe.
            InternalError: The child cannot read the request, or fails in subcut's own code; or its
                reply is not of this kind.
        """
        latest = self.deadline.at
        end = latest if limit is None else min(time.monotonic() + limit, latest)
        process = self.process
        line = process.read_line(end, self.memory)
        if line is None:
            self.is_late = end == latest
            if self.is_late:
                self.deadline.require()
            how = f"was stopped after {limit or 0:g} s"
            raise process.end(how, code="worker.died", signature="timeout")
        expected = seal(self._word, self._replies)
        self._replies += 1
        try:
            document = json.loads(line.removeprefix(expected))
        except ValueError:
            document = None
        if document is None or not line.startswith(expected):
            how = f"wrote into {CHANNEL}: its replies are not reliable"
            raise process.end(how, code="worker.wrote-into-pipe")
        try:
            reply = from_json(ErrorReply | InternalReply | kind, document)  # type: ignore[arg-type]
        except InputError as e:
            process.kill()
            raise InternalError(
                f"the reply to the request to {process.task} is unreadable: {e.what}",
                code="worker.unreadable-reply",
            ) from e
        if isinstance(reply, InternalReply):
            process.kill()
            raise InternalError(
                f"the process that should {process.task}: {reply.failure}",
                code="worker.failed-inside",
            )
        return cast("T | ErrorReply", reply)

    @property
    def alive(self) -> bool:
        """Whether it takes another request."""
        return not self._pending and self.process.is_running

    def close(self) -> None:
        """End the child and everything that it started; a thread that waits for a reply gets
        WorkerDied."""
        self.process.stop()
        with self._request_lock:  # a waiting thread notices the end before the pipes are closed
            self.process.close()
