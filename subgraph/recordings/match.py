"""A recording beside a model -> which entry holds which of its tensors: by name, then confirmed or repaired.

A name is no proof. After fusion a runtime keeps the name of the first node and the value of the last, converters write
channels last, files without a header say nothing of their shape. So the reference's value decides: what a name says is
*confirmed* where the values are near; where they are not, but those of a tensor that a fused node would hold are, that
one is meant; an entry without a name of the model is matched by value, if one tensor fits and no other. What stays in
doubt is kept under its name, with the tensors that it may hold instead: never decided in silence.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph import plugins
from subgraph.comparison.pair import relative_l2
from subgraph.errors import InputError
from subgraph.graph.graph import CONSTANT, SHAPE, Graph
from subgraph.recordings import recording
from subgraph.recordings.align import IMAGE, NHWC, BlockSums, fits, floats, or_far
from subgraph.recordings.dumps import DumpEntry, TensorSpec, same
from subgraph.recordings.recording import Recording
from subgraph.storage import dtypes
from subgraph.storage.folders import safe_name
from subgraph.storage.tensors import Record, load
from subgraph.text import count
from subgraph.trials.match_tensors import CLEARER, NEAR, SURELY, varied
from subgraph.trials.trial import Trials

if TYPE_CHECKING:
    from subgraph.types import Array

HOPS = 6  # nodes that a device may have made one with the node that gives the name
PART = 256 << 20  # bytes of tensors that are captured, or judged, in one run
ENOUGH = 16  # files that tell a layout
KEPT = 128 << 20  # bytes of entries that stay in memory
UNKNOWN = "no tensor of the model by this name or value"
UNLIKE = "of the size of tensors of the model, by value none of them: wrong, or of another model"
PLAIN = 1e-5  # a distance at which no other tensor is looked at


@dataclass(frozen=True)
class TensorMatch:
    """What an entry holds.

    Attributes:
        tensor: of the model.
        how: "name" or "value".
        fit: what was done to its axes: "", "as NHWC", "transposed (0, 2, 1)", "padding cut off".
        apart: its distance from the reference's value, |a − b| / |a|; NaN where it cannot be told.
        said: the tensor that its name says, where another one is meant.
        may: tensors that it may hold as well, in the order of the model: its value confirms none.
    """

    entry: DumpEntry
    tensor: str
    how: str = "name"
    fit: str = ""
    apart: float = math.nan
    said: str = ""
    may: tuple[str, ...] = ()

    @property
    def own(self) -> bool:
        """Has it the very name?"""
        return self.tensor == self.entry.tensor

    @property
    def note(self) -> str:
        """What a reader should know of the match; "" where name and value agree."""
        said = []
        if self.said:
            said.append(f"the recording calls it {self.said}: fused, by its values")
        elif self.how == "value":
            said.append(f"found by value: the recording calls it {self.entry.name}")
        if self.fit:
            said.append(self.fit)
        if self.may:
            said.append(f"may hold {' or '.join(self.may)} instead")
        return "; ".join(said)


@dataclass(frozen=True)
class MatchedRun:
    """One run on a device beside a model.

    Attributes:
        held: by tensor of the model.
        lost: entries that hold none, or cannot be read, and why. idle: of tensors that are not compared, and why not.
        fused: does any entry hold a later tensor than its name says, or more than one node?
    """

    held: Mapping[str, TensorMatch]
    lost: tuple[tuple[DumpEntry, str], ...] = ()
    fused: bool = False
    idle: tuple[tuple[DumpEntry, str], ...] = ()

    def summary(self) -> str:
        """In a few words, for people."""
        by_value = sum(h.how == "value" for h in self.held.values())
        repaired = sum(bool(h.said) for h in self.held.values())
        more = [f"{repaired} hold a later tensor than their name says"] if repaired else []
        more += [f"{by_value} found by value"] if by_value else []
        more += [f"{len(self.lost)} of no tensor of the model, or not to be read"] if self.lost else []
        return "; ".join([f"{count(len(self.held), 'tensor')} of the model recorded", *more])


def match(
    trials: Trials, found: Recording, entries: Sequence[DumpEntry], loose: frozenset[DumpEntry], k: int = 0
) -> MatchedRun:
    """Which tensors of the model the entries of one run hold, for one sample.

    Complexity: each entry is read once or twice, beside up to HOPS + 1 reference values; an entry without a name of
    the model beside all that nothing else holds and that have its size.

    Raises:
        ModelError: the reference cannot give the values.
    """
    return _Matching(trials, replace(found, entries=tuple(entries)), loose, k).run()


@dataclass
class _Matching:
    trials: Trials
    found: Recording
    loose: frozenset[DumpEntry]
    k: int
    lost: list[tuple[DumpEntry, str]] = field(default_factory=list)
    idle: list[tuple[DumpEntry, str]] = field(default_factory=list)
    _kept: OrderedDict[DumpEntry, Array] = field(default_factory=OrderedDict)
    _room: int = KEPT
    _last: bool = False  # do files hold channels last, where their shape does not tell?

    def run(self) -> MatchedRun:
        named, nameless = self._named()
        known = set(self.trials.tensors())
        chains = {tensor: self._chain(tensor, known) for tensor in named}
        need(self.trials, [n for tensor in named for n in (tensor, *chains[tensor])])
        self._last = self._votes(named)
        held: dict[str, TensorMatch] = {}
        for tensor, entries in named.items():
            best = self._best(tensor, entries)
            if best is None:
                continue
            made = self._repaired(best, [n for n in chains[tensor] if n not in held and n not in named])
            held[made.tensor] = min((made, held.get(made.tensor, made)), key=lambda h: or_far(h.apart))
        self._parted(held)
        fused = any(h.said or len(h.entry.fused) > 1 for h in held.values())
        if nameless:
            self._by_value(nameless, held)
        held = {n: self._doubted(h, chains.get(n, ()), held, fused) for n, h in held.items()}
        return MatchedRun(held, tuple(self.lost), fused, tuple(self.idle))

    # -------------------------------------------------------------------------------------------- names

    def _named(self) -> tuple[dict[str, list[DumpEntry]], list[DumpEntry]]:
        """Entries by the tensor that their name says; and those that say none. Outputs come before inputs."""
        graph = self.trials.graph
        known = dict.fromkeys((*graph.inputs, *self.trials.tensors()))
        nodes = [graph.label(i) for i in self.trials.whole().nodes]
        alike = self._alike(known)
        named: dict[str, list[DumpEntry]] = {}
        nameless = []
        for entry, names in self.found.candidates((*known, *nodes, *graph.maker, *graph.weights)):
            if entry.lacks:
                self.lost.append((entry, entry.lacks))
                continue
            tensors = [t for t in dict.fromkeys(_tensor(graph, entry, n) for n in names) if t in known]
            tensors = list(dict.fromkeys(a for t in tensors for a in (t, *alike.get(t, ()))))
            for tensor in tensors:
                named.setdefault(tensor, []).append(entry)
            if not tensors and (why := next(filter(None, (_idle(graph, n) for n in names)), "")):
                self.idle.append((entry, why))
            elif not tensors and entry.role == "output":
                nameless.append(entry)
        order = [n for n in known if n in named]
        return {n: sorted(named[n], key=lambda e: e.role != "output") for n in order}, nameless

    def _alike(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Names that the tool, or we, write alike, by each of them."""
        plain = getattr(plugins.load("dumps", self.found.format), "plain", same)
        forms: dict[str, list[str]] = {}
        for name in names:
            forms.setdefault(plain(safe_name(name)), []).append(name)
        return {name: some for some in forms.values() if len(some) > 1 for name in some}

    def _chain(self, tensor: str, known: Container[str]) -> tuple[str, ...]:
        """What a fused node of that name would hold: the results behind it that nothing else reads on the way."""
        graph = self.trials.graph
        chain: list[str] = []
        name = tensor
        while len(chain) < HOPS and name not in graph.outputs and len(graph.readers.get(name, ())) == 1:
            made = [n for n in graph.makes[graph.readers[name][0]] if n in known]
            if len(made) != 1:
                break
            name = made[0]
            chain.append(name)
        return tuple(chain)

    # -------------------------------------------------------------------------------------------- values

    def _value(self, entry: DumpEntry) -> Array:
        if entry not in self._kept:
            self._kept[entry] = entry.read()
            self._room -= self._kept[entry].nbytes
            while len(self._kept) > 1 and self._room < 0:
                self._room += self._kept.popitem(last=False)[1].nbytes
        self._kept.move_to_end(entry)
        return self._kept[entry]

    def _reference(self, tensor: str) -> Array | None:
        return reference_of(self.trials, tensor, self.k)

    def _best(self, tensor: str, entries: Sequence[DumpEntry]) -> TensorMatch | None:
        """Of several entries that one name says, the one whose values are nearest; outputs before inputs."""
        found = []
        for entry in entries:
            try:
                found.append(self._held(entry, tensor))
            except InputError as e:
                self.lost.append((entry, e.what))
        return min(found, key=lambda h: (h.entry.role != "output", or_far(h.apart)), default=None)

    def _held(self, entry: DumpEntry, tensor: str) -> TensorMatch:
        right = self._reference(tensor)
        if right is None:
            return TensorMatch(entry, tensor)
        fit, apart = "", math.inf
        last = None if tensor in self.trials.graph.inputs else self._last  # what is fed is often kept as it came
        for k, (fit_, array) in enumerate(fits(self._value(entry), right.shape, entry in self.loose, last)):
            near = relative_l2(right, array.astype(right.dtype) if floats(array, right) else array)
            if near < apart or not k:
                fit, apart = fit_, near
            if near <= SURELY:
                break
        return TensorMatch(entry, tensor, fit=fit, apart=apart)

    def _repaired(self, own: TensorMatch, chain: Sequence[str]) -> TensorMatch:
        """Its value may be that of a later tensor, which fusion has put there."""
        if own.apart <= PLAIN:
            return own
        later = [self._held(own.entry, n) for n in chain]
        best = min(later, key=lambda h: h.apart, default=own)
        if best.apart <= NEAR and best.apart * CLEARER < own.apart:
            return replace(best, said=own.tensor)
        return own

    def _parted(self, held: dict[str, TensorMatch]) -> None:
        """Of tensors whose names a tool writes alike, an entry holds one: the nearest."""
        shared: dict[DumpEntry, list[TensorMatch]] = {}
        for h in held.values():
            shared.setdefault(h.entry, []).append(h)
        for some in shared.values():
            best, *others = sorted(some, key=lambda h: (h.apart > NEAR and not h.own, or_far(h.apart), not h.own))
            for h in others:
                del held[h.tensor]
            if others and or_far(best.apart) > NEAR and not best.own:
                held[best.tensor] = replace(best, may=tuple(h.tensor for h in others))

    def _votes(self, named: Mapping[str, Sequence[DumpEntry]]) -> bool:
        """Do more tensors fit with channels last than as they are? A few small ones tell."""
        plain = last = 0
        for tensor, entries in named.items():
            right = self._reference(tensor)
            for entry in entries if plain + last < ENOUGH and tensor not in self.trials.graph.inputs else ():
                if right is None or right.ndim != IMAGE or right.size > 1 << 20:
                    continue
                try:
                    ways = fits(self._value(entry), right.shape, entry in self.loose, None)
                    near = {fit: relative_l2(right, a) for fit, a in ways}
                except InputError:
                    continue
                own, other = near.get("", math.inf), near.get(NHWC, math.inf)
                last += other <= NEAR and other * CLEARER < own
                plain += own <= NEAR and own * CLEARER < other
        return last > plain

    def _by_value(self, nameless: Sequence[DumpEntry], held: dict[str, TensorMatch]) -> None:
        """Entries without a name of the model: the one tensor that fits, if it does so both ways and clearly."""
        tensors = self.trials.tensors()
        need(self.trials, tensors)
        known = {n: a for n in tensors if (a := self._reference(n)) is not None and a.dtype.kind == "f" and varied(a)}
        free = {a.size for n, a in known.items() if n not in held}
        outlines = BlockSums(known.items())
        near: dict[DumpEntry, list[TensorMatch]] = {}
        whys: dict[DumpEntry, str] = {}
        for entry in nameless:
            try:
                value = self._value(entry)
            except InputError as e:
                self.lost.append((entry, e.what))
                continue
            some = [h for n in outlines.near(value, NEAR) if (h := self._held(entry, n)).apart <= NEAR]
            near[entry] = sorted((h for h in some if h.tensor not in held), key=attrgetter("apart"))
            unlike = not some and value.size in free and value.dtype.kind == "f" and varied(value)
            whys[entry] = entry.note or (f"a copy of {some[0].tensor}" if some else UNLIKE if unlike else UNKNOWN)
        back: dict[str, list[float]] = {}
        for found in near.values():
            for h in found:
                back.setdefault(h.tensor, []).append(h.apart)
        for entry, found in near.items():
            if found and _clearest(found[0].apart, [h.apart for h in found[1:]], back[found[0].tensor]):
                held[found[0].tensor] = replace(found[0], how="value")
            else:
                self.lost.append((entry, "several tensors of the model fit" if found else whys[entry]))

    def _doubted(
        self, own: TensorMatch, chain: Sequence[str], held: Mapping[str, TensorMatch], fused: bool
    ) -> TensorMatch:
        """Where nodes are known to be fused, a value that nothing confirms may be that of a later one."""
        if not fused or own.may or own.apart <= NEAR or own.how == "value" or own.entry.originals:
            return own
        right = self._reference(own.tensor)
        shapes = [(n, self._reference(n)) for n in chain if n not in held]
        may = tuple(n for n, a in shapes if a is not None and right is not None and a.shape == right.shape)
        return replace(own, may=may)


