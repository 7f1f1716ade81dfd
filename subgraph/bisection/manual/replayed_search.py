"""The bisection of a device that a person runs: the search over recorded results, and what is to be
run next.

Insight: a search is a pure function of its answers, so nothing of it is stored. Each command runs
it anew over the recorded results, until it asks for one that is missing: `Pending`. What it would
ask after that, the search's own lookahead tells.

Manual runs are expensive: nothing is repeated unless the user says so, the growth of an error is
not measured, and a region that agrees is not examined further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from subgraph.bisection.bisection import Bisection
from subgraph.bisection.manual.records import RecordedEvidence
from subgraph.bisection.manual.tasks import Task
from subgraph.bisection.options import BisectionOptions
from subgraph.bisection.oracle import NodeOracle, items_of
from subgraph.errors import ModelError, NoRegion
from subgraph.graph.region import Region
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.search import Answer, Counts, Findings, Purpose, Query, QueryKind, Step
from subgraph.search.oracle import Ahead, ErrorShare, Items, ItemStatuses
from subgraph.search.state import WITHOUT_RUN
from subgraph.storage.digest import digest
from subgraph.storage.tensors import Record
from subgraph.trials.ask import RunLog
from subgraph.trials.forms import Form, FormsTried
from subgraph.trials.judge import Judge
from subgraph.trials.judge_properties import JudgeProperties
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.trial import Trials
from subgraph.verdict import Signature, Status, Verdict

NOT_RUN = RunResult(failure=Verdict(Status.UNRESOLVED, None, "not run by hand"))
RECORDED_WHOLE = "the whole model was not run: its outputs are those of the recording"
# pieces that are right, before the device is asked whether it is wrong as a whole, as was recorded
MAX_RIGHT = 4


class Pending(Exception):
    """The search waits for results: the tasks that have to be run."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(f"{len(tasks)} tasks are open")
        self.tasks = tuple(tasks)


