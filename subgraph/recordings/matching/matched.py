"""The result of matching: which tensor an entry of a recording holds, and what is left over."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from subgraph.comparison.pair import compute_relative_l2
from subgraph.errors import InputError
from subgraph.graph.properties import MIXES_AXES, WINDOWS
from subgraph.graph.quantization import find_code_scales
from subgraph.graph.region import Region
from subgraph.log import log
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import (
    CODES,
    IMAGE_RANK,
    NHWC,
    Alignment,
    absorb_print_rounding,
    absorb_requantization,
    capture_tensors,
    convert_to_reference_type,
    iter_alignments,
    iter_foldings,
    read_reference_value,
)
from subgraph.storage.dtypes import Scale
from subgraph.storage.tensors import Record, Records, find_type, format_shape, save
from subgraph.text import clean, count
from subgraph.trials.judge import Judge
from subgraph.trials.matching.match_tensors import (
    MAX_DISTANCE,
    MAX_ROUNDING_DISTANCE,
    MIN_RIVAL_RATIO,
)
from subgraph.trials.matching.name_forms import strip_endings
from subgraph.types import Array, StringMap, Strings, frozen

COPY = "a copy of"  # begins the detail of an entry that holds what another one holds
MAX_EXACT_DISTANCE = 1e-5  # distance up to which no other tensor is considered
# How a match is found that has another name.
FOUND = {"value": "by value", "node": "by results of nodes", "order": "by their order"}


class Reason(StrEnum):
    """The reason for which an entry is not compared."""

    UNREADABLE = "cannot be read"
    UNMATCHED = "of no tensor of the model"
    NOTHING = "nothing to compare with (constants, weights, copies)"


@frozen
class LeftOutEntry:
    """An entry that is not compared; `strange`: the model has neither its name nor its value."""

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


@frozen
class OtherTensors:
    """Other tensors that an entry may hold, or be meant for.

    Attributes:
        named: the tensor of the entry's name, if another one is meant.
        held: the tensor whose value the entry has, if its name is that of the match.
        possible: tensors that the entry may hold instead, in the order of the model: its value
            confirms none.
        equal: later tensors of the same values.
    """

    named: str = ""
    held: str = ""
    possible: Strings = ()
    equal: Strings = ()


@frozen
class TensorMatch:
    """An entry and the tensor that it holds.

    Attributes:
        tensor: of the model.
        how: "name", "value", "node" (that computes or reads it), "order" or "map".
        alignment: how the entry becomes the tensor; None if its shape does not fit.
        is_order_unknown: Whether its shape admits other alignments, and nothing decides which is
            meant.
        distance: from the reference's value, |a − b| / |a|; infinite if unknown.
        others: other tensors that the entry may hold, or be meant for.
        confirmed_in: the run in which values confirm what an entry of this name holds; "" for this
            one.
        scale: of its codes; None if the entry holds none, or their scale is unknown.
        forms: further entries of the tensor, one of which its readers may have read.
        is_read: Whether consumers of the tensor compute other recorded values from this entry.
        remark: a remark of the comparison, for readers.
    """

    entry: DumpEntry
    tensor: str
    how: str = "name"
    alignment: Alignment | None = None
    is_order_unknown: bool = False
    distance: float = math.inf
    others: OtherTensors = OtherTensors()
    confirmed_in: str = ""
    scale: Scale | None = None
    forms: tuple[TensorMatch, ...] = ()
    is_read: bool = False
    remark: str = ""

    def with_others(self, **changed: Any) -> TensorMatch:
        """Return the match with these fields of `others` changed."""
        return replace(self, others=replace(self.others, **changed))

    @property
    def is_by_value(self) -> bool:
        """Whether only its value shows which tensor an entry holds."""
        return self.how in ("value", "node") and not self.is_read

    @property
    def note(self) -> str:
        """The facts about the match for readers; "" if name and value agree."""
        notes = [self._name_note]
        if self.confirmed_in:
            notes.append(f"as in {self.confirmed_in}")
        if self.is_order_unknown:
            notes.append("the order of its axes is not known")
        elif self.alignment and self.alignment.words:
            notes.append(self.alignment.words)
        if self.scale:
            steps, zeros = (sorted(set(v)) for v in (self.scale.step, self.scale.zero))
            notes.append(f"codes, step {_format_span(steps)}, zero point {_format_span(zeros)}")
        if self.others.equal:
            notes.append(f"{' and '.join(self.others.equal)} would hold the same")
        if self.others.held:
            notes.append(f"it has the value of {self.others.held}")
        if self.others.possible:
            notes.append(f"may hold {' or '.join(self.others.possible)} instead")
        return "; ".join(filter(None, [*notes, self.remark]))

    @property
    def _name_note(self) -> str:
        """The name of the tensor in the recording, if it is not that of the model."""
        if self.others.named:
            return f"the recording calls it {self.others.named}: fused, by its values"
        calls = f"the recording calls it {self.entry.name}"
        if self.how == "map":
            return f"as --map says: {calls}"
        if self.how in FOUND:
            return f"found {FOUND[self.how]}: {calls}"
        is_other = self.tensor != self.entry.tensor and strip_endings(self.entry.tensor)
        return calls if is_other else ""

    def value(self, reference: Array) -> Array:
        """Return the recorded value in the reference's shape and element type.

        Raises:
            InputError: the entry cannot be read, or is of another shape or type.
        """
        array = self.entry.read()
        are_texts = [a.dtype.kind == "O" for a in (array, reference)]
        fits = self.alignment and math.prod(self.alignment.stored) == array.size
        if self.alignment is None or not fits or are_texts[0] != are_texts[1]:
            flat = f"{array.size} values of {array.dtype.name}"
            have = flat if array.ndim == 1 else f"shape {format_shape(array.shape)}"
            want = f"{reference.dtype.name} {format_shape(reference.shape)}"
            what = f"it has {have}, the model {want}: another type, or another tensor"
            raise InputError(what, code="recording.other-type")
        if array.dtype.kind in "iub" and reference.dtype.kind not in "iub" and not self.scale:
            what = f"it holds {array.dtype.name} without a scale, the model {reference.dtype.name}"
            raise InputError(what, code="recording.no-scale")
        return convert_to_reference_type(self.alignment.apply(array), reference, self.scale)

    def to_reference_form(self, reference: Array) -> tuple[Array, str]:
        """Return the value, or the reference's if rounding explains it; and a remark."""
        value = self.value(reference)
        if not self.scale:
            return absorb_print_rounding(reference, value, self.entry.step), ""
        return absorb_requantization(reference, value, self.scale, self.entry.dtype)


