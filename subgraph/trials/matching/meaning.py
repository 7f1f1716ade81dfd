"""Tests of what a tensor of the candidate's model means, on the reference and the first sample.

A name survives what an optimizer does. If BatchNormalization is folded into the Conv before it, the
name of the Conv's output remains, and its value is that of the normalization. A boundary is a
claim, which is tested: if the nodes upstream of the tensor are wrong, and right by far when they
are run as one with those downstream of it, the name means another tensor. If they are wrong as one,
too, they have a fault.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from subgraph.comparison.pair import relative_l2
from subgraph.errors import ModelError, SubcutError
from subgraph.graph.cut import Cut, cut_region
from subgraph.graph.merged_cuts import merge_cuts, partition
from subgraph.graph.region import Region, find_upstream_until
from subgraph.precision import Precision
from subgraph.reach import reach
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage.tensors import Record, written
from subgraph.trials.candidate_model import CandidateModel
from subgraph.trials.reference_model import run_loaded

MIN_DISTANCE = 1e-3  # relative l2 distance of tensors that are not the same; rounding is below it
MIN_ROUNDINGS = 12.0  # of the candidate's precision: in int8, a distance of 0.05
MIN_RATIO = 4.0  # of the error of a piece to that of the piece that it is joined with


@dataclass
class MeaningTests:
    """Runs pieces of the candidate's model, fed with the reference's values, on the reference.

    Attributes:
        pair: The two models, their matches, and the reference's values of the candidate's model.
        values: The reference's values of its own model.
        folder: A folder for files; it is created.
    """

    pair: CandidateModel
    values: ReferenceValues
    folder: Path
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def limit(self) -> float:
        """The distance from which on two tensors are not the same."""
        precision = self.pair.precision or Precision.FP32
        return max(MIN_DISTANCE, MIN_ROUNDINGS * precision.eps)

    @cached_property
    def regions(self) -> dict[str, Region | None]:
        """By name in the reference's model, the nodes that compute a matched tensor."""
        return {name: self._find_region(name) for name in self.pair.matches}

    @cached_property
    def fed(self) -> dict[str, Record]:
        """By name in the candidate's model, the reference's values of the matches in its form."""
        folder = self._new_folder()
        records = self.values.records[0]
        return {
            match.name: match.converted(records[name], folder, f"f{k}")
            for k, (name, match) in enumerate(self.pair.matches.items())
            if records[name].form == "tensor"
        }

    def find_refuted(self) -> set[str]:
        """Find the matches by name that mean another tensor.

        One run if a tensor deviates in the full model, and another one if a piece does. A suspect
        is joined with what reads it, alone and together with all suspects that it is linked with.
        """
        if self.agree_in_place(MIN_DISTANCE):
            return set()
        outputs = self.pair.reference.outputs
        named = [n for n, m in self.pair.matches.items() if m.how == "name" and n not in outputs]
        errors = self._measure_all()
        suspects = {name for name in named if errors[name] > self.limit}
        readers = {name: self.find_readers(name) for name in suspects}
        linked = {n: readers[n] | {m for m in suspects if n in readers[m]} for n in suspects}
        nets = (reach([name], lambda n: linked[n] & suspects) for name in suspects)
        groups = {frozenset(group) for group in (*([name] for name in suspects), *nets)}
        joined = {g: sorted(g.union(*(readers[name] for name in g))) for g in groups}
        pieces = [(n, self._find_region(n, g)) for g, names in joined.items() for n in names]
        measured = iter(self.measure(pieces, {}))
        refuted = set[str]()
        for group, names in joined.items():
            own = {name: next(measured) for name in names}
            others = own.keys() - group
            if self._are_right(own, others):
                least = max(self.limit, *(MIN_RATIO * own[name] for name in others))
                refuted |= {name for name in group if own[name] > least}
        # Next to a fault nothing is right; there the other names of the kind decide, if all moved.
        moved = Counter(self._find_kind(name) for name, _ in self.pair.refuted)
        kept = {self._find_kind(name) for name in named if errors[name] <= self.limit}
        alike = {n for n in suspects if moved[kind := self._find_kind(n)] > 1 and kind not in kept}
        return refuted | alike

    def _find_kind(self, name: str) -> tuple[str, frozenset[str]]:
        """Return the operator that computes a tensor of the reference's model, and those that read
        it."""
        graph = self.pair.reference
        return graph.ops[graph.maker[name]], frozenset(
            graph.ops[i] for i in graph.readers.get(name, ())
        )

    def find_misshapen(self, names: Collection[str]) -> set[str]:
        """Find the tensors whose shape is wrong in the candidate's model.

        Downstream of such a tensor, that model is right if it is fed with the reference's value,
        and not if that value has the other shape. An output that no node reads is one unless
        another tensor shows that the model has another layout.
        """
        pair = self.pair
        assert pair.values
        reshaped: dict[str, Record] = {}
        folder = self._new_folder()
        for k, name in enumerate(names):
            target = pair.matches[name].name
            shape = pair.values.records[0][target].shapes[0]
            value = self.fed[target].array()
            if value.size == math.prod(shape):
                reshaped[target] = written(target, value.reshape(shape), folder, f"r{k}")
        kept = self._measure_all()
        turned = self._measure_all(reshaped)
        found = set()
        has_layout = any(m.perm for name, m in pair.matches.items() if name not in names)
        for name in names:
            readers = self.find_readers(name)
            if not readers and not has_layout:
                found.add(name)
            is_same = pair.matches[name].name in reshaped and self._are_right(turned, readers)
            if not is_same and self._are_right(kept, readers):
                found.add(name)
        return found

    def find_readers(self, name: str) -> set[str]:
        """Find the tensors whose pieces are fed with this one."""
        target = self.pair.matches[name].name
        return {n for n, region in self.regions.items() if region and target in region.inputs}

    def _are_right(self, errors: Mapping[str, float], names: Collection[str]) -> bool:
        """Return whether some tensors agree; an unknown error is NaN, which is on no side of a
        limit."""
        return bool(names) and all(errors[name] <= self.limit for name in names)

    def _find_region(self, name: str, without: Collection[str] = ()) -> Region | None:
        """Find the nodes that compute a tensor from all matched tensors but some; None if there are
        none, or if one reads what no node makes."""
        stops = {m.name for n, m in self.pair.matches.items() if n not in without}
        target = self.pair.matches[name].name
        try:
            region = find_upstream_until(self.pair.graph, [target], stops.__contains__)
        except ModelError:
            return None
        return region and replace(region, outputs=(target,))

    # ------------------------------------------------------------ runs

    def _measure_all(self, fed: Mapping[str, Record] | None = None) -> dict[str, float]:
        pieces = list(self.regions.items())
        return dict(zip(self.regions, self.measure(pieces, fed or {}), strict=True))

    def measure(
        self,
        pieces: Sequence[tuple[str, Region | None]],
        other_values: Mapping[str, Record],
    ) -> list[float]:
        """Measure the relative error of each tensor that a piece computes; NaN if it is unknown.

        Args:
            pieces: A name in the reference's model, and the nodes that compute it.
            other_values: By name in the candidate's model, what to feed instead of `fed`.
        """
        own = self.pair.values
        assert own
        for _, region in pieces:
            with suppress(SubcutError):  # upstream of it a node does not run
                own.need(region.shapes if region else ())
        fed = {**own.records[0], **self.fed, **other_values}
        cuts: dict[int, Cut] = {}
        for k, (_, region) in enumerate(pieces):
            entering = {*region.inputs, *region.shapes} if region else set()
            if region and entering <= fed.keys():
                feeds = {name: fed[name] for name in entering}
                cuts[k] = cut_region(self.pair.graph, region, [feeds], Path("/"))
        made: dict[int, Record] = {}
        for pool in partition(list(cuts.values())) if cuts else ():
            made |= self._run(pool, fed)
        errors = [math.nan] * len(pieces)
        for k, cut in cuts.items():
            if id(cut) in made:
                errors[k] = self._distance(pieces[k][0], made[id(cut)])
        return errors

    def _run(self, cuts: Sequence[Cut], fed: Mapping[str, Record]) -> dict[int, Record]:
        """Return the outputs of the cuts that the reference runs, by their `id`."""
        assert self.pair.values
        reference = self.pair.values.reference
        merged = merge_cuts(cuts)
        folder = self._new_folder()
        try:
            with reference.exclusive():
                reference.load_model(str(folder), merged.model, self.pair.graph.path, folder)
                feeds = [merged.feeds(fed)]
                names = merged.output_names
                (made,) = run_loaded(reference, str(folder), feeds, names, lambda: folder)
        except SubcutError:
            half = len(cuts) // 2
            return self._run(cuts[:half], fed) | self._run(cuts[half:], fed) if half else {}
        outputs = zip(cuts, merged.split(made), strict=True)
        return {id(cut): record for cut, of_cut in outputs for record in of_cut.values()}

    def _new_folder(self) -> Path:
        folder = self.folder / str(next(self._numbers))
        folder.mkdir(parents=True)
        return folder

    def agree_in_place(self, limit: float) -> bool:
        """Return whether all matches agree in a run of the candidate's full model; an unknown
        tensor does not."""
        assert self.pair.values
        records = self.pair.values.records[0]
        return all(
            m.name in records and self._distance(name, records[m.name]) <= limit
            for name, m in self.pair.matches.items()
        )

    def _distance(self, name: str, record: Record) -> float:
        """Return the relative distance of a tensor, whatever its shape; 0 for other values than
        real numbers."""
        expected = self.values.records[0][name]
        match = self.pair.matches[name]
        if expected.form != "tensor" or record.form != "tensor":
            return 0.0
        real = match.reference_real(expected.array())
        if real.dtype.kind not in "fV":
            return 0.0
        distance = relative_l2(real.reshape(-1), match.to_real(record.array()).reshape(-1))
        return math.inf if math.isnan(distance) else distance
