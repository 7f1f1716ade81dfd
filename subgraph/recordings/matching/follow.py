"""Where names contradict values, or say nothing, and a fault has changed the values: entries that the nodes tell.

A node, run on what was recorded before it, gives what was recorded of its output. So an entry is a tensor's where it
holds what the tensor's node computes; or where a node that reads the tensor computes, from that entry, what is known or
found of its own output. What is left over is told by its place, where the files lie in the order of the run. An entry
that neither tells stays without a tensor: nothing is taken because it is likely.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from subgraph.comparison.pair import relative_l2
from subgraph.errors import InputError, ModelError, WorkerDied
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import BlockSums
from subgraph.recordings.matching.fit import Fit
from subgraph.recordings.matching.matched import (
    COPY,
    EXACT,
    LeftOutEntry,
    MatchedSample,
    Reason,
    TensorMatch,
    distance_of,
    is_clearer,
)
from subgraph.recordings.matching.names import MAX_FUSED
from subgraph.recordings.reference_tensors import capture_tensors
from subgraph.storage.folders import numbered_folder
from subgraph.storage.tensors import Record, save, type_of
from subgraph.trials.matching.match_tensors import MIN_DIFFERENT, MIN_EXACT, NEAR, varied
from subgraph.types import Array

MAX_ENTRIES = 1000  # in doubt; each may take some runs of a node
MAX_TRIED = 16  # entries that are tried as one tensor
MIN_ORDER = 4  # tensors and what they are computed from, that say whether files lie in the order of the run
MAX_DISORDER = 0.1  # of them: tensors of equal values may be taken for each other
_TIME = re.compile(r"\d{10,}")  # in a file's name


def followed(matched: MatchedSample, entries: Sequence[DumpEntry], every: bool = False) -> MatchedSample | None:
    """The sample with what nodes and order tell in place of what is in doubt; None where they tell nothing.

    `entries`: all of the sample, in the order of the files. `every`: are names doubted though none is contradicted?
    Complexity: a run of a node for each tensor behind the
    first that is off, and some more for those in doubt.
    """
    following = _Following(matched, list(entries), every)
    return following.run_all() if 0 < len(following.pool) + following.contradicted <= MAX_ENTRIES else None


@dataclass
class _Following:
    """State while the entries of one sample are followed.

    Attributes:
        matches: what is certain. pool: entries in doubt, each with the tensor that its name says, or "".
        left: why they are left out, of those that match nothing or are copies.
        contradicted: how many hold exactly another tensor than their names say.
    """

    matched: MatchedSample
    entries: list[DumpEntry]
    every: bool = False
    matches: dict[str, TensorMatch] = field(default_factory=dict)
    pool: dict[DumpEntry, str] = field(default_factory=dict)
    left: dict[DumpEntry, LeftOutEntry] = field(default_factory=dict)
    contradicted: int = 0
    _saved: int = 0

    def __post_init__(self) -> None:
        matched = self.matched
        self.judge, self.k, self.graph = matched.judge, matched.k, matched.judge.model.graph
        self._fit = Fit(self.judge, self.k, matched.channels_last, matched.channels_last)
        for name, match in matched.matches.items():
            sure = match.distance <= NEAR and not match.alternatives
            if sure or match.how == "map" or match.confirmed_in or name in self.graph.inputs:
                self.matches[name] = match
            else:
                self.pool[match.entry] = name
        self._take_contradicted()
        left = {one.entry: one for one in matched.left_out if one.reason != Reason.UNREADABLE and not one.entry.note}
        copies = [e for e, one in left.items() if one.reason == Reason.NOTHING and one.detail.startswith(COPY)]
        nameless = [e for e, one in left.items() if one.reason == Reason.UNMATCHED]
        if nameless or self.contradicted or self.every:
            self.pool |= dict.fromkeys((*nameless, *copies), "")
            self.left = {e: left[e] for e in (*nameless, *copies)}
        else:
            self.pool = {}
        self._sums = BlockSums((str(k), self._fit.value(e)) for k, e in enumerate(self.entries) if e in self.pool)

    def _take_contradicted(self) -> None:
        """Give entries the tensors whose values they hold exactly, where their names say others."""
        free = [n for n in self.judge.model.tensors() if n not in self.matches]
        capture_tensors(self.judge.model, free)
        values = ((n, self._fit.reference(n)) for n in free)
        sums = BlockSums((n, a) for n, a in values if a is not None and a.dtype.kind == "f" and varied(a, MIN_EXACT))
        for entry, name in list(self.pool.items()):
            near = (self._fit.aligned(entry, n) for n in sums.near(self._fit.value(entry), EXACT))
            found = [m for m in near if m.distance <= EXACT and m.tensor not in self.matches]
            if len(found) == 1 and found[0].tensor != name:
                self._take(replace(found[0], how="value"))
                self.contradicted += 1

    def run_all(self) -> MatchedSample:
        doubtful = dict(self.pool)
        while self._forward() or self._backward() or self._by_order():
            pass
        self._take_exchanged()
        right = sum(not match.name_says for match in self.matches.values())
        if right > self.contradicted:  # most names are right, so the rest are believed
            for entry, name in list(self.pool.items()):
                if name and name not in self.matches:
                    self.matches[name] = self.matched.matches[name]
                    del self.pool[entry]
        left_out = [left for left in self.matched.left_out if left.entry not in doubtful]
        copies = self._copies()
        unmatched = [entry for entry in self.pool if entry not in copies]
        left_out += [*copies.values(), *(self.left.get(e) or LeftOutEntry(e, Reason.UNMATCHED) for e in unmatched)]
        unlike = min(self.matched.unlike + sum(bool(self.pool[e]) for e in unmatched), len(unmatched))
        order = {n: k for k, n in enumerate((*self.graph.inputs, *self.judge.model.tensors()))}
        matches = dict(sorted(self.matches.items(), key=lambda item: order[item[0]]))
        return replace(self.matched, matches=matches, left_out=tuple(left_out), unlike=unlike)

    def _take_exchanged(self) -> None:
        """Where one entry holds exactly the tensor of another one's name, that one holds the tensor of the first's."""
        for entry, name in list(self.pool.items()):
            other = self.matches.get(name)
            if other and other.how == "value" and other.name_says and other.name_says not in self.matches:
                match = self._fit.aligned(entry, other.name_says)
                if match.alignment:
                    self._take(replace(match, how="left"))

    def _copies(self) -> dict[DumpEntry, LeftOutEntry]:
        """Of the entries in doubt, those that hold what one with a tensor holds."""
        held = {self._fit.digest(m.entry): name for name, m in self.matches.items()}
        same = {e: held.get(self._fit.digest(e)) for e in self.pool}
        return {e: LeftOutEntry(e, Reason.NOTHING, f"{COPY} {name}") for e, name in same.items() if name}

    def _take(self, match: TensorMatch) -> None:
        said, reference = self.pool.pop(match.entry), self._fit.reference(match.tensor)
        assert reference is not None
        distance = relative_l2(reference, match.value(reference))
        other = said if said != match.tensor else ""
        self.matches[match.tensor] = replace(match, distance=distance, name_says=other, orders=())

    # -------------------------------------------------------------------------------------------- nodes

    def _forward(self) -> bool:
        """Find entries that hold what nodes compute from what was recorded before them."""
        before = len(self.matches)
        for tensor in self.judge.model.tensors() if self.pool else ():
            if tensor not in self.matches and (match := self._held(tensor, self._computed(tensor))):
                self._take(match)
        return len(self.matches) > before

    def _held(self, tensor: str, made: Array | None) -> TensorMatch | None:
        """The entry in doubt that holds this value of a tensor; None where none does, or several that differ."""
        if made is None or not varied(made, MIN_EXACT):
            return None
        limit = NEAR if varied(made) else EXACT
        near = [e for e in (self.entries[int(k)] for k in self._sums.near(made, limit)) if e in self.pool]
        matches = [replace(self._fit.aligned(e, tensor, made), how="node") for e in near]
        best, *others = sorted((m for m in matches if m.distance <= limit), key=distance_of) or (None,)
        rivals = [m for m in others if best and not is_clearer(best, m)]
        if not best or all(self._fit.are_same(best.entry, m.entry) for m in rivals):
            shaped = (m for m in (best, *rivals) if m and self._fit.value(m.entry).shape == made.shape)
            return next(shaped, best)
        return next((m for m in (best, *rivals) if self.pool[m.entry] == tensor), None)

    def _backward(self) -> bool:
        """Find entries from which nodes that read a tensor compute what is known, or found, of their outputs."""
        before = len(self.matches)
        for tensor in reversed(self.judge.model.tensors()) if self.pool else ():
            if tensor in self.matches:
                continue
            found = [m for m in self._candidates(tensor) if self._is_read(m)]
            named = [m for m in found if self.pool[m.entry] == tensor]
            if len(named or found) == 1:
                self._take((named or found)[0])
        return len(self.matches) > before

    def _candidates(self, tensor: str) -> list[TensorMatch]:
        """The entries in doubt that may be a tensor by their size; where they are many, that of its name."""
        reference = self._fit.reference(tensor)
        if reference is None or not varied(reference):
            return []
        fitting = [e for e in self.pool if self._fit.value(e).size == reference.size]
        if len(fitting) > MAX_TRIED:
            fitting = [e for e in fitting if self.pool[e] == tensor]
        found = (self._fit.aligned(e, tensor) for e in fitting)
        return [replace(m, how="node") for m in found if m.alignment]

    def _is_read(self, match: TensorMatch) -> bool:
        """Does a node that reads the tensor, or several that a device fuses, compute from this entry what is known or
        found of their output?

        Found counts only where weights take part: Relu of another tensor may have been recorded as well. Known counts
        only where the entry brings it nearer: a sum may be near whatever its smaller part is.
        """
        record = self._saved_as(match)
        given = {match.tensor: record} if record else {}
        for name in self._behind(match) if given else ():
            known, made = self.matches.get(name), self._computed(name, given)
            if made is None or not varied(made):
                continue
            held = self._fit.aligned(known.entry, name, made) if known else self._held(name, made)
            is_other = held and held.distance <= NEAR and held.entry != match.entry
            if held and is_other and (not known or self._is_nearer(held, known)):
                return True
        return False

    def _is_nearer(self, held: TensorMatch, known: TensorMatch) -> bool:
        """Is what is known of a tensor clearly nearer to what an entry gives, `held`, than to what is computed without
        it?"""
        made = self._computed(known.tensor)
        made = self._fit.reference(known.tensor) if made is None else made
        return is_clearer(held, self._fit.aligned(known.entry, known.tensor, made))

    def _behind(self, match: TensorMatch) -> list[str]:
        """What is computed from a tensor in few nodes, as far as the first that is known; of the unknown, what an entry
        may hold and weights take part in, up to one node behind them: an Add of the bias. Of an entry with a name, by
        one node: each takes a run."""
        few = bool(self.pool[match.entry])
        found: dict[str, bool] = {}
        queue = [(match.tensor, 0)]
        for name, weighted in queue:
            for reader in self.graph.readers.get(name, ()) if len(found) < MAX_FUSED else ():
                now = weighted + bool(weighted or self._reads_weights(reader))
                new = [n for n in self.graph.makes[reader] if n not in found]
                found |= dict.fromkeys(new, now > 0)
                queue += [(n, now) for n in new if n not in self.matches and now < 2 and not few]
        sizes = {self._fit.value(e).size for e in self.pool}
        return [n for n, weighted in found.items() if n in self.matches or (weighted and self._size(n) in sizes)]

    def _size(self, tensor: str) -> int:
        reference = self._fit.reference(tensor)
        return -1 if reference is None else reference.size

    def _reads_weights(self, node: int) -> bool:
        weights = (self.graph.weights.get(n) for n in self.graph.reads[node])
        return any(w is not None and protobuf.element_count(w) >= MIN_DIFFERENT for w in weights)

    def _computed(self, tensor: str, given: Mapping[str, Record] | None = None) -> Array | None:
        """What the reference computes of a tensor from what was recorded before it, and is `given`.

        None where all that is as the reference has it, or where it cannot be computed.
        """
        known = given or {}
        region = regions.above_until(self.graph, [tensor], lambda n: n in known or n in self.matches)
        if region is None:
            return None
        entering = [n for n in region.inputs if n in self.matches and n not in known]
        if not known and all(self.matches[n].distance <= EXACT for n in entering):
            return None
        feeds: list[dict[str, Record]] = [{} for _ in self.judge.model.values.records]
        try:
            capture_tensors(self.judge.model, region.inputs)
            saved = {n: self._saved_as(self.matches[n]) for n in entering}
            feeds[self.k] = {n: record for n, record in saved.items() if record} | {**known}
            record = self.judge.model.run_on_reference(region, feeds)[self.k].get(tensor)
        except (InputError, ModelError, WorkerDied):
            return None
        return record.array() if record else None

    def _saved_as(self, match: TensorMatch) -> Record | None:
        """What was recorded of a tensor, as a file; None where it does not fit."""
        reference = self._fit.reference(match.tensor)
        if reference is None:
            return None
        try:
            value = match.value(reference)
        except InputError:
            return None
        self._saved += 1
        return save(match.tensor, value, type_of(value), self._folder, f"t{self._saved}").within(str(self._folder))

    @cached_property
    def _folder(self) -> Path:
        folder = numbered_folder(self.judge.model.scratch, "followed")
        folder.mkdir(parents=True, exist_ok=True)
        return folder.resolve()

    # -------------------------------------------------------------------------------------------- order

    def _by_order(self) -> bool:
        """Find entries that lie where tensors must, as many as are unknown there, one computed from the other."""
        places = next(filter(self._is_order, self._orders), None) if self.pool else None
        if places is None:
            return False
        before = len(self.matches)
        gaps: dict[tuple[int, int], list[str]] = {}
        for tensor in self.judge.model.tensors():
            if tensor not in self.matches:
                gaps.setdefault(self._bounds(tensor, places), []).append(tensor)
        for (low, high), tensors in gaps.items():
            entries = sorted((e for e in self.pool if low < places[e] < high), key=places.__getitem__)
            found = [self._as(e, n) for e, n in zip(entries, tensors, strict=False)]
            chain = all(a in self._before(b, {a}) for a, b in pairwise(tensors))
            matches = [m for m in found if m]
            if len(entries) == len(tensors) == len(matches) and chain and self._links(matches):
                for match in matches:
                    self._take(match)
        return len(self.matches) > before

    def _as(self, entry: DumpEntry, tensor: str) -> TensorMatch | None:
        """An entry as a tensor of its size."""
        reference = self._fit.reference(tensor)
        if reference is None or self._fit.value(entry).size != reference.size:
            return None
        match = self._fit.aligned(entry, tensor)
        return replace(match, how="order") if match.alignment else None

    def _links(self, matches: Sequence[TensorMatch]) -> bool:
        """Does each node give what was recorded, but for one at most: of these tensors, and of those that read them?"""
        given: dict[str, Record] = {}
        wrong = 0
        for match in matches:
            wrong += not self._agrees(match, given)
            if record := self._saved_as(match):
                given[match.tensor] = record
        readers = {n for m in matches for i in self.graph.readers.get(m.tensor, ()) for n in self.graph.makes[i]}
        return wrong + sum(not self._agrees(self.matches[n], given) for n in readers if n in self.matches) <= 1

    def _agrees(self, match: TensorMatch, given: Mapping[str, Record]) -> bool:
        made = self._computed(match.tensor, given)
        made = self._fit.reference(match.tensor) if made is None else made
        return made is not None and self._fit.aligned(match.entry, match.tensor, made).distance <= NEAR

    @cached_property
    def _orders(self) -> list[dict[DumpEntry, int]]:
        """Orders in which the files may have been written: by the times in their names, as they are numbered."""
        times = [_TIME.findall(e.file) for e in self.entries]
        dated = {e: int(found[-1]) for e, found in zip(self.entries, times, strict=True) if found}
        return [*([dated] if len(dated) == len(self.entries) else []), {e: k for k, e in enumerate(self.entries)}]

    def _is_order(self, places: Mapping[DumpEntry, int]) -> bool:
        """Is nearly all that is known to be computed from something else behind it?"""
        pairs = [
            places[self.matches[n].entry] < places[match.entry]
            for tensor, match in self.matches.items()
            for n in self._before(tensor)
            if match.entry in places and self.matches[n].entry in places
        ]
        return len(pairs) >= MIN_ORDER and pairs.count(False) <= MAX_DISORDER * len(pairs)

    def _before(self, tensor: str, more: Container[str] = ()) -> list[str]:
        """The known tensors, and those of `more`, from which a tensor is computed."""
        region = regions.above_until(self.graph, [tensor], lambda n: n in self.matches or n in more)
        entering = region.inputs if region else ()
        return [n for n in entering if (n in self.matches and n not in self.graph.inputs) or n in more]

    def _bounds(self, tensor: str, places: Mapping[DumpEntry, int]) -> tuple[int, int]:
        """The places of what a tensor is computed from, the last, and of what is computed from it, the first."""
        above = [places[self.matches[n].entry] for n in self._before(tensor)]
        below = [places[self.matches[t].entry] for t in self.matches if tensor in self._inside(t)]
        return max(above, default=-1), min(below, default=max(places.values()) + 1)

    def _inside(self, tensor: str) -> set[str]:
        """The unknown tensors between a known one and those before it."""
        region = regions.above_until(self.graph, [tensor], lambda n: n in self.matches)
        return {n for i in region.nodes for n in self.graph.makes[i]} if region else set()