def _format_span(numbers: Sequence[float]) -> str:
    """Return `0.02`, or `0.01…0.2`."""
    return "…".join(dict.fromkeys(f"{n:.4g}" for n in (numbers[0], numbers[-1])))


@frozen
class MatchedSample:
    """One sample of a run, matched to a model.

    Attributes:
        judge: the judge of the model.
        k: the index of the sample.
        matches: by tensor of the model.
        left_out: the entries that are not compared.
        channels_last: whether files whose shape does not decide hold channels last.
    """

    judge: Judge
    k: int
    matches: Mapping[str, TensorMatch]
    left_out: tuple[LeftOutEntry, ...] = ()
    channels_last: bool = False

    def list_left_out(self, *reasons: Reason) -> list[LeftOutEntry]:
        """Return the entries that are not compared for one of these reasons."""
        return [left for left in self.left_out if left.reason in reasons]

    def reference(self, name: str) -> Array | None:
        """Return the reference's value of a tensor; None if it is not a tensor."""
        return read_reference_value(self.judge.model, name, self.k)

    def save(self, name: str, folder: Path, stem: str) -> Record:
        """Write a recorded tensor, as the model has it, to `folder/stem.npy`, an absolute path.

        Raises:
            InputError: it cannot be read, or is not a tensor.
        """
        reference = self.reference(name)
        if reference is None:
            raise InputError(f"'{name}' is not a tensor", code="tensor.not-tensor")
        value = self.matches[name].value(reference)
        folder.mkdir(parents=True, exist_ok=True)
        return save(name, value, find_type(value), folder, stem).rebase(str(folder.resolve()))

    def save_all(self, names: Iterable[str], folder: Path, stems: StringMap) -> dict[str, Record]:
        """Save the recorded ones of these tensors; warn of those that cannot be read."""
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
        """Whether there is an entry whose value confirms no match."""
        is_near = all(match.distance <= MAX_DISTANCE for match in self.matches.values())
        return not is_near or bool(self.list_left_out(Reason.UNMATCHED))

    def summary(self) -> str:
        """Return a short summary for people."""
        ways = Counter(m.how for m in self.matches.values())
        corrected = sum(bool(m.others.named) for m in self.matches.values())
        facts = {
            "hold a later tensor than that of their name": corrected,
            **{f"found {words}": ways[how] for how, words in FOUND.items()},
            "of no tensor of the model": len(self.list_left_out(Reason.UNMATCHED)),
            "that cannot be read": len(self.list_left_out(Reason.UNREADABLE)),
        }
        more = [f"{number} {words}" for words, number in facts.items() if number]
        return "; ".join([f"{count(self.matches, 'tensor')} of the model recorded", *more])


