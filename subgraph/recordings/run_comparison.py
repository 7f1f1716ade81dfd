"""One run compared with the reference: a row per tensor, the doubts, and a misread input.

The first recorded tensors downstream of an input show whether it was misread. If they are wrong,
the reference is run on the input as it is usually misread. One of these misreadings is the cause if
it brings each of the tensors far nearer. All other tensors are then compared with the reference's
values for the misread input, so that another fault is still found, and no healthy node is blamed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import takewhile

from subgraph.comparison import CLIPPED
from subgraph.errors import InputError, ModelError, WorkerDied
from subgraph.graph.graph import Graph
from subgraph.iterables import flatten, restrict
from subgraph.reach import reach
from subgraph.recordings.device_runs import AXIS_ORDERS, RecordedRun
from subgraph.recordings.dumps import DumpEntry
from subgraph.recordings.matching.align import capture_tensors, read_reference_value
from subgraph.recordings.matching.match import match_sample
from subgraph.recordings.matching.matched import (
    MAX_EXACT_DISTANCE,
    LeftOutEntry,
    MatchedSample,
    Reason,
    TensorMatch,
)
from subgraph.runtime.inputs import IMAGES
from subgraph.storage.value_pairs import ValuePair
from subgraph.text import count
from subgraph.trials.judge import Judge
from subgraph.trials.matching.match_tensors import MAX_DISTANCE, MIN_RIVAL_RATIO, BlockSums
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.similar_outputs import MisreadInput, feed_misread, iter_misread_inputs
from subgraph.types import StringMap, Strings, frozen
from subgraph.verdict import Judgement, Status, explain_silence

MIN_COMPARED_SHARE = 0.5  # of the model's tensors; if fewer are compared, an agreement reports that
MIN_OWN_SHARE = 0.5  # of recorded tensors that are the model's; with fewer it may be another dump
NO_NODE = (
    "no node adds an error: int8 clips or rounds what the nodes read, so another calibration, not"
    " another node"
)
MAX_CLIPPED_NOTES = 3  # of such tensors


@frozen
class TensorRow:
    """One tensor of one run; of several samples the worst.

    Attributes:
        in_place: None if the entry cannot be read or compared; `why` is the reason.
        alone: None if it was not needed, or cannot be computed.
        before: the nearest earlier run of which this tensor was compared; "" without such a run.
        beside: the judgement against the value of that run; None without such a run.
        accuracy: msaccucmp's numbers by column, if its criterion is used; of the first sample.
        overflow: msaccucmp's OverFlow; None if it was not looked for.
        mute: Why the agreement is no evidence for the device, a constant value for example; "" if
            it is.
        rounded: Whether it is wrong, and int8 explains it: its nodes compute it from the recorded
            values.
    """

    match: TensorMatch
    in_place: Judgement | None = None
    alone: Judgement | None = None
    before: str = ""
    beside: Judgement | None = None
    why: str = ""
    accuracy: Mapping[str, float | str] = field(default_factory=dict)
    overflow: bool | None = None
    mute: str = ""
    rounded: bool = False

    @property
    def failing(self) -> bool:
        """Whether it is wrong in place."""
        return self.in_place is not None and self.in_place.fails

    @property
    def is_error(self) -> bool:
        """Whether it is wrong, and int8 does not explain it."""
        return self.failing and not self.rounded

    @property
    def agreeing(self) -> bool:
        """Whether it is right in place."""
        return self.in_place is not None and self.in_place.agrees

    @property
    def compared(self) -> bool:
        """Whether it is right or wrong in place."""
        return self.failing or self.agreeing

    @property
    def is_certain(self) -> bool:
        """Whether the device's value is certain: a match by value alone must agree somewhere."""
        if self.agreeing or not self.match.is_by_value:
            return self.compared and (self.agreeing or not self.match.others.possible)
        return self.alone is not None and self.alone.agrees


