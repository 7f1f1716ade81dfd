"""What matching gives: the tensor of the model that an entry of a recording holds, and what is left over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from subgraph.errors import InputError
from subgraph.graph.quantization import Scale
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import absorb_print_rounding, absorb_requantization, align, cast, decoded
from subgraph.recordings.matching.names import without_endings
from subgraph.recordings.reference_tensors import reference_value
from subgraph.storage.tensors import Record, save, type_of
from subgraph.text import clean, count
from subgraph.trials.matching.match_tensors import CLEARER, NEAR, SURELY
from subgraph.trials.trial import Trials
from subgraph.types import Array

UNREADABLE = "cannot be read"  # kinds of reasons that say more of one entry
COPIES = "copies of other tensors"


@dataclass(frozen=True)
class LeftOutEntry:
    """An entry that is not compared, and why. `kind`: the same of many entries, where `why` says more of this one."""

    entry: DumpEntry
    why: str
    kind: str = ""

    @property
    def reason(self) -> str:
        """Of this and others."""
        return self.kind or self.why


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


def _span(numbers: Sequence[float]) -> str:
    """`0.02`, `0.01…0.2`."""
    return "…".join(dict.fromkeys(f"{n:.4g}" for n in (numbers[0], numbers[-1])))


@dataclass(frozen=True)
class MatchedSample:
    """One sample of a run, matched to a model.

    Attributes:
        trials, k: that the run is compared with, and which of their samples.
        matches: by tensor of the model.
        unread: entries that may hold a tensor of the model, and cannot be read.
        unmatched: entries that hold no tensor of the model.
        skipped: entries of tensors that are not compared.
    """

    trials: Trials
    k: int
    matches: Mapping[str, TensorMatch]
    unread: tuple[LeftOutEntry, ...] = ()
    unmatched: tuple[LeftOutEntry, ...] = ()
    skipped: tuple[LeftOutEntry, ...] = ()

    @property
    def left_out(self) -> tuple[LeftOutEntry, ...]:
        return (*self.unread, *self.unmatched, *self.skipped)

    @property
    def lacking(self) -> int:
        """The entries that may hold a tensor of the model and are not compared; copies of one are none."""
        return len(self.unread) + sum(left.kind != COPIES for left in self.unmatched)

    def reference(self, name: str) -> Array | None:
        """The reference's value of a tensor; None if it is no tensor."""
        return reference_value(self.trials, name, self.k)

    def save(self, name: str, folder: Path, stem: str) -> Record:
        """Write a recorded tensor, as the model has it, to `folder/stem.npy`; the record's path is absolute.

        Raises:
            InputError: it cannot be read, or is no tensor.
        """
        reference = self.reference(name)
        if reference is None:
            raise InputError(f"'{clean(name)}' is no tensor")
        value = self.matches[name].value(reference)
        folder.mkdir(parents=True, exist_ok=True)
        return save(name, value, type_of(value), folder, stem).within(str(folder.resolve()))

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


def distance_of(match: TensorMatch) -> float:
    """The key by which the nearest match is found."""
    return match.distance


def is_clearer(best: TensorMatch, other: TensorMatch) -> bool:
    """Is a match so much nearer than another one that the two cannot be meant alike?"""
    return other.distance > max(best.distance * CLEARER, SURELY)