def run_recorded(
    samples: Iterable[MatchedSample], region: Region
) -> tuple[list[Records], Sequence[Records]]:
    """Compute the outputs of a region from its recorded inputs, else from those of the reference.

    Raises:
        InputError: A recorded tensor cannot be read, or does not fit. ModelError: The reference
            cannot compute them.
    """
    samples = list(samples)
    model = samples[0].judge.model
    folder = model.new_folder()
    capture_tensors(model, region.inputs)
    feeds: list[Records] = [{} for _ in model.values.records]
    for sample in samples:
        recorded = [n for n in region.inputs if n in sample.matches]
        place = folder / str(sample.k)
        feeds[sample.k] = {n: sample.save(n, place, f"x{i}") for i, n in enumerate(recorded)}
    return feeds, model.run_on_reference(region, feeds)


# Key by which the nearest match is found.
get_distance: Callable[[TensorMatch], float] = attrgetter("distance")


def is_clearer(best: TensorMatch, other: TensorMatch) -> bool:
    """Return whether a match is so much nearer than another one that it is certain."""
    return other.distance > max(best.distance * MIN_RIVAL_RATIO, MAX_ROUNDING_DISTANCE)


# ------------------------------------------------------------ an entry as one tensor

CACHE_BYTES = 128 << 20  # of entries' values that stay in memory
MAX_VOTES = 16  # files that are enough to decide whether channels come last
MAX_VOTER = 1 << 20  # elements of a tensor that votes


