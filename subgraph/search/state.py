"""State of a search: the queries asked, their answers, and what follows from them.

Concepts:
- *places*: the items renumbered in cut order, 0 … n−1. The search works on ascending tuples of places; only
  `SearchState` translates them to items.
- *part*: a generator that yields batches of queries, is sent their answers and returns its result. `run` drives the
  outermost one; it alone calls the oracle.
- *memo*: no query is asked twice. A search that starts over (the candidate turned out to be flaky, say) takes its old
  answers from the memo.
- *repetitions*: a region of a flaky candidate passes only after several passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from subgraph.search.cost import CostModel
from subgraph.search.findings import Counts, Observation, Purpose, Step
from subgraph.search.oracle import Answer, Items, Oracle, Query, QueryKind
from subgraph.search.predicate import NO_OUTPUT, PASSES, Meaning, meaning
from subgraph.verdict import Signature, Status

T = TypeVar("T")
Search: TypeAlias = Generator[Sequence[Query], Sequence[Answer], T]
Steps: TypeAlias = Generator[Step, None, T]
RunKey: TypeAlias = tuple[QueryKind, Items | tuple[Items, ...], int]
MemoKey: TypeAlias = tuple[QueryKind, Items | tuple[Items, ...], int, Items]

WITHOUT_RUN = frozenset({QueryKind.CLAIMED})
STILL_REPETITION = 1000  # from this repetition on, the whole is run only to see whether it still gives output
PATIENCE = 4  # regions in a row without output, before the whole is run again; doubled each time
_AGREED_PLACES = 2_000_000  # places of agreeing regions looked through for contradictions


class SearchStopped(Exception):
    """The search ends early: a budget is used up, or the candidate has changed. The message says which."""


class SearchRestart(Exception):
    """An assumption of the search does not hold; it starts over, with the answers it has."""


@dataclass
class SearchState:
    """All that is known during a search.

    Attributes:
        order: item at each place. parents: of each place, as places.
        prior: how likely each place is guilty. weights: the same, with what was learned since.
        steady: the user says that the candidate always gives the same.
        target: the places whose error is looked for: () for the whole model, later what the known culprits leave.
        signature: how the target fails, once known.
        proven: regions that are culprits whatever share they have, and why.
        any_failure: a region that fails at all counts as failing, whatever it explains.
        whole_failed, whole_runs: failed runs of the whole, and all its runs.
        flaky: the whole, or a region that failed once, does not always fail.
        first: the repetition that counts as the first. fresh: every query asks for a new process.
        repeats: how often a region must pass to count as passed.
        left, more: as in `Step`, for the next steps.
        suspect: the smallest region that failed since the last culprit.
        irrelevant, unresolved: as in `Findings`, by places. notes: as there.
        asking: the purpose of the last queries. told: all answers, by batch.
        without_output: regions in a row without output. patience: at this many, the whole model is run again.
    """

    oracle: Oracle
    order: Items
    parents: Sequence[Sequence[int]]
    prior: Sequence[float]
    max_trials: int | None = None
    deadline: float | None = None
    clock: Callable[[], float] = lambda: 0.0
    steady: bool = False
    target: Items = ()
    signature: Signature | None = None
    proven: dict[Items, str] = field(default_factory=dict)
    any_failure: bool = False
    whole_failed: int = 1
    whole_runs: int = 1
    flaky: bool = False
    first: int = 0
    fresh: bool = False
    repeats: int = 1
    left: int = 0
    more: int = 0
    suspect: Items = ()
    weights: list[float] = field(default_factory=list)
    notes: list[tuple[str, Items]] = field(default_factory=list)
    cost: CostModel = field(default_factory=CostModel)
    memo: dict[MemoKey, Answer] = field(default_factory=dict)
    explained: set[MemoKey] = field(default_factory=set)
    asked: set[RunKey] = field(default_factory=set)
    agreed: list[Items] = field(default_factory=list)
    irrelevant: dict[Items, Observation] = field(default_factory=dict)
    unresolved: dict[Items, Observation] = field(default_factory=dict)
    runs: Counter[Purpose] = field(default_factory=Counter)
    compiled: Counter[Purpose] = field(default_factory=Counter)
    asking: Purpose = Purpose.BASELINE
    told: list[Sequence[Answer]] = field(default_factory=list)
    without_output: int = 0
    patience: int = PATIENCE
    _unreported: list[tuple[Purpose, Query, Answer, Meaning]] = field(default_factory=list)
    _steps: int = 0

    @property
    def n(self) -> int:
        """Number of items."""
        return len(self.order)

    @property
    def no_output(self) -> bool:
        """Does the target give no output at all?"""
        return self.signature in NO_OUTPUT

    @property
    def rate(self) -> float:
        """Share of the runs of the whole that failed."""
        return self.whole_failed / self.whole_runs

    @property
    def counts(self) -> Counts:
        """Cost so far."""
        return Counts(dict(self.runs), dict(self.compiled))

    def items(self, places: Iterable[int]) -> Items:
        """Places -> items, ascending."""
        return tuple(sorted(self.order[k] for k in places))

    # ------------------------------------------------------------------------------------------------ asking

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
        self.told.append(self.oracle.ask(queries) if queries else ())
        return self.told[-1]

    def _new_steps(self) -> Iterator[Step]:
        for purpose, query, answer, status in self._unreported:
            self._steps += 1
            yield Step(self._steps, purpose, query, answer, status, self.left, self.more)
        self._unreported.clear()

    def ask(self, purpose: Purpose, queries: Sequence[Query]) -> Search[list[Answer]]:
        """Answers to queries whose items are places. Queries answered before are not asked again.

        Raises:
            SearchStopped: a budget is used up, or the candidate has changed; nothing was asked.
        """
        self.asking = purpose
        if self.without_output >= self.patience:
            yield from self._require_output()
        new = [q for q in dict.fromkeys(queries) if not self._answered(q)]
        runs = len({_run_key(q) for q in new if q.kind not in WITHOUT_RUN} - self.asked)
        if new and self.max_trials is not None and self.runs.total() + runs > self.max_trials:
            raise SearchStopped("the trials are used up")
        if new and self.deadline is not None and self.clock() >= self.deadline:
            raise SearchStopped("the time is used up")
        by_items = [self._by_items(q) for q in new]
        for query, sent, answer in zip(new, by_items, (yield by_items), strict=True):
            self._accept(purpose, query, sent, answer)
        return [self.memo[_key(q)] for q in queries]

    def _require_output(self) -> Search[None]:
        """Run the whole again: does it still give output?"""
        self.without_output, self.patience = 0, 2 * self.patience
        query = Query(QueryKind.WHOLE, (), STILL_REPETITION + self.patience, True)
        (answer,) = yield from self.ask(Purpose.AGAIN, [query])
        if answer.signature in NO_OUTPUT:
            raise SearchStopped(f"the candidate has stopped working: {answer.why or answer.signature}")

    def _answered(self, query: Query) -> bool:
        answer = self.memo.get(_key(query))
        if answer is None:
            return False
        return not query.explain or answer.share is not None or _key(query) in self.explained

    def _by_items(self, query: Query) -> Query:
        pieces = tuple(self.items(p) for p in query.pieces)
        return replace(query, items=self.items(query.items), pieces=pieces, target=self.items(query.target))

    def _accept(self, purpose: Purpose, query: Query, sent: Query, answer: Answer) -> None:
        size = len(query.items) or self.n
        if _run_key(query) not in self.asked and query.kind not in WITHOUT_RUN:
            self.asked.add(_run_key(query))
            self.runs[purpose] += 1
            self.compiled[purpose] += size
            self.cost.add(size, answer.seconds)
        if query.explain:
            self.explained.add(_key(query))
        self.memo[_key(query)] = answer
        status = Meaning(answer.status)
        if query.kind is QueryKind.ISOLATED:
            status = self.meaning(query.items, answer)
            dead = answer.signature in NO_OUTPUT and not self.no_output
            self.without_output = self.without_output + 1 if dead else 0
            self._observe(query, sent.items, answer, status)
        self._unreported.append((purpose, sent, answer, status))

    def _observe(self, query: Query, items: Items, answer: Answer, status: Meaning) -> None:
        observation = Observation(items, answer.signature, answer.why, answer.explains)
        if status is Meaning.AGREE and query.repetition == self.first:
            self.agreed.append(query.items)
        elif status is Meaning.MINOR:
            self.irrelevant[query.items] = observation
        elif status is Meaning.UNRESOLVED:
            self.unresolved[query.items] = observation

    # ------------------------------------------------------------------------------------------------ regions

    def regions(self, purpose: Purpose, regions: Sequence[Items], *, explain: bool = False) -> Search[list[Meaning]]:
        """Meaning of each region: one failure is enough, a pass takes `repeats` passes."""
        statuses: dict[Items, Meaning] = {}
        for repetition in range(self.first, self.first + self.repeats):
            undecided = [r for r in dict.fromkeys(regions) if statuses.get(r, Meaning.AGREE) in PASSES]
            if not undecided:
                break
            queries = [self.isolated(r, repetition, explain=explain) for r in undecided]
            for region, answer in zip(undecided, (yield from self.ask(purpose, queries)), strict=True):
                status = self.meaning(region, answer)
                minor = statuses.get(region) is Meaning.MINOR and status is Meaning.AGREE
                statuses[region] = Meaning.MINOR if minor else status
        for region, status in statuses.items():
            if status is Meaning.FAIL and (not self.suspect or len(region) < len(self.suspect)):
                self.suspect = region
        return [statuses[r] for r in regions]

    def isolated(self, region: Items, repetition: int, *, explain: bool = False, fresh: bool = False) -> Query:
        """The query about a region on captured values."""
        fresh = fresh or self.fresh or repetition > self.first
        return Query(QueryKind.ISOLATED, region, repetition, fresh, explain, target=self.target)

    def meaning(self, region: Items, answer: Answer) -> Meaning:
        """What an answer about a region means now."""
        status = meaning(answer, self.signature)
        guilty = self.any_failure or region in self.proven
        return Meaning.FAIL if guilty and status is Meaning.MINOR else status

    def region(self, purpose: Purpose, places: Items) -> Search[Meaning]:
        """Meaning of one region."""
        return (yield from self.regions(purpose, [places]))[0]

    def tail(self, purpose: Purpose, rest: Items) -> Search[Answer]:
        """The answer about what is left without some items: the first that does not agree; if all do, the last. Where
        the model's outputs agree anyway, its own outputs are judged."""
        if self.signature is None and rest:
            yield from self.region(purpose, rest)
            return self.answer_to(rest)
        answer = Answer(Status.AGREE)
        for repetition in range(self.first, self.first + self.repeats * bool(rest)):
            fresh = self.fresh or repetition > self.first
            query = Query(QueryKind.TAIL, rest, repetition, fresh, target=self.target)
            (answer,) = yield from self.ask(purpose, [query])
            if answer.status is not Status.AGREE:
                break
        return answer

    def repeat(self, regions: Sequence[Items], times: int) -> Search[list[Meaning]]:
        """Meaning of each region, this many times more in fresh processes, to confirm it."""
        queries = [self.isolated(r, self.first + t, fresh=True) for r in regions for t in range(1, 1 + times)]
        answers = yield from self.one_by_one(Purpose.CONFIRM, queries)
        return [self.meaning(query.items, answer) for query, answer in zip(queries, answers, strict=True)]

    def one_by_one(self, purpose: Purpose, queries: Sequence[Query]) -> Search[list[Answer]]:
        """As `ask`, so that a budget that ends leaves the answers before it."""
        answers: list[Answer] = []
        for query in queries:
            answers += yield from self.ask(purpose, [query])
        return answers

    def answer_to(self, region: Items) -> Answer:
        """The decisive answer about a region that was asked about: a failing one, else the first."""
        known = [a for k in range(self.repeats) if (a := self.known(region, self.first + k)) is not None]
        return next((a for a in known if self.meaning(region, a) is Meaning.FAIL), known[0])

    def known(self, region: Items, repetition: int) -> Answer | None:
        """The answer about a region, if it was asked about; with the share of the present target."""
        return self.memo.get(_key(self.isolated(region, repetition)))

    def agreeing_supersets(self, region: Items) -> list[Items]:
        """Larger regions that contain this one and agreed, smallest first: is it masked, or flaky? O(their size)."""
        inside, budget, supersets = set(region), _AGREED_PLACES, []
        for places in self.agreed:
            budget -= len(places)
            if budget < 0:
                break
            if len(places) > len(region) and inside.issubset(places):
                supersets.append(places)
        return sorted(dict.fromkeys(supersets), key=len)


def _run_key(query: Query) -> RunKey:
    """Queries with the same key need one run."""
    kind = QueryKind.ISOLATED if query.kind is QueryKind.TAIL else query.kind
    return kind, query.pieces or query.items, query.repetition


def _key(query: Query) -> MemoKey:
    return query.kind, query.pieces or query.items, query.repetition, query.target
