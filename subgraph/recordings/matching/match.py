"""Entries of a recording -> the tensors that they hold: by name, confirmed or corrected by value.

A name alone proves nothing. After fusion a runtime keeps the name of the first node and the value
of the last, converters write channels last, files without a header do not store their shape. So the
reference's value decides: a match by name is *confirmed* if the values are near. If they are
not, but those of a tensor that a fused node of this name would hold are, that tensor is meant. An
entry without a name of the model is matched by value, if exactly one tensor fits. A match that
stays in doubt is kept, with the other tensors that the entry may hold.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile

from subgraph.errors import InputError
from subgraph.iterables import flatten, group_values
from subgraph.recordings.device_runs import RecordedRun
from subgraph.recordings.dumps import DumpEntry, WrittenNames
from subgraph.recordings.matching.align import CODES, capture_tensors
from subgraph.recordings.matching.matched import (
    MAX_EXACT_DISTANCE,
    Fit,
    LeftOutEntry,
    MatchedSample,
    Reason,
    TensorMatch,
    get_distance,
    is_clearer,
)
from subgraph.recordings.matching.names import (
    ModelNames,
    find_dropped_input,
    find_fused_results,
    find_meant_tensor,
)
from subgraph.recordings.matching.unnamed import Unnamed
from subgraph.trials.judge import Judge
from subgraph.trials.matching.match_tensors import (
    MAX_DISTANCE,
    MIN_RIVAL_RATIO,
    BlockSums,
    is_varied,
)
from subgraph.types import Array


def match_sample(
    judge: Judge, run: RecordedRun, k: int = 0, confirmed: Mapping[str, TensorMatch] | None = None
) -> MatchedSample:
    """Match the entries of sample `k` to the tensors of the model.

    `confirmed`: as `collect_confirmed_names` of other runs.

    Complexity: each entry is read once or twice, and compared with up to MAX_FUSED + 1 reference
    values; an entry without a name of the model with all tensors of its size that nothing else
    holds.

    Raises:
        ModelError: the reference cannot give the values.
    """
    return _Matching(judge, run, k, confirmed or {}).run_all()


def collect_confirmed_names(matched: MatchedSample, run: str) -> dict[str, TensorMatch]:
    """Collect the matches of a run that values confirm, by name, for other runs of the tool."""
    sure = (
        m for m in matched.matches.values() if m.distance <= MAX_DISTANCE and not m.others.possible
    )
    return {m.entry.label: replace(m, confirmed_in=run) for m in sure if m.entry.role == "output"}


@dataclass
class _Matching:
    """State shared while the entries of one sample are matched.

    Attributes:
        left_out: the entries that are not compared.
    """

    judge: Judge
    run: RecordedRun
    k: int
    confirmed: Mapping[str, TensorMatch]
    matches: dict[str, TensorMatch] = field(default_factory=dict)
    left_out: dict[DumpEntry, LeftOutEntry] = field(default_factory=dict)
    _read: dict[str, DumpEntry] = field(default_factory=dict)  # what a tensor's readers read

    def __post_init__(self) -> None:
        self.graph = self.judge.model.graph
        self.results = self.judge.model.tensors()
        self.entries = self.run.samples[self.k]
        self.tensors = dict.fromkeys((*self.graph.inputs, *self.results))
        self._fit = Fit(self.judge, self.k, self.run.channels_last)

    @cached_property
    def _names(self) -> ModelNames:
        return ModelNames(self.graph, list(self.tensors), self.run.plain)

    def run_all(self) -> MatchedSample:
        self._take_given()
        named, nameless = self._group_by_name({m.entry for m in self.matches.values()})
        for tensor in self.matches.keys() & named.keys():
            for entry in (e for e in named.pop(tensor) if e.role == "output"):
                why = f"{self.matches[tensor].entry.name} is matched to {tensor}"
                self._omit_tensors(entry, Reason.NOTHING, why)
        graph = self.graph
        others = {}
        for tensor in named:
            chain = find_fused_results(graph, tensor, self.tensors)
            others[tensor] = (*chain, *find_dropped_input(graph, tensor))
        around = list(flatten((tensor, *others[tensor]) for tensor in named))
        capture_tensors(self.judge.model, around if not nameless else self.results)
        self._fit.vote(named)
        for tensor, entries in named.items():
            free = [n for n in others[tensor] if n not in self.matches and n not in named]
            if nearest := self._find_nearest(tensor, entries, free):
                match = self._correct(nearest, free)
                rivals = (match, self.matches.get(match.tensor, match))
                self.matches[match.tensor] = min(rivals, key=get_distance)
        self._separate()
        fused = any(m.others.named or len(m.entry.fused) > 1 for m in self.matches.values())
        self._note_misnamed()
        if nameless:
            pool = dict.fromkeys(filter(self._is_read, nameless))
            unnamed = Unnamed(self._fit, pool, self._names.likely)
            found = unnamed.find(self._iter_floats(self.tensors), self.matches)
            self.matches |= found
            self._fit.vote({**named, **{name: [match.entry] for name, match in found.items()}})
            if self._fit.some_last:  # files whose shapes do not decide hold channels last as well
                self.matches |= unnamed.find(self._iter_floats(self.tensors), self.matches)
            self.matches |= unnamed.pair_in_order(self._iter_floats(self.tensors), self.matches)
            self.left_out |= {left.entry: left for left in unnamed.explain_left(self.matches)}
        if fused:
            self.matches = {n: self._add_alternatives(m) for n, m in self.matches.items()}
        left_out = tuple(self.left_out.values())
        return MatchedSample(self.judge, self.k, self.matches, left_out, self._fit.channels_last)

    def _omit_tensors(self, entry: DumpEntry, reason: Reason, detail: str = "") -> None:
        self.left_out[entry] = LeftOutEntry(entry, reason, detail)

    def _is_read(self, entry: DumpEntry) -> bool:
        """Return whether an entry can be read; else leave it out as one that cannot."""
        try:
            self._fit.value(entry)
        except InputError as e:
            self._omit_tensors(entry, Reason.UNREADABLE, e.what)
        return entry not in self.left_out

    # --------------------------------------------------------------------------------------------
    # names

    def _take_given(self) -> None:
        """Match the entries that the user maps, and those that another run of the tool confirms."""
        mapped = {}
        for entry in self.entries:
            known = [name for name in entry.originals if name in self.tensors]
            if entry.mapped and known:
                mapped[entry] = known[-1]
        outputs = (e for e in self.entries if e.role == "output" and e.label in self.confirmed)
        others = {e: self.confirmed[e.label] for e in outputs}
        capture_tensors(self.judge.model, [*mapped.values(), *(m.tensor for m in others.values())])
        for entry in filter(self._is_read, {**others, **mapped}):
            if entry in mapped:
                match = self._fit.align(entry, mapped[entry])
                self.matches[mapped[entry]] = replace(match, how="map")
            elif other := self._fit.as_other(entry, others[entry]):
                self.matches.setdefault(other.tensor, other)

    def _group_by_name(
        self, given: Container[DumpEntry]
    ) -> tuple[dict[str, list[DumpEntry]], list[DumpEntry]]:
        """Return entries by the tensor of their name, and entries of unknown names.

        `given`: entries to omit.
        """
        graph = self.graph
        tensors = self.tensors
        nodes = [graph.label(i) for i in self.judge.model.whole().nodes]
        written = WrittenNames((*tensors, *nodes, *graph.maker, *graph.weights), self.run.plain)
        named: dict[str, list[DumpEntry]] = {}
        nameless = []
        for entry in self.entries:
            if entry in given or entry in self.left_out:
                continue
            names = written.find_meant(entry)
            found = None if names else self._names.find_form(entry.label)
            if found:
                tensor, form = found
                names = [tensor]
                self._read |= {tensor: entry} if form.is_read else {}
            said = [t for t in (find_meant_tensor(graph, entry, n) for n in names) if t in tensors]
            alike = flatten((name, *written.find_alike(name)) for name in said)
            meant = dict.fromkeys(t for t in alike if t in tensors)
            if entry.missing and (meant or not names):
                self._omit_tensors(entry, Reason.UNREADABLE, entry.missing)
                continue
            for tensor in meant:
                named.setdefault(tensor, []).append(entry)
            if not meant and any(n in graph.maker or n in graph.weights for n in names):
                self._omit_tensors(entry, Reason.NOTHING)
            elif not meant and entry.role == "output":
                nameless.append(entry)
        return {
            n: sorted(named[n], key=lambda e: e.role != "output") for n in tensors if n in named
        }, nameless

    # --------------------------------------------------------------------------------------------
    # values

    def _find_nearest(
        self, tensor: str, entries: Sequence[DumpEntry], free: Sequence[str]
    ) -> TensorMatch | None:
        """Find the nearest value of several entries of one name; outputs of nodes before inputs.

        The recorded input of a consumer counts if it is clearly nearer: the entry of the exact name
        can hold the input of a dropped activation.
        """
        matches = [self._fit.align(entry, tensor) for entry in filter(self._is_read, entries)]
        read = self._read.get(tensor)
        if read:
            others = [self._correct(m, free) for m in matches if m.entry is not read]
            moved = {m.entry: m for m in others if m.tensor != tensor}
            self.matches |= {m.tensor: m for m in moved.values()}
            matches = [m for m in matches if m.entry not in moved]
        exact = [m for m in matches if m.entry is not read]
        said = next((m for m in matches if m.entry is read), None)
        is_exact = bool(exact) and not (said and all(is_clearer(said, m) for m in exact))
        best, *forms = sorted(
            matches,
            key=lambda m: (
                m.entry.role != "output",
                (m.entry is read) == is_exact,
                m.distance,
            ),
        ) or (None,)
        if best:
            return replace(best, forms=tuple(m for m in forms if m.alignment))
        return None

    def _correct(self, match: TensorMatch, later: Sequence[str]) -> TensorMatch:
        """Return the match, or that of a later tensor, whose value fusion has put there."""
        if match.distance <= MAX_EXACT_DISTANCE:
            return match
        others = (self._fit.align(match.entry, n) for n in later)
        best = min(others, key=get_distance, default=match)
        if best.distance <= MAX_DISTANCE and best.distance * MIN_RIVAL_RATIO < match.distance:
            return best.with_others(named=match.tensor)
        return match

    def _separate(self) -> None:
        """Leave each entry the nearest of the tensors whose names a tool writes in the same way."""
        shared = group_values((match.entry, match) for match in self.matches.values())
        for group in shared.values():
            written = group[0].entry.tensor

            def order(match: TensorMatch, written: str = written) -> tuple[bool, float, bool]:
                other_name = match.tensor != written
                return match.distance > MAX_DISTANCE and other_name, match.distance, other_name

            best, *others = sorted(group, key=order)
            for match in others:
                del self.matches[match.tensor]
            if others and best.distance > MAX_DISTANCE and best.tensor != written:
                possible = tuple(m.tensor for m in others)
                self.matches[best.tensor] = best.with_others(possible=possible)

    def _note_misnamed(self) -> None:
        """Note the other tensor that an entry holds if its value is far from its own tensor.

        The other tensor is one that no entry holds, or that of another such entry.
        """
        far = {
            n: m for n, m in self.matches.items() if m.distance > MAX_DISTANCE and m.how != "map"
        }
        lacking = [n for n in self.results if n not in self.matches] if far else []
        capture_tensors(self.judge.model, lacking)
        sums = BlockSums((n, a) for n, a in self._iter_floats((*far, *lacking)) if is_varied(a))
        for tensor, match in far.items():
            names = sums.find_near(self._fit.value(match.entry), MAX_DISTANCE)
            near = (self._fit.align(match.entry, n) for n in names)
            nearest = min(near, key=get_distance, default=match)
            if nearest.distance <= MAX_DISTANCE:
                self.matches[tensor] = match.with_others(held=nearest.tensor)

    def _iter_floats(self, names: Iterable[str]) -> Iterator[tuple[str, Array]]:
        """Yield tensors of real numbers or 8-bit codes, one at a time."""
        for name in names:
            value = self._fit.reference(name)
            if value is not None and (value.dtype.kind == "f" or value.dtype.name in CODES):
                yield name, value

    def _add_alternatives(self, match: TensorMatch) -> TensorMatch:
        """Add later tensors of its shape to an unconfirmed match, which fusion can
        make ambiguous."""
        certain = match.distance <= MAX_DISTANCE or match.how == "value" or match.entry.originals
        reference = self._fit.reference(match.tensor)
        if match.others.possible or certain or reference is None:
            return match
        chain = find_fused_results(self.graph, match.tensor, self.tensors)
        later = takewhile(lambda n: n not in self.matches, chain)
        values = [(n, self._fit.reference(n)) for n in later]
        alike = (n for n, a in values if a is not None and a.shape == reference.shape)
        return match.with_others(possible=tuple(alike))
