"""A person who runs the candidate, as an `Asker`: it returns the recorded results, and raises
`Pending` for one that is missing.

Manual runs are expensive: nothing is repeated, and a region is run with pinned shapes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from subgraph.bisection.manual.tasks import Task
from subgraph.graph.region import Region
from subgraph.runtime.run_result import Feeds, RunResult, unresolved
from subgraph.storage.digest import digest
from subgraph.trials.forms import Form, FormsTried
from subgraph.trials.judge import Judge
from subgraph.trials.judge_properties import JudgeProperties
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.region_runs import RunLog
from subgraph.verdict import Status


class Pending(Exception):
    """The search waits for results: the tasks that have to be run."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(f"{len(tasks)} tasks are open")
        self.tasks = tuple(tasks)


@dataclass(frozen=True)
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
        """The same results, for another view of the model."""
        return replace(self, judge=replace(self.judge, model=model))

    def restarted(self) -> Person:
        """The same results, none of which was used so far."""
        return replace(self, log=RunLog())

    def form_of(self, region: Region) -> Form:
        """The form in which a person is given a region."""
        return Form.PINNED if region.nodes == self.model.whole().nodes else Form.CUT

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
        """The recorded result of a region; it is the same for each repetition.

        Raises:
            Pending: the region is to be run.
            ModelError: the region cannot be cut, so nobody can run it.
        """
        self.model.capture(region)
        key = self.key(region, feeds)
        if key not in self.results:
            if not self.may_ask:
                return unresolved("not run by hand")
            raise Pending([self.task(region, feeds)])
        result = self.results[key]
        self.log.made[key] = result.made
        agrees = result.failure is not None and result.failure.status is Status.AGREE
        if agrees and feeds is not None:
            # the region is good, so that the reference has the values for these feeds
            return RunResult(tuple(self.model.run_on_reference(region, feeds)))
        return result

    def task(self, region: Region, feeds: Feeds | None = None) -> Task:
        """The task of running a region.

        Raises:
            ModelError: the region cannot be cut.
        """
        for _, records in self.model.sample_groups(region, feeds):
            self.model.cut(region, records)
        return Task(self.key(region, feeds), region, feeds)

    def key(self, region: Region, feeds: Feeds | None = None) -> str:
        """The key of the task of running a region.

        It is a digest of the nodes, the boundary, and the values fed instead of reference values.
        The latter are those of the session's first command: another version, or another machine,
        may give other last bits.
        """
        entering = [*region.inputs, *region.shapes]
        fed = [self.model.values.digest([s[n] for n in entering if n in s]) for s in feeds or ()]
        freeze = self.model.freeze and bool(region.shapes)
        fed = fed if any(fed) else []
        return digest("hand/1", list(region.nodes), entering, list(region.outputs), freeze, fed)