@frozen
class RunComparison:
    """One run against the reference.

    Attributes:
        matched: per sample.
        rows: by tensor, in the order of the model; tensors that were not recorded are absent.
        inputs: what the device was fed against what the reference was fed.
        unseen_outputs: outputs of the model that were not recorded, or, if `needing` them, not
            compared.
        tensors: of the model, that were looked for.
        judge: that the run is compared with: of the input as the device read it.
        unexplained: wrong tensors that int8 does not explain: of these, and of those upstream.
        wrong_input: how the device was fed other values than the reference; "" if it was not.
    """

    judge: Judge
    run: RecordedRun
    matched: tuple[MatchedSample, ...]
    rows: Mapping[str, TensorRow]
    inputs: Mapping[str, TensorRow] = field(default_factory=dict)
    unseen_outputs: Strings = ()
    tensors: int = 0
    unexplained: Strings = ()
    wrong_input: str = ""

    @property
    def failing(self) -> list[str]:
        """The tensors that are wrong in place, in the order of the model."""
        return [name for name, row in self.rows.items() if row.failing]

    @property
    def other_input(self) -> list[str]:
        """The inputs that were recorded with other values than the reference was fed."""
        return [name for name, row in self.inputs.items() if row.failing]

    def list_left_out(self, *reasons: Reason) -> list[LeftOutEntry]:
        """Return the entries that are not compared, for one of these reasons; of all samples."""
        return list(flatten(matched.list_left_out(*reasons) for matched in self.matched))

    @property
    def unlike(self) -> int:
        """The number of entries whose name and value the model has not."""
        return sum(left.strange for left in self.list_left_out(*Reason))

    def needing(self, names: Sequence[str]) -> RunComparison:
        """Return the comparison that agrees only if all these tensors were compared."""
        rows = {n: row for n, row in self.rows.items() if n in names or row.in_place is not None}
        unseen = tuple(n for n in names if n not in rows or not rows[n].compared)
        return replace(self, rows=rows, unseen_outputs=unseen)

    @property
    def status(self) -> Status:
        """The status of the recording: wrong if something disagrees, or other values were fed.

        It is unresolved if only the steps of int8 add up, the recording is missing, no output that
        is evidence agrees, an entry cannot be compared, the value of an entry of unknown name fits
        no tensor, or too little was recorded to show that the model agrees.
        """
        is_wrong = bool(self.failing and self.unexplained)
        if is_wrong or self.other_input or self.wrong_input:
            return Status.FAIL
        if self.failing:
            return Status.UNRESOLVED
        rows = self.rows.values()
        broken = self.unlike or self.list_left_out(Reason.UNREADABLE)
        broken = broken or any(row.in_place is None for row in rows)
        tells = any(row.agreeing and not row.mute for row in rows)
        if tells and not broken and not self.too_few:
            return Status.AGREE
        return Status.UNRESOLVED

    @property
    def silence(self) -> str:
        """The reason why the tensors that agree tell nothing about the device; "" if one does."""
        mute = {name: row.mute for name, row in self.rows.items() if row.agreeing}
        if mute and all(mute.values()):
            return explain_silence(mute)
        return ""

    @property
    def too_few(self) -> str:
        """The reason why the tensors that agree are too few for the model; "" if they suffice."""
        if self.unseen_outputs and self.tensors:
            seen = f"{sum(row.compared for row in self.rows.values())} of {self.tensors} tensors"
            outputs = ", ".join(self.unseen_outputs)
            return f"{seen} were compared, the model's output {outputs} was not"
        if self._is_foreign:
            return f"only {self._share} were matched"
        return ""

    @property
    def _share(self) -> str:
        return "{} of {} recorded tensors".format(*self._matched_of)

    @property
    def _is_foreign(self) -> bool:
        """Whether few of the recorded tensors are of the model.

        If all outputs and half of the model's tensors are there, and one is right, the others
        are the tool's own.
        """
        matches, recorded = self._matched_of
        half = 0 < MIN_COMPARED_SHARE * self.tensors <= len(self.rows)
        is_right = any(row.agreeing for row in self.rows.values())
        is_of_model = half and not self.unseen_outputs and is_right
        return matches < MIN_OWN_SHARE * recorded and not is_of_model

    @property
    def _matched_of(self) -> tuple[int, int]:
        """(matches, entries that may hold tensors of the model and files of other kinds)."""
        matches = sum(len(m.matches) for m in self.matched)
        others = self.run.recording.left_out if self.run.recording else {}
        files = sum(n for end, n in others.items() if end.lower() not in IMAGES)
        lost = self.list_left_out(Reason.UNREADABLE, Reason.UNMATCHED)
        return matches, matches + len(lost) + files

    @property
    def notes(self) -> list[str]:
        """The reasons why the full recording is doubtful."""
        notes = [f"inconclusive: {self.silence}"] if self.silence else []
        if self.other_input and not self.wrong_input:
            other = ", ".join(self.other_input)
            notes.append(f"the recording was made with another input: {other} differs")
        if self._is_foreign:
            notes.append(f"only {self._share} are of this model: it may be a dump of another one")
        elif self.too_few and not self.failing:
            notes.append(self.too_few)
        elif len(self.rows) < MIN_COMPARED_SHARE * self.tensors and not self.failing:
            notes.append(f"{len(self.rows)} of {self.tensors} tensors of the model were compared")
        return [*notes, *self._iter_file_notes(), *self._iter_error_notes()]

    def _iter_file_notes(self) -> Iterator[str]:
        run = self.run
        is_guessed = run.layout in AXIS_ORDERS and run.has_guessed_shapes
        last = bool(self.matched) and self.matched[0].channels_last
        if self.matched and is_guessed and last != run.channels_last:
            own = "NHWC" if last else "as the model is"
            yield f"the files are laid out {own}, not as --dump-layout says: read so"
        matches = flatten(sample.matches.values() for sample in self.matched)
        holds = {match.tensor: match.others.held for match in matches if match.others.held}
        for names in _find_exchanged(holds):
            yield f"the values of {', '.join(names[:-1])} and {names[-1]} are exchanged"
        if run.recording and run.recording.left_out:
            kinds = ", ".join(f"{n} {end}" for end, n in run.recording.left_out.items())
            yield f"files of other kinds were left out: {kinds}"
        if unread := self.list_left_out(Reason.UNREADABLE):
            first = unread[0]
            files = sum(len(sample) for sample in run.samples)
            why = first.why if first.entry.file in first.why else f"{first.entry.file}: {first.why}"
            yield f"{len(unread)} of {files} recorded tensors could not be read: {why}"

    def _iter_error_notes(self) -> Iterator[str]:
        alone = {n: judged for n in self.failing if (judged := self.rows[n].alone)}
        clipped = [f"{n}: {one.why}" for n, one in alone.items() if one.label == CLIPPED]
        yield from (f"{each}: another calibration?" for each in clipped[:MAX_CLIPPED_NOTES])
        if self.unlike:
            neither = "neither the name nor the value of a tensor of the model"
            yield f"{count(self.unlike, 'recorded tensor')} with {neither}: wrong values?"
        matches = flatten(sample.matches.values() for sample in self.matched)
        by_value = any(match.how == "value" for match in matches)
        if self.failing and self.unseen_outputs and by_value:
            outputs = ", ".join(self.unseen_outputs)
            yield f"not found by value, so not compared: the model's output {outputs}"
        compared = [row for row in self.rows.values() if row.compared]
        if len(compared) > 1 and not self.other_input and all(row.failing for row in compared):
            causes = "other weights, another input or preprocessing"
            if self.run.has_guessed_shapes:
                causes += ", channels last in files without a header (--dump-layout NHWC)"
            lower = "or a lower precision (--precision fp16, bf16 or int8)"
            yield f"even the first recorded tensor is wrong: {causes}, {lower}?"


