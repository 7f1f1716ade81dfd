"""Entries whose names the model does not have -> the tensors whose values they hold.

An entry belongs to a tensor if its value is near the reference's value of this tensor only.
Downstream of a fault no value is the reference's, so nodes run on recorded values. Then an entry
belongs to a tensor if the tensor's producer computes its value, or if a consumer computes, from the
entry, a recorded output. Any other entry has no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from subgraph.errors import InputError, ModelError, WorkerDied
from subgraph.graph import protobuf, region as regions
from subgraph.graph.walks import find_descendants
from subgraph.iterables import flatten, group_values, pick
from subgraph.precision import Precision
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import has_same_numbers
from subgraph.recordings.matching.matched import (
    COPY,
    MAX_EXACT_DISTANCE,
    Fit,
    LeftOutEntry,
    MatchedSample,
    OtherTensors,
    Reason,
    TensorMatch,
    get_distance,
    is_clearer,
    run_recorded,
)
from subgraph.recordings.matching.names import MAX_FUSED
from subgraph.trials.matching.match_tensors import (
    MAX_DISTANCE,
    MAX_ROUNDING_DISTANCE,
    MIN_DIFFERENT,
    MIN_EXACT,
    MIN_RIVAL_RATIO,
    BlockSums,
    is_varied,
)
from subgraph.trials.matching.name_forms import list_likely_names
from subgraph.types import Array

MAX_SORTED_DISTANCE = 2e-3  # distance of sorted numbers up to which two tensors hold the same ones
MAX_ENTRIES = 1000  # in doubt; each may take some runs of a node
MIN_WEIGHT = 2  # different numbers in an entry that is called a weight
# distance of a recorded value from the value that nodes compute from those before it, in fp32 and
# below
MAX_COMPUTED_DISTANCE = 1e-3
MAX_NARROW_DISTANCE = 0.03
MAX_TRIED = 16  # entries that are tried as one tensor


@dataclass
class Unnamed:
    """Entries without a name of the model, which values give to tensors.

    Attributes:
        fit: Brings entries into the shapes of tensors.
        pool: The entries that have no tensor.
        find_likely: By the name of an entry, the tensors that it may mean, the likeliest first.
        undecided: Entries that hold the numbers of several tensors, or in an unknown order.
        copies: Entries that hold what another one holds, with its tensor.
    """

    fit: Fit
    pool: dict[DumpEntry, None]
    find_likely: Callable[[str], Sequence[str]] = lambda _: ()
    undecided: set[DumpEntry] = field(default_factory=set)
    copies: dict[DumpEntry, str] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sums = BlockSums((e, self.fit.value(e)) for e in self.pool)
        self._likely = {e: self.find_likely(e.label) for e in self.pool}

    def find(
        self, values: Iterable[tuple[str, Array]], matches: Mapping[str, TensorMatch]
    ) -> dict[str, TensorMatch]:
        """Return the tensors whose values entries hold, and take these from the pool.

        Args:
            values: By tensor, what to look for.
            matches: The tensors that others hold, whose values may be copied.
        """
        chosen: dict[str, list[TensorMatch]] = {}
        inputs = self.fit.judge.model.graph.inputs
        for entry, all_near in self._find_near(values).items():
            near = [m for m in all_near if m.tensor not in inputs] or all_near
            free = sorted((m for m in near if m.tensor not in matches), key=get_distance)
            match = self._choose(entry, free)
            if match:
                chosen.setdefault(match.tensor, []).append(match)
            elif free:
                self.undecided.add(entry)
            else:
                self.copies[entry] = near[0].tensor
        found = {}
        for tensor, rivals in chosen.items():
            best = min(rivals, key=lambda m: (m.how == "value", m.distance))
            others = [m for m in rivals if m is not best]
            if best.how == "name" or all(
                self.fit.are_same(best.entry, m.entry) or is_clearer(best, m) for m in others
            ):
                found[tensor] = best
                del self.pool[best.entry]
                self.copies |= {m.entry: tensor for m in others}
            else:
                self.undecided.update(m.entry for m in rivals)
        return found

    def pair_in_order(
        self, values: Iterable[tuple[str, Array]], matches: Mapping[str, TensorMatch]
    ) -> dict[str, TensorMatch]:
        """Pair tensors of too few numbers with entries of their size, in order, if each is near.

        Of more entries than tensors, each must be clearly the nearest one to its tensor.
        """
        tensors = group_values(
            (value.size, name)
            for name, value in values
            if name not in matches and not is_varied(value)
        )
        found: dict[str, TensorMatch] = {}
        for size, names in tensors.items():
            fitting = (e for e in self.pool if self.fit.value(e).size == size)
            left = [entry for entry in fitting if entry not in self._weights]
            is_even = len(left) == len(names)
            choices = [[entry] for entry in left] if is_even else [left] * len(names)
            nearest = map(self._find_nearest, choices, names)
            sure = [m for m in nearest if m and m.distance <= MAX_DISTANCE]
            places = [left.index(match.entry) for match in sure]
            if len(sure) == len(names) and places == sorted(set(places)):
                found |= {match.tensor: replace(match, how="order") for match in sure}
        for match in found.values():
            del self.pool[match.entry]
        return found

    def _find_nearest(self, entries: Iterable[DumpEntry], name: str) -> TensorMatch | None:
        """Return the entry that is clearly nearer to a tensor's value than the others."""
        matches = [self.fit.align(entry, name) for entry in entries]
        best = min(matches, key=get_distance, default=None)
        rivals = (match for match in matches if match is not best)
        if best and all(is_clearer(best, match) for match in rivals):
            return best
        return None

    def _find_near(self, values: Iterable[tuple[str, Array]]) -> dict[DumpEntry, list[TensorMatch]]:
        """Find for each entry the tensors that it can hold by its values."""
        found: dict[DumpEntry, list[TensorMatch]] = {}
        for name, value in values:
            limit = 0.0
            if is_varied(value):
                limit = MAX_DISTANCE
                self._sizes[name] = value.size
                self.undecided.update(self._sums.find_near(value, MAX_SORTED_DISTANCE))
            elif is_varied(value, MIN_EXACT):
                limit = MAX_EXACT_DISTANCE
            meant = [e for e in self.pool if name in self._likely[e]]
            for entry in dict.fromkeys((*meant, *self._sums.find_near(value, limit))):
                if entry in self.pool:
                    match = self.fit.align(entry, name, value)
                    if match.distance <= (MAX_DISTANCE if entry in meant else limit):
                        found.setdefault(entry, []).append(match)
        return found

    def _choose(self, entry: DumpEntry, near: Sequence[TensorMatch]) -> TensorMatch | None:
        """Choose the tensor that an entry holds among those that are near; None in doubt.

        Among several of the same value the name decides; else the first in the model, from which
        the others are computed, of those whose axes the entry has.
        """
        if not near:
            return None
        limit = max(near[0].distance * MIN_RIVAL_RATIO, MAX_ROUNDING_DISTANCE)
        equal = {m.tensor: m for m in near if m.distance <= limit}
        named = next((equal[n] for n in self._likely[entry] if n in equal), None)
        if named:
            return named
        graph = self.fit.judge.model.graph
        first, *others = sorted(
            equal, key=lambda n: graph.rank[graph.maker[n]] if n in graph.maker else -1
        )
        below = find_descendants(graph, graph.producers((first,)))
        names = [first, *others]
        pairs = pairwise(map(self.fit.reference, names))
        if not all(graph.maker.get(n) in below for n in others) or not all(
            a is not None and b is not None and has_same_numbers(a, b) for a, b in pairs
        ):
            return None
        unaltered = (n for n in names if not (way := equal[n].alignment) or not way.words)
        held = next(unaltered, first)
        later = tuple(names[names.index(held) + 1 :])
        return replace(equal[held], how="value", others=OtherTensors(equal=later))

    def find_alike(self, entry: DumpEntry) -> list[DumpEntry]:
        """Return the entries whose numbers are near those of an entry, in whatever order."""
        return self._sums.find_near(self.fit.value(entry), MAX_DISTANCE)

    def find_copies(self, matches: Mapping[str, TensorMatch]) -> dict[DumpEntry, str]:
        """Return the entries of the pool that hold the numbers of one with a tensor, and which."""
        found = {}
        for name, match in matches.items():
            near = self._sums.find_near(self.fit.value(match.entry), MAX_ROUNDING_DISTANCE)
            found.update(dict.fromkeys((e for e in near if e in self.pool), name))
        return found

    def explain_left(self, matches: Mapping[str, TensorMatch]) -> list[LeftOutEntry]:
        """Return the entries of the pool with the reason why they hold no tensor."""
        graph = self.fit.judge.model.graph
        copies = self.find_copies(matches) | self.copies
        equal = flatten(match.others.equal for match in matches.values())
        known = {*matches, *equal, *graph.inputs}
        sizes = {size for name, size in self._sizes.items() if name not in known}
        left = []
        for entry in self.pool:
            value = self.fit.value(entry)
            is_decided = entry not in self.undecided
            reason = Reason.NOTHING
            detail = entry.note
            strange = False
            if any(n in graph.weights for n in list_likely_names(entry.label)):
                detail = ""
            elif is_decided and entry in self._weights:
                detail = f"the weight {self._weights[entry]}"
            elif entry in copies and not entry.note:
                detail = f"{COPY} {copies[entry]}"
            else:
                reason = Reason.UNMATCHED
                is_related = entry.note or any(n in matches for n in self._likely[entry])
                is_number = value.dtype.kind == "f" and is_varied(value)
                strange = value.size in sizes and is_decided and not is_related and is_number
            left.append(LeftOutEntry(entry, reason, detail, strange))
        return left

    @cached_property
    def _weights(self) -> dict[DumpEntry, str]:
        """Entries that hold the numbers of a weight, in whatever order: some tools save weights."""
        graph = self.fit.judge.model.graph
        sizes = {self.fit.value(entry).size for entry in self.pool}
        found: dict[DumpEntry, str] = {}
        for name, tensor in graph.weights.items():
            if protobuf.count_elements(tensor) in sizes:
                value = protobuf.to_array(tensor, graph.path)
                share = MAX_SORTED_DISTANCE if is_varied(value) else MAX_ROUNDING_DISTANCE
                near = self._sums.find_near(value, share) if is_varied(value, MIN_WEIGHT) else []
                found |= dict.fromkeys((e for e in near if e.dtype == value.dtype.name), name)
        return found


