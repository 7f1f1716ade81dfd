"""Warm workers of one candidate: borrowed, returned, replaced.

A long-lived process can fail silently (one runtime does after some 360 models), so each is
replaced after a number of loads. A run that must not depend on earlier ones gets a fresh process.
Boards that a command reaches by name are lent to one run at a time; one that does not answer is
avoided.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

from subgraph import plugins
from subgraph.environments import emulated
from subgraph.environments.installation import MAX_INSTALL_SECONDS, make, show
from subgraph.errors import BackendError, SubcutError, Unreachable, WorkerDied
from subgraph.log import log
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.deadline import Deadline
from subgraph.runtime.devices import DEVICES
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.run_result import MODEL, Job, RunResult, run_model
from subgraph.runtime.worker import Worker
from subgraph.system import measure_free_memory
from subgraph.system.shared import Closable
from subgraph.text import clean
from subgraph.verdict import Signature

MAX_LOADS = 100  # loads
MAX_HOSTS = 3  # that one run is tried on
Turns: TypeAlias = AbstractContextManager[object]
NO_TURNS: Turns = nullcontext()  # every run begins at once
MAX_LOSSES = 2  # in a row; then a host is used only if no other is left
POLL_SECONDS = 0.2  # seconds between two looks whether anybody still waits


class Cancel:
    """The means of another thread to end the run of this one.

    In its block, the worker that `borrow` lent ends, and no other is lent.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._end: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def set(self) -> None:
        """End the run."""
        with self._lock:
            self.is_set = True
            end = self._end
        if end:
            end()

    @contextmanager
    def ends(self, end: Callable[[], None]) -> Iterator[None]:
        """Let `set` call `end` during this block.

        Raises:
            WorkerDied: It was set, before or in the block, whose result means nothing.
        """
        with self._lock:
            self._end = end
        try:
            if not self.is_set:
                yield
        finally:
            with self._lock:
                self._end = None
        if self.is_set:
            raise make_stopped_error()

    def __enter__(self) -> Cancel:
        _this_thread.cancel = self
        return self

    def __exit__(self, *_: object) -> None:
        del _this_thread.cancel


_this_thread = threading.local()


def is_cancelled() -> bool:
    """Return whether this thread's run is cancelled."""
    cancel: Cancel | None = getattr(_this_thread, "cancel", None)
    return cancel is not None and cancel.is_set


@contextmanager
def end_on_cancel(end: Callable[[], None]) -> Iterator[None]:
    """Call `end` if this thread's run is cancelled during the block.

    Raises:
        WorkerDied: It is.
    """
    cancel: Cancel | None = getattr(_this_thread, "cancel", None)
    with cancel.ends(end) if cancel else nullcontext():
        yield


_free_again = threading.Condition()
_lent: set[str] = set()  # by all candidates of this process: a board runs one model at a time