def _find_exchanged(holds: StringMap) -> list[list[str]]:
    """Find tensors that hold each other's values, each group in a circle.

    >>> _find_exchanged({"a": "b", "b": "a", "c": "a"})
    [['a', 'b']]
    """
    found: list[list[str]] = []
    for start in holds:
        circle = [start]
        name = holds[start]
        while name in holds and name not in circle:
            circle.append(name)
            name = holds[name]
        if name == start and not any(start in known for known in found):
            found.append(circle)
    return found


def iter_value_pairs(comparison: RunComparison, names: Sequence[str]) -> Iterator[ValuePair]:
    """Yield the recorded and the reference's values of these tensors, per sample."""
    labels = comparison.judge.model.values.labels
    for matched in comparison.matched:
        for name in names:
            reference = matched.reference(name)
            if name not in matched.matches or reference is None:
                continue
            try:
                value, _ = matched.matches[name].to_reference_form(reference)
            except InputError:  # its row has the reason
                value = None
            yield ValuePair(name, labels[matched.k], comparison.run.name, reference, value)


# ------------------------------------------------------------ the input

MAX_SECONDS = 60.0  # that misreadings may take
FIRST_TENSORS = 8  # tensors after an input, among which entries of unknown names are looked for


def find_first_recorded(graph: Graph, name: str, recorded: Collection[str]) -> list[str]:
    """Find the recorded tensors that are computed from an input through none that is recorded."""

    def follow(i: int) -> Iterator[int]:
        for made in graph.makes[i]:
            if made not in recorded:
                yield from graph.readers.get(made, ())

    nodes = graph.in_order(reach(graph.readers.get(name, ()), follow))
    return [made for made in graph.iter_outputs(nodes) if made in recorded]


