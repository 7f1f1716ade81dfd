"""The bisection of a device that a person runs: the search over recorded results, and what is to be
run next.

A search is a pure function of its answers, so nothing of it is stored. Each command runs it again
over the recorded results, until it needs one that is missing: `Pending`. The search's own lookahead
names the runs that it is likely to need after that.

The growth of an error is not measured, and a region that agrees is not examined further.

If no cut shows the fault, the tasks are rewritings of the full model
(`questions.bisection.rewriting`).

The person is a `Runner`: it returns the recorded results, and raises `Pending` for a missing one.
Manual runs are expensive: nothing is repeated, and a region is run with pinned shapes only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from subgraph.errors import ModelError, NoRegion
from subgraph.graph.region import Region
from subgraph.graph.rewrites import STRONGEST
from subgraph.questions.bisection.bisection import Bisection
from subgraph.questions.bisection.items import list_items
from subgraph.questions.bisection.manual.tasks import Task
from subgraph.questions.bisection.options import BisectionOptions
from subgraph.questions.bisection.oracle import NodeOracle
from subgraph.questions.bisection.rewriting import (
    Changes,
    ModelRewriter,
    RewritingOracle,
    view_file,
)
from subgraph.runtime.run_result import Feeds, RunResult, make_unresolved
from subgraph.search import Answer, Counts, Findings, Purpose, Query, QueryKind, Step
from subgraph.search.oracle import Ahead, ErrorShare
from subgraph.storage.digest import digest
from subgraph.text import count
from subgraph.trials.candidate_runtime import Form, FormsTried
from subgraph.trials.judge import Judge, JudgeProperties
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.region_runs import RunLog
from subgraph.trials.trial import Trials
from subgraph.types import frozen


@dataclass(kw_only=True)
class ManualOracle(NodeOracle):
    """Answers a search from recorded results.

    Attributes:
        known: The known answers.
        wanted: Function that yields the runs that the search may still need.
    """

    known: dict[Query, Answer] = field(default_factory=dict)
    wanted: Ahead = lambda seen, known: iter(())

    @property
    def person(self) -> Person:
        """The person who runs the candidate."""
        assert isinstance(self.trials.runner, Person)
        return self.trials.runner

    def _make_variant(self, *, may_ask: bool) -> ManualOracle:
        person = replace(self.person, may_ask=may_ask)
        return replace(self, trials=replace(self.trials, runner=person))

    def expect(self, ahead: Ahead) -> None:
        """Begin a search."""
        self.wanted = ahead

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """Return one answer per query.

        Raises:
            Pending: some have to be run first.
        """
        answers = []
        missing = list[Task]()
        asking = self._make_variant(may_ask=True)
        for query in queries:
            try:
                once = query.once
                if once not in self.known:
                    self.known[once] = asking._answer(once)
                answers.append(self.known[once])
            except Pending as pending:
                missing += pending.tasks
        if missing:
            raise Pending(missing)
        return answers

    def next_tasks(self, pending: Pending, count: int) -> list[Task]:
        """Return up to `count` tasks: those that the search waits for, then likely next ones."""
        tasks = {task.key: task for task in pending.tasks}
        asking = self._make_variant(may_ask=True)
        for query in self.wanted({}, self.known):
            if len(tasks) >= count:
                break
            if query.kind is QueryKind.PREFIX:
                continue
            try:
                asking._run(query, asking._make_region(query))
            except Pending as missing:
                tasks |= {task.key: task for task in missing.tasks}
            except (ModelError, NoRegion):  # it cannot be cut
                pass
        return list(tasks.values())[:count]

    def _answer(self, query: Query) -> Answer:
        if query.kind is QueryKind.PREFIX and self.person.may_ask:
            return self._make_variant(may_ask=False)._answer(query)
        return super()._answer(query)

    def _with_share(
        self, query: Query, region: Region, result: RunResult, answer: Answer
    ) -> Answer:
        fails = answer.fails
        whole = self.run_result(self.trials.full_model).failure
        if result.failure or whole:  # only marked good or bad: there is no error to attribute
            is_culprit = fails and (not whole or whole.fails)
            return replace(answer, detail=ErrorShare(is_culprit=is_culprit or None))
        if not fails and self.person.may_ask:
            return self._make_variant(may_ask=False)._with_share(query, region, result, answer)
        return super()._with_share(query, region, result, answer)


@dataclass
class ManualRewriter(ModelRewriter):
    """Rewrites the full model for a person, who runs it."""

    def run_changed(
        self, changes: Changes, repetition: int = 0, *, fresh: bool = False
    ) -> RunResult:
        """Return the recorded result of the full model with these changes.

        Raises:
            Pending: it is to be run.
        """
        person = self.trials.runner
        assert isinstance(person, Person)
        model = self.model
        form = [str(self.means), STRONGEST[model.barrier][0], str(model.copies), model.word]
        key = digest("rewritten/1", form, [f"{tensor} {node}" for tensor, node in sorted(changes)])
        if key not in person.results:
            view = view_file(self.trials, self.write(changes))
            how = f"{count(changes, 'change')}, {self.means}"
            raise Pending([Task(key, view, view.whole(), how=how)])
        return person.take(key)


@dataclass(kw_only=True)
class ManualRewritingOracle(ManualOracle, RewritingOracle):
    """Answers a search by rewriting from recorded results."""

    rewriter_class = ManualRewriter


class ManualBisection(Bisection):
    """Iterate it: a Step per recorded answer, then `Pending`, or the result."""

    rewriting_oracle = ManualRewritingOracle

    def __init__(
        self,
        trials: Trials,
        options: BisectionOptions,
        results: Mapping[str, RunResult],
    ) -> None:
        judge = replace(trials.judge, runtime=replace(trials.runtime, is_manual=True))
        super().__init__(Trials(Person(judge, results), judge), options)

    @property
    def oracle(self) -> ManualOracle:
        """The oracle of the present search."""
        oracle = super().oracle
        assert isinstance(oracle, ManualOracle)
        return oracle

    @property
    def steps(self) -> list[Step]:
        """The steps that repeat no other one, numbered from 1."""
        new = [step for step in super().steps if not step.query.repetition]
        return [replace(step, number=k) for k, step in enumerate(new, 1)]

    def new_oracle(self, trials: Trials) -> ManualOracle:
        """Return an oracle that answers from the recorded results."""
        return ManualOracle(trials, list_items(trials))

    def sum_up(self, findings: Findings, before: Counts) -> Findings:
        """Return the findings of a search that has just ended: each run is counted once."""
        once = {(step.query.kind, step.items): step for step in reversed(self.steps)}
        runs = [step for step in once.values() if step.query.kind is not QueryKind.CLAIMED]
        nodes: Counter[Purpose] = Counter()
        for step in runs:
            nodes[step.purpose] += len(step.items) or self.suspects
        counts = Counter(step.purpose for step in runs)
        return replace(findings, counts=Counts(counts, nodes))


class Pending(Exception):
    """The search waits for results: the tasks that have to be run."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(f"{len(tasks)} tasks are open")
        self.tasks = tuple(tasks)


