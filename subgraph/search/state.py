"""State of a search: the queries asked, their answers, and what follows from them.

Concepts:
- *pass*: a generator that yields batches of queries, is sent their answers and returns its result.
  `run` drives the outermost one; it alone calls the oracle.
- *memo*: no query is asked twice. A search that starts over (the candidate turned out to be flaky,
  say) takes its old answers from the memo.
- *repetitions*: a region of a flaky candidate passes only after several passes. The first run of a
  region may share a process with others, any further one gets its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from subgraph.search.findings import Counts, Purpose, Step
from subgraph.search.oracle import Ahead, Answer, Items, Oracle, Query, QueryKind
from subgraph.search.predicate import NO_OUTPUT, NOT_HERE, RegionOutcome, outcome_of
from subgraph.verdict import Signature, Status

T = TypeVar("T")
Search: TypeAlias = Generator[Sequence[Query], Sequence[Answer], T]
Steps: TypeAlias = Generator[Step, None, T]

WITHOUT_RUN = frozenset({QueryKind.CLAIMED})
STILL_REPETITION = (
    1000  # from this repetition on, the whole is run only to see whether it still gives output
)
MAX_WITHOUT_OUTPUT = (
    4  # regions in a row without output, before the whole is run again; doubled each time
)
_AGREED_ITEMS = 2_000_000  # of agreeing regions looked through for contradictions


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


@dataclass(frozen=True)
class Settings:
    """What bounds a search.

    Attributes:
        max_trials, max_time: budgets, in runs and in seconds of `clock`.
        workers: runs that the oracle may make at once; the search takes the same steps with any
            number.
        expect: called before the first query with what tells which runs are likely to be needed: an
            oracle with several workers may run them before they are asked.
        within: only these items are suspects; they are asked whatever the whole says.
        inside: if the whole agrees, its items are asked as well.
        repeat: runs of the whole that must agree before the whole does; None: as many as cost
            little, two at least.
        steady: the candidate always gives the same: two runs of the whole and one confirmation are
            enough.
        clock: seconds, rising.
    """

    max_trials: int | None = None
    max_time: float | None = None
    workers: int = 1
    within: Collection[int] | None = None
    inside: bool = False
    repeat: int | None = None
    steady: bool = False
    clock: Callable[[], float] = time.monotonic
    expect: Callable[[Ahead], None] | None = None

    def after(self, runs: int = 0, seconds: float = 0.0) -> Settings:
        """What bounds a search that follows others, which took so many runs and seconds."""
        trials = None if self.max_trials is None else max(self.max_trials - runs, 0)
        limit = None if self.max_time is None else max(self.max_time - seconds, 0.0)
        return replace(self, max_trials=trials, max_time=limit)


@dataclass(frozen=True)
class Baseline:
    """The runs of the whole model, summed up.

    Attributes:
        signature: the most frequent one; None where no run failed.
        failed, runs: how many runs failed with it, of how many.
        agrees: every run agreed. claimed: but some only within the claimed precision.
        why: of the first run with that signature.
    """

    signature: Signature | None = None
    failed: int = 0
    runs: int = 0
    agrees: bool = False
    claimed: bool = False
    why: str = ""

    @property
    def rate(self) -> float:
        """Share of the runs that failed."""
        return self.failed / self.runs if self.runs else 1.0


@dataclass
class SearchState:
    """All that is known during a search.

    Attributes:
        parents: the items that each item reads.
        prior: how likely each item is guilty. weights: the same, with what was learned since.
        labels: kind of each item; None if unknown.
        whole: how the whole fails, and how often.
        target: the items whose error is looked for: () for the whole model, later what the known
            culprits leave.
        signature: how the target fails, once known.
        proven: regions that are culprits whatever share they have, and why.
        any_failure: a region that fails at all counts as failing, whatever it explains.
        first: the repetition that counts as the first. repeats: how often a region must pass to
            count as passed.
        estimated_runs, only_repeats: as in `Step`, for the next steps.
        suspect: the smallest region that failed since the last culprit.
        agreed: regions that agreed. irrelevant, unresolved: the answer about each region that is
            one.
        notes: as in `Findings`.
        asking: the purpose of the last queries. answers_sent: all answers, by batch.
        without_output: regions in a row without output. max_without_output: at this many, the whole
            is run again.
    """

    oracle: Oracle
    parents: Sequence[Sequence[int]]
    prior: Callable[[], Sequence[float]]
    settings: Settings = field(default_factory=Settings)
    labels: Sequence[Hashable] | None = None
    whole: Baseline = field(default_factory=Baseline)
    target: Items = ()
    signature: Signature | None = None
    proven: dict[Items, str] = field(default_factory=dict)
    any_failure: bool = False
    first: int = 0
    repeats: int = 1
    estimated_runs: int = 0
    only_repeats: bool = False
    suspect: Items = ()
    weights: list[float] = field(default_factory=list)
    notes: list[tuple[str, Items]] = field(default_factory=list)
    memo: dict[Query, Answer] = field(default_factory=dict)
    agreed: list[Items] = field(default_factory=list)
    irrelevant: dict[Items, Answer] = field(default_factory=dict)
    unresolved: dict[Items, Answer] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    asking: Purpose = Purpose.BASELINE
    answers_sent: list[Sequence[Answer]] = field(default_factory=list)
    without_output: int = 0
    max_without_output: int = MAX_WITHOUT_OUTPUT
    _ran: set[Query] = field(default_factory=set)
    _unreported: list[tuple[Purpose, Query, Answer, RegionOutcome]] = field(default_factory=list)
    _steps: int = 0

    def __post_init__(self) -> None:
        limit = self.settings.max_time
        self._deadline = None if limit is None else self.settings.clock() + limit

    @property
    def n(self) -> int:
        """Number of items."""
        return len(self.parents)

    @property
    def flaky(self) -> bool:
        """Does the whole, or a region that failed once, not always fail?"""
        return self.repeats > 1

    @property
    def no_output(self) -> bool:
        """Does the target give no output at all?"""
        return self.signature in NO_OUTPUT

    # ------------------------------------------------------------ asking

    def run(self, search: Search[T]) -> Steps[T]:
        """Drive a search to its end: yields a Step per answer, returns its result.

        A step is yielded when the search asks again: only then is known what the answer changed.
        """
        try:
            queries = next(search)
            while True:
                yield from self._new_steps()
                try:
                    answers = self._answers(queries)
                except SearchStopped as stopped:
                    queries = search.throw(stopped)
                else:
                    queries = search.send(answers)
        except StopIteration as end:
            yield from self._new_steps()
            result: T = end.value
            return result

    def _answers(self, queries: Sequence[Query]) -> Sequence[Answer]:
        self.answers_sent.append(self.oracle.ask(queries) if queries else ())
        return self.answers_sent[-1]

    def _new_steps(self) -> Iterator[Step]:
        for purpose, query, answer, outcome in self._unreported:
            self._steps += 1
            yield Step(
                self._steps, purpose, query, answer, outcome, self.estimated_runs, self.only_repeats
            )
        self._unreported.clear()

    def ask(self, purpose: Purpose, queries: Sequence[Query]) -> Search[list[Answer]]:
        """Answers to queries; those answered before are not asked again.

        Raises:
            SearchStopped: a budget is used up, or the candidate has changed; nothing was asked.
        """
        self.asking = purpose
        if self.without_output >= self.max_without_output:
            yield from self._require_output()
        new = [q for q in dict.fromkeys(queries) if self._answer(q) is None]
        runs = len({q.run for q in new if q.kind not in WITHOUT_RUN} - self._ran)
        limit = self.settings.max_trials
        if new and limit is not None and self.counts.total() + runs > limit:
            raise BudgetSpent("the trials are used up")
        if new and self._deadline is not None and self.settings.clock() >= self._deadline:
            raise BudgetSpent("the time is used up")
        for query, answer in zip(new, (yield new), strict=True):
            self._accept(purpose, query, answer)
        return list(filter(None, map(self._answer, queries)))

    def _answer(self, query: Query) -> Answer | None:
        """The answer to a query that was asked before, or to the same with its share explained."""
        explained = self.memo.get(replace(query, explain=True))
        if explained is not None:
            return explained
        answer = self.memo.get(replace(query, explain=False))
        return (
            None if answer is None or (query.explain and answer.share.of_target is None) else answer
        )

    def _require_output(self) -> Search[None]:
        """Run the whole again: does it still give output?"""
        self.without_output, self.max_without_output = 0, 2 * self.max_without_output
        query = Query(QueryKind.WHOLE, (), STILL_REPETITION + self.max_without_output, True)
        (answer,) = yield from self.ask(Purpose.AGAIN, [query])
        if answer.signature in NO_OUTPUT:
            raise SearchStopped(
                f"the candidate has stopped working: {answer.why or answer.signature}"
            )

    def _accept(self, purpose: Purpose, query: Query, answer: Answer) -> None:
        if query.run not in self._ran and query.kind not in WITHOUT_RUN:
            self._ran.add(query.run)
            self.counts += Counts({purpose: 1}, {purpose: len(query.items) or self.n})
        self.memo[query] = answer
        outcome = RegionOutcome(answer.status)
        if query.kind is QueryKind.ISOLATED:
            outcome = self.outcome(query.items, answer)
            dead = answer.signature in NO_OUTPUT and not self.no_output
            self.without_output = self.without_output + 1 if dead else 0
            if outcome is RegionOutcome.AGREE and query.repetition == self.first:
                self.agreed.append(query.items)
            elif outcome is RegionOutcome.MINOR:
                self.irrelevant[query.items] = answer
            elif outcome is RegionOutcome.UNRESOLVED:
                self.unresolved[query.items] = answer
        self._unreported.append((purpose, query, answer, outcome))

    # ------------------------------------------------------------ regions

    def regions(
        self, purpose: Purpose, regions: Sequence[Items], *, explain: bool = False
    ) -> Search[list[RegionOutcome]]:
        """Outcome of each region: one failure is enough, a pass takes `repeats` passes."""
        outcomes: dict[Items, RegionOutcome] = {}
        for repetition in self._passes:
            undecided = [
                r
                for r in dict.fromkeys(regions)
                if outcomes.get(r, RegionOutcome.AGREE) in NOT_HERE
            ]
            if not undecided:
                break
            queries = [self.isolated(r, repetition, explain=explain) for r in undecided]
            for region, answer in zip(
                undecided, (yield from self.ask(purpose, queries)), strict=True
            ):
                outcome = self.outcome(region, answer)
                minor = (
                    outcomes.get(region) is RegionOutcome.MINOR and outcome is RegionOutcome.AGREE
                )
                outcomes[region] = RegionOutcome.MINOR if minor else outcome
        for region, outcome in outcomes.items():
            if outcome is RegionOutcome.FAIL and (
                not self.suspect or len(region) < len(self.suspect)
            ):
                self.suspect = region
        return [outcomes[r] for r in regions]

    @property
    def _passes(self) -> range:
        """The repetitions that all have to pass."""
        return range(self.first, self.first + self.repeats)

    def isolated(self, region: Items, repetition: int, *, explain: bool = False) -> Query:
        """The query about a region on captured values."""
        return Query(
            QueryKind.ISOLATED, region, repetition, repetition > 0, explain, target=self.target
        )

    def in_place(self, kind: QueryKind, items: Items) -> Query:
        """The query about what items give inside the model."""
        return Query(kind, items, self.first, self.first > 0)

    def outcome(self, region: Items, answer: Answer) -> RegionOutcome:
        """What an answer about a region means now."""
        outcome = outcome_of(answer, self.signature)
        guilty = self.any_failure or region in self.proven
        return RegionOutcome.FAIL if guilty and outcome is RegionOutcome.MINOR else outcome

    def region(self, purpose: Purpose, items: Items) -> Search[RegionOutcome]:
        """Outcome of one region."""
        return (yield from self.regions(purpose, [items]))[0]

    def tail(self, purpose: Purpose, rest: Items) -> Search[Answer]:
        """The answer about what is left without some items: the first that does not agree; if all
        do, the last. Where the model's outputs agree anyway, its own outputs are judged."""
        if self.signature is None and rest:
            yield from self.region(purpose, rest)
            return self.answer_to(rest)
        answer = Answer(Status.AGREE)
        for repetition in self._passes if rest else ():
            query = Query(QueryKind.REST, rest, repetition, repetition > 0, target=self.target)
            (answer,) = yield from self.ask(purpose, [query])
            if answer.status is not Status.AGREE:
                break
        return answer

    def repeat(self, regions: Sequence[Items], times: int) -> Search[list[RegionOutcome]]:
        """Outcome of each region, this many times more in fresh processes, to confirm it."""
        queries = [self.isolated(r, self.first + t) for r in regions for t in range(1, 1 + times)]
        answers = yield from self.one_by_one(Purpose.CONFIRM, queries)
        return [
            self.outcome(query.items, answer)
            for query, answer in zip(queries, answers, strict=True)
        ]

    def one_by_one(self, purpose: Purpose, queries: Sequence[Query]) -> Search[list[Answer]]:
        """As `ask`, so that a budget that ends leaves the answers before it."""
        answers: list[Answer] = []
        for query in queries:
            answers += yield from self.ask(purpose, [query])
        return answers

    def answer_to(self, region: Items) -> Answer:
        """The decisive answer about a region that was asked about: a failing one, else the
        first."""
        known = [
            a for repetition in self._passes if (a := self.known(region, repetition)) is not None
        ]
        return next((a for a in known if self.outcome(region, a) is RegionOutcome.FAIL), known[0])

    def known(self, region: Items, repetition: int) -> Answer | None:
        """The answer about a region, if it was asked about; with the share of the present
        target."""
        return self._answer(self.isolated(region, repetition))

    def agreeing_supersets(self, region: Items) -> list[Items]:
        """Larger regions that contain this one and agreed, smallest first: is it masked, or flaky?
        O(their size)."""
        inside = set(region)
        budget = _AGREED_ITEMS
        supersets = []
        for agreed in self.agreed:
            budget -= len(agreed)
            if budget < 0:
                break
            if len(agreed) > len(region) and inside.issubset(agreed):
                supersets.append(agreed)
        return sorted(dict.fromkeys(supersets), key=len)
