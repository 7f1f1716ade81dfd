"""`Workers` whose processes are elsewhere: each run is a task of an executor. Also the door to all `Workers`.

A worker that is lost costs the runs in flight: they are tried again, then unresolved. A run's result is the same
wherever it ran and however often, and is stored once, by key.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from subgraph.documents import to_json
from subgraph.errors import BackendError, OutOfTime, SubcutError, Unreachable, from_json
from subgraph.runtime import executors
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.remote import task
from subgraph.runtime.run_result import RunResult, from_document
from subgraph.runtime.worker import Worker
from subgraph.runtime.worker_pool import Workers, ended_by_cancel, is_cancelled, stopped
from subgraph.storage.digest import file_digest
from subgraph.storage.tensors import Record
from subgraph.text import clean
from subgraph.version import __version__

MOST_LOSSES = 3  # of one run
POLL = 0.2  # seconds between two looks at the time
SMALL = 1 << 20  # bytes: smaller files go with the task, larger ones if the worker lacks them


def open_workers(candidate: Candidate) -> Workers:
    """The processes of a candidate: here, or elsewhere where it names an executor.

    Raises:
        BackendError: it cannot be started, or the executor is not reached.
    """
    return RemoteWorkers(candidate) if candidate.executor else Workers(candidate)


def runs_at_once(candidate: Candidate) -> int:
    """As many as its executor or its hosts take; else 1.

    Raises:
        BackendError: the executor is not reached.
    """
    if candidate.executor:
        return executors.slots(candidate.executor, candidate.resources)
    return len(candidate.hosts) or 1


class RemoteWorkers(Workers):
    """Runs of a candidate as tasks of its executor."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__(candidate, start=False)
        self._executor = executors.connected(candidate.executor, candidate.resources)
        self._by_content = False
        self._reconnecting = threading.Lock()

    @cached_property
    def _task(self) -> dict[str, Any]:
        candidate = to_json(replace(self.candidate, executor="", resources={}, origin=""))
        return {"version": __version__, "candidate": candidate, "code": self.candidate.identity("")["code"]}

    def about(self) -> BackendInfo:
        """As of `Workers`, on a machine of the executor."""
        reply, _ = self._performed({**self._task, "do": "about"}, {}, "")
        return BackendInfo.from_json(reply["about"])

    @contextmanager
    def borrow(self, *, loads: int = 0, fresh: bool = False) -> Iterator[Worker]:
        """
        Raises:
            BackendError: its processes are elsewhere.
        """
        if not self._closed:
            what = f"this takes a process of {clean(self.candidate.name)} on this machine"
            raise BackendError(what, "leave --executor out")
        yield self._start()

    def run(
        self, model: Path, feeds: Sequence[Sequence[Record]], outputs: Sequence[str], into: Path, *,
        fresh: bool = False, options: Mapping[str, Any] | None = None,
    ) -> RunResult:  # fmt: skip
        """As of `Workers`.

        Raises:
            Unreachable: the workers that ran it were lost, one after the other.
        """
        with _leash(into) as (leash, token):
            changed = {} if options is None else {"options": to_json(options)}
            request = {
                **self._task, "candidate": {**self._task["candidate"], **changed},
                "do": "run", "leash": {"file": str(leash), "content": token},
                "model": str(model), "into": str(into), "outputs": list(outputs), "fresh": fresh,
                "feeds": [[record.to_json() for record in sample] for sample in feeds],
            }  # fmt: skip
            with self.turns, ended_by_cancel(lambda: self._stop(leash, token)):
                reply, files = self._run(request, model, feeds, token)
        if "result" not in reply:
            raise Unreachable("a worker lacks files that were sent", "the same command again")
        for name, data in files.items():
            (into / Path(name).name).write_bytes(data)
        return replace(from_document(reply["result"]), ended=bool(reply["result"]["ended"]))

    def _run(
        self, request: dict[str, Any], model: Path, feeds: Sequence[Sequence[Record]], token: str
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        if not self._by_content:
            reply, files = self._performed(request, {}, token)
            if "by_content" not in reply:
                return reply, files
            self._by_content = Path(request["leash"]["file"]).exists()  # gone: nobody waits for this run
        sent, paths = _by_content(request, model, feeds)
        content = {key: path.read_bytes() for key, path in paths.items() if path.stat().st_size < SMALL}
        reply, files = self._performed(sent, content, token)
        if "missing" in reply:
            content |= {key: paths[key].read_bytes() for key in reply["missing"]}
            reply, files = self._performed(sent, content, token)
        return reply, files

    def _performed(
        self, request: dict[str, Any], content: dict[str, bytes], token: str
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """The reply to a task, tried again where its worker was lost.

        Raises:
            Unreachable: it was lost too often. BackendError: the executor is not reached, or what the task raised.
        """
        text, why = json.dumps(request), ""
        for _ in range(MOST_LOSSES):
            executor = self._executor
            try:
                reply, files = self._result(executor.submit(task.perform, text, content))
            except Exception as e:  # noqa: BLE001 - of whatever library the executor is
                why = self._why_lost(e, executor)
            else:
                document: dict[str, Any] = json.loads(reply)
                if "error" in document:
                    raise from_json(document["error"])
                return document, files
        raise Unreachable(f"the worker was lost, {MOST_LOSSES} times: {why}")

    def _why_lost(self, error: Exception, executor: Executor) -> str:
        """Why a task gave nothing, where another try may give something; else raises what to tell the user."""
        spec, why = clean(self.candidate.executor), f"{type(error).__name__}: {clean(str(error))[:200]}"
        if isinstance(error, SubcutError):  # nobody waits for it
            raise error
        if isinstance(error, CancelledError) or not executors.alive(self.candidate.executor, executor):
            what = f"{spec} does not answer any more"
            raise BackendError(what, "answers so far are stored: the same command goes on once it is back") from error
        if isinstance(error, ModuleNotFoundError) or "deserializ" in why:
            what = f"the scheduler or a worker of {spec} cannot load subcut: {why}"
            raise BackendError(what, "install the same version there") from error
        if isinstance(error, BrokenExecutor):
            self._reconnect(executor)
        elif not isinstance(error, (OSError, RuntimeError, ValueError)):  # distributed.KilledWorker, say: tried enough
            raise Unreachable(f"the worker was lost: {why}", "the same command tries it again") from error
        return why

    def _result(self, future: Future[Any]) -> tuple[str, dict[str, bytes]]:
        while not wait([future], timeout=POLL).done:
            if self._closed or is_cancelled():
                future.cancel()
                raise stopped()
            if not executors.alive(self.candidate.executor, self._executor):
                raise CancelledError
            if time.monotonic() >= self.deadline:
                future.cancel()
                raise OutOfTime("the time is used up", "the same command with more goes on")
        reply: tuple[str, dict[str, bytes]] = future.result()
        return reply

    def _stop(self, leash: Path, token: str) -> None:
        leash.unlink(missing_ok=True)
        executors.end(self.candidate.executor, self._executor, task.end, token)

    def _reconnect(self, broken: Executor) -> None:
        with self._reconnecting:
            if self._executor is broken:
                executors.forget(self.candidate.executor)
                self._executor = executors.connected(self.candidate.executor, self.candidate.resources)


@contextmanager
def _leash(into: Path) -> Iterator[tuple[Path, str]]:
    """A file with a random content that this process holds as long as it waits for the run."""
    token = secrets.token_hex(16)
    leash = into / f".leash-{token}"
    with leash.open("w", encoding="ascii") as file:
        file.write(token)
        file.flush()
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield leash, token
        finally:
            leash.unlink(missing_ok=True)


def _by_content(
    request: dict[str, Any], model: Path, feeds: Sequence[Sequence[Record]]
) -> tuple[dict[str, Any], dict[str, Path]]:
    """The request with files by digest, relative to a folder of the worker's; and the files by digest."""
    places = {f"model/{path.relative_to(model.parent)}": path for path in model.parent.rglob("*") if path.is_file()}
    samples = []
    for k, sample in enumerate(feeds):
        records = []
        for i, record in enumerate(sample):
            names = tuple(f"feeds/{k}-{i}-{j}{Path(file).suffix}" for j, file in enumerate(record.files))
            places.update({name: Path(file) for name, file in zip(names, record.files, strict=True)})
            records.append(replace(record, files=names).to_json())
        samples.append(records)
    digests = {name: file_digest(path) for name, path in places.items()}
    sent = {**request, "files": digests, "sent_feeds": samples, "model_file": f"model/{model.name}"}
    return sent, {digests[name]: path for name, path in places.items()}
