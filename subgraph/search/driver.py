"""The driver of a search: it alone calls the oracle.

Concepts:
- *pass*: a generator that yields batches of queries, is sent their answers and returns its result.
  A pass says what to try; the driver asks for it, within the budgets, and turns each answer into a
  step.
- *memo*: no query is asked twice. A search that starts over (the candidate turned out to be flaky,
  say) takes its old answers from the memo.
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
    """The same search, each step of which is changed on its way; one that becomes None is left
    out."""
    while True:
        try:
            step = change(next(search))
        except StopIteration as end:
            result: T = end.value
            return result
        if step:
            yield step


class SearchStopped(Exception):
    """The search ends early: a budget is used up, or the candidate has changed. The message says
    which."""


class BudgetSpent(SearchStopped):
    """The runs or the time that the user gave are used up: with more, the same search goes on."""


class SearchRestart(Exception):
    """An assumption of the search does not hold; it starts over, with the answers it has."""


@frozen
class Settings:
    """The limits of a search.

    Attributes:
        max_trials, max_time: budgets, in runs and in seconds of `clock`.
        workers: runs that the oracle may make at once; the search takes the same steps with any
            number.
        expect: called before the first query with what tells which runs are likely to be needed: an
            oracle with several workers may run them before they are asked.
        within: only these items are suspects; they are asked whatever the whole says.
        inside: if the whole agrees, its items are asked as well.
        only_whole: only the whole is asked.
        repeat: runs of the whole that must agree before the whole does; None: as many as cost
            little, two at least.
        steady: the candidate always gives the same: two runs of the whole and one confirmation are
            enough.
        clock: seconds, rising.
        pools: several regions may run side by side in one model.
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

    def after(self, runs: int = 0, seconds: float = 0.0) -> Settings:
        """Return the limits of a search after others that took that many runs and seconds."""
        trials = None if self.max_trials is None else max(self.max_trials - runs, 0)
        limit = None if self.max_time is None else max(self.max_time - seconds, 0.0)
        return replace(self, max_trials=trials, max_time=limit)


@dataclass
class Driver:
    """Asks the oracle what one search wants to know.

    Attributes:
        size: number of items.
        estimate: of each next step, `estimated_runs` and `only_repeats`.
        memo: the answer to each query. counts: the cost of the search so far.
        asking: the purpose of the last queries. answers_sent: all answers, by batch.
    """

    oracle: Oracle
    size: int
    settings: Settings
    estimate: tuple[int, bool] = (0, False)
    memo: dict[Query, Answer] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    asking: Purpose = Purpose.BASELINE
    answers_sent: list[Sequence[Answer]] = field(default_factory=list)
    _ran: set[Query] = field(default_factory=set)
    _unreported: list[tuple[Purpose, Query, Answer, RegionOutcome]] = field(default_factory=list)
    _steps: int = 0

    def __post_init__(self) -> None:
        limit = self.settings.max_time
        self._deadline = None if limit is None else self.settings.clock() + limit

    def run(self, search: Search[T]) -> Steps[T]:
        """Drive a search to its end: yields a Step per answer, returns its result.

        A step is yielded when the search asks again: only then is known what the answer changed.
        """
        try:
            queries = next(search)
            while True:
                yield from self._new_steps()
                try:
                    answers = self.oracle.ask(queries) if queries else ()
                    self.answers_sent.append(answers)
                except SearchStopped as stopped:
                    queries = search.throw(stopped)
                else:
                    queries = search.send(answers)
        except StopIteration as end:
            yield from self._new_steps()
            result: T = end.value
            return result

    def _new_steps(self) -> Iterator[Step]:
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
        """Answers to queries; those answered before are not asked again.

        Args:
            outcome: what a new answer means for the search, which takes note of it.

        Raises:
            SearchStopped: a budget is used up; nothing was asked.
        """
        self.asking = purpose
        new = [q for q in dict.fromkeys(queries) if self.known(q) is None]
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
        return list(filter(None, map(self.known, queries)))

    def known(self, query: Query) -> Answer | None:
        """The answer to a query that was asked before, or to the same with its share explained."""
        explained = self.memo.get(replace(query, explain=True))
        if explained is not None:
            return explained
        answer = self.memo.get(replace(query, explain=False))
        return (
            None if answer is None or (query.explain and answer.share.of_target is None) else answer
        )
