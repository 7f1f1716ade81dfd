"""Rounding noise of a region: how far perturbation by one rounding moves its outputs, for one
sample.

The reference runs the region a few times with perturbed values. Perturbed are inputs, float
weights and results of nodes that round (`analysis`), in bodies too; values that the precision
represents exactly are left alone. The perturbation is x → x·(1 + eps·u), equal values alike
(`rounding_nodes`), by nodes after each tensor (`instrument`, `sampler`). A draw that computes NaN
or infinities which the reference has not is void. The noise N of an output is the largest
|perturbed − reference| over the runs, plus eps·S + q for its own rounding (`criteria.noise`).
Nothing runs before it is needed; a run serves all outputs.

Outputs of few numbers, each of which is the only one of its kind, are judged over the samples as a
batch: six joints of a robot in one tensor of six numbers have one scale, by which an error of the
smallest is nothing; over several samples each has its own scale.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.comparison.criteria import (
    MAX_BATCH_NUMBERS,
    MIN_ELEMENTS,
    Noise,
    QuantizedValues,
    Ranking,
)
from subgraph.comparison.noise.analysis import find_ranked_tensor
from subgraph.comparison.noise.sampler import NoiseRun, NoiseRunDocument, NoiseSampler, load_array
from subgraph.comparison.pair import Pair, compute_differences
from subgraph.documents import from_json, to_json
from subgraph.errors import InputError, ModelError
from subgraph.graph.graph import Graph
from subgraph.graph.properties import COARSE
from subgraph.graph.quantization import TFLITE, find_step, makes_steps, read_constant_scale
from subgraph.graph.region import Region
from subgraph.graph.walks import find_ancestors_until, find_operator
from subgraph.iterables import index_by_name
from subgraph.precision import Precision
from subgraph.runtime.reference import Reference
from subgraph.storage.dtypes import name_of
from subgraph.storage.folders import make_numbered_folder
from subgraph.storage.tensors import Records, Value
from subgraph.types import Array, frozen
from subgraph.verdict import Judgement

StoredJson = dict[str, Any]  # of a `NoiseRunDocument`
Memo = Callable[[str, Callable[[Path], StoredJson]], tuple[StoredJson, Path]]

# part of each label; change it with the perturbation, or results of the old one are used again
METHOD = "noise-4"
CODES = frozenset(("int8", "uint8", "int16", "uint16"))
RANKED_RUNS = 8  # as many as for other outputs after a choice


@frozen
class _StoredRun:
    """Tensors that one run left, and whether many sums are equal."""

    records: Records
    ties: bool

    def array(self, name: str) -> Array:
        return load_array(self.records[name])


class RegionNoise:
    """Rounding noise of one region for one sample. Several threads may share it."""

    def __init__(
        self,
        graph: Graph,
        region: Region,
        reference: Reference,
        tensors: Records,
        scratch: Path,
        memo: Memo | None = None,
        *,
        other_program: bool = False,
        own_steps: bool = True,
        unrounded: Collection[str] = (),
    ) -> None:
        """Hold the region, its tensors and the reference; nothing runs yet.

        Args:
            tensors: captured records of the region's inputs, shapes and outputs at least, with
                absolute files.
            scratch: folder for intermediate values; the caller removes it.
            memo: `memo(label, make)` returns the document and folder stored under that label, or
                stores those of `make(folder)`. Labels are unique within a region, sample and
                reference. None: all is kept in `scratch`.
            other_program: another program than `reference` made `tensors`; how far perturbation
                moves the values of `reference` is added to them.
            own_steps: if the region quantizes, perturbed runs move its codes by a step. False:
                no more than rounding before the quantizer moves them.
            unrounded: Casts of the model by which the candidate's program does not round, and
                inputs that it holds exactly: they excuse nothing.
        """
        self.graph = graph
        self.region = region
        self.tensors = tensors
        self.sampler = NoiseSampler(graph, region, reference, tensors, scratch.resolve(), unrounded)
        if not own_steps:
            self.sampler.sites.quantizers = ()
            self.sampler.sites.quantized.clear()
        self._memo = memo or self._make
        self._scratch = scratch
        self._other_program = other_program
        self._lock = threading.RLock()
        self._offsets: dict[str, Array] = {}
        self._quantized: dict[str, QuantizedValues | None] = {}
        self._runs: dict[str, _StoredRun] = {}
        self._failures: dict[str, ModelError] = {}

    def get_output(self, output: str) -> OutputNoise:
        """Return the noise of one output, for a criterion."""
        return OutputNoise(self, output)

    def runs(self, *runs: NoiseRun) -> list[_StoredRun]:
        """Return the tensors of these runs, stored ones or new ones.

        One model serves all runs that are alike.

        Raises:
            ModelError: the region cannot be built or run with perturbations, for example because a
                shape depends on values.
        """
        return self._store({run.label: partial(self.sampler.run, run) for run in runs})

    def perturb(self, claim: Precision, count: int, *, tie_factor: float = 0.0) -> list[_StoredRun]:
        """Return `count` perturbed runs; `tie_factor` and errors as in `NoiseRun` and `runs`."""
        return self.runs(*(NoiseRun(claim, k, tie_factor=tie_factor) for k in range(count)))

    def collect_compared(self) -> _StoredRun:
        """Collect the values that a TopK, ArgMax or ArgMin compares. Raises: as `runs`."""
        return self._store({"compared": self.sampler.collect_compared})[0]

    def has_ties(self) -> bool:
        """Return whether many sums are equal. Raises: as `runs`."""
        return self._store({"ties": self.sampler.has_ties})[0].ties

    def array(self, run: _StoredRun, output: str) -> Array:
        """Return an output of a run, around the value with which it is compared.

        Raises:
            ModelError: that value has another type or shape.
        """
        values = run.array(output)
        if not self._other_program:
            return values
        if output not in self._offsets:
            with self._lock:
                expected = load_array(self.tensors[output])
                own = self.sampler.plain(output)
            if (own.shape, own.dtype) != (expected.shape, expected.dtype):
                raise ModelError(
                    f"'{output}' is not a tensor of one form in both: its noise is not known",
                    code="noise.undefined",
                )
            with np.errstate(all="ignore"):
                self._offsets[output] = np.nan_to_num(
                    compute_differences(own, expected), posinf=0.0, neginf=0.0
                )
        offset = self._offsets[output]
        if values.shape != offset.shape:
            raise ModelError(f"'{output}' changes its shape by rounding", code="noise.undefined")
        if offset.any():
            return np.asarray((values + offset).astype(values.dtype))
        return values

    def find_quantized_values(self, output: str) -> QuantizedValues | None:
        """Return the values that the quantizer of an output rounds, on the reference.

        Returns None for an output without a quantizer, and for one that is downstream of other
        quantizers of the region, because their steps add up.
        """
        with self._lock:
            if output not in self._quantized:
                self._quantized[output] = self._find_values_before(output)
            return self._quantized[output]

    def _find_values_before(self, output: str) -> QuantizedValues | None:
        graph = self.graph
        last = graph.maker[output]
        i = last
        if graph.ops[i] == "DequantizeLinear":
            i = graph.maker.get(graph.reads[i][0], -1)
        if i not in self.region.nodes or graph.ops[i] != "QuantizeLinear" or self._other_program:
            return None
        scale = read_constant_scale(graph, graph.nodes[last], 1, 2)
        inputs = graph.nodes[i].input
        codes = graph.constant(inputs[2]) if len(inputs) > 2 else None
        dtype = name_of(codes.data_type) if codes else "uint8"
        source = inputs[0]
        # None of the nodes of the region that compute it may quantize, but one right before it: a
        # requantization.
        start = source
        maker = graph.maker.get(start, -1)
        if maker in self.region.nodes and graph.ops[maker] == "DequantizeLinear":
            maker = graph.maker.get(graph.reads[maker][0], -1)
            start = graph.reads[maker][0] if graph.ops[maker] == "QuantizeLinear" else start
        makers = [graph.maker[start]] if start in graph.maker else []
        nodes = find_ancestors_until(graph, makers, self.region.inputs.__contains__)
        nodes &= {*self.region.nodes}
        quantizes = any(makes_steps(graph.nodes[k]) for k in nodes)
        if scale is None or len(scale.step) > 1 or dtype not in CODES or quantizes:
            return None
        is_inside = source in graph.maker and source not in self.region.inputs
        real = self.sampler.plain(source) if is_inside else load_array(self.tensors[source])
        limits = np.iinfo(dtype)
        (step,) = scale.step
        (zero,) = scale.zero
        exact = np.clip(real.astype(np.float64) / step + zero, limits.min, limits.max)
        is_coarse = not COARSE.isdisjoint(graph.ops[k] for k in nodes)
        return QuantizedValues(exact, step, zero, is_coarse)

    def _store(self, makers: Mapping[str, Callable[[Path], NoiseRunDocument]]) -> list[_StoredRun]:
        """Return the stored results under these labels, or store new ones."""
        with self._lock:
            try:
                return [self._get_run(label, make) for label, make in makers.items()]
            finally:
                self.sampler.release()

    def _get_run(self, label: str, make: Callable[[Path], NoiseRunDocument]) -> _StoredRun:
        """Return a stored run, or make it; one that failed is not tried again."""
        if label in self._failures:
            raise self._failures[label]
        if label not in self._runs:
            try:
                document, folder = self._memo(f"{METHOD} {label}", lambda into: to_json(make(into)))
            except (InputError, ModelError) as e:
                self._failures[label] = ModelError(
                    f"the region does not run with noise: {e.what}", e.hint, code=e.code
                )
                raise self._failures[label] from e
            stored_run = from_json(NoiseRunDocument, document)
            records = [r.rebase(str(folder.resolve())) for r in stored_run.tensors]
            self._runs[label] = _StoredRun(index_by_name(records), stored_run.ties)
        return self._runs[label]

    def _make(self, label: str, make: Callable[[Path], StoredJson]) -> tuple[StoredJson, Path]:
        folder = make_numbered_folder(self._scratch, "kept")
        return make(folder), folder


@frozen
class OutputNoise(Noise):
    """Rounding noise of one output of a region; methods as in `criteria.Noise`."""

    region: RegionNoise
    output: str

    def perturb(self, claim: Precision, count: int) -> list[Array]:
        return [self.region.array(run, self.output) for run in self.region.perturb(claim, count)]

    def break_ties(self, claim: Precision, count: int, times: float) -> list[Array]:
        runs = self.region.perturb(claim, count, tie_factor=times) if self.region.has_ties() else []
        return [self.region.array(run, self.output) for run in runs]

    def round_nodes(self, claim: Precision) -> Array:
        return self.region.array(self.region.runs(NoiseRun(claim, rounded=True))[0], self.output)

    def op_type(self) -> str:
        return find_operator(self.region.graph, self.output)

    def coarsest_type(self) -> str:
        return self.region.sampler.sites.coarsest[self.output]

    def depends_on_choice(self) -> bool:
        return self.output in self.region.sampler.sites.discrete.choices

    def depends_on_steps(self) -> bool:
        return self.output in self.region.sampler.sites.discrete.steps

    def depends_on_ranks(self) -> bool:
        return self.output in self.region.sampler.sites.discrete.ranks

    def half_step(self) -> float:
        if self.quantizes():
            return find_step(self.region.graph, self.output) / 2
        return 0.0

    def quantizes(self) -> bool:
        return self.output in self.region.sampler.sites.quantized

    def find_quantized_values(self) -> QuantizedValues | None:
        return self.region.find_quantized_values(self.output)

    def are_codes(self) -> bool:
        node = self.region.graph.nodes[self.region.graph.maker[self.output]]
        return node.domain == TFLITE and any(a.name == "scale" for a in node.attribute)

    def ranking(self, claim: Precision) -> Ranking | None:
        ranked = find_ranked_tensor(self.region.graph, self.output)
        if ranked is None or ranked[0] not in self.region.sampler.ranked:
            return None
        name, axis = ranked
        values = self.region.collect_compared().array(name)
        noise = np.zeros(values.shape)
        for run in self.region.perturb(claim, RANKED_RUNS):
            noise = np.fmax(noise, np.abs(compute_differences(values, run.array(name))))
        return Ranking(values, noise, axis)


def make_batch(values: Sequence[Value]) -> Array | None:
    """Return `(samples, elements)` of an output of floats; None if the samples are few, differ in
    shape, or can be judged alone: they have many elements, or two axes."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    if len(arrays) < max(MIN_ELEMENTS, len(values)) or len({a.shape for a in arrays}) > 1:
        return None
    first = arrays[0]
    small = 0 < first.size < MAX_BATCH_NUMBERS and sum(n > 1 for n in first.shape) < 2
    if small and Pair(first, first).kind == "float":
        return _join_samples(arrays)
    return None


