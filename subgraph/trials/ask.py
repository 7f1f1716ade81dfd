"""Region -> RunResult: obtains the candidate's outputs of a region, and judges nothing.

`Asker` is the seam: processes run the candidate (`Processes`), stored results replace them
(`StoredRuns`), and a person may run it by hand
(`bisection.manual.person.Person`).

The store keeps run results, not verdicts: judging by another criterion needs no new run. One run
covers all samples; samples that differ in shapes or frozen values are run with separate cuts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.region import Region
from subgraph.runtime.cached_runs import keys_to_try, load_or_run
from subgraph.runtime.run_result import Feeds, Job, RunResult, merge, unresolved
from subgraph.runtime.stretches.model import held_bytes, raw_bytes
from subgraph.storage.digest import digest
from subgraph.storage.store import Store
from subgraph.trials.candidate_runtime import CandidateKey, CandidateRuntime
from subgraph.trials.forms import Form, FormsTried
from subgraph.trials.judge import Judge
from subgraph.trials.judge_properties import JudgeProperties
from subgraph.trials.reference_model import ReferenceModel
from subgraph.verdict import Signature, Verdict

PASSES = 3  # of all samples, in which the full model is run in one session


class NotStored(Exception):
    """The result is not stored, and nothing may be run."""


@dataclass
class RunLog:
    """Runs that a session used: made, or loaded from the store.

    Attributes:
        made: time at which each result was computed, by store key.
        began: when the session began, in seconds since 1970.
        extra_runs: new runs that only explain another result; they are not counted as trials.
        extra_nodes: nodes that were compiled for the extra runs.
    """

    made: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    extra_runs: int = 0
    extra_nodes: int = 0

    @contextmanager
    def count_as_extra(self, region: Region) -> Iterator[None]:
        """Count what is run in this block as extra, unless all of it was known."""
        before = len(self.made)
        yield
        if len(self.made) > before:
            self.extra_runs += 1
            self.extra_nodes += len(region.nodes)

    def with_own_counts(self) -> RunLog:
        """A log that shares the results, and counts its extra runs separately."""
        return replace(self)


@dataclass
class FullModelMode:
    """How the full model is run. The first run of it decides; all later runs follow.

    Attributes:
        form: the form in which the full model is run.
        pass_number: the pass of a session that is judged: the first that is wrong, or 1.
        tried: the verdicts on the forms that the first run tried.
    """

    form: Form = Form.SHIPPED
    pass_number: int = 1
    tried: FormsTried = field(default_factory=FormsTried)

    def restarted(self, form: Form | None = None) -> FullModelMode:
        """The same mode, without the verdicts; with another form, if one is given."""
        return FullModelMode(form or self.form, self.pass_number)


class Asker(Protocol):
    """Obtains the candidate's outputs of a region."""

    @property
    def log(self) -> RunLog:
        """The runs that were used so far."""

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
        """The candidate's outputs of a region.

        Args:
            feeds: per sample, tensors that replace the reference values which enter the region.
            repetition: a higher number requests a new run, whatever is stored of lower ones.
            fresh: run in a process that has run nothing before.

        Raises:
            BackendError: the candidate cannot be used at all. ModelError: the reference cannot
                provide the values.
        """

    def form_of(self, region: Region) -> Form:
        """The form in which the candidate is given a region."""

    def too_large(self, region: Region) -> str:
        """Why a region is not run: it exceeds the candidate's memory; "" if it is run."""

    def with_model(self, model: ReferenceModel) -> Asker:
        """The asker for another view of the same model, such as one whose shapes are not frozen."""

    def restarted(self) -> Asker:
        """The asker of a new session: it has used no runs, and decided nothing about the full
        model."""


