"""Region -> Verdict: run it on the candidate with reference values, judge what comes out.

What a candidate gave is kept as it came (`store`); a verdict is made from it anew each time, so that another criterion
needs no run. One question is one region over all samples; samples that need a cut of their own (other shapes, other
frozen values) get one.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import subgraph
from subgraph import region as regions
from subgraph import wire
from subgraph.candidate import Candidate
from subgraph.capture import Reference
from subgraph.criteria import Rule
from subgraph.cut import Cut, freezable, of_region
from subgraph.digest import digest
from subgraph.errors import BackendError, OutputError, Refused, SubcutError, WorkerDied
from subgraph.graph import CONSTANT, SHAPE, Graph
from subgraph.judge import judge, missing
from subgraph.noise import RegionNoise
from subgraph.region import Region
from subgraph.store import Entry, Store
from subgraph.tensors import Record, load
from subgraph.values import Values
from subgraph.verdict import Judgement, Signature, Status, Verdict, joined
from subgraph.worker import Worker
from subgraph.workers import Workers

Feeds = Sequence[Mapping[str, Record]]  # per sample: records with absolute paths


@dataclass(frozen=True)
class Answer:
    """What a backend gave for a region.

    Attributes:
        tensors: per sample, records with absolute paths; an output that did not come is not there.
        others: per sample, names that it gave and nobody asked for.
        failure: why there is nothing: a verdict without outputs.
    """

    tensors: tuple[Mapping[str, Record], ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    failure: Verdict | None = None
    build: float = 0.0
    run: float = 0.0
    stored: bool = False


@dataclass
class Trials:
    """All that is needed to ask a candidate about regions of one model. Safe to use from several threads.

    Attributes:
        freeze: shape-computing tensors become constants in the cuts.
        asked: how many regions were run on the candidate; compiled: how many nodes were sent to it with them.
        judging: seconds that it took to judge what came.
    """

    graph: Graph
    candidate: Candidate
    workers: Workers
    reference: Reference
    values: Values
    store: Store
    rule: Rule
    scratch: Path
    freeze: bool = True
    asked: int = 0
    compiled: int = 0
    judging: float = 0.0
    _weights: dict[str, str] = field(default_factory=dict)
    _noise: dict[Any, RegionNoise] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _number: int = 0

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the backend says of itself: `version`, `precision`, `multi`."""
        return self.workers.about()

    @property
    def precision(self) -> str:
        """What the candidate claims to compute in."""
        return str(self.candidate.precision or self.about["precision"])

    @property
    def multi(self) -> bool:
        """Does it take several disconnected pieces in one model?"""
        return bool(self.about["multi"] if self.candidate.multi is None else self.candidate.multi)

    @cached_property
    def _candidate(self) -> str:
        return digest("candidate", self.candidate.identity(self.about["version"]))

    # ------------------------------------------------------------------------------------------------ questions

    def verdict(self, region: Region, *, repetition: int = 0, fresh: bool = False) -> Verdict:
        """Does the candidate agree on this region, fed with the reference's values?

        `fresh`: in a process that has run nothing before. `repetition`: ask again, whatever was stored for lower ones.

        Raises:
            BackendError: the candidate cannot be used at all. ModelError: the reference cannot give the values.
        """
        return self.judged(region, self.answer(region, repetition=repetition, fresh=fresh))

    def answer(self, region: Region, feeds: Feeds | None = None, *, repetition: int = 0, fresh: bool = False) -> Answer:
        """What the candidate gives for a region; fed with reference values, but for those tensors in `feeds`."""
        self.values.need([*region.inputs, *region.shapes, *region.outputs])
        records = self._records(feeds)
        parts = []
        for group in self._groups(region, records):
            part = self._ask(region, [records[k] for k in group], repetition, fresh)
            if part.failure:
                return part
            parts.append((group, part))
        return _merged(parts, len(records))

    def on_reference(self, region: Region, feeds: Feeds | None = None) -> list[Mapping[str, Record]]:
        """What the reference gives for a region that is fed as in `answer`; the files live as long as the session.

        Raises:
            ModelError: it cannot run the region on these values.
        """
        self.values.need([*region.inputs, *region.shapes, *region.outputs])
        records = self._records(feeds)
        found: list[Mapping[str, Record]] = [{}] * len(records)
        for group in self._groups(region, records):
            cut = self._cut(region, [records[k] for k in group])
            with self._place() as place:
                cut.save(place / "model.onnx")
                with self.reference.alone():
                    self.reference.load(place.name, place / "model.onnx")
                    for k in group:
                        into = self.scratch / f"{place.name}-{k}"
                        into.mkdir()
                        stems = {name: f"o{i}" for i, name in enumerate(cut.outputs)}
                        fed = [records[k][n].to_json() for n in cut.inputs]
                        answer = self.reference.run(place.name, into, stems, feeds=fed)
                        given = (Record.from_json(r).within(str(into)) for r in answer["tensors"])
                        found[k] = {r.name: r for r in given}
                    self.reference.drop(place.name)
        return found

    def judged(self, region: Region, answer: Answer) -> Verdict:
        """The verdict on what a candidate gave: each output of each sample beside the reference's value."""
        if answer.failure:
            return replace(answer.failure, stored=answer.stored)
        samples = range(len(self.values.records))
        judgements = tuple(j for k in samples for j in self._judge_sample(region, answer, k))
        status, signature, why = joined(judgements)
        return Verdict(status, signature, why, judgements, {}, answer.build, answer.run, answer.stored)

    def whole(self, outputs: Collection[str] = ()) -> Region:
        """The whole model, with these tensors as further outputs."""
        made = [n for n in self.graph.outputs if n in self.graph.maker]
        nodes = self.graph.ancestors(self.graph.maker[n] for n in (*made, *outputs))
        return regions.of_nodes(self.graph, nodes, [(n,) for n in (*made, *outputs)])

    def tensors(self) -> list[str]:
        """Every tensor whose value depends on more than shapes and that an output needs, in topological order."""
        whole = self.whole()
        names = [n for i in whole.nodes for n in self.graph.makes[i]]
        kinds = self.graph.kinds(names)
        read = {n for i in whole.nodes for n in self.graph.reads[i]} | set(self.graph.outputs)
        return [n for n in names if kinds[n] not in (CONSTANT, SHAPE) and n in read]

    # ------------------------------------------------------------------------------------------------ running

    def _records(self, feeds: Feeds | None) -> list[Mapping[str, Record]]:
        if feeds is None:
            return list(self.values.records)
        return [{**known, **fed} for known, fed in zip(self.values.records, feeds, strict=True)]

    def _groups(self, region: Region, records: Feeds) -> list[list[int]]:
        """Samples that one cut can serve: equal shapes of what enters and equal frozen values."""
        groups: dict[Any, list[int]] = {}
        for k, sample in enumerate(records):
            shapes = tuple(sample[n].shapes for n in region.inputs)
            frozen = freezable(region, [sample]) if self.freeze else ()
            values = tuple(self.values.digest([sample[n]])[0] for n in frozen) if len(records) > 1 else ()
            groups.setdefault((shapes, values), []).append(k)
        return list(groups.values())

    def _cut(self, region: Region, records: Feeds) -> Cut:
        return of_region(self.graph, region, records, Path("/"), freeze=self.freeze)

    def _ask(self, region: Region, records: Feeds, repetition: int, fresh: bool) -> Answer:
        """One cut, all samples of its group: from the store, or run and stored."""
        key = self.key(region, records, repetition)
        entry = self.store.get(key)
        if entry is not None:
            return _from_entry(entry)
        room = self.store.room()
        try:
            document = self._run(region, records, room, fresh)
        except OutputError:  # the store's disk is full: the run is worth more than the store
            room = self.store.room(after=OSError(errno.ENOSPC, "No space left on device"))
            document = self._run(region, records, room, fresh)
        return replace(_from_entry(self.store.put(key, document, room)), stored=False)

    def key(self, region: Region, records: Feeds, repetition: int = 0) -> str:
        """What an answer depends on: the model's structure and the region's weights, its edge, the values fed and
        frozen, the candidate with its limits and version, and the repetition."""
        entering = [*region.inputs, *region.shapes]
        return digest(
            "trial/1",
            subgraph.__version__,
            self.graph.skeleton.structure,
            [self._weight(name) for name in region.weights],
            list(region.nodes),
            entering,
            list(region.outputs),
            self.freeze,
            *(self.values.digest([sample[n] for n in entering]) for sample in records),
            self._candidate,
            repetition,
        )

    def _weight(self, name: str) -> str:
        if name not in self._weights:
            tensor = self.graph.weights.get(name)
            aside = tensor is not None and wire.on_disk(tensor)  # others are part of the structure's digest
            self._weights[name] = wire.weights_digest([tensor], self.graph.path) if aside else ""
        return self._weights[name]

    def _run(self, region: Region, records: Feeds, room: Path, fresh: bool) -> dict[str, Any]:
        """Cut, build and run in a worker; what came as a document, its files in `room`."""
        cut = self._cut(region, records)
        with self._place() as place, self.workers.one(loads=1, fresh=fresh) as worker:
            cut.save(place / "model.onnx")
            with self._lock:
                self.asked += 1
                self.compiled += len(region.nodes) + len(region.pulled)
            return run_cut(worker, self.candidate.options, cut, place / "model.onnx", records, room)

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path]:
        import shutil

        with self._lock:
            self._number += 1
            place = self.scratch / f"trial{self._number}"
        place.mkdir()
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------ judging

    def _judge_sample(self, region: Region, answer: Answer, k: int) -> Iterator[Judgement]:
        known, label = self.values.records[k], self.values.labels[k]
        kinds = self.graph.kinds(region.outputs)
        for name in region.outputs:
            if kinds[name] == CONSTANT:
                continue
            if name not in answer.tensors[k]:
                yield missing(name, answer.others[k], label)
                continue
            given = load(answer.tensors[k][name], Path("/"))
            begin = time.perf_counter()
            noise = self._noise_of(region, k).of(name)
            right = load(known[name], Path("/"))
            yield judge(name, right, given, self.rule, self.precision, noise, sample=label)
            with self._lock:
                self.judging += time.perf_counter() - begin

    def _noise_of(self, region: Region, k: int) -> RegionNoise:
        key = (region.nodes, region.outputs, k)
        with self._lock:
            if key not in self._noise:
                self._noise[key] = RegionNoise(
                    self.graph, region, self.reference, self.values.records[k], Path("/"), self.scratch, None
                )
            return self._noise[key]


