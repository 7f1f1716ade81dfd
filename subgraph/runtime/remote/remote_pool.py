"""`Workers` whose processes are elsewhere: each run is a task of an executor. Also the door to all
`Workers`.

A worker that is lost costs the runs in flight: they are tried again, then unresolved. A run's
result is the same wherever it ran and however often, and is stored once, by key.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import BrokenExecutor, CancelledError, Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from subgraph.documents import from_json, to_json
from subgraph.errors import (
    BackendError,
    InputError,
    InternalError,
    SubcutError,
    Unreachable,
    from_json as error_from_json,
)
from subgraph.runtime import executors
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.deadline import Deadline
from subgraph.runtime.executors import Connection
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.remote import task
from subgraph.runtime.remote.task import ClusterTask, FileMap, TaskReply
from subgraph.runtime.run_result import Job, RunResult, from_stored
from subgraph.runtime.worker_pool import (
    NO_TURNS,
    Turns,
    Workers,
    end_on_cancel,
    is_cancelled,
    make_stopped_error,
)
from subgraph.storage.digest import digest_file
from subgraph.text import clean
from subgraph.version import __version__

MAX_LOSSES = 3  # of one run
POLL_SECONDS = 0.2  # seconds between two looks at the time
# Bytes: smaller files go with the task, larger ones if the worker lacks them.
MAX_SENT_BYTES = 1 << 20


def open_workers(candidate: Candidate, deadline: Deadline | None = None) -> Workers:
    """Return the processes of a candidate: here, or elsewhere if it names an executor.

    Args:
        deadline: That of a command which has processes already; None for one without a limit.

    Raises:
        BackendError: it cannot be started, or the executor is not reached.
    """
    pool = RemoteWorkers if candidate.executor else Workers
    return pool(candidate, start=not candidate.executor, deadline=deadline)


def runs_at_once(candidate: Candidate) -> int:
    """Return the number of runs that its executor or its hosts take; else 1.

    Raises:
        BackendError: The executor is not reached.
    """
    if candidate.executor:
        return executors.connect(candidate.executor, candidate.resources).slots
    return len(candidate.hosts) or 1


class RemoteWorkers(Workers):
    """Runs of a candidate as tasks of its executor."""

    def __init__(
        self, candidate: Candidate, *, start: bool = False, deadline: Deadline | None = None
    ) -> None:
        super().__init__(candidate, start=start, deadline=deadline)
        self._connection = executors.connect(candidate.executor, candidate.resources)
        self._by_content = False
        self._reconnecting = threading.Lock()
        sent = replace(candidate, executor="", resources={}, origin="")
        self._task = ClusterTask(__version__, sent, candidate.identity("")["code"])

    def about(self) -> BackendInfo:
        """Return the properties of the backend, on a machine of the executor."""
        reply, _ = self._perform(self._task, {})
        assert reply.about
        return reply.about

    def borrow(self, *, loads: int = 0, fresh: bool = False) -> NoReturn:
        """Refuse to lend a worker.

        Raises:
            BackendError: its processes are elsewhere. WorkerDied: the workers were closed.
        """
        if self._closed:
            raise make_stopped_error()
        raise BackendError(
            f"this takes a process of {self.candidate.name} on this machine",
            "leave --executor out",
            code="executor.needs-local",
        )

    def run(self, job: Job, turns: Turns = NO_TURNS) -> RunResult:
        """Run a job, as `Workers.run`.

        Raises:
            Unreachable: The workers that ran it were lost, one after another.
        """

        def stop() -> None:
            task.find_leash(job.into, token).unlink(missing_ok=True)
            self._connection.end(task.end, token)

        with task.hold_leash(job.into) as token:
            request = replace(self._task, job=job, token=token)
            with turns, end_on_cancel(stop):
                reply, files = self._run(request, job)
        if reply.result is None:
            raise Unreachable(
                "a worker lacks files that were sent",
                "the same command again",
                code="executor.files-lost",
            )
        for name, data in files.items():
            (job.into / Path(name).name).write_bytes(data)
        return replace(from_stored(reply.result, Path()), ended=reply.ended)

    def _run(self, request: ClusterTask, job: Job) -> tuple[TaskReply, FileMap]:
        if not self._by_content:
            reply, files = self._perform(request, {})
            if not reply.by_content:
                return reply, files
            leash = task.find_leash(job.into, request.token)
            self._by_content = leash.exists()  # if not, nobody waits for this run
        packed, places = task.pack(job)
        digests = {place: digest_file(path) for place, path in places.items()}
        paths = {digests[place]: path for place, path in places.items()}
        request = replace(request, packed=packed, files=digests)
        content = {
            key: path.read_bytes()
            for key, path in paths.items()
            if path.stat().st_size < MAX_SENT_BYTES
        }
        reply, files = self._perform(request, content)
        if reply.missing:
            content |= {key: paths[key].read_bytes() for key in reply.missing}
            reply, files = self._perform(request, content)
        return reply, files

    def _perform(self, request: ClusterTask, content: FileMap) -> tuple[TaskReply, FileMap]:
        """Return the reply to a task, which is tried again if its worker was lost.

        Raises:
            Unreachable: The worker was lost too often.
            BackendError: The executor is not reached, or the task reports an error.
            InternalError: The reply cannot be read.
        """
        text = json.dumps(to_json(request))
        why = ""
        for _ in range(MAX_LOSSES):
            connection = self._connection
            try:
                reply, files = self._receive_result(
                    connection.executor.submit(task.perform, text, content)
                )
            except Exception as e:  # noqa: BLE001
                why = self._explain_loss(e, connection)
            else:
                try:
                    document = from_json(TaskReply, json.loads(reply))
                except (ValueError, InputError) as e:
                    raise InternalError(
                        f"the reply to a task is unreadable: {e}", code="worker.unreadable-reply"
                    ) from e
                if document.error:
                    raise error_from_json(document.error)
                return document, files
        raise Unreachable(
            f"the worker was lost, {MAX_LOSSES} times: {why}", code="executor.worker-lost"
        )

    def _explain_loss(self, error: Exception, connection: Connection) -> str:
        """Return the reason why a task has no result, if another attempt may have one."""
        spec = self.candidate.executor
        why = f"{type(error).__name__}: {clean(str(error))[:200]}"
        if isinstance(error, (SubcutError, InternalError)):  # nobody waits for it, or it is ours
            raise error
        if isinstance(error, CancelledError) or not connection.alive:
            raise BackendError(
                f"{spec} no longer answers",
                "its answers are stored: the same command goes on once it is back",
                code="executor.no-answer",
            ) from error
        if isinstance(error, ModuleNotFoundError) or "deserializ" in why:
            raise BackendError(
                f"the scheduler or a worker of {spec} cannot load subcut: {why}",
                "install the same version there",
                code="executor.other-version",
            ) from error
        if isinstance(error, BrokenExecutor):
            with self._reconnecting:
                if self._connection is connection:
                    executors.forget(connection)
                    self._connection = executors.connect(
                        self.candidate.executor, self.candidate.resources
                    )
        # Tasks with other errors, such as distributed.KilledWorker, were tried often enough.
        elif not isinstance(error, (OSError, RuntimeError, ValueError)):
            raise Unreachable(
                f"the worker was lost: {why}",
                "the same command tries it again",
                code="executor.worker-lost",
            ) from error
        return why

    def _receive_result(self, future: Future[Any]) -> tuple[str, FileMap]:
        while not wait([future], timeout=POLL_SECONDS).done:
            if self._closed or is_cancelled():
                future.cancel()
                raise make_stopped_error()
            if not self._connection.alive:
                raise CancelledError
            if self.deadline.has_passed:
                future.cancel()
                self.deadline.require()
        reply: tuple[str, FileMap] = future.result()
        return reply
