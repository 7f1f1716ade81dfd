"""Entries of a recording -> the tensors of a model that they hold: matched by name, confirmed or corrected by value.

A name alone proves nothing. After fusion a runtime keeps the name of the first node and the value of the last,
converters write channels last, files without a header do not store their shape. So the reference's value decides: a
match by name is *confirmed* where the values are near. Where they are not, but those of a tensor that a fused node of
this name would hold are, that tensor is meant. An entry without a name of the model is matched by value, if exactly one
tensor fits. A match that stays in doubt is kept, with the other tensors that the entry may hold.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

from subgraph.comparison.pair import relative_l2
from subgraph.errors import InputError
from subgraph.graph.graph import CONSTANT, SHAPE, Graph
from subgraph.recordings.align import (
    IMAGE_RANK,
    NHWC,
    BlockSums,
    absorb_print_rounding,
    align,
    alignments,
    both_floats,
    cast,
    nan_to_inf,
)
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.recording import Recording
from subgraph.recordings.reference_tensors import capture_tensors, reference_value
from subgraph.storage.folders import safe_name
from subgraph.storage.tensors import Record, save, type_of
from subgraph.text import count
from subgraph.trials.match_tensors import CLEARER, NEAR, SURELY, varied
from subgraph.trials.trial import Trials
from subgraph.types import Array

MAX_FUSED = 6  # nodes that a device may have fused into the node that gives the name
CACHE_BYTES = 128 << 20  # of entries' values that stay in memory
VOTES = 16  # files that are enough to tell whether channels come last
MAX_VOTER = 1 << 20  # elements of a tensor that votes
EXACT = 1e-5  # distance up to which no other tensor is considered
UNKNOWN = "no tensor of the model by this name or value"
UNLIKE = "of the size of tensors of the model, by value none of them: wrong, or of another model"


@dataclass(frozen=True)
class TensorMatch:
    """An entry and the tensor that it holds.

    Attributes:
        tensor: of the model.
        how: "name" or "value".
        alignment: what was done to the entry's axes: "", "as NHWC", "transposed (0, 2, 1)", "padding cut off".
        distance: from the reference's value, |a − b| / |a|; NaN if unknown.
        named: the tensor that the entry's name says, where another one is meant.
        alternatives: tensors that the entry may hold instead, in the order of the model: its value confirms none.
    """

    entry: DumpEntry
    tensor: str
    how: str = "name"
    alignment: str = ""
    distance: float = math.nan
    named: str = ""
    alternatives: tuple[str, ...] = ()

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
        if self.alignment:
            notes.append(self.alignment)
        if self.alternatives:
            notes.append(f"may hold {' or '.join(self.alternatives)} instead")
        return "; ".join(notes)

    def value(self, reference: Array, array: Array | None = None) -> Array:
        """The recorded value in the reference's shape and element type; `array`: the entry's, if already read.

        Raises:
            InputError: the entry cannot be read.
        """
        return cast(align(self.entry.read() if array is None else array, reference, self.alignment), reference)

    def unprinted(self, reference: Array, array: Array | None = None) -> Array:
        """The same, with the reference's value wherever rounding in a text file explains the difference."""
        return absorb_print_rounding(reference, self.value(reference, array), self.entry.step)

    def save(self, reference: Array, folder: Path, stem: str) -> Record:
        """Write `value` to `folder/stem.npy`; the folder is made, the record's path is absolute. Raises: as `value`."""
        value = self.value(reference)
        folder.mkdir(parents=True, exist_ok=True)
        return save(self.tensor, value, type_of(value), folder, stem).within(str(folder.resolve()))


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

    def summary(self) -> str:
        """In a few words, for people."""
        by_value = sum(m.how == "value" for m in self.matches.values())
        corrected = sum(bool(m.named) for m in self.matches.values())
        more = [f"{corrected} hold a later tensor than their name says"] if corrected else []
        more += [f"{by_value} found by value"] if by_value else []
        more += [f"{len(self.unmatched)} of no tensor of the model"] if self.unmatched else []
        more += [f"{len(self.unread)} that cannot be read"] if self.unread else []
        return "; ".join([f"{count(len(self.matches), 'tensor')} of the model recorded", *more])