@dataclass(frozen=True)
class Processes(JudgeProperties):
    """Asks the candidate in child processes, and stores the results.

    Attributes:
        judge: decides, on the first run of the full model, in which mode it is run from then on.
        log: the runs that were used so far.
        mode: how the full model is run.
    """

    judge: Judge
    log: RunLog = field(default_factory=RunLog)
    mode: FullModelMode = field(default_factory=FullModelMode)
    _outgrown: dict[tuple[int, ...], str] = field(default_factory=dict)

    @property
    def forms(self) -> FormsTried:
        """The verdicts on the forms in which the full model was run."""
        return self.mode.tried

    @property
    def merges_cuts(self) -> bool:
        """Whether the candidate declares that it runs several disconnected cuts as one model."""
        declared = self.runtime.candidate.multi
        return self._runs_plain_cuts and bool(
            self.runtime.about.multi if declared is None else declared
        )

    @property
    def takes_merged_cuts(self) -> bool:
        """Whether the candidate merges cuts, or is a built-in backend that is likely to."""
        is_likely = self.runtime.candidate.multi is None and not self.runtime.runs_user_code
        return self.merges_cuts or (self._runs_plain_cuts and is_likely)

    @property
    def _runs_plain_cuts(self) -> bool:
        return self.runtime.runs_plain_cuts and self.mode.pass_number == 1

    def form_of(self, region: Region) -> Form:
        """The form in which the candidate is given a region."""
        return self.writer.form_of(region, self.mode.form)

    # ------------------------------------------------------------ variants

    def with_model(self, model: ReferenceModel) -> Processes:
        """The same processes, for another view of the model."""
        return replace(self, judge=replace(self.judge, model=model))

    def with_runtime(
        self, runtime: CandidateRuntime, model: ReferenceModel | None = None
    ) -> Processes:
        """Processes of another candidate, which share the results; its extra runs are counted
        separately."""
        judge = replace(self.judge, runtime=runtime, model=model or self.model)
        return replace(
            self, judge=judge, log=self.log.with_own_counts(), mode=self.mode.restarted()
        )

    def with_store(self, store: Store, form: Form | None = None) -> Processes:
        """The same processes, with other stored results and an empty log."""
        judge = replace(self.judge, model=replace(self.model, store=store))
        return replace(self, judge=judge, log=RunLog(), mode=self.mode.restarted(form))

    def restarted(self) -> Processes:
        """The same processes in a new session, over the same store."""
        return replace(self, log=RunLog(), mode=FullModelMode())

    def only_stored(self) -> StoredRuns:
        """The stored runs of the candidate, the full model in the form of the user's file."""
        return StoredRuns(self.judge, RunLog(), self.mode.restarted(Form.SHIPPED), self._outgrown)

    # ------------------------------------------------------------ running

    def run(
        self,
        region: Region,
        feeds: Feeds | None = None,
        *,
        repetition: int = 0,
        fresh: bool = False,
    ) -> RunResult:
        """The candidate's outputs of a region: run, or loaded from the store.

        Args:
            feeds: per sample, tensors that replace the reference values which enter the region.
            repetition: a higher number requests a new run, whatever is stored of lower ones.
            fresh: run in a process that has run nothing before.

        Raises:
            BackendError: the candidate cannot be used at all. ModelError: the reference cannot
                provide the values.
        """
        self.model.capture(region)
        if why := self.too_large(region) or self._problem_of_own_model(region):
            return unresolved(why)
        form = self.form_of(region) if feeds is None else Form.CUT
        decides = form is Form.SHIPPED and not self.mode.tried.verdicts
        result = self._run_as(form, region, feeds, repetition, fresh or decides)
        if decides:
            result = self._choose_form(region, result, repetition)
        if self.mode.pass_number == 1 and result.later:
            self.mode.pass_number = self._first_wrong_pass(region, result)
        return result.nth(self.mode.pass_number)

    def _problem_of_own_model(self, region: Region) -> str:
        return self.runtime.own_model.problem(region) if self.runtime.own_model else ""

    def _choose_form(self, whole: Region, result: RunResult, repetition: int) -> RunResult:
        """Decide in which form the full model is run from now on; return its result in that form.

        The user's file was run, in a process that had run nothing before. If it has open dimensions
        and the candidate refuses it or its outputs are wrong, the same file is also run with pinned
        shapes, in another such process. That form is chosen if only it produces outputs.
        """
        verdict = self.mode.tried.verdicts[Form.SHIPPED] = self.judge.verdict(whole, result)
        shipped = self.writer.shipped
        if shipped is None or not shipped.other_form_tells_more(verdict):
            return result
        with self.log.count_as_extra(whole):
            pinned = self._run_as(Form.PINNED, whole, None, repetition, fresh=True)
        self.mode.tried.verdicts[Form.PINNED] = self.judge.verdict(whole, pinned)
        only_pinned_runs = result.failure is not None and pinned.failure is None
        self.mode.form = Form.PINNED if only_pinned_runs else Form.SHIPPED
        return pinned if only_pinned_runs else result

    def _first_wrong_pass(self, region: Region, result: RunResult) -> int:
        """The pass of a session from which on a region is wrong, if the first one is right; else
        1."""
        for number in range(2, len(result.later) + 2):
            if self.judge.verdict(region, result.nth(number)).from_run:
                return number
        return 1

    def _run_as(
        self, form: Form, region: Region, feeds: Feeds | None, repetition: int, fresh: bool
    ) -> RunResult:
        """Run a region in one form, or load the stored result."""
        values = self.model.values
        parts = []
        groups = (
            self.model.sample_groups(region, feeds)
            if form is not Form.SHIPPED
            else self._all_samples
        )
        for samples, records in groups:
            key = partial(self._key, self.writer.key(form, region, records), repetition)
            run = partial(
                self._run_in_worker, form, region, records, fresh, self._passes(region, feeds)
            )
            try:
                result, stored_key = load_or_run(
                    self.model.store, keys_to_try(key, fresh=fresh), run
                )
            except ModelError as e:
                if not self.runtime.own_model:
                    raise
                return unresolved(e.what)  # its own model has no such region
            self.log.made[stored_key] = result.made
            values.watched.add(result.files)
            if other := self.runtime.own_model:
                translate = partial(
                    other.translated,
                    region,
                    reference_values=records,
                    new_folder=self.model.new_folder,
                )
                result = result.changed(translate)
            if result.failure:
                return self._unless_outgrown(region, result.failure) or result
            parts.append((samples, result))
        return merge(parts, len(values.samples))

    @property
    def _all_samples(self) -> list[tuple[list[int], Feeds]]:
        """All samples in one group: the user's file serves every sample."""
        values = self.model.values
        return [(list(range(len(values.samples))), values.records)]

    def _passes(self, region: Region, feeds: Feeds | None) -> int:
        """How often all samples are run in one session; a command starts one process per run."""
        if self.runtime.candidate.runs_commands:
            return 1
        is_full_model = feeds is None and region == self.model.whole()
        return PASSES if is_full_model else self.mode.pass_number

    def _run_in_worker(
        self, form: Form, region: Region, records: Feeds, fresh: bool, passes: int, into: Path
    ) -> RunResult:
        """Write the model, build and run it in a worker; the files of the result are in `into`."""
        with self.model.temporary_folder() as folder:
            feeds, outputs = self.writer.write(form, region, records, folder)
            options = self.runtime.candidate.options
            job = Job(folder / "model.onnx", feeds, outputs, into, fresh, options, passes)
            return self.runtime.workers.run(job)

    # ------------------------------------------------------------ memory

    def too_large(self, region: Region) -> str:
        """Why a region is not run: with its weights it exceeds the candidate's memory; "" if it is
        run."""
        if region.nodes in self._outgrown:
            return self._outgrown[region.nodes]
        room = self.runtime.workers.memory
        weights = self.model.graph.weights
        if room is None or self.runtime.own_model or self._bytes_of_all_weights <= room:
            return ""
        needed = sum(self._bytes_held(weights[name]) for name in region.weights if name in weights)
        if needed <= room:
            return ""
        return (
            f"its weights take about {needed >> 20} MiB, the candidate may use {room >> 20}: it was"
            " not run"
        )

    def _unless_outgrown(self, region: Region, failure: Verdict) -> RunResult | None:
        """An unresolved result if the candidate was stopped at `--memory`, which is not a limit of
        the device."""
        limit = self.runtime.candidate.memory
        if limit is None or limit != self.model.reference.limit:
            return None
        if failure.signature is not Signature.CRASH or "memory" not in failure.process:
            return None
        self._outgrown[region.nodes] = f"at --memory, {failure.why}"
        return unresolved(self._outgrown[region.nodes])

    @cached_property
    def _bytes_of_all_weights(self) -> int:
        return sum(map(self._bytes_held, self.model.graph.weights.values()))

    def _bytes_held(self, weight: protobuf.TensorProto) -> int:
        """Bytes that a weight takes in the candidate's memory, at least."""
        return held_bytes(weight) if self.runtime.candidate.can.half_as_float else raw_bytes(weight)

    # ------------------------------------------------------------ store keys

    @cached_property
    def candidate_key(self) -> CandidateKey:
        """The cache key of the candidate."""
        return CandidateKey(
            self.model.store, self.runtime.candidate.identity(self.runtime.about.version)
        )

    def key(
        self, region: Region, records: Feeds, repetition: int = 0, *, fresh: bool = False
    ) -> str:
        """The store key of a result.

        A hash of the region and the values that enter it, the candidate with its limits and
        version, the repetition, and whether the process had run nothing before.
        """
        return self._key(self.writer.key(self.form_of(region), region, records), repetition, fresh)

    def _key(self, input_key: str, repetition: int, fresh: bool) -> str:
        other = self.runtime.own_model
        number = self.mode.pass_number
        more = [other.identity] if other else []
        more += [f"run {number}"] if number > 1 else []
        return digest("trial/2", input_key, self.candidate_key.text, repetition, fresh, *more)


class StoredRuns(Processes):
    """The stored runs of a candidate. A run that is not stored raises `NotStored`."""

    def _run_in_worker(self, *_: object) -> RunResult:
        raise NotStored