def follow_unnamed(matched: MatchedSample) -> MatchedSample:
    """Return the sample with the tensors of those entries without a name that nodes identify.

    Complexity: a run of a node for each tensor after the first that deviates, and some more runs
    for those in doubt.
    """
    in_doubt = [one for one in matched.left_out if one.is_in_doubt]
    if len(in_doubt) > MAX_ENTRIES or all(one.reason is Reason.NOTHING for one in in_doubt):
        return matched
    return _Following(matched, [one.entry for one in in_doubt]).run_all()


@dataclass
class _Following:
    """State while the entries of one sample are followed.

    Attributes:
        entries: Those in doubt.
        matches: Of which it is certain what they hold.
    """

    matched: MatchedSample
    entries: Sequence[DumpEntry]
    matches: dict[str, TensorMatch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        matched = self.matched
        self.model = matched.judge.model
        self.graph = self.model.graph
        is_fp32 = matched.judge.precision is Precision.FP32
        self.computed = MAX_COMPUTED_DISTANCE if is_fp32 else MAX_NARROW_DISTANCE
        self.fit = Fit(matched.judge, matched.k, matched.channels_last, matched.channels_last)
        self.unnamed = Unnamed(self.fit, dict.fromkeys(self.entries))
        self.matches = {
            name: match
            for name, match in matched.matches.items()
            if not (match.others.possible or match.is_order_unknown)
        }

    def run_all(self) -> MatchedSample:
        while self._sweep(
            lambda tensor: self._find_held(tensor, self._compute(tensor)), self._list_free()
        ) or self._sweep(self._find_read, self._list_free()[::-1]):
            pass
        matches = {**self.matched.matches, **self.matches}
        copies = self.unnamed.find_copies(self.matches)
        left = []
        for one in self.matched.left_out:
            entry = one.entry
            if entry in copies:
                one = LeftOutEntry(entry, Reason.NOTHING, f"{COPY} {copies[entry]}")
            if entry in self.unnamed.pool or entry not in self.entries:
                left.append(one)
        order = (*self.graph.inputs, *self.model.tensors())
        return replace(self.matched, matches=pick(matches, order), left_out=tuple(left))

    def _list_free(self) -> list[str]:
        """Return the tensors that no entry is named or known to hold; none if no entry is in
        doubt."""
        known = self.matched.matches.keys() | self.matches.keys()
        return [n for n in self.model.tensors() if self.unnamed.pool and n not in known]

    def _sweep(self, find: Callable[[str], TensorMatch | None], tensors: Sequence[str]) -> bool:
        """Match those of the tensors that are found; return whether there is one."""
        before = len(self.matches)
        for tensor in tensors:
            match = find(tensor)
            reference = self.fit.reference(tensor)
            if match and reference is not None:
                distance = self.fit.align(match.entry, tensor).distance
                self.unnamed.pool.pop(match.entry, None)
                self.matches[tensor] = replace(
                    match, distance=distance, how="node", is_order_unknown=False
                )
        return len(self.matches) > before

    def _find_held(self, tensor: str, value: Array | None) -> TensorMatch | None:
        """Find the entry in doubt that holds this value of a tensor, which nodes compute."""
        if value is None:
            return None
        pool = dict(self.unnamed.pool)
        found = self.unnamed.find([(tensor, value)], {}).get(tensor)
        self.unnamed.pool = pool
        return found

    def _find_read(self, tensor: str) -> TensorMatch | None:
        """Find the one entry from which consumers compute what is known of their outputs."""
        reference = self.fit.reference(tensor)
        if reference is None or not is_varied(reference):
            return None
        fitting = [e for e in self.unnamed.pool if self.fit.value(e).size == reference.size]
        if not 0 < len(fitting) <= MAX_TRIED:
            return None
        copies = self.unnamed.find_copies(self.matches)
        matches = [self.fit.align(e, tensor) for e in fitting if e not in copies]
        found = [m for m in matches if m.alignment and self._is_read(m)]
        if len(found) == 1:
            return replace(found[0], is_read=True)
        return None

    def _is_read(self, match: TensorMatch) -> bool:
        """Return whether consumers of the tensor compute their recorded outputs from this entry.

        Found counts only if weights take part: Relu of another tensor may have been recorded as
        well. Known counts only if the entry brings it nearer: a sum may be near whatever its
        smaller part is.
        """
        for name in self._find_behind(match.tensor):
            known = self.matches.get(name)
            value = self._compute(name, match)
            if value is None or not is_varied(value):
                continue
            if known:
                held: TensorMatch | None = self.fit.align(known.entry, name, value)
            else:
                held = self._find_held(name, value)
            if not held or held.distance > self.computed or held.entry == match.entry:
                continue
            if known:
                is_read = is_clearer(held, self.fit.align(known.entry, name, self._compute(name)))
            else:
                is_read = held.entry not in self.unnamed.find_alike(match.entry)
            if is_read:
                return True
        return False

    def _find_behind(self, tensor: str) -> list[str]:
        """Return what is computed from a tensor in few nodes that is known or takes weights."""
        found: dict[str, bool] = {}
        queue = [(tensor, 0)]
        for name, weighted in queue:
            for reader in self.graph.readers.get(name, ()) if len(found) < MAX_FUSED else ():
                weights = [n for n in self.graph.reads[reader] if n in self.graph.weights]
                counts = [protobuf.count_elements(self.graph.weights[n]) for n in weights]
                now = weighted + bool(weighted or max(counts, default=0) >= MIN_DIFFERENT)
                new = [n for n in self.graph.makes[reader] if n not in found]
                found |= dict.fromkeys(new, now > 0)
                queue += [(n, now) for n in new if n not in self.matches and now < 2]
        return [name for name, weighted in found.items() if weighted or name in self.matches]

    def _compute(self, tensor: str, extra: TensorMatch | None = None) -> Array | None:
        """Compute a tensor by the reference from the values recorded before it, and from `given`.

        Returns None if all of them are the reference's values, or if it cannot be computed.
        """
        known = self.matches | ({extra.tensor: extra} if extra else {})
        region = regions.find_upstream_until(self.graph, [tensor], known.__contains__)
        if region is None:
            return None
        entering = [known[n] for n in region.inputs if n in known]
        if not extra and all(match.distance <= MAX_EXACT_DISTANCE for match in entering):
            return None
        try:
            _, outputs = run_recorded([replace(self.matched, matches=known)], region)
        except (InputError, ModelError, WorkerDied):
            return None
        record = outputs[self.matched.k].get(tensor)
        return record.array() if record else None
