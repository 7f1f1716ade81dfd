"""Entries whose names say nothing and whose values a fault has changed: which tensor each is, as
the nodes tell.

A node, run on what was recorded before it, gives what was recorded of its output. So an entry is a
tensor's where it holds what the tensor's node computes; or where a node that reads the tensor
computes, from that entry, what is known or found of its own output. An entry that neither tells
stays without a tensor: nothing is taken because it is likely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from subgraph.comparison.pair import relative_l2
from subgraph.errors import InputError, ModelError, WorkerDied
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import BlockSums, has_same_numbers
from subgraph.recordings.matching.fit import Fit
from subgraph.recordings.matching.matched import (
    COPY,
    EXACT,
    LeftOutEntry,
    MatchedSample,
    Reason,
    TensorMatch,
    get_distance,
    is_clearer,
)
from subgraph.recordings.matching.names import MAX_FUSED
from subgraph.recordings.reference_tensors import capture_tensors
from subgraph.storage.folders import numbered_folder
from subgraph.storage.tensors import Record, save, type_of
from subgraph.trials.matching.match_tensors import MIN_DIFFERENT, MIN_EXACT, NEAR, is_varied
from subgraph.types import Array

MAX_ENTRIES = 1000  # in doubt; each may take some runs of a node
MAX_TRIED = 16  # entries that are tried as one tensor


def follow_unnamed(matched: MatchedSample) -> MatchedSample:
    """The sample with the tensors of those entries without a name that nodes tell.

    Complexity: a run of a node for each tensor behind the first that is off, and some more for
    those in doubt.
    """
    following = _Following(matched)
    return following.run_all() if 0 < len(following.pool) <= MAX_ENTRIES else matched


@dataclass
class _Following:
    """State while the entries of one sample are followed.

    Attributes:
        matches: of which it is certain what they hold. pool: entries in doubt, with the reason to
            leave each out.
    """

    matched: MatchedSample
    matches: dict[str, TensorMatch] = field(default_factory=dict)
    pool: dict[DumpEntry, LeftOutEntry] = field(default_factory=dict)
    _saved: int = 0

    def __post_init__(self) -> None:
        matched = self.matched
        self.judge = matched.judge
        self.k = matched.k
        self.graph = matched.judge.model.graph
        self._fit = Fit(self.judge, self.k, matched.channels_last, matched.channels_last)
        self.matches = {
            name: match
            for name, match in matched.matches.items()
            if not (match.alternatives or match.is_order_unknown)
        }
        left = [
            one
            for one in matched.left_out
            if one.reason != Reason.UNREADABLE and not one.entry.note
        ]
        if any(one.reason == Reason.UNMATCHED for one in left):
            self.pool = {
                one.entry: one
                for one in left
                if one.reason == Reason.UNMATCHED or one.detail.startswith(COPY)
            }
        self._entries = list(self.pool)
        self._sums = BlockSums((str(k), self._fit.value(e)) for k, e in enumerate(self._entries))

    def run_all(self) -> MatchedSample:
        doubtful = dict(self.pool)
        while self._forward() or self._backward():
            pass
        left = self.pool | self._copies()
        left_out = [one for one in self.matched.left_out if one.entry not in doubtful]
        unlike = min(
            self.matched.unlike, sum(one.reason == Reason.UNMATCHED for one in left.values())
        )
        order = {n: k for k, n in enumerate((*self.graph.inputs, *self.judge.model.tensors()))}
        matches = dict(
            sorted(
                {**self.matched.matches, **self.matches}.items(), key=lambda item: order[item[0]]
            )
        )
        return replace(
            self.matched, matches=matches, left_out=(*left_out, *left.values()), unlike=unlike
        )

    def _copies(self) -> dict[DumpEntry, LeftOutEntry]:
        """Of the entries in doubt, those that hold what one with a tensor holds."""
        held = {self._fit.digest(m.entry): name for name, m in self.matches.items()}
        same = {e: held.get(self._fit.digest(e)) for e in self.pool}
        return {
            e: LeftOutEntry(e, Reason.NOTHING, f"{COPY} {name}") for e, name in same.items() if name
        }

    def _free(self) -> list[str]:
        """The tensors that no entry is named or known to hold; none if no entry is in doubt."""
        known = self.matched.matches.keys() | self.matches.keys()
        return [n for n in self.judge.model.tensors() if self.pool and n not in known]

    def _take(self, match: TensorMatch) -> None:
        del self.pool[match.entry]
        reference = self._fit.reference(match.tensor)
        assert reference is not None
        distance = relative_l2(reference, match.value(reference))
        self.matches[match.tensor] = replace(match, distance=distance, is_order_unknown=False)

    # --------------------------------------------------------------------------------------------
    # nodes

    def _forward(self) -> bool:
        """Find entries that hold what nodes compute from what was recorded before them."""
        before = len(self.matches)
        for tensor in self._free():
            if match := self._held(tensor, self._computed(tensor)):
                self._take(match)
        return len(self.matches) > before

    def _held(self, tensor: str, made: Array | None) -> TensorMatch | None:
        """The entry in doubt that holds this value of a tensor; None where none does, or several
        that differ."""
        if made is None or not is_varied(made, MIN_EXACT):
            return None
        limit = NEAR if is_varied(made) else EXACT
        near = [
            e
            for e in (self._entries[int(k)] for k in self._sums.near(made, limit))
            if e in self.pool
        ]
        matches = [replace(self._fit.aligned(e, tensor, made), how="node") for e in near]
        best, *others = sorted((m for m in matches if m.distance <= limit), key=get_distance) or (
            None,
        )
        rivals = [m for m in others if best and not is_clearer(best, m)]
        if best and not all(self._fit.are_same(best.entry, m.entry) for m in rivals):
            return None
        shaped = (m for m in (best, *rivals) if m and self._fit.value(m.entry).shape == made.shape)
        return next(shaped, best)

    def _backward(self) -> bool:
        """Find entries from which nodes that read a tensor compute what is known, or found, of
        their outputs."""
        before = len(self.matches)
        for tensor in reversed(self._free()):
            found = [m for m in self._candidates(tensor) if self._is_read(m)]
            if len(found) == 1:
                self._take(found[0])
        return len(self.matches) > before

    def _candidates(self, tensor: str) -> list[TensorMatch]:
        """The entries in doubt that may be a tensor by their size; none where they are many."""
        reference = self._fit.reference(tensor)
        if reference is None or not is_varied(reference):
            return []
        fitting = [e for e in self.pool if self._fit.value(e).size == reference.size]
        found = (
            self._fit.aligned(e, tensor)
            for e in fitting
            if len(fitting) <= MAX_TRIED and not self._is_copy(e)
        )
        return [replace(m, how="node") for m in found if m.alignment]

    def _is_copy(self, entry: DumpEntry) -> bool:
        """Whether an entry holds the numbers of one with a tensor, in some order."""
        value = self._fit.value(entry)
        return any(has_same_numbers(value, self._fit.value(m.entry)) for m in self.matches.values())

    def _is_read(self, match: TensorMatch) -> bool:
        """Does a node that reads the tensor, or several that a device fuses, compute from this
        entry what is known or found of their output?

        Found counts only where weights take part: Relu of another tensor may have been recorded as
        well. Known counts only where the entry brings it nearer: a sum may be near whatever its
        smaller part is.
        """
        record = self._saved_as(match)
        given = {match.tensor: record} if record else {}
        for name in self._behind(match.tensor) if given else ():
            known = self.matches.get(name)
            made = self._computed(name, given)
            if made is None or not is_varied(made):
                continue
            held = self._fit.aligned(known.entry, name, made) if known else self._held(name, made)
            is_other = held and held.distance <= NEAR and held.entry != match.entry
            if held and is_other and (not known or self._is_nearer(held, known)):
                return True
        return False

    def _is_nearer(self, held: TensorMatch, known: TensorMatch) -> bool:
        """Is what is known of a tensor clearly nearer to what an entry gives, `held`, than to what
        is computed without it?"""
        made = self._computed(known.tensor)
        made = self._fit.reference(known.tensor) if made is None else made
        return is_clearer(held, self._fit.aligned(known.entry, known.tensor, made))

    def _behind(self, tensor: str) -> list[str]:
        """What is computed from a tensor in few nodes, as far as the first that is known; of the
        unknown, what an entry may hold and weights take part in, up to one node behind them: an Add
        of the bias."""
        found: dict[str, bool] = {}
        queue = [(tensor, 0)]
        for name, weighted in queue:
            for reader in self.graph.readers.get(name, ()) if len(found) < MAX_FUSED else ():
                now = weighted + bool(weighted or self._reads_weights(reader))
                new = [n for n in self.graph.makes[reader] if n not in found]
                found |= dict.fromkeys(new, now > 0)
                queue += [(n, now) for n in new if n not in self.matches and now < 2]
        sizes = {self._fit.value(e).size for e in self.pool}
        return [
            n
            for n, weighted in found.items()
            if n in self.matches or (weighted and self._size(n) in sizes)
        ]

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
        region = regions.find_upstream_until(
            self.graph, [tensor], lambda n: n in known or n in self.matches
        )
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
        return save(match.tensor, value, type_of(value), self._folder, f"t{self._saved}").within(
            str(self._folder)
        )

    @cached_property
    def _folder(self) -> Path:
        folder = numbered_folder(self.judge.model.scratch, "followed")
        folder.mkdir(parents=True, exist_ok=True)
        return folder.resolve()
