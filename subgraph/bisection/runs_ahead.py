"""The runs of a search on several workers: those that it needs now, and those that it is likely to
need.

A run ahead fills no answer: the search asks for it as if nothing had run, and finds it made. So
nothing depends on the order in which runs end, and what ran in vain is forgotten (its result stays
in the store).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from subgraph.runtime.run_result import RunResult
from subgraph.runtime.worker_pool import Cancel
from subgraph.search.lookahead import plan
from subgraph.search.oracle import Ahead, Query
from subgraph.verdict import Status

Ran = tuple[RunResult, Status]


@dataclass
class RunsAhead:
    """Up to `workers` runs at once. Use it as a context manager: its end ends them.

    Attributes:
        run: the result of a query's run, and its status; called by a thread of its own.
        begun: runs so far. taken: those that the search asked for.
    """

    run: Callable[[Query], Ran]
    workers: int
    begun: int = 0
    taken: int = 0
    _ahead: Ahead | None = None
    _going: dict[Query, tuple[Future[Ran], Cancel]] = field(default_factory=dict)
    _done: dict[Query, Future[Ran]] = field(default_factory=dict)
    _executor: ThreadPoolExecutor | None = None

    def expect(self, ahead: Ahead) -> None:
        """Begin a search: `ahead` tells which runs it is likely to need."""
        self.close()
        self._ahead = ahead
        self._executor = ThreadPoolExecutor(
            2 * self.workers
        )  # those that end, and their successors

    def wait_for(self, queries: Sequence[Query]) -> None:
        """Return when all of these have run; others go on."""
        needed = {q.run for q in queries if q.runs_alone}
        while self._executor:
            self._collect()
            self._plan()
            waiting = [self._going[run][0] for run in needed if run in self._going]
            if not waiting:  # what is needed has run
                return
            wait([future for future, _ in self._going.values()], return_when=FIRST_COMPLETED)

    def take(self, query: Query) -> RunResult | None:
        """The result of a query's run, if it ran ahead.

        Raises: what the run raised.
        """
        future = self._done.get(query.run)
        if future is None:
            return None
        self.taken += 1
        return future.result()[0]

    def _collect(self) -> None:
        for run in [run for run, (future, _) in self._going.items() if future.done()]:
            self._done[run] = self._going.pop(run)[0]

    def _plan(self) -> None:
        seen = {
            run: f.result()[1]
            for run, f in self._done.items()
            if not f.cancelled() and f.exception() is None
        }
        assert self._ahead and self._executor
        begin, obsolete = plan(self._ahead(seen, {}), self._going, self._done, self.workers)
        for run in obsolete:
            self._going.pop(run)[1].set()
        for run in begin:
            cancel = Cancel()
            self._going[run] = self._executor.submit(self._run, run, cancel), cancel
            self.begun += 1

    def _run(self, query: Query, cancel: Cancel) -> Ran:
        with cancel:
            return self.run(query)

    def close(self) -> None:
        """End the runs that nobody waits for."""
        going, self._going, self._done = self._going, {}, {}
        for _, cancel in going.values():
            cancel.set()
        if self._executor:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None
        for future, _ in going.values():
            with contextlib.suppress(CancelledError):
                future.exception()  # nobody asks for it

    def __enter__(self) -> RunsAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
