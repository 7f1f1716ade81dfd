"""The driver of a search: it alone calls the oracle.

Concepts:
- *pass*: a generator that yields batches of queries, is sent their answers and returns its result.
  A pass names the queries; the driver sends them within the budgets, and turns each answer into a
  step.
- *memo*: no query is sent twice. A search that starts over (because the candidate turned out to be
  flaky, for example) takes its old answers from the memo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from subgraph.search.oracle import (
    Ahead,
    Answer,
    Counts,
    Oracle,
    Purpose,
    Query,
    QueryKind,
    RegionOutcome,
    Step,
)
from subgraph.types import frozen

T = TypeVar("T")
Search: TypeAlias = Generator[Sequence[Query], Sequence[Answer], T]
Steps: TypeAlias = Generator[Step, None, T]


def each(search: Steps[T], change: Callable[[Step], Step | None]) -> Steps[T]:
    """Return a search whose steps are changed on their way; steps that become None are omitted."""
    while True:
        try:
            step = change(next(search))
        except StopIteration as end:
            result: T = end.value
            return result
        if step:
            yield step


class SearchStopped(Exception):
    """The search ends early: a budget is used up, or the candidate has changed.

    The message names the reason.
    """


class BudgetSpent(SearchStopped):
    """The runs or the time that the user allowed are used up.

    With more of them, the same search goes on.
    """


class SearchRestart(Exception):
    """An assumption of the search does not hold; it starts over, with the answers it has."""


@frozen
class Settings:
    """The limits of a search.

    Attributes:
        max_trials: Budget of runs; None for no limit.
        max_time: Budget in seconds of `clock`; None for no limit.
        workers: Number of runs that the oracle can execute at once; the search takes the same steps
            with any number.
        within: The only items that are suspects; they are run whether or not the full model agrees.
            None for all items.
        inside: Whether the items are run as well if the full model agrees.
        only_whole: Whether only the full model is run.
        repeat: Number of runs that must agree before the full model counts as agreeing. None for as
            many as cost little, at least two.
        steady: Whether the candidate always returns the same values: two runs of the full model and
            one confirmation are enough.
        clock: Function that returns rising seconds.
        expect: Function that is called before the first query, with a function that names the runs
            that are likely to be needed. An oracle with several workers can run them ahead.
        pools: Whether several regions can run side by side in one model.
    """

    max_trials: int | None = None
    max_time: float | None = None
    workers: int = 1
    within: Collection[int] | None = None
    inside: bool = False
    only_whole: bool = False
    repeat: int | None = None
    steady: bool = False
    clock: Callable[[], float] = time.monotonic
    expect: Callable[[Ahead], None] | None = None
    pools: bool = False

    def subtract(self, runs: int = 0, seconds: float = 0.0) -> Settings:
        """Return the limits of a search after others that took these runs and seconds."""
        trials = None if self.max_trials is None else max(self.max_trials - runs, 0)
        limit = None if self.max_time is None else max(self.max_time - seconds, 0.0)
        return replace(self, max_trials=trials, max_time=limit)


@dataclass
class Driver:
    """The one caller of the oracle for one search.

    Attributes:
        oracle: The oracle.
        size: Number of items.
        settings: The limits of the search.
        estimate: `estimated_runs` and `only_repeats` of each next step.
        memo: The answer to each query.
        counts: The cost of the search up to now.
        purpose: The purpose of the last queries.
        answers_sent: All answers, by batch.
    """

    oracle: Oracle
    size: int
    settings: Settings
    estimate: tuple[int, bool] = (0, False)
    memo: dict[Query, Answer] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    purpose: Purpose = Purpose.BASELINE
    answers_sent: list[Sequence[Answer]] = field(default_factory=list)
    _ran: set[Query] = field(default_factory=set)
    _unreported: list[tuple[Purpose, Query, Answer, RegionOutcome]] = field(default_factory=list)
    _steps: int = 0

    def __post_init__(self) -> None:
        limit = self.settings.max_time
        self._deadline = None if limit is None else self.settings.clock() + limit

    def run(self, search: Search[T]) -> Steps[T]:
        """Drive a search to its end: yield a Step per answer, return its result.

        A step is yielded with the next query of the search: only then is its effect known.
        """
        try:
            queries = next(search)
            while True:
                yield from self._iter_new_steps()
                try:
                    answers = self.oracle.ask(queries) if queries else ()
                    self.answers_sent.append(answers)
                except SearchStopped as stopped:
                    queries = search.throw(stopped)
                else:
                    queries = search.send(answers)
        except StopIteration as end:
            yield from self._iter_new_steps()
            result: T = end.value
            return result

    def _iter_new_steps(self) -> Iterator[Step]:
        for purpose, query, answer, outcome in self._unreported:
            self._steps += 1
            yield Step(self._steps, purpose, query, answer, outcome, *self.estimate)
        self._unreported.clear()

    def ask(
        self,
        purpose: Purpose,
        queries: Sequence[Query],
        outcome: Callable[[Query, Answer], RegionOutcome],
    ) -> Search[list[Answer]]:
        """Return the answers to queries; queries with a known answer are not sent again.

        Args:
            purpose: The purpose of the queries.
            queries: The queries.
            outcome: Function that notes a new answer and returns its outcome for the search.

        Raises:
            SearchStopped: A budget is used up; no query was sent.
        """
        self.purpose = purpose
        new = [q for q in dict.fromkeys(queries) if self.get_answer(q) is None]
        runs = {q.run for q in new if q.kind is not QueryKind.CLAIMED} - self._ran
        limit = self.settings.max_trials
        if new and limit is not None and self.counts.total() + len(runs) > limit:
            raise BudgetSpent("the trials are used up")
        if new and self._deadline is not None and self.settings.clock() >= self._deadline:
            raise BudgetSpent("the time is used up")
        for query, answer in zip(new, (yield new), strict=True):
            if query.kind is not QueryKind.CLAIMED and (query.pool or query.run not in self._ran):
                new_runs = {query.run} - self._ran
                self._ran |= new_runs
                compiled = len(query.items) or self.size
                self.counts += Counts({purpose: len(new_runs)}, {purpose: compiled})
            self.memo[query] = answer
            self._unreported.append((purpose, query, answer, outcome(query, answer)))
        return list(filter(None, map(self.get_answer, queries)))

    def get_answer(self, query: Query) -> Answer | None:
        """Return the known answer to a query, or to the same query with its share explained.

        Returns:
            None without such an answer.
        """
        explained = self.memo.get(replace(query, explain=True))
        if explained is not None:
            return explained
        answer = self.memo.get(replace(query, explain=False))
        if answer is None or (query.explain and answer.share.of_target is None):
            return None
        return answer
