"""An entry as one tensor of the model: read, decoded, with its axes as they bring it nearest to the reference."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from subgraph.comparison.pair import relative_l2
from subgraph.errors import InputError
from subgraph.graph.quantization import Scale, code_scales
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import (
    CODES,
    IMAGE_RANK,
    NHWC,
    align,
    alignments,
    both_floats,
    decoded,
    foldings,
    misfit,
)
from subgraph.recordings.matching.matched import TensorMatch
from subgraph.recordings.matching.names import common_start, recorded_name
from subgraph.recordings.reference_tensors import reference_value
from subgraph.trials.matching.match_tensors import CLEARER, NEAR, SURELY
from subgraph.trials.trial import Trials
from subgraph.types import Array

CACHE_BYTES = 128 << 20  # of entries' values that stay in memory
VOTES = 16  # files that are enough to tell whether channels come last
MAX_VOTER = 1 << 20  # elements of a tensor that votes

Shapes = tuple[tuple[int, ...], tuple[int, ...]]  # of an entry and of the tensor that it holds
Turns = Mapping[Shapes, Sequence[tuple[str, str]]]  # (recorded name, alignment)


@dataclass
class Fit:
    """Fits entries to tensors of sample `k`. The values of as many entries as fit stay in memory.

    Attributes:
        channels_last: do files hold channels last whose shape does not tell?
    """

    trials: Trials
    k: int
    channels_last: bool = False
    _held: OrderedDict[DumpEntry, Array] = field(default_factory=OrderedDict)
    _room: int = CACHE_BYTES

    def reference(self, tensor: str) -> Array | None:
        """The reference's value; None if it is no tensor."""
        return reference_value(self.trials, tensor, self.k)

    def value(self, entry: DumpEntry) -> Array:
        """As `DumpEntry.read`."""
        if entry not in self._held:
            self._held[entry] = entry.read()
            self._room -= self._held[entry].nbytes
            while len(self._held) > 1 and self._room < 0:
                self._room += self._held.popitem(last=False)[1].nbytes
        self._held.move_to_end(entry)
        return self._held[entry]

    def aligned(self, entry: DumpEntry, tensor: str) -> TensorMatch:
        """The entry as this tensor, in the alignment that brings it nearest."""
        reference = self.reference(tensor)
        if reference is None:
            return TensorMatch(entry, tensor)
        scale = self._scale_of(entry, tensor)
        best, nearest = "", math.inf
        # Inputs of the model are often recorded as they were fed, whatever the layout of the layers.
        last = None if tensor in self.trials.graph.inputs else self.channels_last
        ways = alignments(self.value(entry), reference.shape, entry.assumed, last)
        for number, (alignment, stored) in enumerate(ways):
            array = decoded(stored, reference, scale)
            away = relative_l2(reference, array.astype(reference.dtype) if both_floats(array, reference) else array)
            if away < nearest or not number:
                best, nearest = alignment, away
            if away <= SURELY:
                break
        for alignment, array in foldings(self.value(entry), reference.shape) if nearest > NEAR else ():
            if (away := relative_l2(reference, array)) <= NEAR and away < nearest:
                best, nearest = alignment, away
        return TensorMatch(entry, tensor, alignment=best, distance=nearest, scale=scale)

    def _scale_of(self, entry: DumpEntry, tensor: str) -> Scale | None:
        """The scale of an entry that holds codes: the recording's own, else the model's."""
        return (entry.scale or self._scales.get(tensor)) if entry.dtype in CODES else None

    @cached_property
    def _scales(self) -> dict[str, Scale]:
        return code_scales(self.trials.graph)

    def as_others(self, entry: DumpEntry, tensor: str, turns: Turns) -> TensorMatch | None:
        """The entry as this tensor, turned as the one of such shapes was whose name ends most like its own.

        None where the shapes do not fit.
        """
        reference = self.reference(tensor)
        if reference is None:
            return None
        value = self.value(entry)
        match = self.aligned(entry, tensor)
        alike = turns.get((value.shape, reference.shape), [("", match.alignment)])
        _, way = max(alike, key=lambda turn: common_start(turn[0][::-1], recorded_name(entry)[::-1]))
        aligned = align(value, reference, way)
        if aligned.shape != reference.shape:
            return None
        return replace(match, alignment=way, distance=relative_l2(reference, decoded(aligned, reference, match.scale)))

    def as_other(self, entry: DumpEntry, other: TensorMatch) -> TensorMatch | None:
        """The entry as what another run's entry of its name holds; None where it has not that shape."""
        reference = self.reference(other.tensor)
        if reference is None or misfit(value := self.value(entry), reference, other.alignment, other.scale):
            return None
        array = decoded(align(value, reference, other.alignment), reference, other.scale)
        return replace(other, entry=entry, distance=relative_l2(reference, array))

    def vote(self, named: Mapping[str, Sequence[DumpEntry]]) -> bool:
        """Do more tensors fit with channels last than with channels first? A few small ones tell."""
        first = last = 0
        for tensor, entries in named.items():
            reference = self.reference(tensor)
            for entry in entries if first + last < VOTES and tensor not in self.trials.graph.inputs else ():
                if reference is None or reference.ndim != IMAGE_RANK or reference.size > MAX_VOTER:
                    continue
                try:
                    ways = alignments(self.value(entry), reference.shape, entry.assumed, None)
                    scale = self._scale_of(entry, tensor)
                    away = {way: relative_l2(reference, decoded(array, reference, scale)) for way, array in ways}
                except InputError:
                    continue
                as_first, as_last = away.get("", math.inf), away.get(NHWC, math.inf)
                last += as_last <= NEAR and as_last * CLEARER < as_first
                first += as_first <= NEAR and as_first * CLEARER < as_last
        return last > first

    def are_same(self, entry: DumpEntry, other: DumpEntry) -> bool:
        """Do two entries hold the same numbers?"""
        a, b = self.value(entry), self.value(other)
        return a.size == b.size and relative_l2(a.reshape(-1), b.reshape(-1)) <= SURELY

    def digest(self, entry: DumpEntry) -> bytes:
        """The same for entries of the same numbers."""
        return hashlib.sha256(np.ascontiguousarray(self.value(entry)).tobytes()).digest()