def match_entries(trials: Trials, recorded: Recording, entries: Sequence[DumpEntry], k: int = 0) -> MatchedRun:
    """Which tensors of the model the entries of one run hold, for sample `k`.

    Complexity: each entry is read once or twice, and compared with up to MAX_FUSED + 1 reference values; an entry
    without a name of the model with all tensors of its size that nothing else holds.

    Raises:
        ModelError: the reference cannot give the values.
    """
    return _Matching(trials, replace(recorded, entries=tuple(entries)), k).run()


@dataclass
class _Matching:
    trials: Trials
    recorded: Recording
    k: int
    unmatched: list[tuple[DumpEntry, str]] = field(default_factory=list)
    unread: dict[DumpEntry, str] = field(default_factory=dict)
    skipped: list[tuple[DumpEntry, str]] = field(default_factory=list)
    _cache: OrderedDict[DumpEntry, Array] = field(default_factory=OrderedDict)
    _cache_room: int = CACHE_BYTES
    _channels_last: bool = False  # in files whose shape does not tell

    def run(self) -> MatchedRun:
        named, nameless = self._by_name()
        tensors = set(self.trials.tensors())
        chains = {tensor: self._fusion_chain(tensor, tensors) for tensor in named}
        capture_tensors(self.trials, [n for tensor in named for n in (tensor, *chains[tensor])])
        self._channels_last = self._vote(named)
        matches: dict[str, TensorMatch] = {}
        for tensor, entries in named.items():
            best = self._nearest(tensor, entries)
            if best is None:
                continue
            later = [n for n in chains[tensor] if n not in matches and n not in named]
            match = self._corrected(best, later)
            rivals = (match, matches.get(match.tensor, match))
            matches[match.tensor] = min(rivals, key=lambda m: nan_to_inf(m.distance))
        self._separate(matches)
        fused = any(m.named or len(m.entry.fused) > 1 for m in matches.values())
        if nameless:
            self._match_by_value(nameless, matches)
        if fused:
            matches = {n: self._with_alternatives(m, chains.get(n, ()), matches) for n, m in matches.items()}
        return MatchedRun(matches, tuple(self.unmatched), tuple(self.unread.items()), tuple(self.skipped))

    # -------------------------------------------------------------------------------------------- names

    def _by_name(self) -> tuple[dict[str, list[DumpEntry]], list[DumpEntry]]:
        """Entries by the tensor that their name says, outputs of nodes before inputs; and entries of unknown names."""
        graph = self.trials.graph
        tensors = dict.fromkeys((*graph.inputs, *self.trials.tensors()))
        nodes = [graph.label(i) for i in self.trials.whole().nodes]
        homonyms = self._homonyms(tensors)
        named: dict[str, list[DumpEntry]] = {}
        nameless = []
        for entry, names in self.recorded.candidates((*tensors, *nodes, *graph.maker, *graph.weights)):
            meant = [t for t in dict.fromkeys(_tensor(graph, entry, n) for n in names) if t in tensors]
            meant = list(dict.fromkeys(h for t in meant for h in (t, *homonyms.get(t, ()))))
            if entry.lacks and (meant or not names):
                self.unread[entry] = entry.lacks
                continue
            for tensor in meant:
                named.setdefault(tensor, []).append(entry)
            if not meant and (why := next(filter(None, (_why_skipped(graph, n) for n in names)), "")):
                self.skipped.append((entry, why))
            elif not meant and entry.role == "output":
                nameless.append(entry)
        return {n: sorted(named[n], key=lambda e: e.role != "output") for n in tensors if n in named}, nameless

    def _homonyms(self, names: Iterable[str]) -> dict[str, list[str]]:
        """By name, the names that the tool, or subcut, writes in the same way."""
        written: dict[str, list[str]] = {}
        for name in names:
            written.setdefault(self.recorded.plain(safe_name(name)), []).append(name)
        return {name: group for group in written.values() if len(group) > 1 for name in group}

    def _fusion_chain(self, tensor: str, tensors: Container[str]) -> tuple[str, ...]:
        """What a fused node may hold under this name: the results behind it, as long as each has one reader."""
        graph = self.trials.graph
        chain: list[str] = []
        name = tensor
        while len(chain) < MAX_FUSED and name not in graph.outputs and len(graph.readers.get(name, ())) == 1:
            made = [n for n in graph.makes[graph.readers[name][0]] if n in tensors]
            if len(made) != 1:
                break
            name = made[0]
            chain.append(name)
        return tuple(chain)

    # -------------------------------------------------------------------------------------------- values

    def _read(self, entry: DumpEntry) -> Array:
        if entry not in self._cache:
            self._cache[entry] = entry.read()
            self._cache_room -= self._cache[entry].nbytes
            while len(self._cache) > 1 and self._cache_room < 0:
                self._cache_room += self._cache.popitem(last=False)[1].nbytes
        self._cache.move_to_end(entry)
        return self._cache[entry]

    def _reference(self, tensor: str) -> Array | None:
        return reference_value(self.trials, tensor, self.k)

    def _nearest(self, tensor: str, entries: Sequence[DumpEntry]) -> TensorMatch | None:
        """Of several entries of one name, the one whose value is nearest; outputs of nodes before inputs."""
        matches = []
        for entry in entries:
            try:
                matches.append(self._aligned(entry, tensor))
            except InputError as e:
                self.unread[entry] = e.what
        return min(matches, key=lambda m: (m.entry.role != "output", nan_to_inf(m.distance)), default=None)

    def _aligned(self, entry: DumpEntry, tensor: str) -> TensorMatch:
        """The entry as this tensor, in the alignment that brings it nearest."""
        reference = self._reference(tensor)
        if reference is None:
            return TensorMatch(entry, tensor)
        best, nearest = "", math.inf
        # Inputs of the model are often recorded as they were fed, whatever the layout of the layers.
        last = None if tensor in self.trials.graph.inputs else self._channels_last
        ways = alignments(self._read(entry), reference.shape, entry.assumed, last)
        for number, (alignment, array) in enumerate(ways):
            away = relative_l2(reference, array.astype(reference.dtype) if both_floats(array, reference) else array)
            if away < nearest or not number:
                best, nearest = alignment, away
            if away <= SURELY:
                break
        return TensorMatch(entry, tensor, alignment=best, distance=nearest)

    def _corrected(self, match: TensorMatch, later: Sequence[str]) -> TensorMatch:
        """The match, or that of a later tensor, whose value fusion has put there."""
        if match.distance <= EXACT:
            return match
        best = min((self._aligned(match.entry, n) for n in later), key=lambda m: m.distance, default=match)
        if best.distance <= NEAR and best.distance * CLEARER < match.distance:
            return replace(best, named=match.tensor)
        return match

    def _separate(self, matches: dict[str, TensorMatch]) -> None:
        """Leave each entry one tensor, the nearest, of those whose names a tool writes in the same way."""
        shared: dict[DumpEntry, list[TensorMatch]] = {}
        for match in matches.values():
            shared.setdefault(match.entry, []).append(match)
        for group in shared.values():
            best, *others = sorted(
                group,
                key=lambda m: (m.distance > NEAR and not m.is_namesake, nan_to_inf(m.distance), not m.is_namesake),
            )
            for match in others:
                del matches[match.tensor]
            if others and nan_to_inf(best.distance) > NEAR and not best.is_namesake:
                matches[best.tensor] = replace(best, alternatives=tuple(m.tensor for m in others))

    def _vote(self, named: Mapping[str, Sequence[DumpEntry]]) -> bool:
        """Do more tensors fit with channels last than with channels first? A few small ones tell."""
        first = last = 0
        for tensor, entries in named.items():
            reference = self._reference(tensor)
            for entry in entries if first + last < VOTES and tensor not in self.trials.graph.inputs else ():
                if reference is None or reference.ndim != IMAGE_RANK or reference.size > MAX_VOTER:
                    continue
                try:
                    ways = alignments(self._read(entry), reference.shape, entry.assumed, None)
                    away = {alignment: relative_l2(reference, array) for alignment, array in ways}
                except InputError:
                    continue
                as_first, as_last = away.get("", math.inf), away.get(NHWC, math.inf)
                last += as_last <= NEAR and as_last * CLEARER < as_first
                first += as_first <= NEAR and as_first * CLEARER < as_last
        return last > first

    def _match_by_value(self, nameless: Sequence[DumpEntry], matches: dict[str, TensorMatch]) -> None:
        """Match entries of unknown names to the one tensor that fits, if each is clearly the other's nearest."""
        tensors = self.trials.tensors()
        capture_tensors(self.trials, tensors)
        values = ((n, self._reference(n)) for n in tensors)  # one at a time
        sums = BlockSums((n, a) for n, a in values if a is not None and a.dtype.kind == "f" and varied(a))
        free_sizes = {size for n, size in sums.sizes.items() if n not in matches}
        near: dict[DumpEntry, list[TensorMatch]] = {}
        whys: dict[DumpEntry, str] = {}
        for entry in nameless:
            try:
                value = self._read(entry)
            except InputError as e:
                self.unread[entry] = e.what
                continue
            fitting = [m for n in sums.near(value, NEAR) if (m := self._aligned(entry, n)).distance <= NEAR]
            near[entry] = sorted((m for m in fitting if m.tensor not in matches), key=attrgetter("distance"))
            unlike = not fitting and value.size in free_sizes and value.dtype.kind == "f" and varied(value)
            whys[entry] = entry.note or (f"a copy of {fitting[0].tensor}" if fitting else UNLIKE if unlike else UNKNOWN)
        distances: dict[str, list[float]] = {}  # of all entries that fit a tensor
        for fitting in near.values():
            for m in fitting:
                distances.setdefault(m.tensor, []).append(m.distance)
        for entry, fitting in near.items():
            best = fitting[0] if fitting else None
            if best and _is_unique(best.distance, [m.distance for m in fitting[1:]], distances[best.tensor]):
                matches[best.tensor] = replace(best, how="value")
            else:
                self.unmatched.append((entry, "several tensors of the model fit" if best else whys[entry]))

    def _with_alternatives(
        self, match: TensorMatch, chain: Sequence[str], matches: Mapping[str, TensorMatch]
    ) -> TensorMatch:
        """Where nodes are fused, a value that confirms nothing may be that of a later tensor of the same shape."""
        if match.alternatives or match.distance <= NEAR or match.how == "value" or match.entry.originals:
            return match
        reference = self._reference(match.tensor)
        later = [(n, self._reference(n)) for n in chain if n not in matches]
        alike = [n for n, a in later if a is not None and reference is not None and a.shape == reference.shape]
        return replace(match, alternatives=tuple(alike))


