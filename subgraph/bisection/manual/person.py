"""A person who runs the candidate, as an `Asker`: it returns the recorded results, and raises
`Pending` for one that is missing.

Manual runs are expensive: nothing is repeated unless the user says so, and a region is run with
pinned shapes only.
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


@dataclass
class PersonLog(RunLog):
    """Recorded results that a search used.

    Attributes:
        contradictory: how the runs of a region contradict each other, by its nodes.
    """

    contradictory: dict[tuple[int, ...], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Person(JudgeProperties):
    """Asks a person, who runs the candidate.

    Attributes:
        judge: decides whether several runs of a region contradict each other.
        results: the recorded results by key of the task.
        repeat: how often each region is run.
        may_ask: whether a missing result raises `Pending`; otherwise it is unresolved.
        log: the results that were used.
    """

    judge: Judge
    results: Mapping[str, RunResult]
    repeat: int = 1
    may_ask: bool = False
    log: PersonLog = field(default_factory=PersonLog)

    takes_merged_cuts = False

    @property
    def forms(self) -> FormsTried:
        """No verdicts: the full model is run in one form."""
        return FormsTried()

    def with_model(self, model: ReferenceModel) -> Person:
        """The same results, for another view of the model."""
        return replace(self, judge=replace(self.judge, model=model))

    def with_result(self, region: Region, result: RunResult) -> Person:
        """The same results, and one of a region that the person did not run."""
        return replace(self, results={**self.results, **dict.fromkeys(self.keys(region), result)})

    def restarted(self) -> Person:
        """The same results, none of which was used so far."""
        return replace(self, log=PersonLog())

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
        keys = self.keys(region, feeds)
        known = [self.results[key] for key in keys if key in self.results]
        skipped = [r for r in known if r.failure and r.failure.status is Status.UNRESOLVED]
        if len(known) < len(keys) and not skipped:
            if not self.may_ask:
                return unresolved("not run by hand")
            raise Pending([t for t in self.tasks(region, feeds) if t.key not in self.results])
        result = skipped[0] if skipped else self._settled(region, feeds, known)
        self.log.made.update(dict.fromkeys(keys, result.made))
        agrees = result.failure is not None and result.failure.status is Status.AGREE
        if agrees and feeds is not None:
            # the region is good, so that the reference has the values for these feeds
            return RunResult(tuple(self.model.run_on_reference(region, feeds)))
        return result

    def _settled(self, region: Region, feeds: Feeds | None, runs: Sequence[RunResult]) -> RunResult:
        """The result of several runs: the first; nothing is known if they contradict each
        other."""
        first, *others = runs
        if not others:
            return first
        if feeds is None:
            said = [self._status_in_words(region, run) for run in runs]
        else:  # the reference's values say nothing here
            pairs = [run for run in others if not (first.failure or run.failure)]
            said = ["same", *("other values" if first.differing(r) else "same" for r in pairs)]
        if len(set(said)) == 1:
            return first
        words = ", ".join(f"run {k} {word}" for k, word in enumerate(said, 1))
        why = f"its runs contradict each other: {words}"
        self.log.contradictory[region.nodes] = why
        return unresolved(why)

    def _status_in_words(self, region: Region, run: RunResult) -> str:
        verdict = self.judge.verdict(region, run)
        signature = f" ({verdict.signature})" if verdict.signature else ""
        return f"{verdict.status.value}{signature}"

    def tasks(self, region: Region, feeds: Feeds | None = None) -> list[Task]:
        """The tasks of running a region, one for each time.

        Raises:
            ModelError: the region cannot be cut.
        """
        for _, records in self.model.sample_groups(region, feeds):
            self.model.cut(region, records)
        return [Task(key, region, feeds, run) for run, key in enumerate(self.keys(region, feeds))]

    def keys(self, region: Region, feeds: Feeds | None = None) -> list[str]:
        """The keys of the tasks of running a region.

        They are digests of the nodes, the boundary, and the values fed instead of reference values.
        The latter are those of the session's first command: another version, or another machine,
        may give other last bits.
        """
        entering = [*region.inputs, *region.shapes]
        fed = [self.model.values.digest([s[n] for n in entering if n in s]) for s in feeds or ()]
        freeze = self.model.freeze and bool(region.shapes)
        fed = fed if any(fed) else []
        key = digest("hand/1", list(region.nodes), entering, list(region.outputs), freeze, fed)
        return [key, *(digest("again", key, run) for run in range(1, self.repeat))]