def assign_to_sample(judged: Judgement, shape: Sequence[int], labels: Sequence[str]) -> Judgement:
    """Return the judgement of a batch as that of the sample whose element is farthest off; `shape`:
    of the output in it."""
    worst = judged.worst
    why = f"{judged.why}; axis 0 are {len(labels)} samples"
    if worst is None:
        return replace(judged, why=why, sample=labels[0])
    k, element = worst.index
    index = tuple(int(i) for i in np.unravel_index(element, tuple(shape)))
    return replace(judged, why=why, worst=replace(worst, index=index), sample=labels[k])


@frozen
class BatchNoise(OutputNoise):
    """Rounding noise of an output of several samples, which are judged as a batch.

    Region and output are those of the first sample: what a node does to an output is the same in
    all samples.
    """

    samples: Sequence[Noise]

    def perturb(self, claim: Precision, count: int) -> list[Array]:
        return _join_runs(noise.perturb(claim, count) for noise in self.samples)

    def break_ties(self, claim: Precision, count: int, times: float) -> list[Array]:
        return _join_runs(noise.break_ties(claim, count, times) for noise in self.samples)

    def round_nodes(self, claim: Precision) -> Array:
        return _join_samples([noise.round_nodes(claim) for noise in self.samples])

    def find_quantized_values(self) -> None:
        return None

    def ranking(self, claim: Precision) -> None:
        return None


def _join_samples(values: Sequence[Array]) -> Array:
    return np.stack([value.reshape(-1) for value in values])


def _join_runs(runs: Iterable[Sequence[Array]]) -> list[Array]:
    """Return batches of the same run of all samples, for as many runs as all samples have."""
    return [_join_samples(values) for values in zip(*runs, strict=False)]
