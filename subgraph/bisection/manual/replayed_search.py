"""The bisection of a device that a person runs: the search over recorded results, and what is to be run next.

Insight: a search is a pure function of its answers, so nothing of it is stored. Each command runs it anew over the
recorded results, until it asks for one that is missing: `Pending`. What it would ask after that is found in the same
way, with assumed answers.

Manual runs are expensive: nothing is repeated, the growth of an error is not measured, and a region that agrees is not
examined further.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from subgraph.bisection.bisection import Bisection, BisectionOptions
from subgraph.bisection.manual.tasks import Task
from subgraph.bisection.oracle import NodeOracle, items_of
from subgraph.graph.region import Region
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.search import Answer, Counts, Findings, Purpose, Query, QueryKind, Step
from subgraph.search.state import WITHOUT_RUN
from subgraph.storage.digest import digest
from subgraph.trials.trial import Trials
from subgraph.verdict import Signature, Status, Verdict

NOT_RUN = RunResult(failure=Verdict(Status.UNRESOLVED, None, "not asked by hand"))
# Probability that a region fails, by the purpose of its query; it only orders the tasks that are prepared ahead.
FAIL_ODDS = {
    Purpose.BASELINE: 0.9,
    Purpose.GALLOP: 0.6,  # the first wrong node is mostly guilty
    Purpose.SHRINK: 0.25,
    Purpose.TAIL: 0.15,
    Purpose.GROWTH: 0.3,
}
EVEN_ODDS = 0.5
VANISHED_ODDS = 0.2  # that reading inner tensors hides the fault; the other profiles cannot be assumed
REPLAYS = 12  # of the search, per task that is prepared


class Pending(Exception):
    """The search waits for results: its open queries, each with the task that has to be run."""

    def __init__(self, waiting: Sequence[tuple[Query, Task]]) -> None:
        super().__init__(f"{len(waiting)} questions are open")
        self.waiting = tuple(waiting)


class _NotRecorded(Exception):
    def __init__(self, task: Task) -> None:
        super().__init__(task.key)
        self.task = task


@dataclass
class RecordedAnswers:
    """The results that a person brought, in the place of a candidate: `Trials.run_by_hand`.

    Attributes:
        results: by key of the task.
        may_ask: a missing result raises `_NotRecorded`; otherwise it is unresolved.
    """

    trials: Trials
    results: Mapping[str, RunResult]
    may_ask: bool = False

    def __call__(self, region: Region, feeds: Feeds | None) -> RunResult:
        """The recorded result of a region.

        Raises:
            _NotRecorded: the region is to be run. ModelError: it cannot be cut, so nobody can run it.
        """
        key = self._key(region, feeds)
        result = self.results.get(key)
        if result is not None:
            self.trials.seen_keys[key] = result.made
            agrees = result.failure is not None and result.failure.status is Status.AGREE
            # of a region said to be good, fed with other values, the reference tells the values
            return (
                RunResult(tuple(self.trials.run_on_reference(region, feeds)))
                if agrees and feeds is not None
                else result
            )
        if not self.may_ask:
            return NOT_RUN
        groups = tuple(tuple(group) for group, _ in self.trials.cuts(region, feeds))
        raise _NotRecorded(Task(key, region, feeds, groups))

    def _key(self, region: Region, feeds: Feeds | None) -> str:
        """Digest of the nodes, the boundary, and the values fed instead of reference values. The latter are those of
        the loop's first command: another version, or another machine, may give other last bits."""
        entering = [*region.inputs, *region.shapes]
        fed = [self.trials.values.digest([s[n] for n in entering if n in s]) for s in feeds or ()]
        freeze = self.trials.freeze and bool(region.shapes)
        return digest("hand/1", list(region.nodes), entering, list(region.outputs), freeze, fed if any(fed) else [])

    @contextmanager
    def asking(self, may_ask: bool) -> Iterator[None]:
        """May a missing result be asked for in the block?"""
        before, self.may_ask = self.may_ask, may_ask
        try:
            yield
        finally:
            self.may_ask = before