@dataclass
class Fit:
    """Fits entries to tensors of sample `k`. The values of as many entries as fit stay in memory.

    Attributes:
        channels_last: whether files whose shape does not decide hold channels last.
        some_last: whether any of them does.
        mixed: whether others hold channels first.
    """

    judge: Judge
    k: int
    channels_last: bool = False
    some_last: bool = False
    mixed: bool = False
    _held: OrderedDict[DumpEntry, Array] = field(default_factory=OrderedDict)
    _room: int = CACHE_BYTES

    def reference(self, tensor: str) -> Array | None:
        """Return the reference's value; None if it is not a tensor."""
        return read_reference_value(self.judge.model, tensor, self.k)

    def value(self, entry: DumpEntry) -> Array:
        """Return the value of an entry, as `DumpEntry.read`."""
        if entry not in self._held:
            self._held[entry] = entry.read()
            self._room -= self._held[entry].nbytes
            while len(self._held) > 1 and self._room < 0:
                self._room += self._held.popitem(last=False)[1].nbytes
        self._held.move_to_end(entry)
        return self._held[entry]

    def align(self, entry: DumpEntry, tensor: str, reference: Array | None = None) -> TensorMatch:
        """Return the entry as this tensor, in the alignment that brings it nearest to a value."""
        reference = self.reference(tensor) if reference is None else reference
        if reference is None:
            return TensorMatch(entry, tensor)
        value = self.value(entry)
        best = TensorMatch(entry, tensor, scale=self._scale(entry, tensor))
        # Inputs of the model are often recorded as they were fed, whatever the layout of the
        # layers.
        is_input = tensor in self.judge.model.graph.inputs
        last = None if is_input or self.some_last else False
        ways = list(iter_alignments(value.shape, reference.shape, entry.guessed, last))
        for way in ways:
            away = _measure_distance(value, reference, way, best.scale)
            if away < best.distance or best.alignment is None:
                best = replace(best, alignment=way, distance=away)
            if away <= MAX_ROUNDING_DISTANCE:
                break
        if self.some_last and not is_input and len(ways) > 1 and best.distance > MAX_DISTANCE:
            as_voted = self.channels_last and reference.ndim == IMAGE_RANK
            voted = next((way for way in ways if way.is_channels_last == as_voted), ways[0])
            away = _measure_distance(value, reference, voted, best.scale)
            is_sure = not self.mixed and tensor in self._images
            best = replace(best, alignment=voted, distance=away, is_order_unknown=not is_sure)
        # A file that has the tensor's own shape holds other values if its axes are exchanged.
        is_folded = entry.guessed or value.shape != reference.shape
        may_be_folded = is_folded and best.distance > MAX_DISTANCE
        for way in iter_foldings(value.size, reference.shape) if may_be_folded else ():
            away = compute_relative_l2(reference, way.apply(value))
            if away <= MAX_DISTANCE and away < best.distance:
                best = replace(best, alignment=way, distance=away)
        return best

    def _scale(self, entry: DumpEntry, tensor: str) -> Scale | None:
        """Return the scale of an entry that holds codes: the recording's own, else the model's."""
        if entry.dtype in CODES:
            return entry.scale or self._scales.get(tensor)
        return None

    @cached_property
    def _images(self) -> set[str]:
        """Tensors with an axis of channels, which all files of a tool lay out alike."""
        graph = self.judge.model.graph
        images = set(graph.inputs)
        for i in graph.order:
            op = graph.ops[i]
            is_mixed = op in MIXES_AXES or op == "Transpose"
            if op in WINDOWS or (not is_mixed and not images.isdisjoint(graph.reads[i])):
                images.update(graph.makes[i])
        return images

    @cached_property
    def _scales(self) -> dict[str, Scale]:
        return find_code_scales(self.judge.model.graph)

    def as_other(self, entry: DumpEntry, other: TensorMatch) -> TensorMatch | None:
        """Return the entry as another run's entry of its name; None if it has not that shape."""
        reference = self.reference(other.tensor)
        match = replace(other, entry=entry)
        if reference is None:
            return None
        try:
            return replace(match, distance=compute_relative_l2(reference, match.value(reference)))
        except InputError:
            return None

    def vote(self, named: Mapping[str, Sequence[DumpEntry]]) -> None:
        """See whether a few tensors fit with channels last or first; a tie changes nothing."""
        first = last = 0
        tensors = [n for n in named if n not in self.judge.model.graph.inputs]
        for tensor in tensors:
            reference = self.reference(tensor)
            if reference is None or reference.ndim != IMAGE_RANK or reference.size > MAX_VOTER:
                continue
            for entry in named[tensor] if first + last < MAX_VOTES else ():
                try:
                    value = self.value(entry)
                    scale = self._scale(entry, tensor)
                except InputError:
                    continue
                ways = iter_alignments(value.shape, reference.shape, entry.guessed, None)
                away = {way.words: _measure_distance(value, reference, way, scale) for way in ways}
                as_first = away.get("", math.inf)
                as_last = away.get(NHWC, math.inf)
                last += as_last <= MAX_DISTANCE and as_last * MIN_RIVAL_RATIO < as_first
                first += as_first <= MAX_DISTANCE and as_first * MIN_RIVAL_RATIO < as_last
        self.some_last = self.channels_last or last > 0
        self.mixed = first > 0 and last > 0
        self.channels_last = self.channels_last if first == last else last > first

    def are_same(self, entry: DumpEntry, other: DumpEntry) -> bool:
        """Return whether two entries hold the same numbers."""
        a, b = (self.value(each).reshape(-1) for each in (entry, other))
        return compute_relative_l2(a, b) <= MAX_ROUNDING_DISTANCE


def _measure_distance(value: Array, reference: Array, way: Alignment, scale: Scale | None) -> float:
    """Measure the distance of a value in this alignment from the reference."""
    return compute_relative_l2(
        reference, convert_to_reference_type(way.apply(value), reference, scale)
    )
