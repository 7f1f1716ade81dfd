"""Warm workers of one candidate: borrowed, returned, replaced.

A long-lived process can go wrong silently (one runtime does after some 360 models), so each is replaced after a number
of loads. A run that must not depend on earlier ones gets a fresh process.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from subgraph import plugins
from subgraph.errors import WorkerDied
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.processes import free_memory
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.worker import Worker

RECYCLE = 100  # loads


class Workers:
    """The processes of one candidate: as many as are needed at once; spare ones are kept warm.

    Use it as a context manager. A candidate that a person runs, or that has run already, has no process.

    Attributes:
        memory: bytes that each process tree may hold; None without a limit.
        deadline: when the last request must have ended, by `time.monotonic`.
    """

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.memory = candidate.memory or (free_memory() if candidate.has_process else None)
        self.deadline = math.inf
        self._spare: list[tuple[Worker, int]] = []
        self._all: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = False
        if candidate.has_process:
            self._put(self._start(), 0)  # imports the runtime while the caller still reads the model

    def about(self) -> BackendInfo:
        """What the backend says about itself, with the candidate's options.

        Raises:
            BackendError: it cannot be used.
        """
        if not self.candidate.has_process:
            return BackendInfo()
        with self.borrow() as worker:
            return worker.about(self.candidate.options)

    def tensors(self, model: Path) -> frozenset[str] | None:
        """The tensors of a model that the backend has values of; None for all.

        Raises:
            BackendError: it cannot be used.
        """
        if not plugins.defines("backends", self.candidate.backend, "tensors"):
            return None
        with self.borrow() as worker:
            return worker.tensors(model, self.candidate.options)

    @contextmanager
    def borrow(self, *, loads: int = 0, fresh: bool = False) -> Iterator[Worker]:
        """A worker for this block, which loads `loads` models in it; `fresh`: a new process that ends with the block.

        Raises:
            WorkerDied: the workers were closed before the block's end; a verdict made in it would mean nothing.
        """
        worker, loaded = (self._start(), 0) if fresh else self._take()
        worker.deadline = self.deadline
        try:
            yield worker
        finally:
            if fresh or not worker.alive or loaded + loads >= RECYCLE or self._closed:
                self._end(worker)
            else:
                self._put(worker, loaded + loads)
        if self._closed:
            raise _stopped()

    def _start(self) -> Worker:
        worker = Worker(self.candidate.backend, timeout=self.candidate.timeout, memory=self.memory)
        with self._lock:
            if not self._closed:
                self._all.add(worker)
                return worker
        worker.close()
        raise _stopped()

    def _take(self) -> tuple[Worker, int]:
        while True:
            with self._lock:
                if not self._spare:
                    break
                worker, loaded = self._spare.pop()
            if worker.alive:  # the system may have ended it meanwhile
                return worker, loaded
            self._end(worker)
        return self._start(), 0

    def _put(self, worker: Worker, loaded: int) -> None:
        with self._lock:
            self._spare.append((worker, loaded))

    def _end(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.close()

    def close(self) -> None:
        """End all processes, busy ones too: their requests raise WorkerDied."""
        with self._lock:
            self._closed = True
            workers, self._all = self._all, set()
        for worker in workers:
            worker.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stopped() -> WorkerDied:
    return WorkerDied("the processes that run the candidate were stopped", "")
