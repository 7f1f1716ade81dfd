"""Region + Reference -> what rounding alone does to its outputs, for one sample.

The region runs on the reference with everything that rounding touches a little off, a few times; how far its outputs
move is their noise. Everything is computed when it is first asked for, for all outputs together, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from subgraph.comparison.noise import analysis as rounding
from subgraph.comparison.noise.sampler import NoiseSampler
from subgraph.errors import InputError, ModelError
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region
from subgraph.runtime.reference import Reference
from subgraph.storage.folders import numbered_folder
from subgraph.storage.tensors import Record, load

if TYPE_CHECKING:
    from subgraph.types import Array

Memo = Callable[[str, Callable[[Path], dict[str, Any]]], tuple[dict[str, Any], Path]]
Kept = tuple[dict[str, Record], Path]  # records by tensor, and the folder of their files

METHOD = "noise-2"  # in each label: what another way of drawing has kept must not be taken for ours
RANKED_DRAWS = 8  # as many as for other discrete outputs


class RegionNoise:
    """What rounding does in one region, for one sample; for one thread."""

    def __init__(
        self,
        graph: Graph,
        region: Region,
        reference: Reference,
        tensors: Mapping[str, Record],
        folder: Path,
        scratch: Path,
        memo: Memo | None = None,
        seed: int = 0,
    ) -> None:
        """Nothing is run yet.

        Args:
            tensors: captured records of the region's inputs, shapes and outputs at least, their files in `folder`.
            scratch: where intermediate values lie; the caller removes it.
            memo: `memo(label, make)` gives the document and folder of an earlier computation under that label, or
                those of `make(folder)`; labels are unique within a region, sample and reference. Without it, all is
                kept in `scratch`.
        """
        self.graph, self.region = graph, region
        self._reference, self._tensors, self._folder, self._scratch = reference, tensors, folder, scratch
        self._memo, self._seed = memo or self._anew, seed
        self._kept: dict[str, Kept] = {}
        self._failed: dict[str, ModelError] = {}
        self._ties = False

    def of(self, output: str) -> OutputNoise:
        """What it does to one output: a `criteria.Noise`."""
        return OutputNoise(self, output)

    @cached_property
    def rounding(self) -> rounding.RoundingSites:
        """Where rounding acts."""
        entering = {n: self._tensors[n] for n in (*self.region.inputs, *self.region.outputs) if n in self._tensors}
        return rounding.of_region(self.graph, self.region, entering)

    @cached_property
    def compared(self) -> tuple[str, ...]:
        """Tensors that a TopK, ArgMax or ArgMin whose indices leave the region compares."""
        found = (rounding.ranked(self.graph, output) for output in self.region.outputs)
        made = {*self.region.inputs, *(n for i in self.rounding.order for n in self.graph.makes[i])}
        return tuple(dict.fromkeys(f[0] for f in found if f and f[0] in made))

    @cached_property
    def _shaken(self) -> NoiseSampler:
        return NoiseSampler(
            self.graph, self.region, self.rounding, self._reference, self._tensors, self._folder, self._scratch,
            self.compared, self._seed,
        )  # fmt: skip

    def draws(self, claim: str, count: int, *, untied: float = 0.0) -> list[Kept]:
        """Outputs and compared tensors of so many perturbed runs. `untied`: as `NoiseSampler.drawn` has it.

        Raises:
            ModelError: the region cannot be built or run with perturbations: where a shape hangs on values, say.
        """

        def drawing(number: int) -> Callable[[Path], Iterable[Record]]:
            return lambda into: self._shaken.drawn(claim, number, into, untied=untied).values()

        label = f"untied {untied:g} {claim}" if untied else f"draw {claim}"
        with self._released():
            return [self._keep(f"{label} {k} seed {self._seed}", drawing(k)) for k in range(count)]

    def ties(self, claim: str) -> bool:
        """Do many sums come out equal, as they do where all weights are the same? Drawn once, where it was not yet.

        Raises:
            ModelError: as `draws`.
        """
        self.draws(claim, 1)
        return self._ties

    def rounded(self, claim: str) -> Kept:
        """Outputs where the reference rounds to the claimed type after every node.

        Raises:
            ModelError: as `draws`.
        """
        with self._released():
            return self._keep(f"rounded {claim}", lambda into: self._shaken.rounded(claim, into).values())

    def plain(self) -> Kept:
        """The compared tensors as they are.

        Raises:
            ModelError: as `draws`.
        """
        with self._released():
            return self._keep("compared", self._shaken.plain)

    @contextmanager
    def _released(self) -> Iterator[None]:
        """One model serves all runs of this block, and no longer."""
        try:
            yield
        finally:
            self._shaken.release()

    def _keep(self, label: str, run: Callable[[Path], Iterable[Record]]) -> Kept:
        """What was kept under a label, or is computed and kept now. What failed once is not tried again."""
        if label in self._failed:
            raise self._failed[label]
        if label not in self._kept:

            def make(into: Path) -> dict[str, Any]:
                tensors = [r.to_json() for r in run(into)]
                return {"tensors": tensors, "ties": self._shaken.ties}

            try:
                document, folder = self._memo(f"{METHOD} {label}", make)
            except (InputError, ModelError) as e:
                self._failed[label] = ModelError(f"the region does not run with noise: {e.what}", e.hint)
                raise self._failed[label] from e
            records = (Record.from_json(r) for r in document["tensors"])
            self._kept[label] = {r.name: r for r in records}, folder
            self._ties = self._ties or document["ties"]
        return self._kept[label]

    def _anew(self, label: str, make: Callable[[Path], dict[str, Any]]) -> tuple[dict[str, Any], Path]:
        folder = numbered_folder(self._scratch, "kept")
        return make(folder), folder


@dataclass(frozen=True)
class OutputNoise:
    """What rounding does to one output of a region: a `criteria.Noise`."""

    region: RegionNoise
    output: str

    def draws(self, claim: str, count: int) -> list[Array]:
        """The output after `count` perturbations at a claimed precision; of other shape where that hangs on values.

        Raises:
            ModelError: the region cannot be run with perturbations.
        """
        return [self._array(kept) for kept in self.region.draws(claim, count)]

    def untied(self, claim: str, count: int, times: float) -> list[Array]:
        """As `draws`, but equal values that nodes make come apart, by so many times as much as rounding puts them off;
        none where hardly any sums are equal.

        Raises:
            ModelError: as `draws`.
        """
        kept = self.region.draws(claim, count, untied=times) if self.region.ties(claim) else []
        return [self._array(k) for k in kept]

    def rounded(self, claim: str) -> Array:
        """The output where the reference is rounded to the claimed type after every node.

        Raises:
            ModelError: as `draws`.
        """
        return self._array(self.region.rounded(claim))

    def _array(self, kept: Kept, name: str = "") -> Array:
        records, folder = kept
        record = records[name or self.output]
        if record.form != "tensor":
            raise ModelError(f"'{record.name}' is a {record.form}: its noise is not defined")
        value: Any = load(record, folder)
        array: Array = value
        return array

    def maker(self) -> str:
        """The op type of the node that makes the output."""
        return self.region.graph.ops[self.region.graph.maker[self.output]]

    def coarsest(self) -> str:
        """The float type of the region's tensors that rounds most."""
        return self.region.rounding.coarsest

    def discrete(self) -> bool:
        """Does it lie, within the region, behind a choice?"""
        return self.output in self.region.rounding.chosen

    def stepped(self) -> bool:
        """Does it lie behind a node that rounds to steps: QuantizeLinear, Round, a Cast to integers?"""
        return self.output in self.region.rounding.stepped

    def ranked(self, claim: str) -> tuple[Array, Array, int] | None:
        """For indices from TopK, ArgMax or ArgMin: the compared tensor, its noise per element (the largest
        |perturbed − reference| over the draws, 0 where it is exact, float64) and the axis.

        Raises:
            ModelError: as `draws`.
        """
        found = rounding.ranked(self.region.graph, self.output)
        if found is None or found[0] not in self.region.compared:
            return None
        value = self._array(self.region.plain(), found[0])
        wide = value.astype(np.float64)
        noise = np.zeros(value.shape)
        for kept in self.region.draws(claim, RANKED_DRAWS):
            drawn = self._array(kept, found[0]).astype(np.float64)
            with np.errstate(invalid="ignore"):
                noise = np.fmax(noise, np.abs(drawn - wide))
        return value, noise, found[1]
