"""The bisection of a device that a person runs: the search over recorded results, and what is to be
run next.

A search is a pure function of its answers, so nothing of it is stored. Each command runs it again
over the recorded results, until it needs one that is missing: `Pending`. The search's own lookahead
says what it is likely to need after that.

The growth of an error is not measured, and a region that agrees is not examined further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from subgraph.bisection.bisection import Bisection
from subgraph.bisection.items import items_of
from subgraph.bisection.manual.person import Pending, Person
from subgraph.bisection.manual.session import RecordedEvidence
from subgraph.bisection.manual.tasks import Task
from subgraph.bisection.options import BisectionOptions
from subgraph.bisection.oracle import NodeOracle
from subgraph.errors import ModelError, NoRegion
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.search import Answer, Counts, Findings, Purpose, Query, QueryKind, Step
from subgraph.search.oracle import Ahead, ErrorShare, Items, ItemStatuses
from subgraph.trials.trial import Trials
from subgraph.verdict import Signature, Status

RECORDED_WHOLE = "the whole model was not run: its outputs are those of the recording"
WHOLE = Query(QueryKind.WHOLE)
# pieces that are right, before the device is asked whether it is wrong as a whole, as was recorded
MAX_RIGHT = 4


@dataclass(frozen=True)
class _Hints:
    """What a recording, and the runs of places that it names, tell of the items.

    Attributes:
        statuses: whether an item is wrong in place.
        local_errors: the items that add an error, with its relative size.
    """

    statuses: dict[int, Status]
    local_errors: dict[int, float]


@dataclass(kw_only=True)
class ManualOracle(NodeOracle):
    """Answers a search from recorded results.

    Attributes:
        evidence: what a recording tells; None without one.
        known: the answers so far.
        from_recording: the queries that the recording answers.
        probed: the places that the recording names and that were run, with their intermediate
            tensors as outputs.
        wanted: the runs that the search may still need.
    """

    evidence: RecordedEvidence | None = None
    known: dict[Query, Answer] = field(default_factory=dict)
    from_recording: set[Query] = field(default_factory=set)
    probed: set[Items] = field(default_factory=set)
    wanted: Ahead = lambda seen, known: iter(())

    @property
    def person(self) -> Person:
        """The person who runs the candidate."""
        assert isinstance(self.trials.ask, Person)
        return self.trials.ask

    @cached_property
    def _asking(self) -> ManualOracle:
        """The same oracle and answers; a missing result raises `Pending`."""
        return self._variant(may_ask=True)

    def _variant(self, *, may_ask: bool) -> ManualOracle:
        person = replace(self.person, may_ask=may_ask)
        return replace(self, trials=replace(self.trials, ask=person))

    def expect(self, ahead: Ahead) -> None:
        """Begin a search."""
        self.wanted = ahead

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """One answer per query.

        Raises:
            Pending: some have to be run first.
        """
        answers = list[Answer]()
        missing = list[Task]()
        for query in queries:
            try:
                answers.append(self._asking._recorded(query.once))
            except Pending as pending:
                missing += pending.tasks
        if missing:
            raise Pending(missing)
        return answers

    def _recorded(self, query: Query) -> Answer:
        if query not in self.known:
            answer = self._from_recording(query)
            if answer:
                self.from_recording.add(query)
            self.known[query] = answer or self._answer(query)
        return self.known[query]

    def next_tasks(self, pending: Pending, count: int) -> list[Task]:
        """Up to `count` tasks: those that the search waits for, then those that it is likely to
        request next."""
        tasks = {task.key: task for task in pending.tasks}
        for query in self.wanted({}, self.known):
            if len(tasks) >= count:
                break
            tasks |= {task.key: task for task in self._asking._missing(query)}
        return list(tasks.values())[:count]

    def _missing(self, query: Query) -> Sequence[Task]:
        """The tasks of a query that were not run."""
        try:
            if recorded := self._from_recording(query):
                self.known[query] = recorded
            elif query.kind is not QueryKind.PREFIX:
                self.trials.run(self._region(query))
        except Pending as pending:
            return pending.tasks
        except (ModelError, NoRegion):  # it cannot be cut
            pass
        return ()

    def _answer(self, query: Query) -> Answer:
        if query.kind is QueryKind.PREFIX and self.person.may_ask:
            return self._variant(may_ask=False)._answer(query)
        if query.kind is QueryKind.ISOLATED and WHOLE in self.from_recording:
            pieces = [a.status for q, a in self.known.items() if q.kind is QueryKind.ISOLATED]
            nothing_fails = len(pieces) >= MAX_RIGHT and Status.FAIL not in pieces
            if nothing_fails or len(query.items) == len(self.groups):
                raise Pending([self.person.task(self.trials.model.whole())])
        return super()._answer(query)

    def _with_share(
        self, query: Query, region: Region, result: RunResult, answer: Answer
    ) -> Answer:
        fails = answer.status is Status.FAIL
        whole = self.run_result(self.trials.model.whole()).failure
        if result.failure or whole:  # only marked good or bad: there is no error to attribute
            is_culprit = fails and (not whole or whole.status is Status.FAIL)
            return replace(answer, detail=ErrorShare(is_culprit=is_culprit or None))
        if not fails and self.person.may_ask:
            return self._variant(may_ask=False)._with_share(query, region, result, answer)
        return super()._with_share(query, region, result, answer)

    # ------------------------------------------------------------ recording

    def _from_recording(self, query: Query) -> Answer | None:
        """The recording's values of intermediate tensors as the answer to a profile; None if it has
        none of these items.

        It only says where to look. What is downstream of a culprit is wrong in a recording, too:
        when culprits are known, only those items count that were seen to add an error.

        Raises:
            Pending: places that it leaves in doubt are to be run.
        """
        if self.evidence is None or query.kind is not QueryKind.PROFILE:
            return None
        hints = self._hints
        local = {k: error for k, error in hints.local_errors.items() if k in query.items}
        is_partial = len(query.items) < len(self.groups)
        statuses = dict.fromkeys(local, Status.FAIL) if is_partial else hints.statuses
        if Status.FAIL not in statuses.values():
            return None
        detail = ItemStatuses(statuses, local or None)
        return Answer(Status.FAIL, Signature.MISMATCH, "recorded", detail=detail)

    @cached_property
    def _hints(self) -> _Hints:
        """What the recording tells of the items.

        Where it leaves several nodes in doubt, these are run with their intermediate tensors as
        outputs, on reference values. A device that refuses this once is not asked again.

        Raises:
            Pending: such places are to be run.
        """
        assert self.evidence
        item = {node: k for k, group in enumerate(self.groups) for node in group}
        made_by = {n: item[i] for n, i in self.graph.maker.items() if i in item}
        statuses: dict[int, Status] = {}
        for name, is_wrong in self.evidence.wrong.items():
            k = made_by.get(name)
            if k is not None and statuses.get(k) is not Status.FAIL:
                statuses[k] = Status.FAIL if is_wrong else Status.AGREE
        errors = self.evidence.own_errors
        local = {made_by[name]: error for name, error in errors.items() if name in made_by}
        places = [
            tuple(sorted({item[i] for i in place if i in item})) for place in self.evidence.places
        ]
        places = [place for place in places if len(place) > 1]
        missing = list[Task]()
        for place in places:
            try:
                wrong = self._wrong_inside(place)
            except Pending as pending:
                missing += pending.tasks
                continue
            if wrong is None:
                return _Hints(statuses, local)
            if wrong:
                local = {k: error for k, error in local.items() if k not in place} | wrong
                statuses |= dict.fromkeys(wrong, Status.FAIL)
        if missing:
            raise Pending(missing)
        return _Hints(statuses, local)

    def _wrong_inside(self, items: Items) -> dict[int, float] | None:
        """The items that are wrong given their actual inputs, when only these run; with the
        relative error. None if the device does not run them so.

        Raises:
            Pending: they are to be run.
        """
        answer = self._answer(Query(QueryKind.PROFILE, items))
        if answer.verdict is None:  # it cannot be cut: the search looks piece by piece
            return {}
        self.probed.add(items)
        if not answer.verdict.outputs:
            return None
        if answer.items.local_errors is not None:
            return dict(answer.items.local_errors)
        wrong = {k for k in items if answer.items.statuses.get(k) is Status.FAIL}
        parents = self.parents
        return {k: 0.0 for k in wrong if wrong.isdisjoint(parents[k])}


class ManualBisection(Bisection):
    """Iterate it: a Step per recorded answer, then `Pending`, or the result."""

    def __init__(
        self,
        trials: Trials,
        options: BisectionOptions,
        results: Mapping[str, RunResult],
        evidence: RecordedEvidence | None = None,
    ) -> None:
        judge = replace(trials.judge, runtime=replace(trials.runtime, is_manual=True))
        super().__init__(Trials(Person(judge, results), judge), options)
        self._evidence = evidence
        self._results = results

    @property
    def oracle(self) -> ManualOracle:
        """The oracle of the present search."""
        oracle = super().oracle
        assert isinstance(oracle, ManualOracle)
        return oracle

    @property
    def steps(self) -> list[Step]:
        """The steps so far that repeat no other, numbered from 1."""
        new = [step for step in super().steps if not step.query.repetition]
        return [replace(step, number=k) for k, step in enumerate(new, 1)]

    def new_oracle(self, trials: Trials) -> ManualOracle:
        """An oracle that answers from the recorded results.

        Recorded outputs are the result of the full model if they are wrong; a person is asked
        whether it is right.
        """
        person = trials.ask
        assert isinstance(person, Person)
        whole = person.model.whole()
        recorded = None if person.key(whole) in self._results else self._recorded_whole()
        if recorded:
            person.model.capture(whole)
            if trials.judge.verdict(whole, recorded).status is not Status.FAIL:
                recorded = None
        if recorded:
            trials = replace(trials, ask=person.with_result(whole, recorded))
        return ManualOracle(
            trials,
            items_of(trials.model),
            evidence=self._evidence,
            from_recording={WHOLE} if recorded else set(),
        )

    def _recorded_whole(self) -> RunResult | None:
        """The recorded outputs of the full model; None without any."""
        outputs = self._evidence.outputs if self._evidence else ()
        if not outputs:
            return None
        samples = tuple({record.name: record for record in sample} for sample in outputs)
        return RunResult(samples, ((),) * len(outputs))

    def sum_up(self, findings: Findings, before: Counts) -> Findings:
        """The findings of a search that has just ended: each run is counted once."""
        once = {(step.query.kind, step.items): step for step in reversed(self.steps)}
        answered = self.oracle.from_recording
        runs = [
            step
            for step in once.values()
            if step.query.once not in answered and step.query.kind is not QueryKind.CLAIMED
        ]
        nodes: Counter[Purpose] = Counter()
        for step in runs:
            nodes[step.purpose] += len(step.items) or self.suspects
        counts = Counter(step.purpose for step in runs)
        counts += Counter({Purpose.PROFILE: len(self.oracle.probed)})
        return replace(findings, counts=Counts(counts, nodes))

    def further_notes(self) -> list[str]:
        """A note if the recording answered for the full model."""
        return [RECORDED_WHOLE] if WHOLE in self.oracle.from_recording else []
