"""Region + Reference -> runs of the region with its rounding shaken, for one sample.

One session serves all runs of a kind: the shaken values are its inputs. Float weights are inputs as well, so it holds
few bytes. Unshaken values of all that nodes make come from one run with those as outputs, and stay on disk.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from subgraph.comparison.noise import instrument, perturb
from subgraph.comparison.noise.analysis import RoundingSites
from subgraph.comparison.precision import FLOATS, TYPE_OF
from subgraph.errors import WorkerDied
from subgraph.graph import protobuf
from subgraph.graph.cut import Cut, cut_region
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.runtime.reference import Reference
from subgraph.storage.folders import numbered_folder
from subgraph.storage.tensors import PROTO_NAMES, Record, load, save

if TYPE_CHECKING:
    from subgraph.types import Array

    Change = Callable[[Array, instrument.PerturbedInput], Array]

# Each value they make is a sum of many terms, which a runtime may add in another order at another place.
SUMS = frozenset("AveragePool Conv ConvTranspose Einsum Gemm GlobalAveragePool MatMul ReduceMean ReduceSum".split())
HELD = 256 << 20  # bytes of values that are kept in memory from one run to the next
_NUMBERS = itertools.count()  # several threads may share a reference, each with names of its own


@dataclass
class NoiseSampler:
    """One region and sample on the reference; for one thread.

    Attributes:
        tensors: records of the region's inputs, shapes and outputs at least; files are relative to `folder`.
        scratch: where intermediate values lie; the caller removes it.
        compared: tensors that are given beside the region's outputs.
    """

    graph: Graph
    region: Region
    rounding: RoundingSites
    reference: Reference
    tensors: Mapping[str, Record]
    folder: Path
    scratch: Path
    compared: Sequence[str]
    seed: int = 0

    def __post_init__(self) -> None:
        self._loaded: str | None = None
        self._key = f"noise{next(_NUMBERS)}"
        self._fed: list[instrument.PerturbedInput] = []
        self._held: dict[str, Array] = {}
        self._bytes = 0
        self.ties = False  # in the last draw: do many sums come out equal?

    def release(self) -> None:
        """Nothing more is asked for now: forget the model in the reference, and values in memory."""
        if self._loaded is not None:
            self._loaded = None
            with contextlib.suppress(WorkerDied):  # then it has forgotten all
                self.reference.drop(self._key)
        self._held.clear()
        self._bytes = 0

    def drawn(self, claim: str, number: int, into: Path, *, untied: float = 0.0) -> dict[str, Record]:
        """Outputs and compared tensors with everything that rounds off by as much as `claim` may put it off.

        `untied`: values that nodes made equal come apart, and by so many times as much.
        """
        self.ties = False
        draw = partial(perturb.apart, times=untied) if untied else perturb.uniform

        def change(value: Array, fed: instrument.PerturbedInput) -> Array:
            key = perturb.key_of(fed.tensor, self.seed, number)
            if fed.form != "shift":
                return perturb.shaken(value, claim, key)
            self.ties = self.ties or (self._summed(fed.tensor) and perturb.repeats(value))
            return perturb.shift(value, claim, key, draw)

        names = dict.fromkeys((*self.region.outputs, *self.compared))
        return self._run_changed("draw", claim, list(names), change, into)

    def rounded(self, claim: str, into: Path) -> dict[str, Record]:
        """Outputs where all that is made or enters is rounded to the claimed type."""
        return self._run_changed(
            f"rounded {claim}", claim, list(self.region.outputs), lambda v, fed: perturb.through(v, claim), into
        )

    def _summed(self, tensor: str) -> bool:
        return self.graph.ops[self.graph.maker[tensor]] in SUMS

    def plain(self, into: Path) -> list[Record]:
        """The compared tensors as they are."""
        found, folder = self._base
        sources = [
            (self.tensors[n], self.folder) if n in self.region.inputs else (found[n], folder) for n in self.compared
        ]
        return [_copied(r, place, into, f"t{k}") for k, (r, place) in enumerate(sources)]

    @cached_property
    def _cut(self) -> Cut:
        return cut_region(self.graph, self.region, [self.tensors], self.folder)

    @cached_property
    def _base(self) -> tuple[dict[str, Record], Path]:
        """Unperturbed values of all that nodes make and rounding touches."""
        folder = numbered_folder(self.scratch, "base")
        inner = dict.fromkeys((*self.rounding.rounded, *self.rounding.cast, *self.compared))
        names = [n for n in inner if n in self.graph.maker and n not in self.region.inputs]
        if not names:
            return {}, folder
        model = self._copy()
        instrument.tap(model, names)
        self._load(model, "base", folder)
        feeds = [self.tensors[n].within(_way(self.folder, folder)) for n in self._cut.inputs]
        return self._run(folder, names, feeds), folder

    def _run_changed(self, kind: str, claim: str, names: list[str], change: Change, into: Path) -> dict[str, Record]:
        """One run of a changed model; what it is fed is gone afterwards."""
        if self._loaded != kind:
            self._build(kind, claim, names)
        feeding = numbered_folder(self.scratch, "feeds")
        try:
            return self._run(into, names, list(self._feeds(change, feeding, into)))
        finally:
            shutil.rmtree(feeding, ignore_errors=True)

    def _build(self, kind: str, claim: str, names: list[str]) -> None:
        base, _ = self._base
        taps = self.rounding.rounded if kind == "draw" else (*self.rounding.rounded, *self.rounding.cast)
        made = {n: base[n] for n in taps if base[n].form == "tensor" and base[n].dtype in FLOATS}
        if kind != "draw":
            made = {n: r for n, r in made.items() if r.dtype != TYPE_OF[claim]}
        model = self._copy()
        insert = instrument.added if kind == "draw" else instrument.narrowed(claim, instrument.opset(model))
        self._fed = instrument.shaken(model, self.rounding, made, names, insert)
        self._load(model, kind, numbered_folder(self.scratch, "model"))

    def _feeds(self, change: Change, feeding: Path, into: Path) -> Iterator[Record]:
        """The records of what the changed model is fed, written where it must be changed."""
        way = _way(feeding, into)
        for k, fed in enumerate(f for f in self._fed if not f.pack):
            if fed.form == "plain":
                yield replace(self.tensors[fed.tensor].within(_way(self.folder, into)), name=fed.name)
            else:
                yield _saved(fed.name, change(self._value(fed), fed), feeding, f"f{k}").within(way)
        for k, pack in enumerate(dict.fromkeys(f.pack for f in self._fed if f.pack)):
            parts = [change(self._value(f), f).reshape(-1) for f in self._fed if f.pack == pack]
            whole = np.concatenate(parts, dtype=instrument.type_of(pack), casting="same_kind")
            yield _saved(pack, whole, feeding, f"p{k}").within(way)

    def _value(self, fed: instrument.PerturbedInput) -> Array:
        """A tensor as it is; some are held until `release`."""
        held = self._held.get(fed.tensor)
        if held is not None:
            return held
        if fed.form == "shift":
            records, folder = self._base
            value: Any = load(records[fed.tensor], folder)
        elif fed.tensor in self.region.inputs:
            value = load(self.tensors[fed.tensor], self.folder)
        else:
            value = instrument.weight_value(self.graph.weights[fed.tensor], self.graph.path)
        if self._bytes + value.nbytes <= HELD:
            self._bytes += value.nbytes
            self._held[fed.tensor] = value
        array: Array = value
        return array

    def _copy(self) -> protobuf.ModelProto:
        model = protobuf.protos().ModelProto()
        model.CopyFrom(self._cut.model)
        return model

    def _load(self, model: protobuf.ModelProto, kind: str, folder: Path) -> None:
        path = folder / "model.onnx"
        outside = any(protobuf.in_other_file(t) for t in model.graph.initializer)
        protobuf.write(model, self.graph.path, path, external=outside)
        self._loaded = None
        self.reference.load(self._key, path)
        self._loaded = kind

    def _run(self, into: Path, names: list[str], feeds: list[Record]) -> dict[str, Record]:
        return self.reference.run(self._key, into, {n: f"t{k}" for k, n in enumerate(names)}, feeds).by_name


def _saved(name: str, value: Array, folder: Path, stem: str) -> Record:
    kind = PROTO_NAMES.get(value.dtype.name, value.dtype.name)
    return save(name, value, f"tensor({kind})", folder, stem)


def _copied(record: Record, folder: Path, into: Path, stem: str) -> Record:
    """The same plain tensor in another folder."""
    shutil.copyfile(folder / record.files[0], into / f"{stem}.npy")
    return replace(record, files=(f"{stem}.npy",))


def _way(folder: Path, start: Path) -> str:
    """The way from one folder to another."""
    return os.path.relpath(folder.resolve(), start.resolve())