@dataclass(kw_only=True)
class ManualOracle(NodeOracle):
    """Answers a search from recorded results.

    Attributes:
        known: the answers so far. assumed: answers of a possible future.
    """

    recorded: RecordedAnswers
    known: dict[Query, Answer] = field(default_factory=dict)
    assumed: Mapping[Query, Answer] = field(default_factory=dict)

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """
        Raises:
            Pending: some have to be run first.
        """
        answers, waiting = [], []
        for query in map(without_repetition, queries):
            try:
                if query not in self.assumed and query not in self.known:
                    with self.recorded.asking(query.kind is not QueryKind.PREFIX):
                        self.known[query] = self._answer(query)
                answers.append(self.assumed.get(query) or self.known[query])
            except _NotRecorded as e:
                waiting.append((query, e.task))
        if waiting:
            raise Pending(waiting)
        return answers

    def possible_answers(self, query: Query) -> list[Answer]:
        """Answers worth assuming; to a profile only that the fault vanished."""
        if query.kind is QueryKind.PROFILE:
            return [Answer(Status.AGREE, items=dict.fromkeys(query.items, Status.AGREE))]
        whole = self.known.get(Query(QueryKind.WHOLE))
        signature = (whole and whole.signature) or Signature.MISMATCH
        return [Answer(Status.FAIL, signature, culprit=True, share=1.0), Answer(Status.AGREE)]

    def _with_share(self, query: Query, region: Region, result: RunResult, answer: Answer) -> Answer:
        whole = self.run_result(self.trials.whole())
        if result.failure or whole.failure:  # only said to be good or bad: there is no error to attribute
            fails = answer.status is Status.FAIL and (not whole.failure or whole.failure.status is Status.FAIL)
            return replace(answer, culprit=fails or None)
        with self.recorded.asking(answer.status is Status.FAIL):
            return super()._with_share(query, region, result, answer)


def without_repetition(query: Query) -> Query:
    """The query that this one repeats."""
    return replace(query, repetition=0, fresh=False)


class ManualBisection(Bisection):
    """Iterate it: a Step per recorded answer, then `Pending`, or the result."""

    def __init__(self, trials: Trials, options: BisectionOptions, results: Mapping[str, RunResult]) -> None:
        super().__init__(trials, options)
        self._recorded = trials.run_by_hand = RecordedAnswers(trials, results)

    def _new_oracle(self, trials: Trials) -> ManualOracle:
        self._manual_oracle = ManualOracle(trials, items_of(trials), recorded=self._recorded)
        return self._manual_oracle

    def _summed(self, findings: Findings) -> Findings:
        """Counts each run once, and leaves out the steps that repeat one."""
        self.steps[:] = self.new_steps
        once = {(step.query.kind, step.items): step for step in reversed(self.steps)}
        runs = [step for step in once.values() if step.query.kind not in WITHOUT_RUN]
        nodes: Counter[Purpose] = Counter()
        for step in runs:
            nodes[step.purpose] += len(step.items) or self.suspects
        return replace(findings, counts=Counts(Counter(step.purpose for step in runs), nodes, len(runs)))

    @property
    def new_steps(self) -> list[Step]:
        """The steps so far that repeat no other, numbered from 1."""
        new = [step for step in self.steps if not step.query.repetition]
        return [replace(step, number=k) for k, step in enumerate(new, 1)]

    def next_tasks(self, first: Pending, count: int) -> list[Task]:
        """Up to `count` tasks: those that the search waits for, then those it would ask for after each possible
        answer, the likeliest first."""
        tasks = {task.key: task for _, task in first.waiting}
        futures: list[tuple[float, int, dict[Query, Answer], Pending]] = [(-1.0, 0, {}, first)]
        replays = 0
        while futures and len(tasks) < count and replays < count * REPLAYS:
            chance, _, assumed, pending = heapq.heappop(futures)
            query = pending.waiting[0][0]
            for answer in self._manual_oracle.possible_answers(query):
                replays += 1
                future = assumed | {query: answer}
                odds, after = self._replay(future, query, answer)
                if after is not None:
                    heapq.heappush(futures, (chance * odds, replays, future, after))
            if futures:
                tasks |= {task.key: task for _, task in futures[0][3].waiting if task.key not in tasks}
        return list(tasks.values())[:count]

    def _replay(self, assumed: Mapping[Query, Answer], query: Query, answer: Answer) -> tuple[float, Pending | None]:
        """The probability of this answer, and where the search waits after it; None if it ends."""
        self._manual_oracle.assumed = assumed
        odds, after = EVEN_ODDS, None
        try:
            for step in self.search():
                if without_repetition(step.query) == query and not step.query.repetition:
                    odds = _odds(step, answer)
        except Pending as e:
            after = e
        finally:
            self._manual_oracle.assumed = {}
        return odds, after


def _odds(step: Step, answer: Answer) -> float:
    if step.query.kind is QueryKind.PROFILE:
        return VANISHED_ODDS
    fails = FAIL_ODDS.get(step.purpose, EVEN_ODDS)
    return fails if answer.status is Status.FAIL else 1.0 - fails
