"""Region -> Verdict: run a region on the candidate, fed with reference values, and judge what it returns.

The store keeps run results, not verdicts: judging by another criterion needs no new run. One trial covers all samples;
samples that differ in shapes or frozen values are run with cuts of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from subgraph.bodies.as_loop import save_as_loop
from subgraph.comparison.criteria import Rule
from subgraph.comparison.judge import judge, judge_missing
from subgraph.comparison.noise.noise import RegionNoise
from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.graph.cut import Cut, cut_region, freezable
from subgraph.graph.graph import CONSTANT, SHAPE, Graph
from subgraph.graph.region import Region
from subgraph.origins import load as load_origin
from subgraph.runtime.cached_runs import keys_to_try, load_or_run
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.protocol import BackendInfo
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.run_result import Feeds, RunResult, merge
from subgraph.runtime.stretches.model import held_bytes, raw_bytes
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.digest import digest
from subgraph.storage.store import Store
from subgraph.storage.tensors import Record, load
from subgraph.trials.candidate_model import CandidateModel
from subgraph.trials.forms import Form, ShippedModel, shipped_model
from subgraph.verdict import Judgement, Signature, Status, Verdict, joined
from subgraph.version import __version__

STOPPED_FOR_MEMORY = re.compile(r"was stopped at \d+ MiB, above")  # by `runtime.worker`


class NotStored(Exception):
    """A result would have to be run."""


@dataclass
class Trials:
    """One candidate, asked about regions of one model. Several threads may share it.

    Attributes:
        rule: the criterion that judges.
        scratch: a folder for files that live as long as the session.
        freeze: tensors that compute shapes become constants in the cuts.
        known: tensors of which each side has values, where one of them has some only.
        roundings: runs the model itself, where the reference is what the model was made from.
        candidate_model: the model that the candidate runs, where it is another one.
        form: in which the whole model is run. forms: the verdicts on the forms that its first run tried.
        runs: models that were run on the candidate; compiled_nodes: nodes in them.
        extra_runs, extra_nodes: trials that only `run_extra` asked for, and their nodes.
        seen_keys: store keys of all results, run or loaded, with the time at which each was run.
        began: when the session began, in seconds since 1970.
        only_stored: nothing is run on the candidate: where a result is not stored, `NotStored` is raised.
        as_loop: is the candidate given the nodes of a cut as the body of a Loop of one iteration?
        run_by_hand: returns results in place of the workers. `dataclasses.replace` does not copy it: another candidate
            runs by itself.
    """

    graph: Graph
    candidate: Candidate
    workers: Workers
    reference: Reference
    values: ReferenceValues
    store: Store
    rule: Rule
    scratch: Path
    freeze: bool = True
    candidate_model: CandidateModel | None = None
    form: Form = Form.SHIPPED
    forms: dict[Form, Verdict] = field(default_factory=dict, init=False)
    runs: int = 0
    compiled_nodes: int = 0
    extra_runs: int = 0
    extra_nodes: int = 0
    judging_seconds: float = 0.0
    seen_keys: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    only_stored: bool = False
    known: frozenset[str] | None = None
    roundings: Reference | None = None
    as_loop: bool = False
    run_by_hand: Callable[[Region, Feeds | None], RunResult] | None = field(default=None, init=False)
    _outgrown: dict[tuple[int, ...], str] = field(default_factory=dict)
    _weight_digests: dict[str, str] = field(default_factory=dict)
    _noise: dict[Any, tuple[RegionNoise, threading.Lock]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @cached_property
    def about(self) -> BackendInfo:
        """What the backend says about itself, with the candidate's options."""
        return self.workers.about()

    @property
    def precision(self) -> str:
        """The precision that the candidate claims to compute in."""
        of_model = self.candidate_model.precision if self.candidate_model else None
        return str(self.candidate.precision or of_model or self.about.precision)

    @property
    def multi(self) -> bool:
        """Does the candidate take several disconnected cuts in one model?"""
        if self.candidate_model:
            return False  # `graph.merged_cuts` merges cuts of the reference's model only
        if self.as_loop:
            return False
        return bool(self.about.multi if self.candidate.multi is None else self.candidate.multi)

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
        if why := self.too_large(region):
            return RunResult(failure=Verdict(Status.UNRESOLVED, None, why))
        if self.candidate_model and (problem := self.candidate_model.problem(region)):
            return RunResult(failure=Verdict(Status.UNRESOLVED, None, problem))
        form = self.form_of(region) if feeds is None else Form.CUT
        result = self._run_as(form, region, feeds, repetition, fresh)
        begins = form is Form.SHIPPED and not self.forms
        return self._try_forms(region, result, repetition, fresh) if begins else result

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
        if failure.signature is not Signature.CRASH or not STOPPED_FOR_MEMORY.search(failure.why):
            return None
        self._outgrown[region.nodes] = f"at --memory, {failure.why}"
        return RunResult(failure=Verdict(Status.UNRESOLVED, None, self._outgrown[region.nodes]))

    @cached_property
    def _weights_held(self) -> int:
        """Bytes of memory that all weights take."""
        return sum(map(self._held, self.graph.weights.values()))

    def _held(self, weight: protobuf.TensorProto) -> int:
        """Bytes of memory that a weight takes in the candidate at least."""
        return held_bytes(weight) if self.candidate.backend == "ort" else raw_bytes(weight)

    def form_of(self, region: Region) -> Form:
        """How the candidate is given a region."""
        if region.nodes != self._whole.nodes:
            return Form.CUT
        return Form.PINNED if self.run_by_hand or region != self._whole or not self._shipped else self.form

    def _try_forms(self, whole: Region, result: RunResult, repetition: int, fresh: bool) -> RunResult:
        """The whole was run as shipped. If it was refused, or goes wrong with open dimensions: is it otherwise with
        shapes pinned? Where only that form gives outputs, it is the whole from now on."""
        verdict = self.forms[Form.SHIPPED] = self.verdict_of(whole, result)
        if not (self._shipped and self._shipped.other_form_tells_more(verdict)):
            return result
        pinned = self._as_extra(whole, partial(self._run_as, Form.PINNED, whole, None, repetition, fresh))
        self.forms[Form.PINNED] = self.verdict_of(whole, pinned)
        self.form = Form.PINNED if result.failure and not pinned.failure else Form.SHIPPED
        return pinned if self.form is Form.PINNED else result

    @cached_property
    def _shipped(self) -> ShippedModel | None:
        return None if self.as_loop else shipped_model(self.graph, self._whole, self.candidate_model)

    def _run_as(self, form: Form, region: Region, feeds: Feeds | None, repetition: int, fresh: bool) -> RunResult:
        """Run a region in one of the forms, or load what is stored of it."""
        parts = []
        every = [(list(range(len(self.values.samples))), self.values.records)]  # one file serves all samples
        for samples, records in every if form is Form.SHIPPED else self.sample_groups(region, feeds):
            key = partial(self._key, self._region_key(region, records, form), repetition)
            run = partial(self._run_model, form, region, records, fresh)
            try:
                result, stored_key = load_or_run(self.store, keys_to_try(key, fresh=fresh), run)
            except ModelError as e:
                if not self.candidate_model:
                    raise
                return RunResult(failure=Verdict(Status.UNRESOLVED, None, e.what))  # it has no such piece
            self.seen_keys[stored_key] = result.made
            if self.candidate_model:
                result = self.candidate_model.translated(region, result, records, self.new_folder)
            if result.failure:
                return self._unless_outgrown(region, result.failure) or result
            parts.append((samples, result))
        return merge(parts, len(self.values.samples))

    def drop_stored(self) -> None:
        """Use no answer of this candidate any more that has been stored so far, of any model."""
        self.store.put(self._generation_key(self._generation), {}, self.store.new_folder())
        self.__dict__.pop("_generation")
        self.__dict__.pop("candidate_key", None)

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

    def run_on_reference(self, region: Region, feeds: Feeds | None = None) -> list[Mapping[str, Record]]:
        """The reference's outputs of a region that is fed as in `run`; the files live as long as the session.

        Raises:
            ModelError: the reference cannot run the region on these values.
        """
        outputs: list[Mapping[str, Record]] = [{}] * len(self.values.samples)
        for samples, records in self.sample_groups(region, feeds):
            cut = self.cut(region, records)
            stems = {name: f"o{i}" for i, name in enumerate(cut.outputs)}
            with self.temporary_folder() as folder, self.reference.exclusive():
                self.reference.load_model(folder.name, cut.model, self.graph.path, folder)
                for k, sample in zip(samples, records, strict=True):
                    into = self.new_folder()
                    run = self.reference.run(folder.name, into, stems, [sample[n] for n in cut.inputs])
                    outputs[k] = {r.name: r.within(str(into)) for r in run.tensors}
                self.reference.drop(folder.name)
        return outputs

    # ------------------------------------------------------------------------------------------------ regions

    def whole(self, outputs: Collection[str] = ()) -> Region:
        """The whole model, with these tensors as further outputs."""
        return self._above_outputs(outputs) if outputs else self._whole

    @cached_property
    def _whole(self) -> Region:
        return self._above_outputs(())

    def _above_outputs(self, further: Collection[str]) -> Region:
        graph = self.graph
        outputs = [*(n for n in graph.outputs if n in graph.maker), *further]
        region = regions.of_nodes(graph, graph.ancestors(graph.maker[n] for n in outputs), [(n,) for n in outputs])
        # without what only nodes that no output needs read
        return replace(region, outputs=tuple(n for n in region.outputs if n in outputs))

    @property
    def comparable(self) -> Collection[str] | None:
        """Tensors of which both sides have values; None for all."""
        return self.candidate_model.matches if self.candidate_model else self.known

    def tensors(self) -> list[str]:
        """Every tensor whose value depends on more than shapes and that an output needs, in topological order."""
        whole = self.whole()
        names = [n for i in whole.nodes for n in self.graph.makes[i]]
        kinds = self.graph.kinds(names)
        read = {n for i in whole.nodes for n in self.graph.reads[i]} | set(self.graph.outputs)
        known = kinds.keys() if self.comparable is None else self.comparable
        return [n for n in names if kinds[n] not in (CONSTANT, SHAPE) and n in read and n in known]

    # ------------------------------------------------------------------------------------------------ running

    def cuts(self, region: Region, feeds: Feeds | None = None) -> list[tuple[list[int], Cut]]:
        """The cuts that `run` runs, each with the samples that it serves.

        Raises:
            ModelError: the region cannot be cut, or the reference cannot give the values.
        """
        groups = self.sample_groups(region, feeds)
        return [(samples, self.cut(region, records)) for samples, records in groups]

    def sample_groups(self, region: Region, feeds: Feeds | None = None) -> list[tuple[list[int], Feeds]]:
        """Samples that one cut serves, by index, with their tensors: equal input shapes, equal frozen values."""
        self.capture(region)
        known = self.values.records
        records = known if feeds is None else [{**k, **f} for k, f in zip(known, feeds, strict=True)]
        groups: dict[Any, tuple[list[int], list[Mapping[str, Record]]]] = {}
        for k, sample in enumerate(records):
            shapes = tuple(sample[n].shapes for n in region.inputs)
            frozen = freezable(region, [sample]) if self.freeze and len(records) > 1 else ()
            values = tuple(self.values.digest([sample[n]])[0] for n in frozen)
            samples, tensors = groups.setdefault((shapes, values), ([], []))
            samples.append(k)
            tensors.append(sample)
        return list(groups.values())

    def capture(self, region: Region) -> None:
        """Have the reference compute the values at a region's boundary, unless they are known.

        Raises:
            InputError: an input does not fit. ModelError: the reference cannot run the model. WorkerDied: it crashed.
        """
        self.values.need([*region.inputs, *region.shapes, *region.outputs])

    def cut(self, region: Region, records: Feeds) -> Cut:
        """The cut that serves samples of one group."""
        return cut_region(self.graph, region, records, Path("/"), freeze=self.freeze)

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

    def _run_model(self, form: Form, region: Region, records: Feeds, fresh: bool, into: Path) -> RunResult:
        """Write the model, build and run it in a worker; the result's files lie in `into`."""
        if self.only_stored:
            raise NotStored
        with self.temporary_folder() as folder:
            if form is Form.SHIPPED and self._shipped:
                feeds, outputs, nodes = self._shipped.write(records, folder)
            else:
                cut, feeds = self.write_cut(region, records, folder)
                outputs, nodes = cut.outputs, len(cut.region.nodes) + len(cut.region.pulled)
            if self.candidate.backend != "litert":
                load_origin.write_own_format(folder / "model.onnx", folder)
            self.count_run(nodes)
            options = self.candidate.options
            return self.workers.run(folder / "model.onnx", feeds, outputs, into, fresh=fresh, options=options)

    def count_run(self, nodes: int) -> None:
        """Count one run of a model of so many nodes."""
        with self._lock:
            self.runs += 1
            self.compiled_nodes += nodes

    def new_folder(self) -> Path:
        """A new folder that lives as long as the session."""
        return Path(tempfile.mkdtemp(prefix="trial-", dir=self.scratch))

    @contextlib.contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """A new folder that lives as long as the block."""
        with tempfile.TemporaryDirectory(prefix="trial-", dir=self.scratch, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    # ------------------------------------------------------------------------------------------------ store keys

    def key(self, region: Region, records: Feeds, repetition: int = 0, *, fresh: bool = False) -> str:
        """The store key of a result.

        A hash of the region and the values that enter it, the candidate with its limits and version, the repetition,
        and whether the process had run nothing before.
        """
        return self._key(self._region_key(region, records, self.form_of(region)), repetition, fresh)

    def _key(self, region_key: str, repetition: int, fresh: bool) -> str:
        other = [self.candidate_model.identity] if self.candidate_model else []
        return digest("trial/2", region_key, self.candidate_key, repetition, fresh, *other)

    @cached_property
    def candidate_key(self) -> str:
        """What stored answers are found by: another one after `drop_stored`."""
        return digest("candidate", self._identity, self._generation)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return self.candidate.identity(self.about.version)

    @cached_property
    def _generation(self) -> int:
        """How many times the candidate's stored answers were dropped. Each time left an entry, which reading keeps."""
        return next(n for n in itertools.count() if self.store.get(self._generation_key(n)) is None)

    def _generation_key(self, generation: int) -> str:
        return digest("dropped", self._identity, generation)

    def _region_key(self, region: Region, records: Feeds, form: Form = Form.CUT) -> str:
        """A hash of the model's structure, the region's weights, boundary and values, fed and frozen; or of a file."""
        if form is Form.SHIPPED and self._shipped:
            values = [self.values.digest([sample[n] for n in self.graph.inputs]) for sample in records]
            return digest(__version__, self._shipped.key, *values)
        entering = [*region.inputs, *region.shapes]
        return digest(
            __version__,
            self.graph.skeleton.structure,
            [self._weight_digest(name) for name in region.weights],
            list(region.nodes),
            entering,
            list(region.outputs),
            self.freeze,
            *["as_loop"] * self.as_loop,
            *(self.values.digest([sample[n] for n in entering]) for sample in records),
        )

    def _weight_digest(self, name: str) -> str:
        """Of a weight in the file's raw data; smaller ones are part of the structure's digest: ""."""
        if name not in self._weight_digests:
            tensor = self.graph.weights.get(name)
            on_disk = tensor is not None and protobuf.on_disk(tensor)
            self._weight_digests[name] = protobuf.weights_digest([tensor], self.graph.path) if on_disk else ""
        return self._weight_digests[name]

    # ------------------------------------------------------------------------------------------------ judging

    def verdict_of(self, region: Region, result: RunResult) -> Verdict:
        """The verdict on a run result: each output of each sample compared with the reference's value."""
        if result.failure:
            return replace(result.failure, stored=result.stored)
        samples, expected = range(len(self.values.samples)), self._expected(region)
        judgements = tuple(j for k in samples for j in self._judge_sample(region, result, expected[k], k))
        status, signature, why = joined(judgements)
        return Verdict(status, signature, why, judgements, {}, result.build, result.run, result.stored)

    def _expected(self, region: Region) -> Feeds:
        """The reference's outputs of a region; of what the candidate is fed, where its model cannot hold what came."""
        records = self.values.records
        if not self.candidate_model or region == self._whole or self.candidate_model.problem(region):
            return records
        changed = self.candidate_model.fed_otherwise(region, records, self.precision, self.new_folder)
        if not changed:
            return records
        try:
            outputs = self.run_on_reference(region, changed)
        except ModelError:
            return records
        return [{**sample, **own} for sample, own in zip(records, outputs, strict=True)]

    def _judge_sample(
        self, region: Region, result: RunResult, records: Mapping[str, Record], k: int
    ) -> Iterator[Judgement]:
        sample = self.values.labels[k]
        kinds = self.graph.kinds(region.outputs)
        noise, noise_lock = self._noise_at(region, k)  # once per sample: hashing the region's nodes is linear in them
        for name in region.outputs:
            if kinds[name] == CONSTANT:
                continue
            if name not in result.tensors[k]:
                yield judge_missing(name, result.others[k], sample)
                continue
            # a file just written is still in memory: mapping it copies nothing
            value = load(result.tensors[k][name], Path("/"), mapped=not result.stored)
            begin = time.perf_counter()
            expected = load(records[name], Path("/"))
            with noise_lock:
                judgement = judge(
                    name, expected, value, self.rule, self.precision, noise.of(name),
                    sample=sample, is_model_output=name in self.graph.outputs,
                    half_step=self.candidate_model.half_step(name) if self.candidate_model else 0,
                )  # fmt: skip
            with self._lock:
                self.judging_seconds += time.perf_counter() - begin
            yield judgement

    @contextlib.contextmanager
    def noise(self, region: Region, k: int) -> Iterator[RegionNoise]:
        """The rounding noise of a region for sample `k`; the block has it to itself."""
        noise, lock = self._noise_at(region, k)
        with lock:
            yield noise

    def _noise_at(self, region: Region, k: int) -> tuple[RegionNoise, threading.Lock]:
        place = (region.nodes, region.outputs, k)
        with self._lock:
            if place not in self._noise:
                self._noise[place] = self.region_noise(region, self.values.records[k]), threading.Lock()
            return self._noise[place]

    def region_noise(self, region: Region, tensors: Mapping[str, Record]) -> RegionNoise:
        """The rounding noise of a region that is fed with these tensors and has these outputs."""

        def key(label: str) -> str:
            runs = (self.roundings or self.reference).identity()
            return digest("noise/1", self._region_key(region, [tensors]), runs, label)

        return RegionNoise(
            self.graph, region, self.roundings or self.reference, tensors, self.scratch,
            lambda label, make: self.store.memo(key(label), make), moved=self.roundings is not None,
        )  # fmt: skip