class Hosts:
    """The hosts of one candidate. Several threads may share it."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._losses: Counter[str] = Counter()

    @contextmanager
    def lease(self, tried: Collection[str], go_on: Callable[[], None]) -> Iterator[str]:
        """Wait for a host that no other run has and that was not tried; yield it.

        `go_on` raises an error to end the wait.
        """
        with _free_again:
            while True:
                left = [host for host in self.names if host not in tried]
                answering = [host for host in left if self._losses[host] < MAX_LOSSES] or left
                if free := [host for host in answering if host not in _lent]:
                    break
                go_on()
                _free_again.wait(POLL_SECONDS)
            host = free[0]
            _lent.add(host)
        try:
            yield host
        finally:
            with _free_again:
                _lent.discard(host)
                _free_again.notify_all()

    def note(self, host: str, *, answered: bool) -> None:
        """Record the end of a run on a host."""
        self._losses[host] = 0 if answered else self._losses[host] + 1

    @property
    def none_answers(self) -> bool:
        """Whether every host was lost, each several times in a row."""
        return all(self._losses[host] >= MAX_LOSSES for host in self.names)


class Workers(Closable):
    """The processes of one candidate: as many as are needed at once; spare ones are kept warm.

    Use it as a context manager. A candidate that a person runs, or that has run already, has no
    process.

    Attributes:
        memory: bytes that each process tree may hold; None without a limit.
        deadline: when the last request must have ended; shared with the reference, and whoever runs
            more for a command.
    """

    def __init__(
        self, candidate: Candidate, *, start: bool = True, deadline: Deadline | None = None
    ) -> None:
        self.candidate = candidate
        self.memory = candidate.memory or (measure_free_memory() if candidate.has_process else None)
        self.deadline = deadline or Deadline()
        self._spare: list[tuple[Worker, int]] = []
        self._all: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._hosts = Hosts(candidate.hosts)
        self._python = install(candidate, self.deadline) if start else None
        if start and candidate.has_process:
            # It imports the runtime while the caller still reads the model.
            self._spare.append((self._start(), 0))

    def about(self) -> BackendInfo:
        """Return the properties of the backend, with the candidate's options.

        Raises:
            BackendError: it cannot be used.
        """
        if not self.candidate.has_process:
            return BackendInfo()
        processor = self.candidate.processor
        try:
            with self.borrow() as worker:
                about = worker.about(self.candidate.options)
        except WorkerDied as e:
            if not processor:
                raise
            raise BackendError(
                f"under {emulated.find_emulator_version(processor)}, {e.what}",
                emulated.HINT,
                code=e.code,
            ) from e
        if not processor:
            return about
        caveat = (
            f"computed by the kernels for {processor} under"
            f" {emulated.find_emulator_version(processor)}, not on such a processor"
        )
        return replace(about, caveat="; ".join(filter(None, (about.caveat, caveat))))

    def tensors(self, model: Path) -> frozenset[str] | None:
        """Return the tensors of a model that the backend has values of; None for all.

        Raises:
            BackendError: It cannot be used.
        """
        if not plugins.defines("backends", self.candidate.backend, "tensors"):
            return None
        with self.borrow(loads=1) as worker:
            return frozenset(worker.names("tensors", model, self.candidate.options))

    def run(self, job: Job, turns: Turns = NO_TURNS) -> RunResult:
        """Run a job, as `run_model`; with the candidate's options if the job has none.

        A candidate with hosts runs on one that is free. If that does not answer, or takes too long,
        another is tried: a model that takes too long does so on two of them.

        Args:
            job: The job.
            turns: A semaphore that the run holds, if more threads run jobs than may run at once.

        Raises:
            BackendError: The candidate cannot be used at all.
            OutputError: Its outputs cannot be written.
            Unreachable: No host that was tried answered.
            WorkerDied: As `borrow`.
        """
        options = self.candidate.options if job.options is None else job.options
        tried: list[str] = []
        late: RunResult | None = None
        hosts = self._hosts
        while len(tried) < min(MAX_HOSTS, len(hosts.names)):
            with hosts.lease(tried, self._go_on) as host:
                try:
                    result = self._run_here(replace(job, options={**options, "host": host}), turns)
                except Unreachable as e:
                    log.warning("%s does not answer: %s", clean(host), e.what)
                    hosts.note(host, answered=False)
                    tried.append(host)
                    continue
            hosts.note(host, answered=True)
            if late or not (result.failure and result.failure.signature is Signature.TIMEOUT):
                return result
            late = result
            tried.append(host)
        if late:
            return late
        if not tried:
            return self._run_here(replace(job, options=options), turns)
        if hosts.none_answers:
            names = ", ".join(hosts.names)
            raise BackendError(
                f"none of the hosts answers: {names}",
                "the same command goes on once one does",
                code="hosts.no-answer",
            )
        raise Unreachable(f"no answer from {', '.join(tried)}", code="hosts.no-answer")

    def _run_here(self, job: Job, turns: Turns) -> RunResult:
        with turns, self.borrow(loads=1, fresh=job.fresh) as worker:
            result = run_model(worker, job)
            if job.fresh and worker.alive:  # it stays in addition to the next fresh one
                with suppress(SubcutError):
                    worker.drop(MODEL)
            return replace(result, ended=not worker.alive)

    def _go_on(self) -> None:
        """Check that a thread still waits for this run.

        Raises:
            WorkerDied: nobody waits for this run any more.
        """
        if self._closed or is_cancelled():
            raise make_stopped_error()

    @contextmanager
    def borrow(self, *, loads: int = 0, fresh: bool = False) -> Iterator[Worker]:
        """Lend a worker for this block.

        Args:
            loads: The number of models that the block loads.
            fresh: Whether the worker must have loaded no model.

        Raises:
            WorkerDied: The workers were closed, before or in the block, whose result means nothing.
        """
        if self._closed:
            raise make_stopped_error()
        worker, loaded = self._take(fresh)
        worker.deadline = self.deadline
        try:
            with end_on_cancel(worker.close):
                yield worker
        finally:
            # Only as many processes stay as parallel runs need, because each can hold memory.
            enough = fresh and self._spare
            if enough or not worker.alive or loaded + loads >= MAX_LOADS or self._closed:
                self._end(worker)
            else:
                with self._lock:
                    self._spare.append((worker, loaded + loads))
        if self._closed:
            raise make_stopped_error()

    def _start(self) -> Worker:
        worker = Worker(
            self.candidate.backend,
            timeout=self.candidate.timeout,
            memory=self.memory,
            python=self._python,
        )
        with self._lock:
            if not self._closed:
                self._all.add(worker)
                return worker
        worker.close()
        raise make_stopped_error()

    def _take(self, fresh: bool) -> tuple[Worker, int]:
        """Return the spare worker that has loaded most, a `fresh` one none; and its loads."""
        while True:
            with self._lock:
                fit = [spare for spare in self._spare if not (fresh and spare[1])]
                if not fit:
                    break
                found = max(fit, key=itemgetter(1))
                self._spare.remove(found)
            if found[0].alive:  # the system may have ended it meanwhile
                return found
            self._end(found[0])
        return self._start(), 0

    def _end(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.close()

    def close(self) -> None:
        """End all processes, busy ones too: their requests raise WorkerDied."""
        with self._lock:
            self._closed = True
            workers = self._all
        self._all = set()
        for worker in workers:
            worker.close()


def install(candidate: Candidate, deadline: Deadline | None = None) -> Path | None:
    """Return the interpreter of the candidate's release, or the user's; None without one.

    A missing release is installed, after that was logged.

    Raises:
        BackendError: This machine lacks a part, or it cannot be installed.
    """
    lacks = DEVICES[candidate.device].missing() if candidate.device else ""
    if lacks:
        lacks = f"{candidate.device} {lacks}"
    elif candidate.processor:
        lacks = emulated.describe_missing(candidate.processor)
    if lacks and not candidate.executor:
        raise BackendError(lacks, "subcut doctor", code="backend.no-device")
    if candidate.python:
        return Path(candidate.python)
    environment = candidate.installation
    if environment is None:
        return None
    if not environment.is_ready:
        log.info("%s is installed, once, apart from all else:", clean(environment.requirements[0]))
        show(environment)
    return make(environment, (deadline or Deadline()).timeout(MAX_INSTALL_SECONDS))


def make_stopped_error() -> WorkerDied:
    """Return the error of a run that was ended because nobody waits for it."""
    return WorkerDied(
        "the processes that run the candidate were stopped", "", code="worker.stopped"
    )
