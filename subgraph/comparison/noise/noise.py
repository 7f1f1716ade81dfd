"""Rounding noise of a region: how far perturbation by one rounding moves its outputs, for one sample.

The reference runs the region a few times with perturbed values. Where: inputs, float weights, results of nodes that
round (`analysis`), in bodies too; what the precision represents exactly is left alone. By how much:
x → x·(1 + eps·u), equal values alike (`rounding_nodes`). How: by nodes behind each tensor (`instrument`, `sampler`). A
draw that computes NaN or infinities which the reference has not is void. The noise N of an output is the largest
|perturbed − reference| over the runs, plus eps·S + q for its own rounding (`criteria.noise`). Nothing runs before it is
needed; a run serves all outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.comparison.criteria import Noise, Ranking
from subgraph.comparison.noise.analysis import RoundingSites, find_ranked_tensor, find_rounding_sites
from subgraph.comparison.noise.sampler import NoiseRun, NoiseRunKind, NoiseSampler, load_array
from subgraph.comparison.pair import differences
from subgraph.documents import to_json
from subgraph.errors import InputError, ModelError
from subgraph.graph.graph import Graph
from subgraph.graph.quantization import TFLITE
from subgraph.graph.region import Region
from subgraph.runtime.reference import Reference
from subgraph.storage.folders import numbered_folder
from subgraph.storage.tensors import Record
from subgraph.types import Array

StoredJson = dict[str, Any]  # of a `NoiseRunDocument`
Memo = Callable[[str, Callable[[Path], StoredJson]], tuple[StoredJson, Path]]

METHOD = "noise-3"  # part of each label; change it with the perturbation, or results of the old one are used again
RANKED_RUNS = 8  # as many as for other outputs behind a choice


@dataclass(frozen=True)
class _StoredRun:
    """Tensors that one run left in a folder."""

    records: Mapping[str, Record]
    folder: Path
    ties: bool

    def array(self, name: str) -> Array:
        return load_array(self.records[name], self.folder)


class RegionNoise:
    """Rounding noise of one region for one sample; not thread-safe."""

    def __init__(
        self,
        graph: Graph,
        region: Region,
        reference: Reference,
        tensors: Mapping[str, Record],
        scratch: Path,
        memo: Memo | None = None,
        seed: int = 0,
        *,
        moved: bool = False,
    ) -> None:
        """Runs nothing yet.

        Args:
            tensors: captured records of the region's inputs, shapes and outputs at least, with absolute files.
            scratch: folder for intermediate values; the caller removes it.
            memo: `memo(label, make)` returns the document and folder stored under that label, or stores those of
                `make(folder)`. Labels are unique within a region, sample and reference. None: all is kept in `scratch`.
            moved: `reference` gives other values than `tensors`, which another program made: what perturbation adds
                to the former is added to the latter.
        """
        self.graph, self.region = graph, region
        self._memo, self._seed, self._scratch = memo or self._make, seed, scratch
        self._new_sampler = partial(NoiseSampler, graph, region, reference, tensors, scratch.resolve(), seed)
        self._tensors, self._moved = tensors, moved
        self._offsets: dict[str, Array] = {}
        self._runs: dict[str, _StoredRun] = {}
        self._failures: dict[str, ModelError] = {}

    def of(self, output: str) -> OutputNoise:
        """The noise of one output, for a criterion."""
        return OutputNoise(self, output)

    @cached_property
    def sites(self) -> RoundingSites:
        """Where rounding acts in the region."""
        boundary = {n: self._tensors[n] for n in (*self.region.inputs, *self.region.outputs) if n in self._tensors}
        return find_rounding_sites(self.graph, self.region, boundary)

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """Tensors of the region that a TopK, ArgMax or ArgMin compares, and whose indices leave the region."""
        ranked = (find_ranked_tensor(self.graph, output) for output in self.region.outputs)
        inside = {*self.region.inputs, *(n for i in self.sites.order for n in self.graph.makes[i])}
        return tuple(dict.fromkeys(r[0] for r in ranked if r and r[0] in inside))

    @cached_property
    def _sampler(self) -> NoiseSampler:
        return self._new_sampler(self.sites, self.ranked)

    def run(self, *runs: NoiseRun) -> list[_StoredRun]:
        """The tensors of these runs, stored ones or new ones; one model serves all of the call.

        Raises:
            ModelError: the region cannot be built or run with perturbations, because a shape depends on values, say.
        """
        try:
            return [self._stored(run) for run in runs]
        finally:
            self._sampler.release()

    def perturbed(self, claim: str, count: int, *, tie_factor: float = 0.0) -> list[_StoredRun]:
        """`count` perturbed runs; `tie_factor` and errors as in `NoiseRun` and `run`."""
        kind = NoiseRunKind.TIES_BROKEN if tie_factor else NoiseRunKind.PERTURBED
        return self.run(*(NoiseRun(kind, claim, k, tie_factor) for k in range(count)))

    def array(self, run: _StoredRun, output: str) -> Array:
        """An output of a run, around the value with which it is compared.

        Raises:
            ModelError: that value has another type or shape.
        """
        values = run.array(output)
        if not self._moved:
            return values
        if output not in self._offsets:
            expected, own = load_array(self._tensors[output]), self._sampler.plain(output)
            if (own.shape, own.dtype) != (expected.shape, expected.dtype):
                raise ModelError(f"'{output}' is no tensor of one form in both: its noise is not known")
            with np.errstate(all="ignore"):
                self._offsets[output] = np.nan_to_num(differences(own, expected), posinf=0.0, neginf=0.0)
        offset = self._offsets[output]
        if values.shape != offset.shape:
            raise ModelError(f"'{output}' changes its shape by rounding")
        return np.asarray((values + offset).astype(values.dtype)) if offset.any() else values

    def has_ties(self) -> bool:
        """Are many sums equal, because all weights are the same, for example?"""
        return self.run(NoiseRun(NoiseRunKind.TIES))[0].ties

    def _stored(self, run: NoiseRun) -> _StoredRun:
        """The result under the run's label, or a new one. A run that failed once is not tried again."""
        label = run.label(self._seed)
        if label in self._failures:
            raise self._failures[label]
        if label not in self._runs:
            try:
                document, folder = self._memo(f"{METHOD} {label}", lambda into: to_json(self._sampler.run(run, into)))
            except (InputError, ModelError) as e:
                self._failures[label] = ModelError(f"the region does not run with noise: {e.what}", e.hint)
                raise self._failures[label] from e
            records = map(Record.from_json, document["tensors"])
            self._runs[label] = _StoredRun({r.name: r for r in records}, folder, document["ties"])
        return self._runs[label]

    def _make(self, label: str, make: Callable[[Path], StoredJson]) -> tuple[StoredJson, Path]:
        folder = numbered_folder(self._scratch, "kept")
        return make(folder), folder


