"""What matching gives: the tensor of the model that an entry of a recording holds, and what is left
over."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from subgraph.errors import InputError
from subgraph.log import log
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import (
    Alignment,
    absorb_print_rounding,
    absorb_requantization,
    convert_to_reference_type,
)
from subgraph.recordings.matching.names import strip_endings
from subgraph.recordings.reference_tensors import read_reference_value
from subgraph.storage.scale import Scale
from subgraph.storage.tensors import Record, save, shape_text, type_of
from subgraph.text import clean, count
from subgraph.trials.judge import Judge
from subgraph.trials.matching.match_tensors import CLEARER, NEAR, SURELY
from subgraph.types import Array, StringMap, Strings

COPY = "a copy of"  # begins the detail of an entry that holds what another one holds
EXACT = 1e-5  # distance up to which no other tensor is considered
# How a match is found that its name does not tell.
FOUND = {
    "value": "by value",
    "node": "by what nodes compute",
    "order": "by their order",
}


class Reason(StrEnum):
    """Why an entry is not compared."""

    UNREADABLE = "cannot be read"
    UNMATCHED = "of no tensor of the model"
    NOTHING = "nothing to compare with (constants, weights, copies)"


@dataclass(frozen=True)
class LeftOutEntry:
    """An entry that is not compared. `detail`: what is known of this one, beside the reason;
    `strange`: its name and its value are none of the model's."""

    entry: DumpEntry
    reason: Reason
    detail: str = ""
    strange: bool = False

    @property
    def why(self) -> str:
        return self.detail or self.reason

    @property
    def is_in_doubt(self) -> bool:
        """Whether it may hold a tensor all the same."""
        is_unknown = self.reason is Reason.UNMATCHED or self.detail.startswith(COPY)
        return is_unknown and not self.entry.note


@dataclass(frozen=True)
class TensorMatch:
    """An entry and the tensor that it holds.

    Attributes:
        tensor: of the model.
        how: "name", "value", "node" (that computes or reads it), "order" or "map".
        alignment: how the entry becomes the tensor; None where its shape does not fit.
        is_order_unknown: Whether its shape admits other alignments, and nothing tells which is
            meant.
        distance: from the reference's value, |a − b| / |a|; NaN if unknown.
        name_says: the tensor that the entry's name says, where another one is meant.
        alternatives: tensors that the entry may hold instead, in the order of the model: its value
            confirms none.
        twins: later tensors of the same values.
        confirmed_in: the run in which values confirm what an entry of this name holds; "" for this
            one.
        scale: of its codes; None where the entry holds none, or their scale is unknown.
        forms: further entries of the tensor, one of which its readers may have read.
        holds: the tensor whose value the entry has, where its name says this one.
        remark: what comparing showed, for readers.
    """

    entry: DumpEntry
    tensor: str
    how: str = "name"
    alignment: Alignment | None = None
    is_order_unknown: bool = False
    distance: float = math.nan
    name_says: str = ""
    alternatives: Strings = ()
    twins: Strings = ()
    confirmed_in: str = ""
    scale: Scale | None = None
    forms: tuple[TensorMatch, ...] = ()
    holds: str = ""
    remark: str = ""

    @property
    def note(self) -> str:
        """What a reader should know of the match; "" where name and value agree."""
        notes = [self._name_note] if self._name_note else []
        if self.confirmed_in:
            notes.append(f"as in {self.confirmed_in}")
        if self.is_order_unknown:
            notes.append("the order of its axes is not known")
        elif self.alignment and self.alignment.words:
            notes.append(self.alignment.words)
        if self.scale:
            steps, zeros = (sorted(set(v)) for v in (self.scale.step, self.scale.zero))
            notes.append(f"codes, step {_format_span(steps)}, zero point {_format_span(zeros)}")
        if self.twins:
            notes.append(f"{' and '.join(self.twins)} would hold the same")
        if self.holds:
            notes.append(f"it has the value of {self.holds}")
        if self.alternatives:
            notes.append(f"may hold {' or '.join(self.alternatives)} instead")
        return "; ".join([*notes, *filter(None, [self.remark])])

    @property
    def _name_note(self) -> str:
        """What the recording calls the tensor, if not as the model does."""
        if self.name_says:
            return f"the recording calls it {self.name_says}: fused, by its values"
        calls = f"the recording calls it {self.entry.name}"
        if self.how in FOUND or self.how == "map":
            return (
                f"{f'found {FOUND[self.how]}' if self.how in FOUND else 'as --map says'}: {calls}"
            )
        return (
            calls if self.tensor != self.entry.tensor and strip_endings(self.entry.tensor) else ""
        )

    def value(self, reference: Array) -> Array:
        """The recorded value in the reference's shape and element type.

        Raises:
            InputError: the entry cannot be read, or is of another shape or type.
        """
        array = self.entry.read()
        are_texts = [a.dtype.kind == "O" for a in (array, reference)]
        if (
            self.alignment is None
            or math.prod(self.alignment.stored) != array.size
            or are_texts[0] != are_texts[1]
        ):
            flat = f"{array.size} values of {array.dtype.name}"
            have = flat if array.ndim == 1 else f"shape {shape_text(array.shape)}"
            want = f"{reference.dtype.name} {shape_text(reference.shape)}"
            raise InputError(
                f"it has {have}, the model {want}: another type, or another tensor",
                code="recording.other-type",
            )
        if array.dtype.kind in "iub" and reference.dtype.kind not in "iub" and not self.scale:
            raise InputError(
                f"it holds {array.dtype.name} without a scale, the model {reference.dtype.name}",
                code="recording.no-scale",
            )
        return convert_to_reference_type(self.alignment.apply(array), reference, self.scale)

    def compared(self, reference: Array) -> tuple[Array, str]:
        """The same, with the reference's value wherever rounding in a text file or of codes
        explains the difference; and what a reader should know of it."""
        value = self.value(reference)
        if not self.scale:
            return absorb_print_rounding(reference, value, self.entry.step), ""
        return absorb_requantization(reference, value, self.scale, self.entry.dtype)


