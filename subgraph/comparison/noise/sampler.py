"""Runs a region on the reference with perturbed or rounded values, for one sample.

One session serves all runs of a kind, because perturbations are inputs of its model. Float weights are inputs as well,
so the model stays small. The unperturbed values that the perturbations are computed from come from one run with all of
them as outputs, and stay on disk.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from subgraph.comparison.noise import perturb
from subgraph.comparison.noise.analysis import RoundingSites
from subgraph.comparison.precision import FLOATS, TYPE_OF, wider
from subgraph.errors import WorkerDied
from subgraph.graph import protobuf
from subgraph.graph.cut import Cut, cut_region
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.runtime.reference import Reference
from subgraph.storage.folders import numbered_folder
from subgraph.storage.tensors import Record, Value, copied, load, save, type_of
from subgraph.types import Array

if TYPE_CHECKING:
    from subgraph.comparison.noise.instrument import PerturbedInput

# Ops whose values are sums of many terms; a runtime may add them in another order at another index.
SUMS = frozenset("AveragePool Conv ConvTranspose Einsum Gemm GlobalAveragePool MatMul ReduceMean ReduceSum".split())
MAX_CACHED_BYTES = 256 << 20  # of unperturbed values that stay in memory from one run to the next
_NUMBERS = itertools.count()  # of samplers: threads that share a reference use keys of their own


class NoiseRunKind(StrEnum):
    """What a run perturbs. The values are part of the labels under which results are stored."""

    PERTURBED = "draw"  # all that rounds; equal values of a tensor alike
    TIES_BROKEN = "untied"  # the same, but computed values that are equal are perturbed independently
    ROUNDED = "rounded"  # nothing: every value is rounded to the claimed type instead
    RANKED = "compared"  # nothing: the values that a TopK, ArgMax or ArgMin compares


@dataclass(frozen=True)
class NoiseRun:
    """One run of the region.

    Attributes:
        number: of the run among those of its kind; with the seed, it selects the random numbers.
        tie_factor: of TIES_BROKEN: computed values are perturbed by so many roundings.
    """

    kind: NoiseRunKind
    claim: str = ""
    number: int = 0
    tie_factor: float = 0.0

    def label(self, seed: int) -> str:
        """Name of the result within a region, sample and reference."""
        factor = f" {self.tie_factor:g}" if self.tie_factor else ""
        seeded = (
            f" {self.number} seed {seed}" if self.kind in (NoiseRunKind.PERTURBED, NoiseRunKind.TIES_BROKEN) else ""
        )
        return f"{self.kind}{factor} {self.claim}".strip() + seeded


@dataclass(frozen=True)
class NoiseRunDocument:
    """What a run wrote. `ties`: many sums of a tensor were equal."""

    tensors: tuple[Record, ...]
    ties: bool


@dataclass
class NoiseSampler:
    """One region and sample on the reference; not thread-safe.

    Attributes:
        tensors: records of the region's inputs, shapes and outputs at least, with absolute files.
        scratch: folder for intermediate values; the caller removes it.
        ranked: tensors that perturbed runs give beside the region's outputs.
    """

    graph: Graph
    region: Region
    reference: Reference
    tensors: Mapping[str, Record]
    scratch: Path
    seed: int
    sites: RoundingSites
    ranked: Sequence[str]

    def __post_init__(self) -> None:
        self._key = f"noise{next(_NUMBERS)}"
        self._loaded = ""  # the kind of model that the reference holds under our key
        self._inputs: list[PerturbedInput] = []  # of that model
        self._cache: dict[str, Array] = {}
        self._ties = False

    def release(self) -> None:
        """Free the model in the reference, and the values in memory; the next run builds them again."""
        if self._loaded:
            self._loaded = ""
            with contextlib.suppress(WorkerDied):  # a dead process holds no model
                self.reference.drop(self._key)
        self._cache.clear()

    def run(self, run: NoiseRun, folder: Path) -> NoiseRunDocument:
        """Run the region, its tensors written into `folder`: the outputs; of perturbed runs the ranked tensors too.

        Raises:
            ModelError, InputError: the reference does not build or run the changed model.
        """
        if run.kind is NoiseRunKind.RANKED:
            sources = {**self._unperturbed, **{n: self.tensors[n] for n in self.region.inputs}}
            copies = (copied(sources[name], folder, f"t{k}") for k, name in enumerate(self.ranked))
            return NoiseRunDocument(tuple(copies), ties=False)
        rounded_to = run.claim if run.kind is NoiseRunKind.ROUNDED else ""
        names = list(dict.fromkeys((*self.region.outputs, *(() if rounded_to else self.ranked))))
        self._ties = False
        if self._loaded != f"changed {rounded_to}":
            self._build(rounded_to, names)
        feeds = numbered_folder(self.scratch, "feeds")
        try:
            tensors = self._run_model(folder, names, list(self._feeds(run, feeds)))
        finally:
            shutil.rmtree(feeds, ignore_errors=True)
        return NoiseRunDocument(tuple(tensors.values()), self._ties)

    @cached_property
    def _cut(self) -> Cut:
        return cut_region(self.graph, self.region, [self.tensors], Path("/"))

    @cached_property
    def _unperturbed(self) -> dict[str, Record]:
        """Values of all tensors that are made inside and get perturbed, rounded or ranked; absolute files."""
        from subgraph.comparison.noise.instrument import set_outputs  # loads onnx: 30 ms that most verdicts save

        names = dict.fromkeys((*self.sites.rounded, *self.sites.converted, *self.ranked))
        inside = [n for n in names if n in self.graph.maker and n not in self.region.inputs]
        if not inside:
            return {}
        folder, model = numbered_folder(self.scratch, "base"), deepcopy(self._cut.model)
        set_outputs(model, inside)
        self._load(model, "unperturbed", folder)
        records = self._run_model(folder, inside, [self.tensors[n] for n in self._cut.inputs])
        return {name: record.within(str(folder)) for name, record in records.items()}

    def _build(self, rounded_to: str, names: list[str]) -> None:
        """Load the cut with inputs for perturbations; or, with `rounded_to`, with casts to that claim's type."""
        from subgraph.comparison.noise.instrument import instrument_model  # as in `_unperturbed`

        records = self._unperturbed
        sites = (*self.sites.rounded, *(self.sites.converted if rounded_to else ()))
        floats = {n: records[n] for n in sites if records[n].form == "tensor" and records[n].dtype in FLOATS}
        if rounded_to:
            floats = {n: r for n, r in floats.items() if r.dtype != TYPE_OF[rounded_to]}
        model = deepcopy(self._cut.model)
        self._inputs = instrument_model(model, self.sites, floats, names, rounded_to)
        self._load(model, f"changed {rounded_to}", numbered_folder(self.scratch, "model"))

    def _load(self, model: protobuf.ModelProto, kind: str, folder: Path) -> None:
        path = folder / "model.onnx"
        external = any(protobuf.in_other_file(t) for t in model.graph.initializer)
        protobuf.write(model, self.graph.path, path, external=external)
        self._loaded = ""
        self.reference.load(self._key, path)
        self._loaded = kind

    def _run_model(self, into: Path, names: list[str], feeds: list[Record]) -> dict[str, Record]:
        return self.reference.run(self._key, into, {n: f"t{k}" for k, n in enumerate(names)}, feeds).by_name

    def _feeds(self, run: NoiseRun, folder: Path) -> Iterator[Record]:
        """Records of the model's inputs, with absolute files; perturbed values are written into `folder`."""
        for k, fed in enumerate(i for i in self._inputs if not i.pack):
            if fed.form == "exact":
                yield replace(self.tensors[fed.tensor], name=fed.name)
            else:
                value = self._fed_value(fed, run)
                yield save(fed.name, value, type_of(value), folder, f"f{k}").within(str(folder))
        for k, pack in enumerate(dict.fromkeys(i.pack for i in self._inputs if i.pack)):
            parts = [self._fed_value(i, run).reshape(-1) for i in self._inputs if i.pack == pack]
            whole = np.concatenate(parts, dtype=wider(parts[0].dtype.name), casting="same_kind")
            yield save(pack, whole, type_of(whole), folder, f"p{k}").within(str(folder))

    def _fed_value(self, fed: PerturbedInput, run: NoiseRun) -> Array:
        """The perturbed or rounded value of an input, or the shift of a tensor made inside."""
        value = self._value(fed)
        if run.kind is NoiseRunKind.ROUNDED:
            return perturb.round_to_claim(value, run.claim)
        key = perturb.key_of(fed.tensor, self.seed, run.number)
        if fed.form == "perturbed":
            return perturb.perturb(value, run.claim, key)
        if self.graph.ops[self.graph.maker[fed.tensor]] in SUMS and perturb.has_repeats(value):
            self._ties = True
        return perturb.shift(value, run.claim, key, tie_factor=run.tie_factor)

    def _value(self, fed: PerturbedInput) -> Array:
        """The unperturbed value of a tensor."""
        if fed.tensor in self._cache:
            return self._cache[fed.tensor]
        value: Value
        if fed.form == "shift":
            value = load(self._unperturbed[fed.tensor], Path("/"))
        elif fed.tensor in self.region.inputs:
            value = load(self.tensors[fed.tensor], Path("/"))
        else:
            value = protobuf.to_array(self.graph.weights[fed.tensor], self.graph.path)
        assert isinstance(value, np.ndarray)
        if value.nbytes + sum(v.nbytes for v in self._cache.values()) <= MAX_CACHED_BYTES:
            self._cache[fed.tensor] = value
        return value
