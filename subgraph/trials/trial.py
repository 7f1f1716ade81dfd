"""Region -> Verdict: ask the candidate about a region that is fed with reference values, and judge
its outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from subgraph.graph.region import Region
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.run_result import Feeds, RunResult
from subgraph.trials.ask import Asker, Processes
from subgraph.trials.candidate_runtime import CandidateRuntime
from subgraph.trials.judge import Judge, JudgeProperties
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.region_runs import RunLog
from subgraph.verdict import Verdict


@dataclass(frozen=True)
class Trials(JudgeProperties):
    """A candidate that is asked about regions of a model, and a judge. Several threads may share
    it.

    Attributes:
        ask: obtains the candidate's outputs of a region.
        judge: compares them with the reference's.
    """

    ask: Asker
    judge: Judge

    @property
    def log(self) -> RunLog:
        """The runs that were used so far."""
        return self.ask.log

    @property
    def processes(self) -> Processes:
        """The processes that run the candidate; none exist where a person runs it."""
        assert isinstance(self.ask, Processes)
        return self.ask

    # ------------------------------------------------------------ trials

    def verdict(self, region: Region, *, repetition: int = 0, fresh: bool = False) -> Verdict:
        """Whether the candidate agrees with the reference on a region that is fed with reference
        values.

        Args and Raises: as `Asker.run`.
        """
        return self.judge.verdict(region, self.ask.run(region, repetition=repetition, fresh=fresh))

    def run(
        self,
        region: Region,
        feeds: Feeds | None = None,
        *,
        repetition: int = 0,
        fresh: bool = False,
    ) -> RunResult:
        """The candidate's outputs of a region. Args and Raises: as `Asker.run`."""
        return self.ask.run(region, feeds, repetition=repetition, fresh=fresh)

    def run_extra(
        self,
        region: Region,
        feeds: Feeds | None = None,
        *,
        repetition: int = 0,
        fresh: bool = False,
    ) -> RunResult:
        """The candidate's outputs of a region, for a run that only explains another one: it is no
        trial."""
        with self.log.count_as_extra(region):
            return self.ask.run(region, feeds, repetition=repetition, fresh=fresh)

    # ------------------------------------------------------------ variants

    def restarted(self) -> Trials:
        """The same trials in a new session, which has used no runs so far."""
        return replace(self, ask=self.ask.restarted())

    def limited_to(self, jobs: int) -> Trials:
        """The same trials, of which so many run at once."""
        return replace(self, ask=self.processes.limited_to(jobs))

    def with_criterion(self, criterion: str) -> Trials:
        """The same runs, judged by another criterion."""
        return replace(self, judge=self.judge.with_criterion(criterion))

    def with_model(self, model: ReferenceModel) -> Trials:
        """The same candidate and judge, for another view of the model."""
        return Trials(self.ask.with_model(model), replace(self.judge, model=model))

    def with_candidate(self, candidate: Candidate) -> Trials:
        """Trials of another candidate, in the same processes."""
        return self.with_runtime(replace(self.runtime, candidate=candidate))

    def with_runtime(
        self, runtime: CandidateRuntime, model: ReferenceModel | None = None
    ) -> Trials:
        """Trials of another runtime on the same model; results are stored alike.

        `model`: the same model, if its files go to another folder.
        """
        judge = replace(self.judge, runtime=runtime, model=model or self.model)
        ask = (
            self.ask.with_runtime(runtime, model)
            if isinstance(self.ask, Processes)
            else Processes(judge)
        )
        return Trials(ask, judge)