def _format_span(numbers: Sequence[float]) -> str:
    """`0.02`, `0.01…0.2`."""
    return "…".join(dict.fromkeys(f"{n:.4g}" for n in (numbers[0], numbers[-1])))


@dataclass(frozen=True)
class MatchedSample:
    """One sample of a run, matched to a model.

    Attributes:
        judge, k: that the run is compared with, and which of their samples.
        matches: by tensor of the model.
        left_out: the entries that are not compared.
        channels_last: do files hold channels last whose shape does not tell?
    """

    judge: Judge
    k: int
    matches: Mapping[str, TensorMatch]
    left_out: tuple[LeftOutEntry, ...] = ()
    channels_last: bool = False

    @property
    def unlike(self) -> int:
        """How many entries have a name and a value that the model has not."""
        return sum(left.strange for left in self.left_out)

    def left_out_as(self, *reasons: Reason) -> list[LeftOutEntry]:
        """The entries that are not compared for one of these reasons."""
        return [left for left in self.left_out if left.reason in reasons]

    def reference(self, name: str) -> Array | None:
        """The reference's value of a tensor; None if it is not a tensor."""
        return read_reference_value(self.judge.model, name, self.k)

    def save(self, name: str, folder: Path, stem: str) -> Record:
        """Write a recorded tensor, as the model has it, to `folder/stem.npy`; the record's path is
        absolute.

        Raises:
            InputError: it cannot be read, or is not a tensor.
        """
        reference = self.reference(name)
        if reference is None:
            raise InputError(f"'{name}' is not a tensor", code="tensor.not-tensor")
        value = self.matches[name].value(reference)
        folder.mkdir(parents=True, exist_ok=True)
        return save(name, value, type_of(value), folder, stem).within(str(folder.resolve()))

    def save_all(self, names: Iterable[str], folder: Path, stems: StringMap) -> dict[str, Record]:
        """`save` of these tensors, those apart that were not recorded or, with a warning, cannot be
        read."""
        saved = {}
        for name in names:
            try:
                if name in self.matches:
                    saved[name] = self.save(name, folder, stems[name])
            except InputError as e:
                log.warning("%s: %s", clean(name), e.what)
        return saved

    @property
    def unsure(self) -> bool:
        """Is there an entry whose value confirms no match?"""
        return bool(self.left_out_as(Reason.UNMATCHED)) or any(
            not m.distance <= NEAR for m in self.matches.values()
        )

    def summary(self) -> str:
        """In a few words, for people."""
        ways = Counter(m.how for m in self.matches.values())
        corrected = sum(bool(m.name_says) for m in self.matches.values())
        more = [f"{corrected} hold a later tensor than their name says"] if corrected else []
        more += [f"{ways[how]} found {words}" for how, words in FOUND.items() if ways[how]]
        unmatched, unread = (
            len(self.left_out_as(reason)) for reason in (Reason.UNMATCHED, Reason.UNREADABLE)
        )
        more += [f"{unmatched} of no tensor of the model"] if unmatched else []
        more += [f"{unread} that cannot be read"] if unread else []
        return "; ".join([f"{count(len(self.matches), 'tensor')} of the model recorded", *more])


def get_distance(match: TensorMatch) -> float:
    """The key by which the nearest match is found."""
    return match.distance


def is_clearer(best: TensorMatch, other: TensorMatch) -> bool:
    """Is a match so much nearer than another one that the two cannot be meant alike?"""
    return other.distance > max(best.distance * CLEARER, SURELY)
