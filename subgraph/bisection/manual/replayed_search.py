"""A bisection whose candidate is run by a person: the answers that were brought, and what is to be run next.

Insight: a search is a pure function of its answers, so nothing of it is kept. It runs anew over the answers that there
are until it asks for one that is not: that is raised as `Pending`. What it would ask after that is found by the same
means, with answers that are only supposed.

What a trip is too dear for is not asked: nothing is repeated, no growth of an error is drawn, and a region that agrees
is not looked into further.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from subgraph.bisection.bisection import Bisection, BisectionOptions
from subgraph.bisection.manual.tasks import Task
from subgraph.bisection.oracle import NodeOracle
from subgraph.graph.region import Region
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.search import Answer, Counts, Findings, Purpose, Query, QueryKind, Step
from subgraph.search.state import WITHOUT_RUN, Steps
from subgraph.storage.digest import digest
from subgraph.trials.trial import Trials
from subgraph.verdict import Signature, Status, Verdict

NOT_ASKED = RunResult(failure=Verdict(Status.UNRESOLVED, None, "not asked by hand"))
# How likely a region fails, by what it is asked for; only the order of what is prepared ahead depends on it.
ODDS = {
    Purpose.BASELINE: 0.9,
    Purpose.GALLOP: 0.6,  # the first wrong node is mostly to blame
    Purpose.SHRINK: 0.25,
    Purpose.TAIL: 0.15,
    Purpose.GROWTH: 0.3,
}
EVEN = 0.5
VANISHED = 0.2  # that reading inner tensors hides the fault; where it does not, nobody can guess what it shows
REPLAYS = 12  # per question that is wanted


class Pending(Exception):
    """The search waits for these: what it asked, and the region that has to be run for that."""

    def __init__(self, waiting: Sequence[tuple[Query, Task]]) -> None:
        super().__init__(f"{len(waiting)} questions are open")
        self.waiting = tuple(waiting)


class _Open(Exception):
    """Nobody has run this yet."""

    def __init__(self, question: Task) -> None:
        super().__init__(question.key)
        self.question = question


@dataclass
class RecordedAnswers:
    """What `Trials.run_by_hand` calls.

    Attributes:
        taken: by key, what was brought.
        asking: may it ask for more? Else what was not brought is unresolved.
        used: keys of what was asked for and had been brought.
    """

    trials: Trials
    taken: Mapping[str, RunResult]
    asking: bool = False
    used: set[str] = field(default_factory=set)

    def __call__(self, region: Region, feeds: Feeds | None) -> RunResult:
        """
        Raises:
            _Open: it is to be run. ModelError: it cannot be cut, so that nobody can.
        """
        key = self.key(region, feeds)
        if key in self.taken:
            self.used.add(key)
            self.trials.seen_keys.add(key)
            return self._filled(self.taken[key], region, feeds)
        if not self.asking:
            return NOT_ASKED
        groups = tuple(tuple(group) for group, _ in self.trials.cuts(region, feeds))
        raise _Open(Task(key, region, feeds, groups))

    def key(self, region: Region, feeds: Feeds | None) -> str:
        """The nodes and their edge, and what it is fed beside reference values. These are as the loop's first command
        made them, whatever a later version, or another machine, would make of the last bits."""
        entering = [*region.inputs, *region.shapes]
        fed = [self.trials.values.digest([s[n] for n in entering if n in s]) for s in feeds or ()]
        freeze = self.trials.freeze and bool(region.shapes)
        return digest("hand/1", list(region.nodes), entering, list(region.outputs), freeze, fed if any(fed) else [])

    def _filled(self, given: RunResult, region: Region, feeds: Feeds | None) -> RunResult:
        """Where the values go on elsewhere, `good` means those of the reference."""
        if feeds is None or given.failure is None or given.failure.status is not Status.AGREE:
            return given
        return RunResult(tuple(self.trials.run_on_reference(region, feeds)))

    @contextmanager
    def silent(self, wanted: bool = True) -> Iterator[None]:
        """Nothing is asked for in the block."""
        before, self.asking = self.asking, self.asking and not wanted
        try:
            yield
        finally:
            self.asking = before


@dataclass(kw_only=True)
class ManualOracle(NodeOracle):
    """The questions of a search, answered by what was brought.

    Attributes:
        known: answers that came of it. supposed: those of a future that is looked into.
    """

    hand: RecordedAnswers
    known: dict[Query, Answer] = field(default_factory=dict)
    supposed: Mapping[Query, Answer] = field(default_factory=dict)

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """
        Raises:
            Pending: some have to be run first.
        """
        found, waiting = [], []
        for query in map(plain, queries):
            try:
                found.append(self._once(query))
            except _Open as e:
                waiting.append((query, e.question))
        if waiting:
            raise Pending(waiting)
        return found

    def failing(self) -> Signature:
        """How the whole fails, as far as that is known."""
        whole = self.known.get(Query(QueryKind.WHOLE))
        return (whole.signature if whole else None) or Signature.MISMATCH

    def _once(self, query: Query) -> Answer:
        if query in self.supposed:
            return self.supposed[query]
        if query not in self.known:
            self.hand.asking = True
            try:
                self.known[query] = self._answer(query)
            finally:
                self.hand.asking = False
        return self.known[query]

    def _isolated(self, query: Query) -> Answer:
        region = self.region(query.items)
        given, whole = self.trials.run(region), self.given(self.trials.whole())
        verdict = self.trials.verdict_of(region, given)
        if given.failure or whole.failure:  # only said to be good or bad: there is nothing to explain
            means = verdict.status is Status.FAIL and (not whole.failure or whole.failure.status is Status.FAIL)
            return Answer(verdict.status, verdict.signature, verdict.why, culprit=means or None, verdict=verdict)
        with self.hand.silent(verdict.status is not Status.FAIL):
            return super()._isolated(query)

    def _prefix(self, query: Query) -> Answer:
        with self.hand.silent():
            return super()._prefix(query)


def plain(query: Query) -> Query:
    """The question that it repeats."""
    return replace(query, repetition=0, fresh=False)


class ManualBisection(Bisection):
    """Iterate it: Steps, as long as there are answers; then `Pending`, or the result."""

    def __init__(self, trials: Trials, plan: BisectionOptions, taken: Mapping[str, RunResult]) -> None:
        super().__init__(lambda: nullcontext(trials), plan)
        self.hand = RecordedAnswers(trials, taken)
        trials.run_by_hand = self.hand

    def _asking(self, asked: Trials) -> NodeOracle:
        found = super()._asking(asked)
        return ManualOracle(found.trials, found.groups, hand=self.hand)

    def _searched(self) -> Steps[Findings]:
        """Counts what was run, and leaves out what only repeats it."""
        found = yield from super()._searched()
        self.steps[:] = self.told
        once = {(step.query.kind, step.items): step for step in reversed(self.steps)}
        runs = [step for step in once.values() if step.query.kind not in WITHOUT_RUN]
        nodes: Counter[Purpose] = Counter()
        for step in runs:
            nodes[step.purpose] += len(step.items) or self.suspects
        return replace(found, counts=Counts(Counter(step.purpose for step in runs), nodes, len(runs)))

    @property
    def told(self) -> list[Step]:
        """The steps up to here that repeat none."""
        new = [step for step in self.steps if not step.query.repetition]
        return [replace(step, number=k) for k, step in enumerate(new, 1)]

    def ahead(self, first: Pending, wanted: int) -> list[Task]:
        """Up to so many questions: those that wait, then what the search would ask after each possible answer, the
        likeliest first."""
        found = {q.key: q for _, q in first.waiting}
        futures: list[tuple[float, int, dict[Query, Answer], Pending]] = [(-1.0, 0, {}, first)]
        replays = 0
        while futures and len(found) < wanted and replays < wanted * REPLAYS:
            chance, _, supposed, pending = heapq.heappop(futures)
            query = pending.waiting[0][0]
            for answer in self._possible(query):
                replays += 1
                future = supposed | {query: answer}
                odds, after = self._replayed(future, query, answer)
                if after is not None:
                    heapq.heappush(futures, (chance * odds, replays, future, after))
            if futures:
                found |= {q.key: q for _, q in futures[0][3].waiting if q.key not in found}
        return list(found.values())[:wanted]

    def _possible(self, query: Query) -> list[Answer]:
        if query.kind is QueryKind.PROFILE:
            return [Answer(Status.AGREE, items=dict.fromkeys(query.items, Status.AGREE))]
        assert isinstance(self.world, ManualOracle)
        return [Answer(Status.FAIL, self.world.failing(), culprit=True, share=1.0), Answer(Status.AGREE)]

    def _replayed(self, supposed: Mapping[Query, Answer], query: Query, answer: Answer) -> tuple[float, Pending | None]:
        """How likely this answer is, and what is asked after it."""
        assert isinstance(self.world, ManualOracle)
        self.world.supposed = supposed
        odds, after = EVEN, None
        try:
            for step in self.search():
                if plain(step.query) == query and not step.query.repetition:
                    odds = _odds(step, answer)
        except Pending as e:
            after = e
        finally:
            self.world.supposed = {}
        return odds, after


def _odds(step: Step, answer: Answer) -> float:
    if step.query.kind is QueryKind.PROFILE:
        return VANISHED
    fails = ODDS.get(step.purpose, EVEN)
    return fails if answer.status is Status.FAIL else 1.0 - fails