@dataclass(frozen=True)
class OutputNoise(Noise):
    """Rounding noise of one output of a region; methods as in `criteria.Noise`."""

    region: RegionNoise
    output: str

    def perturbed(self, claim: str, count: int) -> list[Array]:
        return [self.region.array(run, self.output) for run in self.region.perturbed(claim, count)]

    def with_broken_ties(self, claim: str, count: int, times: float) -> list[Array]:
        runs = self.region.perturbed(claim, count, tie_factor=times) if self.region.has_ties() else []
        return [self.region.array(run, self.output) for run in runs]

    def rounded(self, claim: str) -> Array:
        return self.region.array(self.region.run(NoiseRun(NoiseRunKind.ROUNDED, claim))[0], self.output)

    def op_type(self) -> str:
        return self.region.graph.ops[self.region.graph.maker[self.output]]

    def coarsest_type(self) -> str:
        return self.region.sites.coarsest

    def behind_choice(self) -> bool:
        return self.output in self.region.sites.behind_choice

    def behind_steps(self) -> bool:
        return self.output in self.region.sites.behind_steps

    def are_codes(self) -> bool:
        node = self.region.graph.nodes[self.region.graph.maker[self.output]]
        return node.domain == TFLITE and any(a.name == "scale" for a in node.attribute)

    def is_foreign(self) -> bool:
        nodes = [self.region.graph.nodes[i] for i in self.region.region.nodes]
        quantized = any(a.name == "scale" for node in nodes for a in node.attribute)
        return not quantized and any(node.domain == TFLITE for node in nodes)

    def ranking(self, claim: str) -> Ranking | None:
        ranked = find_ranked_tensor(self.region.graph, self.output)
        if ranked is None or ranked[0] not in self.region.ranked:
            return None
        name, axis = ranked
        values = self.region.run(NoiseRun(NoiseRunKind.RANKED))[0].array(name)
        noise = np.zeros(values.shape)
        for run in self.region.perturbed(claim, RANKED_RUNS):
            noise = np.fmax(noise, np.abs(differences(values, run.array(name))))
        return Ranking(values, noise, axis)
