"""Runs of a search on several workers: what is needed is waited for, what no longer is is ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import pytest

from subgraph.errors import BackendError, WorkerDied
from subgraph.questions.bisection.oracle import Ran, RunsAhead
from subgraph.runtime.run_result import RunResult
from subgraph.runtime.worker_pool import Cancel, end_on_cancel
from subgraph.search.oracle import Answer, Query, QueryKind
from subgraph.verdict import Status
from tests.helpers.refusals import raises

ONE, TWO, THREE = (Query(QueryKind.ISOLATED, (k,)) for k in (1, 2, 3))


class Runs:
    """Runs that end when they are told to, or are cancelled."""

    def __init__(self) -> None:
        self.may_end = {run: threading.Event() for run in (ONE, TWO, THREE)}
        self.begun = {run: threading.Event() for run in (ONE, TWO, THREE)}
        self.cancelled: list[Query] = []
        self.wanted = [ONE, TWO, THREE]
        self.seen: Mapping[Query, Status] = {}

    def run(self, query: Query) -> Ran:
        """One run."""
        self.begun[query].set()
        with end_on_cancel(self.may_end[query].set):
            self.may_end[query].wait(10)
        if query is THREE:
            raise BackendError("it cannot be used")
        return RunResult(build=float(query.items[0])), Status.AGREE

    def ahead(self, seen: Mapping[Query, Status], known: Mapping[Query, Answer]) -> Iterator[Query]:
        """What is wanted now."""
        self.seen = seen
        return iter(self.wanted)


def test_result_that_ran_ahead_is_used() -> None:
    runs = Runs()
    with RunsAhead(runs.run, 2) as ahead:
        ahead.expect(runs.ahead)
        runs.may_end[ONE].set()
        ahead.wait_for([ONE])
        assert ahead.take(ONE) == RunResult(build=1.0) and ahead.take(TWO) is None
        runs.may_end[TWO].set()
        ahead.wait_for([TWO])
        assert ahead.take(TWO) == RunResult(build=2.0)
        assert runs.seen[ONE] is Status.AGREE


def test_error_is_raised_only_where_it_is_asked_for() -> None:
    runs = Runs()
    with RunsAhead(runs.run, 3) as ahead:
        ahead.expect(runs.ahead)
        for event in runs.may_end.values():
            event.set()
        ahead.wait_for([ONE, TWO, THREE])
        assert ahead.take(TWO) == RunResult(build=2.0)
        with pytest.raises(BackendError, match="be used"):
            ahead.take(THREE)


def test_obsolete_run_is_ended_and_forgotten() -> None:
    runs = Runs()
    with RunsAhead(runs.run, 2) as ahead:
        ahead.expect(runs.ahead)
        runs.may_end[ONE].set()
        ahead.wait_for([ONE])
        assert runs.begun[TWO].wait(10)
        runs.wanted = [ONE]
        ahead.wait_for([ONE])
        assert runs.may_end[TWO].is_set()  # its process was ended
        assert ahead.take(TWO) is None


def test_the_end_ends_all_runs() -> None:
    runs = Runs()
    with RunsAhead(runs.run, 2) as ahead:
        ahead.expect(runs.ahead)
        runs.may_end[ONE].set()
        ahead.wait_for([ONE])
        assert runs.begun[TWO].wait(10)
    assert runs.may_end[TWO].is_set()


def test_cancelled_run_gives_nothing() -> None:
    cancel = Cancel()
    ended = threading.Event()
    with cancel, raises(WorkerDied, "worker.stopped"), end_on_cancel(ended.set):
        cancel.set()
    assert ended.is_set()
    with cancel, raises(WorkerDied, "worker.stopped"), end_on_cancel(lambda: None):
        raise AssertionError("it was cancelled before")
    with end_on_cancel(lambda: None):  # a thread that nobody can cancel
        pass
