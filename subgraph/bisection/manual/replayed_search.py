"""The bisection of a device that a person runs: the search over recorded results, and what is to be run next.

Insight: a search is a pure function of its answers, so nothing of it is stored. Each command runs it anew over the
recorded results, until it asks for one that is missing: `Pending`. What it would ask after that is found in the same
way, with assumed answers.

Manual runs are expensive: nothing is repeated unless the user says so, the growth of an error is not measured, and a
region that agrees is not examined further.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from subgraph.bisection.bisection import Bisection, BisectionOptions
from subgraph.bisection.manual.records import RecordedEvidence
from subgraph.bisection.manual.tasks import Task
from subgraph.bisection.oracle import NodeOracle, items_of, statuses_of
from subgraph.errors import ModelError, NoRegion
from subgraph.graph.region import Region
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.search import Answer, Counts, Findings, Purpose, Query, QueryKind, Step
from subgraph.search.oracle import Items
from subgraph.search.state import WITHOUT_RUN
from subgraph.storage.digest import digest
from subgraph.storage.tensors import Record
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
MOST_RIGHT = 4  # pieces that are right, before the device is asked whether it is wrong as a whole, as was recorded
REPLAYS = 12  # of the search, per task that is prepared


class Pending(Exception):
    """The search waits for results: its open queries, each with the task that has to be run."""

    def __init__(self, waiting: Sequence[tuple[Query, Task]]) -> None:
        super().__init__(f"{len(waiting)} questions are open")
        self.waiting = tuple(waiting)


class _NotRecorded(Exception):
    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(tasks[0].key)
        self.tasks = tasks


@dataclass
class RecordedAnswers:
    """The results that a person brought, in the place of a candidate: `Trials.run_by_hand`.

    Attributes:
        results: by key of the task.
        may_ask: a missing result raises `_NotRecorded`; otherwise it is unresolved.
        repeat: how often each region is run. shaky: by a region's nodes, how its runs contradict each other.
    """

    trials: Trials
    results: Mapping[str, RunResult]
    may_ask: bool = False
    repeat: int = 1
    shaky: dict[tuple[int, ...], str] = field(default_factory=dict)

    def __call__(self, region: Region, feeds: Feeds | None) -> RunResult:
        """The recorded result of a region.

        Raises:
            _NotRecorded: the region is to be run. ModelError: it cannot be cut, so nobody can run it.
        """
        runs = {key: self.results.get(key) for key in self.keys(region, feeds)}
        known = [result for result in runs.values() if result is not None]
        skipped = next((r for r in known if r.failure and r.failure.status is Status.UNRESOLVED), None)
        if len(known) < len(runs) and not skipped:
            if not self.may_ask:
                return NOT_RUN
            missing = [task for task in self.tasks(region, feeds) if runs[task.key] is None]
            raise _NotRecorded(missing)
        result = skipped or self._settled(region, feeds, known)
        for key in runs:
            self.trials.seen_keys[key] = result.made
        agrees = result.failure is not None and result.failure.status is Status.AGREE
        # of a region said to be good, fed with other values, the reference tells the values
        return RunResult(tuple(self.trials.run_on_reference(region, feeds))) if agrees and feeds is not None else result

    def _settled(self, region: Region, feeds: Feeds | None, runs: Sequence[RunResult]) -> RunResult:
        """The result of several runs: the first; nothing is known where they contradict each other."""
        first, *others = runs
        if not others:
            return first
        self.trials.capture(region)
        verdicts = [self.trials.verdict_of(region, run) for run in runs]
        said = [f"{v.status.value}{f' ({v.signature})' if v.signature else ''}" for v in verdicts]
        if feeds is not None:  # the reference's values say nothing here
            pairs = [(first, run) for run in others if not (first.failure or run.failure)]
            said = ["same", *("other values" if one.differing(two) else "same" for one, two in pairs)]
        if len(set(said)) == 1:
            return first
        why = f"its runs contradict each other: {', '.join(f'run {k} {word}' for k, word in enumerate(said, 1))}"
        self.shaky[region.nodes] = why
        return RunResult(failure=Verdict(Status.UNRESOLVED, None, why))

    def tasks(self, region: Region, feeds: Feeds | None = None) -> list[Task]:
        """The tasks of running a region, one for each time."""
        groups = tuple(tuple(group) for group, _ in self.trials.cuts(region, feeds))
        return [Task(key, region, feeds, groups, run) for run, key in enumerate(self.keys(region, feeds))]

    def keys(self, region: Region, feeds: Feeds | None = None) -> list[str]:
        """The keys of these tasks."""
        key = self._key(region, feeds)
        return [key, *(digest("again", key, run) for run in range(1, self.repeat))]

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
        evidence: what a recording tells. told: the queries that it answers. looked: runs of places that it names.
    """

    recorded: RecordedAnswers
    evidence: RecordedEvidence | None = None
    told: set[Query] = field(default_factory=set)
    looked: int = 0
    _hints: tuple[dict[int, Status], dict[int, float]] | None = None
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
                        told = self._told(query)
                        self.known[query] = told or self._answer(query)
                    self.told |= {query} if told else set()
                answers.append(self.assumed.get(query) or self.known[query])
            except _NotRecorded as e:
                waiting += [(query, task) for task in e.tasks]
        if waiting:
            raise Pending(waiting)
        return answers

    def _answer(self, query: Query) -> Answer:
        if query.kind is QueryKind.ISOLATED and Query(QueryKind.WHOLE) in self.told:
            pieces = [a.status for q, a in self.known.items() if q.kind is QueryKind.ISOLATED]
            nothing_fails = len(pieces) >= MOST_RIGHT and Status.FAIL not in pieces
            if nothing_fails or len(query.items) == len(self.groups):
                raise _NotRecorded(self.recorded.tasks(self.trials.whole()))
        return super()._answer(query)

    def _told(self, query: Query) -> Answer | None:
        """What a recording tells of inner tensors, as the answer to a profile; None if it tells nothing of these items.

        It only says where to look. What lies behind a culprit is wrong in a recording, too: when culprits are known,
        only those items count that were seen to add an error.

        Raises:
            _NotRecorded: places that it leaves in doubt are to be run.
        """
        if self.evidence is None or query.kind is not QueryKind.PROFILE:
            return None
        if self._hints is None:
            self._hints = self._hints_of(self.evidence)
        statuses, local = self._hints
        local = {k: error for k, error in local.items() if k in query.items}
        if len(query.items) < len(self.groups):
            statuses = dict.fromkeys(local, Status.FAIL)
        if Status.FAIL not in statuses.values():
            return None
        return Answer(Status.FAIL, Signature.MISMATCH, "recorded", items=statuses, local=local or None)

    def _hints_of(self, evidence: RecordedEvidence) -> tuple[dict[int, Status], dict[int, float]]:
        """Per item, is it wrong in place? Which add an error, and how large a one?

        Where the recording leaves several nodes in doubt, these are run with their inner tensors as outputs, on
        reference values. A device that refuses this once is not asked again.

        Raises:
            _NotRecorded: such places are to be run.
        """
        graph, item = self.trials.graph, {node: k for k, group in enumerate(self.groups) for node in group}
        made_by = {name: item[i] for name, i in graph.maker.items() if i in item}
        statuses: dict[int, Status] = {}
        for name, wrong in evidence.wrong.items():
            k = made_by.get(name)
            if k is not None and statuses.get(k) is not Status.FAIL:
                statuses[k] = Status.FAIL if wrong else Status.AGREE
        local = {made_by[name]: error for name, error in evidence.own_errors.items() if name in made_by}
        missing: list[Task] = []
        for place in evidence.places:
            inside = tuple(sorted({item[i] for i in place if i in item}))
            try:
                wrong_inside = self._wrong_inside(inside) if len(inside) > 1 else {}
            except _NotRecorded as e:
                missing += e.tasks
                continue
            if wrong_inside is None:
                return statuses, local
            if wrong_inside:
                local = {k: error for k, error in local.items() if k not in inside} | wrong_inside
                statuses |= dict.fromkeys(wrong_inside, Status.FAIL)
        if missing:
            raise _NotRecorded(missing)
        return statuses, local

    def _wrong_inside(self, items: Items) -> dict[int, float] | None:
        """The items that are wrong by what they read, when only these are run; with the relative error. None if the
        device does not run them so.

        Raises:
            _NotRecorded: they are to be run.
        """
        query = Query(QueryKind.PROFILE, items)
        inner = self._inner_tensors(query)
        try:
            result = self.trials.run(self._region(query, list(inner)))
        except (ModelError, NoRegion):  # it cannot be cut: the search looks piece by piece
            return {}
        self.looked += 1
        if result.failure:
            return None
        verdict = self.trials.verdict_of(self._region(query, list(inner)), result)
        seen = statuses_of(verdict, inner)
        local = self._locally_wrong(query, result, seen)
        if local is not None:
            return local
        wrong, parents = {k for k in items if seen.get(k) is Status.FAIL}, self.parents
        return {k: 0.0 for k in wrong if wrong.isdisjoint(parents[k])}

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

    def __init__(
        self, trials: Trials, options: BisectionOptions, results: Mapping[str, RunResult],
        evidence: RecordedEvidence | None = None, repeat: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(trials, options)
        self._recorded = trials.run_by_hand = RecordedAnswers(trials, results, repeat=repeat)
        self._evidence, self._asked = evidence, frozenset(results)

    def _new_oracle(self, trials: Trials) -> ManualOracle:
        oracle = self._manual_oracle = ManualOracle(
            trials, items_of(trials), recorded=self._recorded, evidence=self._evidence
        )
        if self._evidence and self._tell_whole(self._evidence.outputs):
            oracle.told.add(Query(QueryKind.WHOLE))
        return oracle

    def _tell_whole(self, outputs: Sequence[Sequence[Record]]) -> bool:
        """Take the recorded outputs as the result of the whole, if they are wrong: that it is right is asked."""
        recorded, trials = self._recorded, self._recorded.trials
        whole = trials.whole()
        keys = recorded.keys(whole)
        if not outputs or self._asked.intersection(keys):
            return False
        result = RunResult(tuple({r.name: r for r in sample} for sample in outputs), ((),) * len(outputs))
        trials.capture(whole)
        if trials.verdict_of(whole, result).status is not Status.FAIL:
            return False
        recorded.results = {**recorded.results, **dict.fromkeys(keys, result)}
        return True

    def _summed(self, findings: Findings) -> Findings:
        """Counts each run once, and leaves out the steps that repeat one."""
        self.steps[:] = self.new_steps
        self.options = replace(self.options, notes=(*self.options.notes, *self.contradictions))
        once = {(step.query.kind, step.items): step for step in reversed(self.steps)}
        told, looked = self._manual_oracle.told, self._manual_oracle.looked
        asked = [step for step in once.values() if without_repetition(step.query) not in told]
        runs = [step for step in asked if step.query.kind not in WITHOUT_RUN]
        nodes: Counter[Purpose] = Counter()
        for step in runs:
            nodes[step.purpose] += len(step.items) or self.suspects
        counts = Counter(step.purpose for step in runs) + Counter({Purpose.PROFILE: looked})
        return replace(findings, counts=Counts(counts, nodes))

    @property
    def contradictions(self) -> list[str]:
        """Regions whose runs contradict each other, in words: no answer rests on them."""
        label, whole = self._recorded.trials.graph.label, self._recorded.trials.whole().nodes
        names = {nodes: " … ".join(dict.fromkeys(map(label, (nodes[0], nodes[-1])))) for nodes in self._recorded.shaky}
        return [
            f"{'the whole model' if nodes == whole else names[nodes]}: {why}; the device wavers, so nothing rests on it"
            for nodes, why in self._recorded.shaky.items()
        ]

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