def run_cut(
    worker: Worker, options: Mapping[str, Any], cut: Cut, model: Path, records: Feeds, room: Path
) -> dict[str, Any]:
    """Load a cut and run it once per sample. A candidate that fails is a document as well.

    Raises:
        BackendError: it cannot be used at all. OutputError: its outputs cannot be written.
    """
    document: dict[str, Any] = {"build": 0.0, "run": 0.0, "samples": [], "failure": None}
    try:
        document["build"] = worker.ask("load", key="cut", model=str(model), options=dict(options))["seconds"]
        for k, sample in enumerate(records):
            stems = {name: f"s{k}-o{i}" for i, name in enumerate(cut.outputs)}
            feeds = [sample[n].to_json() for n in cut.inputs]
            answer = worker.ask("run", key="cut", into=str(room), outputs=stems, feeds=feeds)
            document["run"] += answer["seconds"]
            document["samples"].append({"tensors": answer["tensors"], "others": answer["others"]})
    except OutputError:
        raise
    except SubcutError as e:
        document["failure"] = failure(e, worker)
        document["samples"] = []
    return document


def failure(e: SubcutError, worker: Worker) -> dict[str, Any]:
    """What a candidate that did not give values said: status, signature, why, process.

    Refused is no failure of its own (a lone Shape is refused by many); a crash or a timeout is.

    Raises:
        BackendError: it cannot be used at all.
    """
    if isinstance(e, WorkerDied):
        return {"status": "fail", "signature": e.signature, "why": e.what, "process": e.process}
    if isinstance(e, BackendError):
        raise e
    said = {"signal": None, "exit_code": None, "stderr": worker.last_words()}
    if isinstance(e, Refused):
        return {"status": "unresolved", "signature": "refused", "why": e.what, "process": said}
    return {"status": "fail", "signature": "crash", "why": e.what, "process": said}


def _from_entry(entry: Entry) -> Answer:
    d = entry.document
    if d["failure"]:
        f = d["failure"]
        verdict = Verdict(
            Status(f["status"]), Signature(f["signature"]), f["why"], (), f["process"], d["build"], d["run"]
        )
        return Answer(failure=verdict, build=d["build"], run=d["run"], stored=True)
    tensors = tuple(
        {r["name"]: Record.from_json(r).within(str(entry.folder)) for r in sample["tensors"]} for sample in d["samples"]
    )
    others = tuple(tuple(sample["others"]) for sample in d["samples"])
    return Answer(tensors, others, None, d["build"], d["run"], stored=True)


def _merged(parts: Sequence[tuple[Sequence[int], Answer]], count: int) -> Answer:
    """The answers of groups of samples as one, in the order of the samples."""
    tensors: list[Mapping[str, Record]] = [{}] * count
    others: list[tuple[str, ...]] = [()] * count
    for group, part in parts:
        for place, k in enumerate(group):
            tensors[k], others[k] = part.tensors[place], part.others[place]
    build, run = (sum(getattr(p, name) for _, p in parts) for name in ("build", "run"))
    return Answer(tuple(tensors), tuple(others), None, build, run, all(p.stored for _, p in parts))
