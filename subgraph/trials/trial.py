"""Region -> Verdict: run a region on the candidate, fed with reference values, and judge what it returns.

The store keeps run results, not verdicts: judging by another criterion needs no new run. One trial covers all samples;
samples that differ in shapes or frozen values are run with cuts of their own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.bodies.as_loop import save_as_loop
from subgraph.comparison.criteria import OutputContext, Rule
from subgraph.comparison.judge import judge, judge_missing, judge_nothing
from subgraph.comparison.noise.batch import BatchNoise, batched, of_sample
from subgraph.comparison.where import compared, limited
from subgraph.errors import BackendError, InputError, ModelError
from subgraph.graph import protobuf
from subgraph.graph.cut import Cut
from subgraph.graph.graph import CONSTANT
from subgraph.graph.quantization import quantizes_itself
from subgraph.graph.region import Region
from subgraph.origins import load as load_origin
from subgraph.precision import Precision
from subgraph.results.common import ScoreDocument
from subgraph.runtime.cached_runs import keys_to_try, load_or_run
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.run_result import Feeds, Job, RunResult, merge, unresolved
from subgraph.runtime.stretches.model import held_bytes, raw_bytes
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.digest import digest
from subgraph.storage.store import Store
from subgraph.storage.tensors import Record
from subgraph.text import from_run
from subgraph.trials.candidate_model import CandidateModel
from subgraph.trials.forms import Form, FormsTried, ShippedModel, shipped_model
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.score import ByScore
from subgraph.types import Array
from subgraph.verdict import Judgement, Signature, Status, Verdict, joined
from subgraph.version import __version__

NO_VALUES = (Signature.MISSING, Signature.SHAPE)  # of an output that no score can be given
PASSES = 3  # of all samples, in which the whole is run in one session


class NotStored(Exception):
    """A result would have to be run."""


class CandidateKey:
    """What the stored answers of a candidate are found by: all that is known of it without a run, and how many times
    its answers were dropped. Each time left an entry in the store, which reading keeps."""

    def __init__(self, store: Store, identity: Mapping[str, Any]) -> None:
        self._store, self._identity = store, identity
        self._dropped = next(n for n in itertools.count() if store.get(self._entry(n)) is None)

    def _entry(self, generation: int) -> str:
        return digest("dropped", self._identity, generation)

    @property
    def text(self) -> str:
        """The key: another one after `drop`."""
        return digest("candidate", self._identity, self._dropped)

    def drop(self) -> None:
        """Use no answer any more that has been stored so far, of any model."""
        self._store.put(self._entry(self._dropped), {}, self._store.new_folder())
        self._dropped += 1


@dataclass(kw_only=True)
class Trials(ReferenceModel):
    """One candidate, asked about regions of one model. Several threads may share it.

    Attributes:
        rule: the criterion that judges. criterion: its words, as it was asked for.
        score: what judges the outputs of the whole model in its place, where a score of the task does.
        candidate_model: the model that the candidate runs, where it is another one.
        as_loop: is the candidate given the nodes of a cut as the body of a Loop of one iteration?
        only_stored: nothing is run on the candidate: where a result is not stored, `NotStored` is raised.
        form: in which the whole model is run. forms: the verdicts on the forms that its first run tried.
        extra_runs, extra_nodes: trials that only `run_extra` asked for, and their nodes.
        seen_keys: store keys of all results, run or loaded, with the time at which each was run.
        began: when the session began, in seconds since 1970.
        nth_run: which run of a session is judged: the first, or that from which on the whole goes wrong.
        run_by_hand: gives results in place of the workers, where a person runs the candidate.
    """

    candidate: Candidate
    workers: Workers
    rule: Rule
    criterion: str = ""
    score: ByScore | None = None
    candidate_model: CandidateModel | None = None
    as_loop: bool = False
    only_stored: bool = False
    form: Form = Form.SHIPPED
    forms: FormsTried = field(default_factory=FormsTried, init=False)
    extra_runs: int = 0
    extra_nodes: int = 0
    seen_keys: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    nth_run: int = 1
    run_by_hand: Callable[[Region, Feeds | None], RunResult] | None = None
    _outgrown: dict[tuple[int, ...], str] = field(default_factory=dict)

    @cached_property
    def about(self) -> BackendInfo:
        """What the backend says about itself, with the candidate's options."""
        return self.workers.about()

    @property
    def precision(self) -> Precision:
        """The precision that the candidate claims to compute in. int8 says nothing where the model is quantized: that
        comes from its own steps, and the rest is as precise as any."""
        of_model = self.candidate_model.precision if self.candidate_model else None
        claim = Precision(self.candidate.precision or of_model or self.about.precision)
        return Precision.FP32 if claim is Precision.INT8 and self.by_own_steps else claim

    @cached_property
    def by_own_steps(self) -> bool:
        """Do both sides run the same model, and does it quantize what it computes?"""
        return not self.candidate_model and quantizes_itself(self.graph)

    @property
    def multi(self) -> bool:
        """Does the candidate take several disconnected cuts in one model?"""
        declared = self.candidate.multi
        return self._plain and bool(self.about.multi if declared is None else declared)

    @property
    def pools(self) -> bool:
        """As `multi`, or is it a runtime of ours, which is likely to? Code of a user's may go by the names of nodes."""
        of_user = self.candidate.runs_commands or self.candidate.script or self.run_by_hand
        return self.multi or (self._plain and self.candidate.multi is None and not of_user)

    @property
    def _plain(self) -> bool:
        """Is a cut given to the candidate as it is? Only such can be merged."""
        return not (self.candidate_model or self.as_loop or self.nth_run > 1)

    @property
    def comparable(self) -> Collection[str] | None:
        return self.candidate_model.matches if self.candidate_model else self.shared_tensors

    # ------------------------------------------------------------------------------------------------ trials

    def verdict(self, region: Region, *, repetition: int = 0, fresh: bool = False) -> Verdict:
        """Does the candidate agree with the reference on this region, fed with reference values?

        `fresh`: in a process that has run nothing before. `repetition`: a new run, whatever is stored of lower ones.

        Raises:
            BackendError: the candidate cannot be used at all. ModelError: the reference cannot give the values.
        """
        return self.verdict_of(region, self.run(region, repetition=repetition, fresh=fresh))

    def run(self, region: Region, feeds: Feeds | None = None, *, repetition: int = 0, fresh: bool = False) -> RunResult:
        """The candidate's outputs of a region. Tensors in `feeds` replace the reference values that enter it.

        Raises: as `verdict`.
        """
        self.capture(region)
        if self.run_by_hand:
            return self.run_by_hand(region, feeds)
        if why := self.too_large(region) or (self.candidate_model.problem(region) if self.candidate_model else ""):
            return unresolved(why)
        form = self.form_of(region) if feeds is None else Form.CUT
        result = self._run_as(form, region, feeds, repetition, fresh)
        if form is Form.SHIPPED and not self.forms.verdicts:
            result = self._try_forms(region, result, repetition, fresh)
        if self.nth_run == 1 and result.later:
            self.nth_run = self._first_wrong(region, result)
        return result.nth(self.nth_run)

    def _first_wrong(self, region: Region, result: RunResult) -> int:
        """The run of a session from which on a region goes wrong, where the first one is right; else 1."""
        passes = range(2, len(result.later) + 2)
        return next((n for n in passes if self.verdict_of(region, result.nth(n)).from_run), 1)

    def run_extra(
        self, region: Region, feeds: Feeds | None = None, *, repetition: int = 0, fresh: bool = False
    ) -> RunResult:
        """As `run`, for a run that only explains another one: counted in `extra_runs`, not as a trial."""
        return self._as_extra(region, partial(self.run, region, feeds, repetition=repetition, fresh=fresh))

    def _as_extra(self, region: Region, run: Callable[[], RunResult]) -> RunResult:
        before = len(self.seen_keys)
        result = run()
        if len(self.seen_keys) > before:
            self.extra_runs += 1
            self.extra_nodes += len(region.nodes)
        return result

    # ------------------------------------------------------------------------------------------------ memory

    def too_large(self, region: Region) -> str:
        """Why the candidate is not given a region: with its weights it would exceed its memory. "" if it is."""
        room, graph = self.workers.memory, self.graph
        if region.nodes in self._outgrown:
            return self._outgrown[region.nodes]
        if room is None or self.run_by_hand or self.candidate_model or self._weights_held <= room:
            return ""
        needed = sum(self._held(graph.weights[n]) for n in region.weights if n in graph.weights)
        if needed <= room:
            return ""
        return f"its weights take about {needed >> 20} MiB, the candidate may use {room >> 20}: it was not run"

    def _unless_outgrown(self, region: Region, failure: Verdict) -> RunResult | None:
        """Nothing is known of a candidate that was stopped at `--memory`, which is no limit of its own."""
        if self.candidate.memory is None or self.candidate.memory != self.reference.limit:
            return None
        if failure.signature is not Signature.CRASH or "memory" not in failure.process:
            return None
        self._outgrown[region.nodes] = f"at --memory, {failure.why}"
        return unresolved(self._outgrown[region.nodes])

    @cached_property
    def _weights_held(self) -> int:
        """Bytes of memory that all weights take."""
        return sum(map(self._held, self.graph.weights.values()))

    def _held(self, weight: protobuf.TensorProto) -> int:
        """Bytes of memory that a weight takes in the candidate at least."""
        return held_bytes(weight) if self.candidate.can.half_as_float else raw_bytes(weight)

    # ------------------------------------------------------------------------------------------------ running

    def form_of(self, region: Region) -> Form:
        """How the candidate is given a region."""
        if region.nodes != self._whole.nodes:
            return Form.CUT
        return Form.PINNED if self.run_by_hand or region != self._whole or not self._shipped else self.form

    @cached_property
    def _shipped(self) -> ShippedModel | None:
        return None if self.as_loop else shipped_model(self.graph, self._whole, self.candidate_model)

    def _try_forms(self, whole: Region, result: RunResult, repetition: int, fresh: bool) -> RunResult:
        """The whole was run as shipped. If it was refused, or goes wrong with open dimensions: is it otherwise with
        shapes pinned? Where only that form gives outputs, it is the whole from now on."""
        verdict = self.forms.verdicts[Form.SHIPPED] = self.verdict_of(whole, result)
        if not (self._shipped and self._shipped.other_form_tells_more(verdict)):
            return result
        pinned = self._as_extra(whole, partial(self._run_as, Form.PINNED, whole, None, repetition, fresh))
        self.forms.verdicts[Form.PINNED] = self.verdict_of(whole, pinned)
        self.form = Form.PINNED if result.failure and not pinned.failure else Form.SHIPPED
        return pinned if self.form is Form.PINNED else result

    def _run_as(self, form: Form, region: Region, feeds: Feeds | None, repetition: int, fresh: bool) -> RunResult:
        """Run a region in one of the forms, or load what is stored of it."""
        parts = []
        every = [(list(range(len(self.values.samples))), self.values.records)]  # one file serves all samples
        for samples, records in every if form is Form.SHIPPED else self.sample_groups(region, feeds):
            key = partial(self._key, self._input_key(form, region, records), repetition)
            run = partial(self._run_model, form, region, records, fresh, self._passes(region, feeds))
            try:
                result, stored_key = load_or_run(self.store, keys_to_try(key, fresh=fresh), run)
            except ModelError as e:
                if not self.candidate_model:
                    raise
                return unresolved(e.what)  # it has no such piece
            self.seen_keys[stored_key] = result.made
            self.values.watched.add(_files(result))
            if other := self.candidate_model:
                translate = partial(other.translated, region, reference_values=records, new_folder=self.new_folder)
                result = result.changed(translate)
            if result.failure:
                return self._unless_outgrown(region, result.failure) or result
            parts.append((samples, result))
        return merge(parts, len(self.values.samples))

    def _passes(self, region: Region, feeds: Feeds | None) -> int:
        """How many times all samples are run in one session. A command's runs are processes of their own."""
        if self.candidate.runs_commands:
            return 1
        return PASSES if feeds is None and region == self._whole else self.nth_run

    def _run_model(self, form: Form, region: Region, records: Feeds, fresh: bool, passes: int, into: Path) -> RunResult:
        """Write the model, build and run it in a worker; the result's files lie in `into`."""
        if self.only_stored:
            raise NotStored
        with self.temporary_folder() as folder:
            if form is Form.SHIPPED and self._shipped:
                feeds, outputs = self._shipped.write(records, folder)
            else:
                cut, feeds = self.write_cut(region, records, folder)
                outputs = cut.outputs
            if not self.candidate.can.tflite_operators:
                load_origin.write_own_format(folder / "model.onnx", folder)
            options = self.candidate.options
            return self.workers.run(Job(folder / "model.onnx", feeds, outputs, into, fresh, options, passes))

    def write_cut(self, region: Region, records: Feeds, folder: Path) -> tuple[Cut, list[list[Record]]]:
        """What the candidate is given: the cut, as `model.onnx` in `folder`, and the tensors that it is fed per sample.

        Raises:
            ModelError: the candidate's own model has no such region.
        """
        if self.candidate_model:
            cut, feeds = self.candidate_model.cut(region, records, folder)
        else:
            cut = self.cut(region, records)
            feeds = [[sample[n] for n in cut.inputs] for sample in records]
        save = save_as_loop if self.as_loop else Cut.save
        save(cut, folder / "model.onnx")
        return cut, feeds

    # ------------------------------------------------------------------------------------------------ store keys

    @cached_property
    def candidate_key(self) -> CandidateKey:
        """What stored answers are found by, beside what was run."""
        return CandidateKey(self.store, self.candidate.identity(self.about.version))

    def key(self, region: Region, records: Feeds, repetition: int = 0, *, fresh: bool = False) -> str:
        """The store key of a result.

        A hash of the region and the values that enter it, the candidate with its limits and version, the repetition,
        and whether the process had run nothing before.
        """
        return self._key(self._input_key(self.form_of(region), region, records), repetition, fresh)

    def _key(self, input_key: str, repetition: int, fresh: bool) -> str:
        other = [self.candidate_model.identity] if self.candidate_model else []
        nth = [] if self.nth_run == 1 else [f"run {self.nth_run}"]
        return digest("trial/2", input_key, self.candidate_key.text, repetition, fresh, *other, *nth)

    def _input_key(self, form: Form, region: Region, records: Feeds) -> str:
        """A hash of what the candidate is given: a file or a cut, and the values that enter it."""
        if form is Form.SHIPPED and self._shipped:
            values = [self.values.digest([sample[n] for n in self.graph.inputs]) for sample in records]
            return digest(__version__, self._shipped.key, *values, *self.choice.ignored)
        return self.region_key(region, records, *["as_loop"] * self.as_loop)

    # ------------------------------------------------------------------------------------------------ judging

    def verdict_of(self, region: Region, result: RunResult) -> Verdict:
        """The verdict on a run result: each output of each sample compared with the reference's value."""
        verdict = self._verdict_of(region, result)
        if not result.first or verdict.status is not Status.FAIL:
            return verdict
        first = self._verdict_of(region, result.first)
        right = {(j.name, j.sample) for j in first.outputs if j.status is Status.AGREE}
        wrong = {(j.name, j.sample) for j in verdict.outputs if j.status is Status.FAIL}
        if first.status is Status.FAIL and not wrong & right:
            return verdict
        why = f"{from_run(result.number)}: {verdict.why}"
        return replace(verdict, why=why, from_run=result.number)

    @contextmanager
    def undamaged(self, region: Region, *results: RunResult) -> Iterator[None]:
        """A block that compares runs by files of subcut, which the candidate may have written over while it ran.

        Raises:
            BackendError: it has, or another program.
        """
        hint = "a candidate may write into folders of its own only; what was damaged is made again"
        try:
            yield
        except InputError as e:  # whatever is read here, subcut has written
            raise BackendError(f"a file of subcut is damaged or gone since it was written: {e.what}", hint) from e
        boundary = (*region.inputs, *region.shapes, *region.outputs)
        fed = (f for records in self.values.records for n in boundary if n in records for f in records[n].files)
        if file := self.values.watched.changed(itertools.chain(fed, *map(_files, results))):
            what = f"while the candidate ran, something wrote over {file}: nothing that was compared can be believed"
            raise BackendError(what, hint)

    def _verdict_of(self, region: Region, result: RunResult) -> Verdict:
        with self.undamaged(region, result):
            return self._judge(region, result)

    def score_of(self, result: RunResult, verdict: Verdict) -> ScoreDocument | None:
        """What the score says of the whole; None where none judges, or the candidate gave no values for it."""
        lacks = result.failure or any(j.signature in NO_VALUES for j in verdict.outputs)
        return self.score.document(result.tensors) if self.score and not lacks else None

    def restored_verdict(self, result: RunResult) -> Verdict:
        """The verdict on outputs of the whole model a part of which the reference computed. By a score it is that on
        these samples: what remains of an error is no claim about others."""
        whole = self.whole()
        with self.undamaged(whole, result):
            return self._judge(whole, result, on_others=False)

    def _judge(self, region: Region, result: RunResult, *, on_others: bool = True) -> Verdict:
        if result.failure:
            return replace(result.failure, stored=result.stored)
        expected = self._expected(region)
        judgements = tuple(j for k, records in enumerate(expected) for j in self._judged(region, result, records, k))
        if self.score and region == self._whole and not any(j.signature in NO_VALUES for j in judgements):
            return self.score.verdict(result, judgements, on_others=on_others)
        judgements += tuple(self._judged_as_batch(region, result, expected))
        status, signature, why = joined(judgements, every=region == self._whole)
        return Verdict(status, signature, why, judgements, {}, result.build, result.run, result.stored)

    def _expected(self, region: Region) -> Feeds:
        """The reference's outputs of a region; of what the candidate is fed, where its model cannot hold what came."""
        records, other = self.values.records, self.candidate_model
        if not other or region == self._whole or other.problem(region):
            return records
        changed = other.coarser_inputs(region, records, self.precision, self.new_folder)
        try:
            return self.values_with(self.run_on_reference(region, changed)) if changed else records
        except ModelError:
            return records

    def _judged(self, region: Region, result: RunResult, records: Mapping[str, Record], k: int) -> Iterator[Judgement]:
        sample, other, kinds = self.values.labels[k], self.candidate_model, self.graph.kinds(region.outputs)
        noise = self.noise(region, k)
        for name in (n for n in region.outputs if kinds[n] != CONSTANT and n not in self._left_out):
            if name not in result.tensors[k]:
                yield judge_missing(name, result.others[k], sample)
                continue
            # a file just written is still in memory: mapping it copies nothing
            value = result.tensors[k][name].value(mapped=not result.stored)
            half_step = other.half_step(name) if other else 0.0
            samples, of_model = len(self.values.samples), name in self.graph.outputs
            context = OutputContext(name, self.precision, noise.of(name), of_model, half_step, samples)
            reference, mask = records[name].value(), self.mask(name, k, result.tensors[k])
            if mask is not None and not mask.any():
                yield judge_nothing(name, "no element fulfils what --where asks for", sample)
                continue
            if mask is not None and isinstance(reference, np.ndarray) and isinstance(value, np.ndarray):
                reference, value = limited(reference, value, mask)
            yield judge(reference, value, self.rule, context, sample)

    @cached_property
    def _left_out(self) -> frozenset[str]:
        """Outputs that are ignored and that no node reads which another one needs."""
        return frozenset(self.choice.ignored).difference(*(self.graph.reads[i] for i in self._whole.nodes))

    def mask(self, name: str, k: int, given: Mapping[str, Record]) -> Array | None:
        """Where an output of the model is compared in sample `k`, booleans of its shape; None: everywhere.

        Raises:
            UsageError: the shape of a condition does not fit.
        """
        if not self.choice.where or name not in self.graph.outputs:
            return None
        self.values.need([one.name for one in self.choice.where])
        return compared(self.choice.where, name, self.values.records[k], given)

    def _judged_as_batch(self, region: Region, result: RunResult, expected: Feeds) -> Iterator[Judgement]:
        """Outputs of the model of a few numbers, all samples as one tensor: each element has a scale of its own. Only
        what is not right there tells more than the samples alone."""
        if self.criterion.partition(":")[0] != "noise" or self.choice.where:
            return
        for name in (n for n in region.outputs if n in self.outputs):
            made = [tensors[name].value() if name in tensors else None for tensors in result.tensors]
            reference, candidate = batched([records[name].value() for records in expected]), batched(made)
            if reference is None or candidate is None:
                continue
            noise = BatchNoise([self.noise(region, k).of(name) for k in range(len(expected))])
            context = OutputContext(name, self.precision, noise, True, samples=len(expected))
            found = judge(reference, candidate, self.rule, context)
            if found.status is not Status.AGREE:
                yield of_sample(found, expected[0][name].shapes[0], self.values.labels)


def _files(result: RunResult) -> Iterator[str]:
    """The files of all passes of a run."""
    for one in (result, *result.later):
        for tensors in one.tensors:
            for record in tensors.values():
                yield from record.files