def find_misread_input(
    judge: Judge, run: RecordedRun, compared: RunComparison | None
) -> MisreadInput | None:
    """Find how the device was fed, if that explains the first wrong tensors; else None.

    `compared`: with the user's input; None if no tensor could be.

    Complexity: some 20 runs of the nodes up to the first tensors; it ends after MAX_SECONDS.
    """
    graph = judge.model.graph
    end = time.monotonic() + MAX_SECONDS
    best: tuple[float, MisreadInput | None] = math.inf, None
    rows = compared.rows if compared else {}
    known = compared.matched[0].matches if compared else {}
    matches = restrict(known, rows)
    for name in graph.inputs:
        wrong = [n for n in find_first_recorded(graph, name, matches) if rows[n].failing]
        if matches and not wrong:
            continue
        distances = {matches[n].entry: matches[n].distance for n in wrong}
        distances = distances or dict.fromkeys(run.samples[0], math.inf)
        misreadings = iter_misread_inputs(judge.model, [name])
        for misread in takewhile(lambda _: time.monotonic() < end, misreadings):
            far = _measure_distance(feed_misread(judge, misread), run, distances)
            best = min(best, (far, misread), key=lambda pair: pair[0])
            if far <= MAX_EXACT_DISTANCE:
                return misread
    return best[1]


def _measure_distance(judge: Judge, run: RecordedRun, before: Mapping[DumpEntry, float]) -> float:
    """Measure the mean distance of entries; infinite unless each is far nearer than `before`.

    If nothing is known of any of them: of those that have a match at all.
    """
    known = any(map(math.isfinite, before.values()))
    try:
        if not known and not _can_hold(judge.model, list(before)):
            return math.inf
        matches = match_sample(judge, replace(run, samples=(tuple(before),))).matches.values()
    except (InputError, ModelError, WorkerDied):
        return math.inf
    distances = {m.entry: m.distance for m in matches if m.tensor in judge.model.graph.maker}
    if not distances or (known and distances.keys() != before.keys()):
        return math.inf
    nearer = all(
        a <= MAX_DISTANCE and not a * MIN_RIVAL_RATIO >= before[e] for e, a in distances.items()
    )
    if nearer:
        return sum(distances.values()) / len(distances)
    return math.inf


def _can_hold(model: ReferenceModel, entries: Sequence[DumpEntry]) -> bool:
    """Return whether an entry can hold one of the first tensors, in any order of its numbers."""
    first = model.tensors()[:FIRST_TENSORS]
    capture_tensors(model, first)
    values = ((n, read_reference_value(model, n, 0)) for n in first)
    sums = BlockSums((n, a) for n, a in values if a is not None and a.dtype.kind == "f")
    return any(sums.find_near(entry.read(), MAX_DISTANCE) for entry in entries if not entry.missing)
