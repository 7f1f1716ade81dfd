"""Region -> Verdict: run the candidate on a region with reference values, and judge its outputs.

`Trials` joins a `Runner`, which obtains the outputs, and a `Judge`, which compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Semaphore
from typing import Protocol

from subgraph.graph.region import Region
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.run_result import Feeds, RunResult, make_unresolved
from subgraph.runtime.worker_pool import NO_TURNS, Turns
from subgraph.storage.store import Store
from subgraph.trials.candidate_runtime import CandidateRuntime, Form, FormsTried
from subgraph.trials.judge import Judge, JudgeProperties
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.region_runs import MemoryLimit, RegionJob, RegionRuns, RunLog
from subgraph.types import frozen
from subgraph.verdict import Signature, Status, Verdict


@frozen
class Trials(JudgeProperties):
    """A candidate that runs regions of a model, and a judge. Several threads may share it.

    Attributes:
        runner: Obtains the candidate's outputs of a region.
        judge: Compares them with the outputs of the reference.
    """

    runner: Runner
    judge: Judge

    @property
    def log(self) -> RunLog:
        """The runs that were used."""
        return self.runner.log

    @property
    def processes(self) -> Processes:
        """The processes that run the candidate; none exist if a person runs it."""
        assert isinstance(self.runner, Processes)
        return self.runner

    # ------------------------------------------------------------ trials

    def verdict(self, region: Region, *, repetition: int = 0, fresh: bool = False) -> Verdict:
        """Return whether the candidate agrees with the reference on a region.

        The region is fed with reference values. Args and Raises: as `Runner.run`.
        """
        return self.judge.verdict(
            region, self.runner.run(region, repetition=repetition, fresh=fresh)
        )

    def run(
        self,
        region: Region,
        feeds: Feeds | None = None,
        *,
        repetition: int = 0,
        fresh: bool = False,
    ) -> RunResult:
        """Return the candidate's outputs of a region. Args and Raises: as `Runner.run`."""
        return self.runner.run(region, feeds, repetition=repetition, fresh=fresh)

    def run_extra(
        self,
        region: Region,
        feeds: Feeds | None = None,
        *,
        repetition: int = 0,
        fresh: bool = False,
    ) -> RunResult:
        """Return the candidate's outputs of a region, for a run that only explains another one.

        Such a run is not a trial.
        """
        with self.log.count_as_extra(region):
            return self.runner.run(region, feeds, repetition=repetition, fresh=fresh)

    # ------------------------------------------------------------ variants

    def with_new_session(self) -> Trials:
        """Return these trials in a new session, which has used no runs."""
        return replace(self, runner=self.runner.with_new_session())

    def with_jobs(self, jobs: int) -> Trials:
        """Return these trials, of which at most `jobs` run at once."""
        return replace(self, runner=replace(self.processes, turns=Semaphore(jobs)))

    def with_criterion(self, criterion: str) -> Trials:
        """Return these trials, with another criterion for the same runs."""
        return replace(self, judge=self.judge.with_criterion(criterion))

    def with_model(self, model: ReferenceModel) -> Trials:
        """Return these trials for another view of the model."""
        return Trials(self.runner.with_model(model), replace(self.judge, model=model))

    def with_candidate(self, candidate: Candidate) -> Trials:
        """Return trials of another candidate, in the same processes."""
        return self.with_runtime(replace(self.runtime, candidate=candidate))

    def with_runtime(
        self, runtime: CandidateRuntime, model: ReferenceModel | None = None
    ) -> Trials:
        """Return trials of another runtime on the same model; results are stored alike.

        Args:
            runtime: The runtime.
            model: The same model, if its files go to another folder; None otherwise.
        """
        judge = replace(self.judge, runtime=runtime, model=model or self.model)
        if isinstance(self.runner, Processes):
            runner = self.runner.with_runtime(runtime, model)
        else:
            runner = Processes(judge)
        return Trials(runner, judge)


# ------------------------------------------------------------ runs
# Region -> RunResult: obtains the candidate's outputs of a region, and judges nothing.
#
# `Runner` is the seam: processes run the candidate (`Processes`), also only from stored results,
# and a person may run it by hand (`questions.bisection.manual.manual_search.Person`).
#
# The store keeps run results, not verdicts: judging by another criterion needs no new run. One
# run covers all samples; samples that differ in shapes or frozen values are run with separate
# cuts.


