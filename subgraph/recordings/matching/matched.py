"""What matching gives: the tensor of the model that an entry of a recording holds, and what is left over."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from subgraph.graph.quantization import Scale
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import absorb_print_rounding, absorb_requantization, align, cast, decoded
from subgraph.recordings.matching.names import without_endings
from subgraph.storage.tensors import Record, save, type_of
from subgraph.text import count
from subgraph.trials.matching.match_tensors import CLEARER, NEAR, SURELY
from subgraph.types import Array

CACHE_BYTES = 128 << 20  # of entries' values that stay in memory
COPY = "a copy of "
ORDER = "the numbers of "
KINDS = {  # how a reason begins that names a tensor, and what it is of many entries
    COPY: "copies of other tensors",
    ORDER: "the numbers of a tensor in an unknown order",
    "not the value of ": "not the value of the tensor of their name, which is recorded elsewhere",
    "made of ": "made of constants, which are not compared",
}


def kind_of(why: str) -> str:
    """A reason for leaving an entry out, without the tensor that it names.

    >>> kind_of("a copy of conv1"), kind_of("its shape is not known")
    ('copies of other tensors', 'its shape is not known')
    """
    return next((kind for begin, kind in KINDS.items() if why.startswith(begin)), why)


@dataclass(frozen=True)
class TensorMatch:
    """An entry and the tensor that it holds.

    Attributes:
        tensor: of the model.
        how: "name", "value" or "map".
        alignment: what was done to the entry's axes: "", "as NHWC", "transposed (0, 2, 1)", "padding cut off".
        distance: from the reference's value, |a − b| / |a|; NaN if unknown.
        named: the tensor that the entry's name says, where another one is meant.
        alternatives: tensors that the entry may hold instead, in the order of the model: its value confirms none.
        twins: later tensors of the same values.
        as_in: the run in which values confirm what an entry of this name holds; "" for this one.
        scale: of its codes; None where the entry holds none, or nobody says their scale.
        remark: what comparing showed, for readers.
    """

    entry: DumpEntry
    tensor: str
    how: str = "name"
    alignment: str = ""
    distance: float = math.nan
    named: str = ""
    alternatives: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()
    as_in: str = ""
    scale: Scale | None = None
    remark: str = ""

    @property
    def is_namesake(self) -> bool:
        """Did the tool write the very name of the tensor?"""
        return self.tensor == self.entry.tensor

    @property
    def note(self) -> str:
        """What a reader should know of the match; "" where name and value agree."""
        notes = []
        if self.named:
            notes.append(f"the recording calls it {self.named}: fused, by its values")
        elif self.how == "value":
            notes.append(f"found by value: the recording calls it {self.entry.name}")
        elif self.how == "map":
            notes.append(f"as --map says: the recording calls it {self.entry.name}")
        elif not self.is_namesake and without_endings(self.entry.tensor):
            notes.append(f"the recording calls it {self.entry.name}")
        if self.as_in:
            notes.append(f"as in {self.as_in}")
        if self.alignment:
            notes.append(self.alignment)
        if self.scale:
            steps, zeros = (sorted(set(v)) for v in (self.scale.step, self.scale.zero))
            notes.append(f"codes, step {_span(steps)}, zero point {_span(zeros)}")
        if self.twins:
            notes.append(f"{' and '.join(self.twins)} would hold the same")
        if self.alternatives:
            notes.append(f"may hold {' or '.join(self.alternatives)} instead")
        return "; ".join([*notes, *filter(None, [self.remark])])

    def value(self, reference: Array, array: Array | None = None) -> Array:
        """The recorded value in the reference's shape and element type; `array`: the entry's, if already read.

        Raises:
            InputError: the entry cannot be read.
        """
        aligned = align(self.entry.read() if array is None else array, reference, self.alignment)
        return cast(decoded(aligned, reference, self.scale), reference)

    def compared(self, reference: Array, array: Array | None = None) -> tuple[Array, str]:
        """The same, with the reference's value wherever rounding in a text file or of codes explains the difference;
        and what a reader should know of it."""
        value = self.value(reference, array)
        if not self.scale:
            return absorb_print_rounding(reference, value, self.entry.step), ""
        return absorb_requantization(reference, value, self.scale, self.entry.dtype)

    def save(self, reference: Array, folder: Path, stem: str) -> Record:
        """Write `value` to `folder/stem.npy`; the folder is made, the record's path is absolute. Raises: as `value`."""
        value = self.value(reference)
        folder.mkdir(parents=True, exist_ok=True)
        return save(self.tensor, value, type_of(value), folder, stem).within(str(folder.resolve()))


def _span(numbers: Sequence[float]) -> str:
    """`0.02`, `0.01…0.2`."""
    return "…".join(dict.fromkeys(f"{n:.4g}" for n in (numbers[0], numbers[-1])))


@dataclass(frozen=True)
class MatchedRun:
    """One sample of a run, matched to a model.

    Attributes:
        matches: by tensor of the model.
        unmatched: entries that hold no tensor of the model, and why.
        unread: entries that may hold one, and cannot be read; why.
        skipped: entries of tensors that are not compared, and why not.
    """

    matches: Mapping[str, TensorMatch]
    unmatched: tuple[tuple[DumpEntry, str], ...] = ()
    unread: tuple[tuple[DumpEntry, str], ...] = ()
    skipped: tuple[tuple[DumpEntry, str], ...] = ()

    @property
    def lacking(self) -> int:
        """The entries that may hold a tensor of the model and are not compared; copies of one are none."""
        return len(self.unread) + sum(not why.startswith(COPY) for _, why in self.unmatched)

    @property
    def unsure(self) -> bool:
        """Is there an entry whose value confirms no match?"""
        return bool(self.unmatched) or any(not m.distance <= NEAR for m in self.matches.values())

    def summary(self) -> str:
        """In a few words, for people."""
        by_value = sum(m.how == "value" for m in self.matches.values())
        corrected = sum(bool(m.named) for m in self.matches.values())
        more = [f"{corrected} hold a later tensor than their name says"] if corrected else []
        more += [f"{by_value} found by value"] if by_value else []
        more += [f"{len(self.unmatched)} of no tensor of the model"] if self.unmatched else []
        more += [f"{len(self.unread)} that cannot be read"] if self.unread else []
        return "; ".join([f"{count(len(self.matches), 'tensor')} of the model recorded", *more])


class EntryValues:
    """The values of entries, of which as many as fit stay in memory."""

    def __init__(self) -> None:
        self._held: OrderedDict[DumpEntry, Array] = OrderedDict()
        self._room = CACHE_BYTES

    def read(self, entry: DumpEntry) -> Array:
        """As `DumpEntry.read`."""
        if entry not in self._held:
            self._held[entry] = entry.read()
            self._room -= self._held[entry].nbytes
            while len(self._held) > 1 and self._room < 0:
                self._room += self._held.popitem(last=False)[1].nbytes
        self._held.move_to_end(entry)
        return self._held[entry]


def distance_of(match: TensorMatch) -> float:
    """The key by which the nearest match is found."""
    return match.distance


def is_clearer(best: TensorMatch, other: TensorMatch) -> bool:
    """Is a match so much nearer than another one that the two cannot be meant alike?"""
    return other.distance > max(best.distance * CLEARER, SURELY)