@frozen
class Person(JudgeProperties):
    """Asks a person, who runs the candidate.

    Attributes:
        judge: judges the results.
        results: the recorded results by key of the task.
        may_ask: whether a missing result raises `Pending`; otherwise it is unresolved.
        log: the results that were used.
    """

    judge: Judge
    results: Mapping[str, RunResult]
    may_ask: bool = False
    log: RunLog = field(default_factory=RunLog)

    takes_merged_cuts = False
    contradicts_itself = False

    @property
    def forms(self) -> FormsTried:
        """No verdicts: the full model is run in one form."""
        return FormsTried()

    def with_model(self, model: ReferenceModel) -> Person:
        """Return these results for another view of the model."""
        return replace(self, judge=replace(self.judge, model=model))

    def with_new_session(self) -> Person:
        """Return these results, none of which is used yet."""
        return replace(self, log=RunLog())

    def form_of(self, region: Region) -> Form:
        """Return the form in which a person is given a region."""
        if region.nodes == self.full_model.nodes:
            return Form.PINNED
        return Form.CUT

    def too_large(self, region: Region) -> str:
        """Return "": the memory of the device is not known."""
        return ""

    def run(
        self,
        region: Region,
        feeds: Feeds | None = None,
        *,
        repetition: int = 0,
        fresh: bool = False,
    ) -> RunResult:
        """Return the recorded result of a region, which is the same for each repetition.

        Raises:
            Pending: the region is to be run.
            ModelError: the region cannot be cut, so nobody can run it.
        """
        self.model.capture(region)
        key = self.key(region, feeds)
        if key not in self.results:
            if not self.may_ask:
                return make_unresolved("not run by hand")
            raise Pending([self.task(region, feeds)])
        result = self.take(key)
        agrees = result.failure is not None and result.failure.agrees
        if agrees and feeds is not None:
            # The region is good, so the reference returns the values for these feeds.
            return RunResult(tuple(self.model.run_on_reference(region, feeds)))
        return result

    def take(self, key: str) -> RunResult:
        """Return the recorded result of a task, and note that it was used."""
        result = self.results[key]
        self.log.made[key] = result.made
        return result

    def task(self, region: Region, feeds: Feeds | None = None) -> Task:
        """Return the task of running a region.

        Raises:
            ModelError: the region cannot be cut.
        """
        for _, records in self.model.sample_groups(region, feeds):
            self.model.cut(region, records)
        return Task(self.key(region, feeds), self.model, region, feeds)

    def key(self, region: Region, feeds: Feeds | None = None) -> str:
        """Return the key of the task of running a region.

        It is a digest of the nodes, the boundary, and the values fed instead of reference values.
        The latter are those of the session's first command: another version, or another machine,
        may give other last bits.
        """
        entering = region.entering
        fed = [self.model.values.digest([s[n] for n in entering if n in s]) for s in feeds or ()]
        freeze = self.model.freeze and bool(region.shapes)
        fed = fed if any(fed) else []
        return digest("hand/1", list(region.nodes), entering, list(region.outputs), freeze, fed)