def _tensor(graph: Graph, entry: DumpEntry, name: str) -> str:
    """The tensor that a name means: of a node, the output that the entry holds."""
    if entry.tensor and (name in graph.maker or name in graph.inputs):
        return name
    i = graph.names.get(name)
    if i is None and name.startswith("#") and name[1:].isdigit():
        i = int(name[1:])
    number = entry.original_index if entry.originals else entry.index
    if i is None or not 0 <= number < len(graph.nodes[i].output):
        return name
    return str(graph.nodes[i].output[number])


def _is_unique(nearest: float, rival_tensors: Sequence[float], entries: Sequence[float]) -> bool:
    """Are all other tensors clearly further from the entry, and all other entries clearly further from the tensor?"""
    limit = max(nearest * CLEARER, SURELY)
    return all(r > limit for r in rival_tensors) and sum(e <= limit for e in entries) == 1


def _why_skipped(graph: Graph, name: str) -> str:
    """Why a tensor of the model is not compared; "" for a name that is no tensor."""
    if (maker := graph.maker.get(name)) is None and name not in graph.weights:
        return ""
    if maker in graph.random_nodes:
        return "random numbers, which are not compared"
    kind = graph.kinds([name])[name]
    whys = {CONSTANT: "a constant, which is not compared", SHAPE: "it hangs on shapes alone, and is not compared"}
    return whys.get(kind, "no output of the model needs it")
