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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from subgraph.comparison.criteria import Rule
from subgraph.comparison.judge import judge, missing
from subgraph.comparison.noise.noise import RegionNoise
from subgraph.errors import ModelError, NoRegion, OutputError
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.graph.cut import Cut, cut_region, freezable
from subgraph.graph.graph import CONSTANT, SHAPE, Graph
from subgraph.graph.merged_cuts import MergedCut, merge_cuts, partition
from subgraph.graph.region import Region
from subgraph.runtime.candidate import Candidate
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.runtime.run_result import Feeds, RunResult, from_entry, merged, run_model
from subgraph.runtime.worker_pool import Workers
from subgraph.storage.digest import digest
from subgraph.storage.store import Store
from subgraph.storage.tensors import Record, load
from subgraph.trials.candidate_model import CandidateModel
from subgraph.verdict import Judgement, Status, Verdict, joined
from subgraph.version import __version__

POOL_PART = 4  # of the memory that a worker may take: what the tensors and weights of one pool may


@dataclass
class Trials:
    """All that is needed to ask a candidate about regions of one model. Safe to use from several threads.

    Attributes:
        freeze: shape-computing tensors become constants in the cuts.
        asked: how many regions were run on the candidate; compiled: how many nodes were sent to it with them.
        judging: seconds that it took to judge what came.
        seen: keys of all answers, run or stored. explaining: how many of them, and of how many nodes, only `explain`
            asked for.
        other: the model that the candidate runs instead of ours.
        by_hand: answers in the place of workers. `replace` does not hand it on: another candidate runs by itself.
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
    asked: int = 0
    compiled: int = 0
    judging: float = 0.0
    explaining: tuple[int, int] = (0, 0)
    seen: set[str] = field(default_factory=set)
    other: CandidateModel | None = None
    by_hand: Callable[[Region, Feeds | None], RunResult] | None = field(default=None, init=False)
    _weights: dict[str, str] = field(default_factory=dict)
    _noise: dict[Any, tuple[RegionNoise, threading.Lock]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _number: int = 0

    @cached_property
    def about(self) -> dict[str, Any]:
        """What the backend says of itself: `version`, `precision`, `multi`."""
        return self.workers.about()

    @property
    def precision(self) -> str:
        """What the candidate claims to compute in."""
        other = self.other.precision if self.other else None
        return str(self.candidate.precision or other or self.about["precision"])

    @property
    def multi(self) -> bool:
        """Does it take several disconnected pieces in one model?"""
        if self.other:
            return False  # its pieces would have to be pooled, each with its own edge: no present need
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

    def answer(
        self, region: Region, feeds: Feeds | None = None, *, repetition: int = 0, fresh: bool = False
    ) -> RunResult:
        """What the candidate gives for a region; fed with reference values, but for those tensors in `feeds`."""
        self.values.need([*region.inputs, *region.shapes, *region.outputs])
        if self.by_hand:
            return self.by_hand(region, feeds)
        records = self._records(feeds)
        parts = []
        for group in self._groups(region, records):
            part = self._ask(region, [records[k] for k in group], repetition, fresh)
            if part.failure:
                return part
            parts.append((group, part))
        return merged(parts, len(records))

    def cuts(self, region: Region, feeds: Feeds | None = None) -> list[tuple[list[int], Cut]]:
        """The cuts that `answer` runs, each with the samples that it serves.

        Raises:
            ModelError: it cannot be cut, or the reference cannot give the values.
        """
        self.values.need([*region.inputs, *region.shapes, *region.outputs])
        records = self._records(feeds)
        return [(group, self._cut(region, [records[k] for k in group])) for group in self._groups(region, records)]

    def further(
        self, region: Region, feeds: Feeds | None = None, *, repetition: int = 0, fresh: bool = False
    ) -> RunResult:
        """As `answer`, for what only explains another one: counted apart."""
        known = len(self.seen)
        answer = self.answer(region, feeds, repetition=repetition, fresh=fresh)
        new = len(self.seen) > known
        runs, nodes = self.explaining
        self.explaining = runs + new, nodes + new * len(region.nodes)
        return answer

    def together(self, regions: Sequence[Region]) -> list[Verdict]:
        """The verdict on each of many regions, run as disconnected pieces of few models: for candidates that start
        slowly and take such (`multi`).

        That a piece agrees there is no proof; one that does not agree is asked about alone, and so are all pieces of a
        model that the candidate does not run, and regions that need several cuts.

        Raises:
            BackendError: the candidate cannot be used. ModelError: the reference cannot give the values.
        """
        return [
            v if v and v.status is Status.AGREE else self.verdict(r)
            for r, v in zip(regions, self.pieces(regions), strict=True)
        ]

    def pieces(self, regions: Sequence[Region]) -> list[Verdict | None]:
        """What `together` sees in the models of many pieces; None for regions that need several cuts."""
        self.values.need([n for r in regions for n in (*r.inputs, *r.shapes, *r.outputs)])
        records = self.values.records
        plain = [r for r in regions if len(self._groups(r, records)) == 1]
        cuts = [self._cut(r, records) for r in plain]
        found: dict[tuple[int, ...], Verdict] = {}
        for some in partition(cuts, most_bytes=self.workers.memory and self.workers.memory // POOL_PART):
            for cut, answer in zip(some, self._pool(merge_cuts(some)), strict=True):
                found[cut.region.nodes] = replace(self.judged(cut.region, answer), pooled=True)
        return [found.get(r.nodes) for r in regions]

    def _pool(self, pieces: MergedCut) -> list[RunResult]:
        """What each piece of a pool gave."""
        records = self.values.records
        key = digest("pool/1", [self.key(cut.region, records) for cut in pieces.pieces])
        entry = self.store.get(key)
        answer = from_entry(entry) if entry else self._stored(key, lambda room: self._run_pool(pieces, room))
        if answer.failure:
            return [answer] * len(pieces.pieces)
        share = 1 / len(pieces.pieces)
        return [
            replace(
                answer,
                tensors=tuple(
                    {n: replace(sample[p], name=n) for n, p in names.items() if p in sample}
                    for sample in answer.tensors
                ),
                others=((),) * len(records),
                build=answer.build * share,
                run=answer.run * share,
            )
            for names in pieces.outputs
        ]

    def _run_pool(self, pieces: MergedCut, room: Path) -> dict[str, Any]:
        fed = [
            [replace(sample[n], name=p) for names in pieces.inputs for n, p in names.items()]
            for sample in self.values.records
        ]
        outputs = [p for names in pieces.outputs for p in names.values()]
        with self._place() as place, self.workers.one(loads=1) as worker:
            pieces.save(place / "model.onnx")
            with self._lock:
                self.asked += 1
                self.compiled += len(pieces.model.graph.node)
            return run_model(worker, self.candidate.options, place / "model.onnx", fed, outputs, room)

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

    def judged(self, region: Region, answer: RunResult) -> Verdict:
        """The verdict on what a candidate gave: each output of each sample beside the reference's value."""
        if answer.failure:
            return replace(answer.failure, stored=answer.stored)
        samples = range(len(self.values.records))
        judgements = tuple(j for k in samples for j in self._judge_sample(region, answer, k))
        status, signature, why = joined(judgements)
        return Verdict(status, signature, why, judgements, {}, answer.build, answer.run, answer.stored)

    def whole(self, outputs: Collection[str] = ()) -> Region:
        """The whole model, with these tensors as further outputs."""
        if not outputs:
            return self._whole
        made = [n for n in self.graph.outputs if n in self.graph.maker]
        nodes = self.graph.ancestors(self.graph.maker[n] for n in (*made, *outputs))
        return regions.of_nodes(self.graph, nodes, [(n,) for n in (*made, *outputs)])

    @cached_property
    def _whole(self) -> Region:
        made = [n for n in self.graph.outputs if n in self.graph.maker]
        return regions.of_nodes(
            self.graph, self.graph.ancestors(self.graph.maker[n] for n in made), [(n,) for n in made]
        )

    def tensors(self) -> list[str]:
        """Every tensor whose value depends on more than shapes and that an output needs, in topological order."""
        whole = self.whole()
        names = [n for i in whole.nodes for n in self.graph.makes[i]]
        kinds = self.graph.kinds(names)
        read = {n for i in whole.nodes for n in self.graph.reads[i]} | set(self.graph.outputs)
        there = self.other.matches if self.other else kinds
        return [n for n in names if kinds[n] not in (CONSTANT, SHAPE) and n in read and n in there]

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
        return cut_region(self.graph, region, records, Path("/"), freeze=self.freeze)

    def _ask(self, region: Region, records: Feeds, repetition: int, fresh: bool) -> RunResult:
        """One cut, all samples of its group: from the store, or run and stored.

        What a fresh process gave serves both who ask for one and who do not; what a used one gave only the latter.
        """
        if self.other:
            try:
                self.other.region(region)
            except (ModelError, NoRegion) as e:
                return RunResult(failure=Verdict(Status.UNRESOLVED, None, e.what))
        for kept_fresh in (True,) if fresh else (False, True):
            key = self.key(region, records, repetition, fresh=kept_fresh)
            entry = self.store.get(key)
            if entry is not None:
                self.seen.add(key)
                return self._ours(region, records, from_entry(entry))
        key = self.key(region, records, repetition, fresh=fresh)
        self.seen.add(key)
        return self._ours(region, records, self._stored(key, lambda room: self._run(region, records, room, fresh)))

    def _ours(self, region: Region, records: Feeds, answer: RunResult) -> RunResult:
        """In names and form of our model."""
        return self.other.brought(region, answer, records, self.room) if self.other else answer

    def room(self) -> Path:
        """A new folder that lives as long as the session."""
        with self._lock:
            self._number += 1
            room = self.scratch / f"room{self._number}"
        room.mkdir()
        return room

    def _stored(self, key: str, run: Callable[[Path], dict[str, Any]]) -> RunResult:
        """Run, and keep what came. Where the store's disk is full, run again: the answer is worth more."""
        room = self.store.room()
        try:
            document = run(room)
        except OutputError:
            room = self.store.room(after=OSError(errno.ENOSPC, "No space left on device"))
            document = run(room)
        return replace(from_entry(self.store.put(key, document, room)), stored=False)

    def key(self, region: Region, records: Feeds, repetition: int = 0, *, fresh: bool = False) -> str:
        """What an answer depends on: the region and what enters it, the candidate with its limits and version, the
        repetition, and whether the process had run anything before."""
        other = [self.other.identity] if self.other else []
        return digest("trial/1", self._key(region, records), self._candidate, repetition, fresh, *other)

    def _key(self, region: Region, records: Feeds) -> str:
        """The model's structure and the region's weights, its edge, the values fed and frozen."""
        entering = [*region.inputs, *region.shapes]
        return digest(
            __version__,
            self.graph.skeleton.structure,
            [self._weight(name) for name in region.weights],
            list(region.nodes),
            entering,
            list(region.outputs),
            self.freeze,
            *(self.values.digest([sample[n] for n in entering]) for sample in records),
        )

    def _weight(self, name: str) -> str:
        if name not in self._weights:
            tensor = self.graph.weights.get(name)
            aside = tensor is not None and protobuf.on_disk(tensor)  # others are part of the structure's digest
            self._weights[name] = protobuf.weights_digest([tensor], self.graph.path) if aside else ""
        return self._weights[name]

    def _run(self, region: Region, records: Feeds, room: Path, fresh: bool) -> dict[str, Any]:
        """Cut, build and run in a worker; what came as a document, its files in `room`."""
        with self._place() as place, self.workers.one(loads=1, fresh=fresh) as worker:
            cut, fed = self.built(region, records, place)
            with self._lock:
                self.asked += 1
                self.compiled += len(cut.region.nodes) + len(cut.region.pulled)
            return run_model(worker, self.candidate.options, place / "model.onnx", fed, cut.outputs, room)

    def built(self, region: Region, records: Feeds, place: Path) -> tuple[Cut, list[list[Record]]]:
        """What the candidate is given: the cut, as `model.onnx` in `place`, and what it is fed per sample.

        Raises:
            ModelError: the other model has no such piece.
        """
        if self.other:
            cut, fed = self.other.ready(region, records, place)
        else:
            cut = self._cut(region, records)
            fed = [[sample[n] for n in cut.inputs] for sample in records]
        cut.save(place / "model.onnx")
        return cut, fed

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

    def _judge_sample(self, region: Region, answer: RunResult, k: int) -> Iterator[Judgement]:
        known, label = self.values.records[k], self.values.labels[k]
        kinds = self.graph.kinds(region.outputs)
        noise, alone = self._noise_at(region, k)  # once: its place in the table takes as long as the region has nodes
        for name in region.outputs:
            if kinds[name] == CONSTANT:
                continue
            if name not in answer.tensors[k]:
                yield missing(name, answer.others[k], label)
                continue
            # just written: its pages are in memory, and mapping them copies nothing
            given = load(answer.tensors[k][name], Path("/"), mapped=not answer.stored)
            begin = time.perf_counter()
            right = load(known[name], Path("/"))
            with alone:
                judgement = judge(name, right, given, self.rule, self.precision, noise.of(name), sample=label)
            with self._lock:
                self.judging += time.perf_counter() - begin
            yield judgement

    @contextlib.contextmanager
    def noise(self, region: Region, k: int) -> Iterator[RegionNoise]:
        """What rounding does to a region, for one sample; nobody else asks it in the block."""
        noise, alone = self._noise_at(region, k)
        with alone:
            yield noise

    def _noise_at(self, region: Region, k: int) -> tuple[RegionNoise, threading.Lock]:
        """What rounding does to a region, for one sample, kept in the store too, and the lock of who asks."""
        place = (region.nodes, region.outputs, k)
        with self._lock:
            if place not in self._noise:
                self._noise[place] = self._noise_of(region, self.values.records[k]), threading.Lock()
            return self._noise[place]

    def _noise_of(self, region: Region, records: Mapping[str, Record]) -> RegionNoise:
        def memo(label: str, make: Callable[[Path], dict[str, Any]]) -> tuple[dict[str, Any], Path]:
            key = digest("noise/1", self._key(region, [records]), self.reference.identity(), label)
            return self.store.memo(key, make)

        return RegionNoise(self.graph, region, self.reference, records, Path("/"), self.scratch, memo)
