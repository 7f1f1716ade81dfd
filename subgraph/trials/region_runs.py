"""Region and form -> RunResult: runs a cut, or the user's file, in a worker, or loads the stored
result.

The store keeps run results, not verdicts: judging by another criterion needs no new run. One run
covers all samples; samples that differ in shapes or frozen values are run with separate cuts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from subgraph.errors import ModelError, NoRegion
from subgraph.graph.region import Region
from subgraph.runtime.run_result import (
    Feeds,
    Job,
    RunResult,
    list_keys,
    load_or_run,
    make_unresolved,
    merge,
)
from subgraph.runtime.stretches import compute_held_bytes, compute_raw_bytes
from subgraph.runtime.worker_pool import Turns
from subgraph.storage.digest import digest
from subgraph.trials.candidate_model import translate_result
from subgraph.trials.candidate_runtime import CandidateKey, CandidateRuntime, Form, ModelWriter
from subgraph.trials.reference_model import ReferenceModel
from subgraph.types import frozen
from subgraph.verdict import Verdict

MODEL_PASSES = 3  # of all samples, in which the full model is run in one session


class NotStoredError(Exception):
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

    def add_extra_run(self) -> None:
        """Count a new run as extra."""
        self.extra_runs += 1


@frozen
class RegionJob:
    """A region that is to be run on all samples.

    Attributes:
        region: the region.
        form: the form in which the candidate is given it.
        repetition: a higher number requests a new run, whatever is stored of lower ones.
        fresh: whether the process has run nothing before.
        feeds: per sample, tensors that replace the reference values which enter the region.
        pass_number: the pass of a session that is judged.
    """

    region: Region
    form: Form
    repetition: int = 0
    fresh: bool = False
    feeds: Feeds | None = None
    pass_number: int = 1


@frozen
class MemoryLimit:
    """The memory that a candidate may use.

    Attributes:
        model: the model, whose weights take memory.
        runtime: the candidate.
        outgrown: by a region's nodes, why it is not run again.
    """

    model: ReferenceModel
    runtime: CandidateRuntime
    outgrown: dict[tuple[int, ...], str]

    def too_large(self, region: Region) -> str:
        """Return the reason if a region with its weights exceeds the memory and is not run; "" if
        it is run."""
        if region.nodes in self.outgrown:
            return self.outgrown[region.nodes]
        room = self.runtime.workers.memory
        weights = self.model.graph.weights
        if room is None or self.runtime.own_model:
            return ""
        is_float = self.runtime.candidate.can.half_as_float
        count_bytes = compute_held_bytes if is_float else compute_raw_bytes
        needed = sum(count_bytes(weights[name]) for name in region.weights if name in weights)
        if needed <= room:
            return ""
        return (
            f"its weights take about {needed >> 20} MiB, the candidate may use {room >> 20}: it was"
            " not run"
        )

    def result_beyond(self, region: Region, failure: Verdict) -> RunResult | None:
        """Return an unresolved result if the candidate was stopped at `--memory`, which is not a
        limit of the device."""
        limit = self.runtime.candidate.memory
        if limit is None or limit != self.model.reference.limit:
            return None
        if "memory" not in failure.process:
            return None
        self.outgrown[region.nodes] = f"at --memory, {failure.why}"
        return make_unresolved(self.outgrown[region.nodes])


@frozen
class RegionRuns:
    """Runs regions in a given form, and stores the results.

    Attributes:
        writer: writes the models that the candidate is given.
        log: the runs that were used.
        memory: the memory that the candidate may use.
        turns: what each run waits for and holds.
        may_run: whether a result that is not stored is run; otherwise it raises `NotStoredError`.
    """

    writer: ModelWriter
    log: RunLog
    memory: MemoryLimit
    turns: Turns
    may_run: bool

    @property
    def model(self) -> ReferenceModel:
        """The model on the reference."""
        return self.writer.model

    @property
    def runtime(self) -> CandidateRuntime:
        """The runtime under test."""
        return self.writer.runtime

    @cached_property
    def candidate_key(self) -> CandidateKey:
        """The cache key of the candidate."""
        identity = self.runtime.candidate.identity(self.runtime.about.version)
        return CandidateKey(self.model.store, identity)

    def key(self, job: RegionJob, records: Feeds) -> str:
        """Return the store key of a result.

        A hash of the region and the values that enter it, the candidate with its limits and
        version, the repetition, and whether the process had run nothing before.
        """
        return self._make_key(job, self.writer.key(job.form, job.region, records), job.fresh)

    def _make_key(self, job: RegionJob, input_key: str, fresh: bool) -> str:
        other = self.runtime.own_model
        more = [other.identity] if other else []
        more += [f"run {job.pass_number}"] if job.pass_number > 1 else []
        candidate = self.candidate_key.text
        return digest("trial/2", input_key, candidate, job.repetition, fresh, *more)

    def run(self, job: RegionJob) -> RunResult:
        """Run a region in one form, or load the stored result.

        Raises:
            NotStoredError: the result is not stored, and nothing may be run.
            BackendError: the candidate cannot be used at all.
            ModelError: the reference cannot provide the values.
        """
        values = self.model.values
        own_model = self.runtime.own_model
        groups: list[tuple[list[int], Feeds]]
        groups = [(list(range(len(values.samples))), values.records)]  # the user's file serves all
        if job.form is not Form.SHIPPED:
            groups = self.model.sample_groups(job.region, job.feeds)
        parts = []
        for samples, records in groups:
            input_key = self.writer.key(job.form, job.region, records)
            keys = list_keys(partial(self._make_key, job, input_key), fresh=job.fresh)
            run = partial(self._run_in_worker, job, records)
            try:
                result, stored_key = load_or_run(self.model.store, keys, run)
            except (ModelError, NoRegion) as e:
                if not own_model:
                    raise
                return make_unresolved(e.what)  # its own model has no such region
            self.log.made[stored_key] = result.made
            values.watched.add(result.files)
            if own_model:
                translate = partial(
                    translate_result,
                    own_model,
                    job.region,
                    reference_values=records,
                    new_folder=self.model.new_folder,
                )
                result = result.change(translate)
            if result.failure:
                return self.memory.result_beyond(job.region, result.failure) or result
            parts.append((samples, result))
        return merge(parts, len(values.samples))

    def _run_in_worker(self, job: RegionJob, records: Feeds, into: Path) -> RunResult:
        """Write the model, build and run it in a worker; the files of the result are in `into`."""
        if not self.may_run:
            raise NotStoredError
        with self.model.make_temporary_folder() as folder:
            feeds, outputs = self.writer.write(job.form, job.region, records, folder)
            options = self.runtime.candidate.options
            passes = job.pass_number
            if self.runtime.candidate.runs_commands:  # a command starts one process per run
                passes = 1
            elif job.feeds is None and job.region == self.model.whole():
                passes = MODEL_PASSES
            worker_job = Job(
                folder / "model.onnx", feeds, outputs, into, job.fresh, options, passes
            )
            return self.runtime.workers.run(worker_job, self.turns)