@dataclass
class RecordedAnswers(JudgeProperties):
    """Asks a person, who runs the candidate: an `Asker` that returns the results recorded so far.

    Attributes:
        judge: tells whether several runs of a region contradict each other.
        results: the recorded results by key of the task.
        may_ask: whether a missing result raises `Pending`; otherwise it is unresolved.
        repeat: how often each region is run.
        log: the results that were used.
        forms: always empty: the full model is run with pinned shapes only.
        contradictory: how the runs of a region contradict each other, by its nodes.
    """

    judge: Judge
    results: Mapping[str, RunResult]
    may_ask: bool = False
    repeat: int = 1
    log: RunLog = field(default_factory=RunLog)
    forms: FormsTried = field(default_factory=FormsTried)
    contradictory: dict[tuple[int, ...], str] = field(default_factory=dict)

    takes_merged_cuts = False

    def with_model(self, model: ReferenceModel) -> RecordedAnswers:
        """The same results: a person is always given cuts with frozen shapes."""
        return self

    def restarted(self) -> RecordedAnswers:
        """The same results, none of which was used so far."""
        return replace(self, log=RunLog(), contradictory={})

    def form_of(self, region: Region) -> Form:
        """The form in which a person is given a region."""
        return Form.PINNED if region.nodes == self.model.whole().nodes else Form.CUT

    def too_large(self, region: Region) -> str:
        """Always "": the memory of the device is not known."""
        return ""

    def run(
        self,
        region: Region,
        feeds: Feeds | None = None,
        *,
        repetition: int = 0,
        fresh: bool = False,
    ) -> RunResult:
        """The recorded result of a region; it is the same for each repetition.

        Raises:
            Pending: the region is to be run. ModelError: it cannot be cut, so nobody can run it.
        """
        self.model.capture(region)
        runs = {key: self.results.get(key) for key in self.keys(region, feeds)}
        known = [result for result in runs.values() if result is not None]
        skipped = next(
            (r for r in known if r.failure and r.failure.status is Status.UNRESOLVED), None
        )
        if len(known) < len(runs) and not skipped:
            if not self.may_ask:
                return NOT_RUN
            missing = [task for task in self.tasks(region, feeds) if runs[task.key] is None]
            raise Pending(missing)
        result = skipped or self._settled(region, feeds, known)
        for key in runs:
            self.log.made[key] = result.made
        agrees = result.failure is not None and result.failure.status is Status.AGREE
        # of a region said to be good, fed with other values, the reference tells the values
        return (
            RunResult(tuple(self.model.run_on_reference(region, feeds)))
            if agrees and feeds is not None
            else result
        )

    def _settled(self, region: Region, feeds: Feeds | None, runs: Sequence[RunResult]) -> RunResult:
        """The result of several runs: the first; nothing is known where they contradict each
        other."""
        first, *others = runs
        if not others:
            return first
        self.model.capture(region)
        verdicts = [self.judge.verdict(region, run) for run in runs]
        said = [f"{v.status.value}{f' ({v.signature})' if v.signature else ''}" for v in verdicts]
        if feeds is not None:  # the reference's values say nothing here
            pairs = [(first, run) for run in others if not (first.failure or run.failure)]
            said = [
                "same",
                *("other values" if one.differing(two) else "same" for one, two in pairs),
            ]
        if len(set(said)) == 1:
            return first
        why = (
            "its runs contradict each other:"
            f" {', '.join(f'run {k} {word}' for k, word in enumerate(said, 1))}"
        )
        self.contradictory[region.nodes] = why
        return RunResult(failure=Verdict(Status.UNRESOLVED, None, why))

    def tasks(self, region: Region, feeds: Feeds | None = None) -> list[Task]:
        """The tasks of running a region, one for each time."""
        groups = tuple(tuple(group) for group, _ in self.model.cuts(region, feeds))
        return [
            Task(key, region, feeds, groups, run)
            for run, key in enumerate(self.keys(region, feeds))
        ]

    def keys(self, region: Region, feeds: Feeds | None = None) -> list[str]:
        """The keys of these tasks."""
        key = self._key(region, feeds)
        return [key, *(digest("again", key, run) for run in range(1, self.repeat))]

    def _key(self, region: Region, feeds: Feeds | None) -> str:
        """Digest of the nodes, the boundary, and the values fed instead of reference values. The
        latter are those of the session's first command: another version, or another machine, may
        give other last bits."""
        entering = [*region.inputs, *region.shapes]
        fed = [self.model.values.digest([s[n] for n in entering if n in s]) for s in feeds or ()]
        freeze = self.model.freeze and bool(region.shapes)
        return digest(
            "hand/1",
            list(region.nodes),
            entering,
            list(region.outputs),
            freeze,
            fed if any(fed) else [],
        )

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
        known: the answers so far. wanted: which runs the search may still need.
        evidence: what a recording tells. answered_by_recording: the queries that it answers.
        probe_runs: runs of places that it names, with their intermediate tensors as outputs.
    """

    recorded: RecordedAnswers
    evidence: RecordedEvidence | None = None
    answered_by_recording: set[Query] = field(default_factory=set)
    probe_runs: int = 0
    _hints: tuple[dict[int, Status], dict[int, float]] | None = None
    known: dict[Query, Answer] = field(default_factory=dict)
    wanted: Ahead = lambda seen, known: iter(())

    def expect(self, ahead: Ahead) -> None:
        """Begin a search."""
        self.wanted = ahead

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """
        Raises:
            Pending: some have to be run first.
        """
        answers = list[Answer]()
        missing = list[Task]()
        for query in queries:
            try:
                answers.append(self._recorded(query.once))
            except Pending as pending:
                missing += pending.tasks
        if missing:
            raise Pending(missing)
        return answers

    def _recorded(self, query: Query) -> Answer:
        if query not in self.known:
            with self.recorded.asking(query.kind is not QueryKind.PREFIX):
                recorded = self._from_recording(query)
                self.known[query] = recorded or self._answer(query)
            if recorded:
                self.answered_by_recording.add(query)
        return self.known[query]

    def next_tasks(self, pending: Pending, count: int) -> list[Task]:
        """Up to `count` tasks: those that the search waits for, then those that it is likely to ask
        for next."""
        tasks = {task.key: task for task in pending.tasks}
        for query in self.wanted({}, self.known):
            if len(tasks) >= count:
                break
            tasks |= {task.key: task for task in self._missing(query)}
        return list(tasks.values())[:count]

    def _missing(self, query: Query) -> Sequence[Task]:
        """The tasks of a query that were not run."""
        try:
            with self.recorded.asking(query.kind is not QueryKind.PREFIX):
                if recorded := self._from_recording(query):
                    self.known[query] = recorded
                else:
                    self.trials.run(self._region(query))
        except Pending as pending:
            return pending.tasks
        except (ModelError, NoRegion):  # it cannot be cut
            pass
        return ()

    def _answer(self, query: Query) -> Answer:
        if (
            query.kind is QueryKind.ISOLATED
            and Query(QueryKind.WHOLE) in self.answered_by_recording
        ):
            pieces = [a.status for q, a in self.known.items() if q.kind is QueryKind.ISOLATED]
            nothing_fails = len(pieces) >= MAX_RIGHT and Status.FAIL not in pieces
            if nothing_fails or len(query.items) == len(self.groups):
                raise Pending(self.recorded.tasks(self.trials.model.whole()))
        return super()._answer(query)

    def _from_recording(self, query: Query) -> Answer | None:
        """What a recording tells of intermediate tensors, as the answer to a profile; None if it
        has none of these items.

        It only says where to look. What lies behind a culprit is wrong in a recording, too: when
        culprits are known, only those items count that were seen to add an error.

        Raises:
            Pending: places that it leaves in doubt are to be run.
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
        return Answer(
            Status.FAIL,
            Signature.MISMATCH,
            "recorded",
            detail=ItemStatuses(statuses, local or None),
        )

    def _hints_of(self, evidence: RecordedEvidence) -> tuple[dict[int, Status], dict[int, float]]:
        """Per item, is it wrong in place? Which add an error, and how large a one?

        Where the recording leaves several nodes in doubt, these are run with their intermediate
        tensors as outputs, on reference values. A device that refuses this once is not asked again.

        Raises:
            Pending: such places are to be run.
        """
        graph = self.trials.model.graph
        item = {node: k for k, group in enumerate(self.groups) for node in group}
        made_by = {name: item[i] for name, i in graph.maker.items() if i in item}
        statuses: dict[int, Status] = {}
        for name, wrong in evidence.wrong.items():
            k = made_by.get(name)
            if k is not None and statuses.get(k) is not Status.FAIL:
                statuses[k] = Status.FAIL if wrong else Status.AGREE
        local = {
            made_by[name]: error for name, error in evidence.own_errors.items() if name in made_by
        }
        missing: list[Task] = []
        for place in evidence.places:
            inside = tuple(sorted({item[i] for i in place if i in item}))
            try:
                wrong_inside = self._wrong_inside(inside) if len(inside) > 1 else {}
            except Pending as e:
                missing += e.tasks
                continue
            if wrong_inside is None:
                return statuses, local
            if wrong_inside:
                local = {k: error for k, error in local.items() if k not in inside} | wrong_inside
                statuses |= dict.fromkeys(wrong_inside, Status.FAIL)
        if missing:
            raise Pending(missing)
        return statuses, local

    def _wrong_inside(self, items: Items) -> dict[int, float] | None:
        """The items that are wrong given their actual inputs, when only these run; with the
        relative error. None if the device does not run them so.

        Raises:
            Pending: they are to be run.
        """
        answer = self._answer(Query(QueryKind.PROFILE, items))
        if answer.verdict is None:  # it cannot be cut: the search looks piece by piece
            return {}
        self.probe_runs += 1
        if not answer.verdict.outputs:
            return None
        if answer.items.local_errors is not None:
            return dict(answer.items.local_errors)
        wrong = {k for k in items if answer.items.statuses.get(k) is Status.FAIL}
        parents = self.parents
        return {k: 0.0 for k in wrong if wrong.isdisjoint(parents[k])}

    def _with_share(
        self, query: Query, region: Region, result: RunResult, answer: Answer
    ) -> Answer:
        whole = self.run_result(self.trials.model.whole())
        if (
            result.failure or whole.failure
        ):  # only said to be good or bad: there is no error to attribute
            fails = answer.status is Status.FAIL and (
                not whole.failure or whole.failure.status is Status.FAIL
            )
            return replace(answer, detail=ErrorShare(is_culprit=fails or None))
        with self.recorded.asking(answer.status is Status.FAIL):
            return super()._with_share(query, region, result, answer)


