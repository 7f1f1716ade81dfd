"""An entry as one tensor of the model: read, decoded, with its axes as they bring it nearest to the
reference."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from subgraph.comparison.pair import relative_l2
from subgraph.errors import InputError
from subgraph.graph.properties import MIXES_AXES, WINDOWS
from subgraph.graph.quantization import code_scales
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import (
    CODES,
    IMAGE_RANK,
    NHWC,
    Alignment,
    convert_to_reference_type,
    iter_alignments,
    iter_foldings,
)
from subgraph.recordings.matching.matched import TensorMatch
from subgraph.recordings.reference_tensors import read_reference_value
from subgraph.storage.scale import Scale
from subgraph.trials.judge import Judge
from subgraph.trials.matching.match_tensors import CLEARER, NEAR, SURELY
from subgraph.types import Array

CACHE_BYTES = 128 << 20  # of entries' values that stay in memory
VOTES = 16  # files that are enough to tell whether channels come last
MAX_VOTER = 1 << 20  # elements of a tensor that votes


@dataclass
class Fit:
    """Fits entries to tensors of sample `k`. The values of as many entries as fit stay in memory.

    Attributes:
        channels_last: do files hold channels last whose shape does not tell?
        some_last: do any of them?
        mixed: do others hold channels first?
    """

    judge: Judge
    k: int
    channels_last: bool = False
    some_last: bool = False
    mixed: bool = False
    _held: OrderedDict[DumpEntry, Array] = field(default_factory=OrderedDict)
    _room: int = CACHE_BYTES

    def reference(self, tensor: str) -> Array | None:
        """The reference's value; None if it is not a tensor."""
        return read_reference_value(self.judge.model, tensor, self.k)

    def value(self, entry: DumpEntry) -> Array:
        """As `DumpEntry.read`."""
        if entry not in self._held:
            self._held[entry] = entry.read()
            self._room -= self._held[entry].nbytes
            while len(self._held) > 1 and self._room < 0:
                self._room += self._held.popitem(last=False)[1].nbytes
        self._held.move_to_end(entry)
        return self._held[entry]

    def aligned(self, entry: DumpEntry, tensor: str, reference: Array | None = None) -> TensorMatch:
        """The entry as this tensor, in the alignment that brings it nearest to a value, the
        reference's if none is given; as other files are laid out where none is near."""
        reference = self.reference(tensor) if reference is None else reference
        if reference is None:
            return TensorMatch(entry, tensor)
        value = self.value(entry)
        best = TensorMatch(entry, tensor, distance=math.inf, scale=self._scale(entry, tensor))
        # Inputs of the model are often recorded as they were fed, whatever the layout of the
        # layers.
        is_input = tensor in self.judge.model.graph.inputs
        last = None if is_input or self.some_last else False
        ways = list(iter_alignments(value.shape, reference.shape, entry.guessed, last))
        for way in ways:
            away = _measure_distance(value, reference, way, best.scale)
            if away < best.distance or best.alignment is None:
                best = replace(best, alignment=way, distance=away)
            if away <= SURELY:
                break
        if self.some_last and not is_input and len(ways) > 1 and not best.distance <= NEAR:
            as_voted = self.channels_last and reference.ndim == IMAGE_RANK
            voted = next((way for way in ways if way.is_channels_last == as_voted), ways[0])
            away = _measure_distance(value, reference, voted, best.scale)
            is_sure = not self.mixed and tensor in self._images
            best = replace(best, alignment=voted, distance=away, is_order_unknown=not is_sure)
        for way in iter_foldings(value.size, reference.shape) if best.distance > NEAR else ():
            if (away := relative_l2(reference, way.apply(value))) <= NEAR and away < best.distance:
                best = replace(best, alignment=way, distance=away)
        return best

    def _scale(self, entry: DumpEntry, tensor: str) -> Scale | None:
        """The scale of an entry that holds codes: the recording's own, else the model's."""
        return (entry.scale or self._scales.get(tensor)) if entry.dtype in CODES else None

    @cached_property
    def _images(self) -> set[str]:
        """Tensors with an axis of channels, which all files of a tool lay out alike."""
        graph = self.judge.model.graph
        images = set(graph.inputs)
        for i in graph.in_order(range(len(graph.nodes))):
            op = graph.ops[i]
            is_mixed = op in MIXES_AXES or op == "Transpose"
            if op in WINDOWS or (not is_mixed and not images.isdisjoint(graph.reads[i])):
                images.update(graph.makes[i])
        return images

    @cached_property
    def _scales(self) -> dict[str, Scale]:
        return code_scales(self.judge.model.graph)

    def as_other(self, entry: DumpEntry, other: TensorMatch) -> TensorMatch | None:
        """The entry as what another run's entry of its name holds; None where it has not that
        shape."""
        reference = self.reference(other.tensor)
        match = replace(other, entry=entry)
        if reference is None:
            return None
        try:
            return replace(match, distance=relative_l2(reference, match.value(reference)))
        except InputError:
            return None

    def vote(self, named: Mapping[str, Sequence[DumpEntry]]) -> None:
        """See whether more tensors fit with channels last than with channels first. A tie changes
        nothing. A few tell."""
        first = last = 0
        tensors = [n for n in named if n not in self.judge.model.graph.inputs]
        for tensor in tensors:
            reference = self.reference(tensor)
            if reference is None or reference.ndim != IMAGE_RANK or reference.size > MAX_VOTER:
                continue
            for entry in named[tensor] if first + last < VOTES else ():
                try:
                    value = self.value(entry)
                    scale = self._scale(entry, tensor)
                except InputError:
                    continue
                ways = iter_alignments(value.shape, reference.shape, entry.guessed, None)
                away = {way.words: _measure_distance(value, reference, way, scale) for way in ways}
                as_first = away.get("", math.inf)
                as_last = away.get(NHWC, math.inf)
                last += as_last <= NEAR and as_last * CLEARER < as_first
                first += as_first <= NEAR and as_first * CLEARER < as_last
        self.some_last = self.channels_last or last > 0
        self.mixed = first > 0 and last > 0
        self.channels_last = self.channels_last if first == last else last > first

    def are_same(self, entry: DumpEntry, other: DumpEntry) -> bool:
        """Do two entries hold the same numbers?"""
        a = self.value(entry)
        b = self.value(other)
        return a.size == b.size and relative_l2(a.reshape(-1), b.reshape(-1)) <= SURELY


def _measure_distance(value: Array, reference: Array, way: Alignment, scale: Scale | None) -> float:
    """Of a value in this alignment from the reference."""
    return relative_l2(reference, convert_to_reference_type(way.apply(value), reference, scale))
