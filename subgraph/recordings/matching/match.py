"""Entries of a recording -> the tensors of a model that they hold: matched by name, confirmed or corrected by value.

A name alone proves nothing. After fusion a runtime keeps the name of the first node and the value of the last,
converters write channels last, files without a header do not store their shape. So the reference's value decides: a
match by name is *confirmed* where the values are near. Where they are not, but those of a tensor that a fused node of
this name would hold are, that tensor is meant. An entry without a name of the model is matched by value, if exactly one
tensor fits. A match that stays in doubt is kept, with the other tensors that the entry may hold.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, takewhile

from subgraph.errors import InputError
from subgraph.graph import protobuf
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import (
    BlockSums,
    nan_to_inf,
    same_numbers,
)
from subgraph.recordings.matching.fit import Fit, Shapes, Turns
from subgraph.recordings.matching.matched import COPY, ORDER, MatchedRun, TensorMatch, distance_of, is_clearer
from subgraph.recordings.matching.names import (
    ModelNames,
    dropped_input,
    fused_results,
    likely_names,
    meant_tensor,
    recorded_name,
    why_skipped,
)
from subgraph.recordings.recording import Recording
from subgraph.recordings.reference_tensors import capture_tensors
from subgraph.storage.folders import safe_name
from subgraph.trials.matching.match_tensors import CLEARER, NEAR, SURELY, varied
from subgraph.trials.trial import Trials

SEVERAL = "several tensors of the model fit"
SAME_NUMBERS = 2e-3  # distance of sorted numbers up to which two tensors hold the same ones
EXACT = 1e-5  # distance up to which no other tensor is considered
UNKNOWN = "no tensor of the model by this name or value"
UNLIKE = "of the size of tensors of the model, by value none of them: wrong, or of another model"


def match_entries(
    trials: Trials,
    recorded: Recording,
    entries: Sequence[DumpEntry],
    k: int = 0,
    confirmed: Mapping[str, TensorMatch] | None = None,
) -> MatchedRun:
    """Which tensors of the model the entries of one run hold, for sample `k`; `confirmed`: as `confirmed_names`.

    Complexity: each entry is read once or twice, and compared with up to MAX_FUSED + 1 reference values; an entry
    without a name of the model with all tensors of its size that nothing else holds.

    Raises:
        ModelError: the reference cannot give the values.
    """
    return _Matching(trials, replace(recorded, entries=tuple(entries)), k, confirmed or {}).run()


def confirmed_names(matched: MatchedRun, run: str) -> dict[str, TensorMatch]:
    """By the name that the tool gave, the matches of a run that values confirm; for other runs of the same tool."""
    sure = (m for m in matched.matches.values() if m.distance <= NEAR and not m.alternatives)
    return {recorded_name(m.entry): replace(m, as_in=run) for m in sure if m.entry.role == "output"}


@dataclass
class _Matching:
    trials: Trials
    recorded: Recording
    k: int
    confirmed: Mapping[str, TensorMatch] = field(default_factory=dict)
    unmatched: list[tuple[DumpEntry, str]] = field(default_factory=list)
    unread: dict[DumpEntry, str] = field(default_factory=dict)
    skipped: list[tuple[DumpEntry, str]] = field(default_factory=list)
    _sums: BlockSums = field(default_factory=lambda: BlockSums(()))
    _told: set[str] = field(default_factory=set)  # tensors whose names others of the recording confirm

    @cached_property
    def _fit(self) -> Fit:
        return Fit(self.trials, self.k)

    @cached_property
    def _names(self) -> ModelNames:
        return ModelNames(self.trials.graph, (*self.trials.graph.inputs, *self.trials.tensors()), self.recorded.plain)

    def run(self) -> MatchedRun:
        graph = self.trials.graph
        matches = self._given()
        named, nameless = self._by_name({m.entry for m in matches.values()})
        for tensor in matches.keys() & named.keys():
            given = matches[tensor].entry.name
            self.skipped += [(e, f"{given} is said to hold {tensor}") for e in named.pop(tensor) if e.role == "output"]
        tensors = set(self.trials.tensors())
        chains = {tensor: fused_results(graph, tensor, tensors) for tensor in named}
        around = [n for tensor in named for n in (tensor, *chains[tensor], *dropped_input(graph, tensor))]
        capture_tensors(self.trials, around if not nameless else self.trials.tensors())
        self._fit.channels_last = self._fit.vote(named)
        for tensor, entries in named.items():
            best = self._nearest(tensor, entries)
            if best is None:
                continue
            others = (*chains[tensor], *dropped_input(graph, tensor))
            match = self._corrected(best, [n for n in others if n not in matches and n not in named])
            rivals = (match, matches.get(match.tensor, match))
            matches[match.tensor] = min(rivals, key=lambda m: nan_to_inf(m.distance))
        self._separate(matches)
        fused = any(m.named or len(m.entry.fused) > 1 for m in matches.values())
        if nameless or fused:
            self._match_by_analogy(self._match_by_value(nameless, matches), matches)
        if fused:
            matches = {n: self._with_alternatives(m, matches) for n, m in matches.items()}
        return MatchedRun(matches, tuple(self.unmatched), tuple(self.unread.items()), tuple(self.skipped))

    # -------------------------------------------------------------------------------------------- names

    def _given(self) -> dict[str, TensorMatch]:
        """The matches that the user says, and those that another run of the tool confirms."""
        tensors = dict.fromkeys((*self.trials.graph.inputs, *self.trials.tensors()))
        said = {e: n for e in self.recorded.entries if e.mapped for n in e.originals if n in tensors}
        others = {e: self.confirmed.get(recorded_name(e)) for e in self.recorded.entries if e.role == "output"}
        capture_tensors(self.trials, [*said.values(), *(m.tensor for m in others.values() if m)])
        given: dict[str, TensorMatch] = {}
        for entry in {**others, **said}:
            try:
                if entry in said:
                    given[said[entry]] = replace(self._fit.aligned(entry, said[entry]), how="map")
                elif (other := others[entry]) and (match := self._fit.as_other(entry, other)):
                    given.setdefault(match.tensor, match)
            except InputError as e:
                self.unread[entry] = e.what
        return given

    def _by_name(self, given: Container[DumpEntry]) -> tuple[dict[str, list[DumpEntry]], list[DumpEntry]]:
        """Entries by the tensor that their name says, outputs of nodes before inputs; and entries of unknown names.

        `given`: entries to leave out.
        """
        graph = self.trials.graph
        tensors = dict.fromkeys((*graph.inputs, *self.trials.tensors()))
        nodes = [graph.label(i) for i in self.trials.whole().nodes]
        homonyms = self._homonyms(tensors)
        named: dict[str, list[DumpEntry]] = {}
        nameless = []
        for entry, names in self.recorded.candidates((*tensors, *nodes, *graph.maker, *graph.weights)):
            if entry in given or entry in self.unread:
                continue
            meant = [t for t in dict.fromkeys(meant_tensor(graph, entry, n) for n in names) if t in tensors]
            meant = list(dict.fromkeys(h for t in meant for h in (t, *homonyms.get(t, ()))))
            if entry.lacks and (meant or not names):
                self.unread[entry] = entry.lacks
                continue
            for tensor in meant:
                named.setdefault(tensor, []).append(entry)
            if not meant and (why := next(filter(None, (why_skipped(graph, n) for n in names)), "")):
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

    # -------------------------------------------------------------------------------------------- values

    def _nearest(self, tensor: str, entries: Sequence[DumpEntry]) -> TensorMatch | None:
        """Of several entries of one name, the one whose value is nearest; outputs of nodes before inputs."""
        matches = []
        for entry in entries:
            try:
                matches.append(self._fit.aligned(entry, tensor))
            except InputError as e:
                self.unread[entry] = e.what
        return min(matches, key=lambda m: (m.entry.role != "output", nan_to_inf(m.distance)), default=None)

    def _corrected(self, match: TensorMatch, later: Sequence[str]) -> TensorMatch:
        """The match, or that of a later tensor, whose value fusion has put there."""
        if match.distance <= EXACT:
            return match
        best = min((self._fit.aligned(match.entry, n) for n in later), key=lambda m: m.distance, default=match)
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

    def _match_by_value(
        self, nameless: Sequence[DumpEntry], matches: dict[str, TensorMatch]
    ) -> list[tuple[DumpEntry, str]]:
        """Match entries of unknown names to the tensors whose values they hold; returns the others, and why not.

        Of several tensors of the same value the name decides, else the first in the model, on which the others hang;
        of several entries of the same value the name, else the first.
        """
        near = self._near_values(nameless, matches)
        chosen: dict[str, list[TensorMatch]] = {}
        left: dict[DumpEntry, str] = {}
        for entry, fitting in near.items():
            free = [m for m in fitting if m.tensor not in matches]
            match = self._chosen(entry, free)
            if match:
                chosen.setdefault(match.tensor, []).append(match)
            else:
                copied = f"{COPY}{fitting[0].tensor}" if fitting and not free else ""
                left[entry] = copied or (SEVERAL if free else "")
        for tensor, rivals in chosen.items():
            alike = {m.entry: self._names.alike(recorded_name(m.entry), tensor) for m in rivals}
            best = min(rivals, key=lambda m: (m.how == "value", -alike[m.entry], m.distance))
            others = [m for m in rivals if m is not best]
            if best.how == "name" or all(
                self._fit.are_same(best.entry, m.entry) or is_clearer(best, m) for m in others
            ):
                matches[tensor] = best
            left |= {m.entry: f"{COPY}{tensor}" if tensor in matches else SEVERAL for m in rivals if m is not best}
            if tensor not in matches:
                left[best.entry] = SEVERAL
        return list(left.items())

    def _near_values(
        self, nameless: Sequence[DumpEntry], matches: Mapping[str, TensorMatch]
    ) -> dict[DumpEntry, list[TensorMatch]]:
        """By entry, the tensors that it may hold by its values, the nearest first."""
        if not nameless:
            return {}
        values = ((n, self._fit.reference(n)) for n in self.trials.tensors())  # one at a time
        sums = BlockSums((n, a) for n, a in values if a is not None and a.dtype.kind == "f" and varied(a))
        near: dict[DumpEntry, list[TensorMatch]] = {}
        for entry in nameless:
            try:
                value = self._fit.values.read(entry)
            except InputError as e:
                self.unread[entry] = e.what
                continue
            likely = self._names.likely(recorded_name(entry))
            names = dict.fromkeys((*sums.near(value, NEAR), *likely, *self._chains(likely)))
            fitting = [m for n in names if (m := self._fit.aligned(entry, n)).distance <= NEAR]
            near[entry] = sorted(fitting, key=distance_of)
        self._sums = sums
        return near

    def _chosen(self, entry: DumpEntry, fitting: Sequence[TensorMatch]) -> TensorMatch | None:
        """The tensor that an entry holds, of those that are near; None where it cannot be told."""
        if not fitting:
            return None
        limit = max(fitting[0].distance * CLEARER, SURELY)
        equal = {m.tensor: m for m in fitting if m.distance <= limit}
        likely = self._names.likely(recorded_name(entry))
        for name in likely:
            if name in equal:
                fused = min(
                    (equal[n] for n in self._chains([name]) if n in equal), key=distance_of, default=equal[name]
                )
                return fused if is_clearer(fused, equal[name]) else equal[name]
        graph = self.trials.graph
        first = min(equal, key=lambda n: graph.rank[graph.maker[n]] if n in graph.maker else -1)
        below = graph.descendants([graph.maker[first]]) if len(equal) > 1 and first in graph.maker else set()
        if any(graph.maker.get(n) not in below for n in equal if n != first):
            return None
        others = tuple(n for n in equal if n != first)
        values = [self._fit.reference(n) for n in (first, *others)]
        same = all(a is not None and b is not None and same_numbers(a, b) for a, b in pairwise(values))
        return replace(equal[first], how="value", twins=others) if same else None

    def _chains(self, names: Iterable[str]) -> list[str]:
        tensors = set(self.trials.tensors())
        return [n for name in names for n in fused_results(self.trials.graph, name, tensors)]

    # -------------------------------------------------------------------------------------------- analogy

    def _match_by_analogy(self, left: Sequence[tuple[DumpEntry, str]], matches: dict[str, TensorMatch]) -> None:
        """Match entries whose values confirm nothing as others of the recording whose names have the same end.

        If X-rs holds X transposed before the fault, it does behind it. A tensor that is taken stays taken.
        """
        sure = [m for m in matches.values() if m.distance <= NEAR]
        rules = self._names.learned([(recorded_name(m.entry), m.tensor) for m in sure])
        turned: dict[Shapes, list[tuple[str, str]]] = {}
        for m in sure:
            if (reference := self._fit.reference(m.tensor)) is not None:
                shapes = (self._fit.values.read(m.entry).shape, reference.shape)
                turned.setdefault(shapes, []).append((recorded_name(m.entry), m.alignment))
        for match in [m for m in matches.values() if m.distance > NEAR and not m.entry.originals and not m.as_in]:
            meant = next(iter(self._names.apply(recorded_name(match.entry), rules)), "")
            if meant and meant not in matches and (moved := self._fit.as_others(match.entry, meant, turned)):
                del matches[match.tensor]
                matches[meant] = replace(moved, named=match.tensor)
            self._told.add(meant)
        weights = self._weights([e for e, why in left if not why])
        self.skipped += [(e, f"the weight {weights[e]}, which is not compared") for e, _ in left if e in weights]
        left = [(entry, why or self._reordered(entry)) for entry, why in left if entry not in weights]
        names = {entry: recorded_name(entry) for entry, why in left if not why}
        ruled = {e for e, n in names.items() if self._place(e, self._names.apply(n, rules), matches, turned)}
        elsewhere = {m.named for m in matches.values()}  # what their names say is another tensor
        rest = {e: [t for t in self._names.likely(n) if t not in elsewhere] for e, n in names.items() if e not in ruled}
        guesses = {e: self._place(e, likely, matches, turned) for e, likely in rest.items()}
        late = []
        for entry, why in left:
            if entry in ruled or guesses.get(entry):
                continue
            if constant := next((n for n in likely_names(recorded_name(entry)) if n in self.trials.graph.weights), ""):
                self.skipped.append((entry, f"made of {constant}, a constant, which is not compared"))
            else:
                late.append((entry, why or entry.note))
        for tensor in filter(None, guesses.values()):
            matches[tensor] = replace(matches[tensor], alternatives=self._later(tensor, matches))
        held: dict[bytes, str] = {}
        for match in matches.values():
            held.setdefault(self._fit.digest(match.entry), match.tensor)
        self.unmatched += [(entry, why or self._unlike(entry, matches, held)) for entry, why in late]

    def _weights(self, entries: Iterable[DumpEntry]) -> dict[DumpEntry, str]:
        """The weights of the model whose numbers entries hold, in whatever order: a tool that saves all saves them."""
        values = {e: self._fit.values.read(e) for e in entries}
        sizes, graph = {v.size for v in values.values()}, self.trials.graph
        read = (
            (n, protobuf.to_array(t, graph.path))
            for n, t in graph.weights.items()
            if protobuf.element_count(t) in sizes
        )
        sums = BlockSums((n, a) for n, a in read if a.dtype.kind == "f" and varied(a))
        found = {e: sums.near(v, SAME_NUMBERS) for e, v in values.items() if v.dtype.kind == "f"}
        return {e: names[0] for e, names in found.items() if names}

    def _reordered(self, entry: DumpEntry) -> str:
        """Why an entry is left out that holds the numbers of a tensor in an order that is not known; else ""."""
        same = self._sums.near(self._fit.values.read(entry), SAME_NUMBERS)
        return f"{ORDER}{same[0]} in an unknown order" if same else ""

    def _unlike(self, entry: DumpEntry, matches: Container[str], held: Mapping[bytes, str]) -> str:
        """Why an entry is left out of which nothing better is known; `held`: by digest, what other entries hold."""
        value = self._fit.values.read(entry)
        if twin := held.get(self._fit.digest(entry)):
            return f"{COPY}{twin}"
        taken = next((n for n in self._names.likely(recorded_name(entry)) if n in matches), "")
        if taken:
            return f"not the value of {taken}, which is recorded elsewhere: a node that the model has not?"
        sizes = {size for n, size in self._sums.sizes.items() if n not in matches}
        return UNLIKE if value.size in sizes and value.dtype.kind == "f" and varied(value) else UNKNOWN

    def _place(self, entry: DumpEntry, names: Iterable[str], matches: dict[str, TensorMatch], turns: Turns) -> str:
        """Match an entry to the first of some tensors that is free and that its shape fits; "" for none."""
        found = next(filter(None, (self._fit.as_others(entry, n, turns) for n in names if n not in matches)), None)
        if found:
            matches[found.tensor] = found
        return found.tensor if found else ""

    def _later(self, tensor: str, matches: Container[str]) -> tuple[str, ...]:
        """Later tensors of the same shape that a fused node may hold instead."""
        reference = self._fit.reference(tensor)
        later = [(n, self._fit.reference(n)) for n in takewhile(lambda n: n not in matches, self._chains([tensor]))]
        return tuple(n for n, a in later if a is not None and reference is not None and a.shape == reference.shape)

    def _with_alternatives(self, match: TensorMatch, matches: Mapping[str, TensorMatch]) -> TensorMatch:
        """Where nodes are fused, a value that confirms nothing may be that of a later tensor of the same shape."""
        certain = match.tensor in self._told or match.how == "value" or match.entry.originals
        if match.alternatives or match.distance <= NEAR or certain:
            return match
        return replace(match, alternatives=self._later(match.tensor, matches))