class ManualBisection(Bisection):
    """Iterate it: a Step per recorded answer, then `Pending`, or the result."""

    def __init__(
        self,
        trials: Trials,
        options: BisectionOptions,
        results: Mapping[str, RunResult],
        evidence: RecordedEvidence | None = None,
        repeat: int = 1,
    ) -> None:
        judge = replace(trials.judge, runtime=replace(trials.runtime, is_manual=True))
        super().__init__(Trials(RecordedAnswers(judge, results, repeat=repeat), judge), options)
        self._evidence, self._asked = evidence, frozenset(results)

    def new_oracle(self, trials: Trials) -> ManualOracle:
        """An oracle that answers from the recorded results."""
        recorded = trials.ask
        assert isinstance(recorded, RecordedAnswers)
        oracle = self.by_hand = ManualOracle(
            trials, items_of(trials.model), recorded=recorded, evidence=self._evidence
        )
        if self._evidence and self._use_recorded_outputs(recorded, self._evidence.outputs):
            oracle.answered_by_recording.add(Query(QueryKind.WHOLE))
        return oracle

    def _use_recorded_outputs(
        self, recorded: RecordedAnswers, outputs: Sequence[Sequence[Record]]
    ) -> bool:
        """Take the recorded outputs as the result of the full model if they are wrong; that it is
        right is asked."""
        whole = recorded.model.whole()
        keys = recorded.keys(whole)
        if not outputs or self._asked.intersection(keys):
            return False
        result = RunResult(
            tuple({r.name: r for r in sample} for sample in outputs), ((),) * len(outputs)
        )
        recorded.model.capture(whole)
        if recorded.judge.verdict(whole, result).status is not Status.FAIL:
            return False
        recorded.results = {**recorded.results, **dict.fromkeys(keys, result)}
        return True

    def sum_up(self, findings: Findings, before: Counts) -> Findings:
        """Count each run once, and leave out the steps that repeat one."""
        self.steps[:] = self.new_steps
        answered = self.by_hand.answered_by_recording
        notes = [RECORDED_WHOLE] if Query(QueryKind.WHOLE) in answered else []
        self.options = replace(
            self.options, notes=(*self.options.notes, *notes, *self.contradictions)
        )
        once = {(step.query.kind, step.items): step for step in reversed(self.steps)}
        asked = [step for step in once.values() if step.query.once not in answered]
        runs = [step for step in asked if step.query.kind not in WITHOUT_RUN]
        nodes: Counter[Purpose] = Counter()
        for step in runs:
            nodes[step.purpose] += len(step.items) or self.suspects
        counts = Counter(step.purpose for step in runs) + Counter(
            {Purpose.PROFILE: self.by_hand.probe_runs}
        )
        return replace(findings, counts=Counts(counts, nodes))

    @property
    def contradictions(self) -> list[str]:
        """Regions whose runs contradict each other, in words: no answer rests on them."""
        model = self.by_hand.trials.model
        found = self.by_hand.recorded.contradictory
        label = model.graph.label
        whole = model.whole().nodes
        names = {
            nodes: " … ".join(dict.fromkeys(map(label, (nodes[0], nodes[-1])))) for nodes in found
        }
        return [
            f"{'the whole model' if nodes == whole else names[nodes]}: {why}; no conclusion rests"
            " on these runs"
            for nodes, why in found.items()
        ]

    @property
    def new_steps(self) -> list[Step]:
        """The steps so far that repeat no other, numbered from 1."""
        new = [step for step in self.steps if not step.query.repetition]
        return [replace(step, number=k) for k, step in enumerate(new, 1)]