def _tensor(graph: Graph, entry: DumpEntry, name: str) -> str:
    """The tensor that a name means: of a node, its output of that number."""
    if entry.tensor and (name in graph.maker or name in graph.inputs):
        return name
    i = graph.names.get(name)
    if i is None and name.startswith("#") and name[1:].isdigit():
        i = int(name[1:])
    number = entry.original_index if entry.originals else entry.index
    if i is None or not 0 <= number < len(graph.nodes[i].output):
        return name
    return str(graph.nodes[i].output[number])


def _clearest(apart: float, rivals: Sequence[float], others: Sequence[float]) -> bool:
    limit = max(apart * CLEARER, SURELY)
    return all(r > limit for r in rivals) and sum(o <= limit for o in others) == 1


def _idle(graph: Graph, name: str) -> str:
    """Why a tensor of the model is not compared; "" of a name that is none."""
    if (maker := graph.maker.get(name)) is None and name not in graph.weights:
        return ""
    if maker in graph.random_nodes:
        return "random numbers, which are not compared"
    kind = graph.kinds([name])[name]
    said = {CONSTANT: "a constant, which is not compared", SHAPE: "it hangs on shapes alone, and is not compared"}
    return said.get(kind, "no output of the model needs it")


# ---------------------------------------------------------------------------------------------------- reference


def need(trials: Trials, names: Iterable[str]) -> None:
    """Capture tensors in runs of so few that they fit into memory; they stay on disk.

    Raises:
        ModelError: the reference cannot give them.
    """
    lacking = [n for n in dict.fromkeys(names) if n not in trials.values.records[0]]
    part: list[str] = []
    left = PART
    for name, size in sizes(trials, lacking) if lacking else ():
        if part and size > left:
            trials.values.need(part, near=True)
            part, left = [], PART
        part.append(name)
        left -= size
    trials.values.need(part, near=True)


def sizes(trials: Trials, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(name, bytes) of tensors, as far as the model says; open dimensions count as one."""
    known = recording.known_of(trials.graph).specs
    for name in names:
        spec = known.get(name, TensorSpec())
        bits = dtypes.bits_of(spec.dtype or "float32")
        yield name, math.prod(d or 1 for d in spec.shape or ()) * bits // 8


def reference_of(trials: Trials, tensor: str, k: int) -> Array | None:
    """The reference's value of a tensor, mapped rather than read; None where it is none."""
    import numpy as np

    record: Record | None = trials.values.records[k].get(tensor)
    value = load(record, Path("/"), mapped=True) if record else None
    return value if isinstance(value, np.ndarray) else None