@dataclass
class FullModelMode:
    """The way to run the full model. The first run of it decides; all later runs follow.

    Attributes:
        form: the form in which the full model is run.
        pass_number: the pass of a session that is judged: the first that is wrong, or 1.
        tried: the verdicts on the forms that were tried.
        pattern: the verdicts on the passes of the first session; empty if they are alike, None
            before it.
        contradicts_itself: whether a session failed in a pass and agreed in a later one, or two
            sessions have different patterns.
    """

    form: Form = Form.SHIPPED
    pass_number: int = 1
    tried: FormsTried = field(default_factory=FormsTried)
    pattern: tuple[Status, ...] | None = None
    contradicts_itself: bool = False

    def note_session(self, passes: Sequence[Status]) -> None:
        """Compare the verdicts on the passes of a session with each other, and with those of the
        first session."""
        pattern = tuple(passes) if {*passes} >= {Status.AGREE, Status.FAIL} else ()
        self.pattern = pattern if self.pattern is None else self.pattern
        recovers = bool(pattern) and Status.AGREE in pattern[pattern.index(Status.FAIL) :]
        self.contradicts_itself |= recovers or pattern != self.pattern

    def choose_form(self, form: Form) -> None:
        """Run the full model in this form from now on."""
        self.form = form

    def choose_pass(self, number: int) -> None:
        """Judge this pass of each session from now on."""
        self.pass_number = number

    def make_fresh(self, form: Form | None = None) -> FullModelMode:
        """Return this mode without the verdicts, in another form if `form` is not None."""
        return FullModelMode(form or self.form, self.pass_number)


class Runner(Protocol):
    """Obtains the candidate's outputs of a region."""

    @property
    def log(self) -> RunLog:
        """The runs that were used."""

    @property
    def forms(self) -> FormsTried:
        """The verdicts on the forms in which the full model was run; empty before its first run."""

    @property
    def takes_merged_cuts(self) -> bool:
        """Whether it is worth trying to run several regions as one model."""

    def run(
        self,
        region: Region,
        feeds: Feeds | None = None,
        *,
        repetition: int = 0,
        fresh: bool = False,
    ) -> RunResult:
        """Return the candidate's outputs of a region.

        Args:
            region: The region.
            feeds: Per sample, tensors that replace the reference values which enter the region.
                None for the reference values.
            repetition: A higher number requests a new run, whatever is stored for lower ones.
            fresh: Whether the run takes a process that has run nothing before.

        Raises:
            BackendError: The candidate cannot be used at all.
            ModelError: The reference cannot provide the values.
        """

    @property
    def contradicts_itself(self) -> bool:
        """Whether runs of the full model on the same values contradict each other."""

    def form_of(self, region: Region) -> Form:
        """Return the form in which the candidate is given a region."""

    def too_large(self, region: Region) -> str:
        """Return the reason if a region exceeds the candidate's memory and is not run; "" if it is
        run."""

    def with_model(self, model: ReferenceModel) -> Runner:
        """Return the runner for another view of the same model, such as without frozen shapes."""

    def with_new_session(self) -> Runner:
        """Return the runner of a new session.

        It has used no runs, and has decided nothing about the full model.
        """


@frozen
class Processes(JudgeProperties):
    """Runs the candidate in child processes, and stores the results.

    Attributes:
        judge: Decides, on the first run of the full model, in which mode it is run from then on.
        log: The runs that were used.
        mode: The mode of the full model.
        outgrown: The reason why a region is not run again, by the nodes of the region.
        turns: The lock that each run waits for and holds.
        may_run: Whether a result that is not stored is run; otherwise it raises `NotStoredError`.
    """

    judge: Judge
    log: RunLog = field(default_factory=RunLog)
    mode: FullModelMode = field(default_factory=FullModelMode)
    outgrown: dict[tuple[int, ...], str] = field(default_factory=dict)
    turns: Turns = NO_TURNS
    may_run: bool = True

    @cached_property
    def runs(self) -> RegionRuns:
        """The runs of regions in a given form."""
        memory = MemoryLimit(self.model, self.runtime, self.outgrown)
        return RegionRuns(self.writer, self.log, memory, self.turns, self.may_run)

    @property
    def forms(self) -> FormsTried:
        """The verdicts on the forms in which the full model was run."""
        return self.mode.tried

    @property
    def contradicts_itself(self) -> bool:
        """Whether sessions of the full model contradict themselves or each other."""
        return self.mode.contradicts_itself

    @property
    def merges_cuts(self) -> bool:
        """Whether the candidate declares that it runs several disconnected cuts as one model."""
        declared = self.runtime.candidate.multi
        is_declared = self.runtime.about.multi if declared is None else declared
        is_plain = self.runtime.runs_plain_cuts and self.mode.pass_number == 1
        return is_plain and bool(is_declared)

    @property
    def takes_merged_cuts(self) -> bool:
        """Whether the candidate merges cuts, or is a built-in backend that is likely to."""
        is_likely = self.runtime.candidate.multi is None and not self.runtime.runs_user_code
        is_plain = self.runtime.runs_plain_cuts and self.mode.pass_number == 1
        return self.merges_cuts or (is_plain and is_likely)

    def form_of(self, region: Region) -> Form:
        """Return the form in which the candidate is given a region."""
        return self.writer.form_of(region, self.mode.form)

    def too_large(self, region: Region) -> str:
        """Return the reason if a region with its weights exceeds the candidate's memory and is not
        run; "" if it is run."""
        return self.runs.memory.too_large(region)

    def key(self, region: Region, records: Feeds, repetition: int = 0) -> str:
        """Return the store key of a result for these values, from a process that has run models
        before."""
        job = RegionJob(region, self.form_of(region), repetition, pass_number=self.mode.pass_number)
        return self.runs.key(job, records)

    # ------------------------------------------------------------ variants

    def with_model(self, model: ReferenceModel) -> Processes:
        """Return these processes for another view of the model."""
        return replace(self, judge=replace(self.judge, model=model))

    def with_runtime(
        self, runtime: CandidateRuntime, model: ReferenceModel | None = None
    ) -> Processes:
        """Return processes of another candidate, which share the results.

        Its extra runs are counted separately.
        """
        judge = replace(self.judge, runtime=runtime, model=model or self.model)
        return replace(self, judge=judge, log=replace(self.log), mode=self.mode.make_fresh())

    def with_store(self, store: Store, form: Form | None = None) -> Processes:
        """Return these processes with other stored results and an empty log."""
        judge = replace(self.judge, model=replace(self.model, store=store))
        return replace(self, judge=judge, log=RunLog(), mode=self.mode.make_fresh(form))

    def with_new_session(self) -> Processes:
        """Return these processes in a new session, with the same store."""
        return replace(self, log=RunLog(), mode=FullModelMode())

    def only_stored(self) -> Processes:
        """Return the stored runs of the candidate; the full model has the form of the file."""
        mode = self.mode.make_fresh(Form.SHIPPED)
        return replace(self, log=RunLog(), mode=mode, may_run=False)

    # ------------------------------------------------------------ running

    def run(
        self,
        region: Region,
        feeds: Feeds | None = None,
        *,
        repetition: int = 0,
        fresh: bool = False,
    ) -> RunResult:
        """Return the candidate's outputs of a region: run, or loaded from the store.

        Args and Raises: as `Runner.run`.
        """
        self.model.capture(region)
        if why := self.too_large(region):
            return make_unresolved(why)
        form = self.form_of(region) if feeds is None else Form.CUT
        mode = self.mode
        decides = form is Form.SHIPPED and not mode.tried.verdicts
        number = mode.pass_number
        job = RegionJob(region, form, repetition, fresh or decides, feeds, number)
        result = self.runs.run(job)
        if decides:
            # The file was run in a process that had run nothing before. If it has open dimensions
            # and the candidate returns no outputs, it is also run with pinned shapes, in another
            # such process. That form is chosen if only it produces outputs.
            mode.tried.verdicts[Form.SHIPPED] = self.judge.verdict(region, result)
            pinned = _run_pinned(self) if result.failure else None
            if pinned is not None and not pinned.failure:
                mode.choose_form(Form.PINNED)
                result = pinned
        if number == 1 and result.later:
            later = range(2, len(result.later) + 2)
            wrong = (k for k in later if self.judge.verdict(region, result.get_pass(k)).from_run)
            mode.choose_pass(next(wrong, 1))
        if feeds is None and region == self.full_model:
            passes = range(1, len(result.later) + 2) if result.later else ()
            verdicts = (self.judge.verdict(region, result.get_pass(number)) for number in passes)
            mode.note_session([verdict.status for verdict in verdicts])
        return result.get_pass(mode.pass_number)


def try_pinned_shapes(processes: Processes) -> bool:
    """Run the file with pinned shapes if it is wrong as shipped; return whether only that run
    agrees."""
    tried = processes.forms.verdicts
    if Form.SHIPPED in tried and Form.PINNED not in tried:
        _run_pinned(processes)
    return Form.PINNED in tried and tried[Form.PINNED].agrees


def _run_pinned(processes: Processes) -> RunResult | None:
    """Return the outputs of the file with pinned shapes.

    Returns:
        None if that form shows no more than the file as shipped.
    """
    whole = processes.full_model
    shipped = processes.writer.shipped
    verdict = processes.forms.verdicts[Form.SHIPPED]
    is_wrong = verdict.fails and verdict.signature is not Signature.TIMEOUT
    may_be_shapes = verdict.signature is Signature.REFUSED or is_wrong
    if not shipped or not shipped.open_shapes or not may_be_shapes:
        return None
    with processes.log.count_as_extra(whole):
        pinned = processes.runs.run(RegionJob(whole, Form.PINNED, fresh=True))
    processes.mode.tried.verdicts[Form.PINNED] = processes.judge.verdict(whole, pinned)
    return pinned
