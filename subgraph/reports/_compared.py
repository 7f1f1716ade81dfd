"""Documents of `compare` and of recordings -> one view of them, from which every form of report is
made.

A row of the table is a tensor, a column is a way in which it was compared: in place and alone, or
one per recording.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from typing import Literal, TypeAlias

from subgraph import system
from subgraph.documents import Number
from subgraph.iterables import drop_repeats, flatten
from subgraph.results.answer import NextCommand
from subgraph.results.bisect import BisectDocument, FindingDocument
from subgraph.results.common import PreciseSetting
from subgraph.results.compare import (
    ComparisonDocument,
    IntervalDocument,
    IntervalFinding,
    MissingJudgement,
    RecordedDocument,
    RecordedTensor,
)
from subgraph.text import count, list_some
from subgraph.verdict import Judgement, Signature, Status, VerdictDocument

ComparedDocument: TypeAlias = ComparisonDocument | RecordedDocument
STATUS_BY_EXIT_CODE = {0: Status.AGREE, 1: Status.FAIL, 5: Status.UNRESOLVED}
METRICS = ("max_abs", "max_rel", "cosine", "mismatch")
MAX_SOURCES = 3  # lines of user code of a finding that are shown


@dataclass(frozen=True)
class ComparedCell:
    """A tensor in one column.

    Attributes:
        status: The status; "" if the tensor was not compared.
        signature: The kind of failure; None without a failure.
        label: The label of the criterion.
        sample: The worst sample; "" for a single sample.
        why: The reason in a line.
        errors: The error by metric.
        recorded_as: The name of the tensor in a recording; "" in place and alone.
        matched_by: The way in which the recorded tensor was matched, in words.
        beside: The status relative to an earlier recording, in words; "" if not relevant.
    """

    status: Status | Literal[""] = ""
    signature: Signature | None = None
    label: str = ""
    sample: str = ""
    why: str = ""
    errors: Mapping[str, Number] = field(default_factory=dict)
    recorded_as: str = ""
    matched_by: str = ""
    beside: str = ""

    @property
    def error(self) -> float | None:
        """The relative error; None without one."""
        if self.signature is Signature.NAN:
            return math.nan
        return self.errors.get("max_rel")


@dataclass(frozen=True)
class TensorLine:
    """A row of the table.

    Attributes:
        cells: The tensor in each column.
        source: The source of its node; "" if the model does not name it.
        computed_by: The provider of the runtime that computes it.
    """

    index: int
    node: str
    op: str
    tensor: str
    cells: Sequence[ComparedCell]
    source: str = ""
    computed_by: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the tensor was compared, and agrees in each column that has it."""
        return {cell.status for cell in self.cells} - {""} == {Status.AGREE}

    @property
    def names(self) -> list[tuple[str, str]]:
        """The names of the tensor in recordings, each with the way in which it was matched."""
        return drop_repeats(
            (cell.recorded_as, cell.matched_by) for cell in self.cells if cell.recorded_as
        )


@dataclass(frozen=True)
class View:
    """A comparison or recordings, as each form of report shows them.

    Attributes:
        answer: The headline and the next commands.
        facts: Labels and texts about the model, the candidate and the criterion.
        notes: The reasons to doubt the comparison.
        columns: The titles of the columns.
        lines: The rows of the table.
        left_out: The reasons for omitted entries; for each the number of entries and some names.
        findings: The findings of the document.
    """

    kind: str
    answer: ReportedAnswer
    status: Status
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str]
    columns: Sequence[str]
    lines: Sequence[TensorLine]
    left_out: Sequence[tuple[str, int, Sequence[str]]]
    findings: Sequence[IntervalFinding]


def list_origins(finding: FindingDocument) -> list[str]:
    """Return the modules and lines of user code that nodes are from, in one line; [] if unknown."""
    texts = (str(source) for source in finding.place.sources or () if source)
    origins = drop_repeats(filter(None, texts))
    if not origins:
        return []
    more = f"; and {len(origins) - MAX_SOURCES} more" if len(origins) > MAX_SOURCES else ""
    return [f"from {'; '.join(origins[:MAX_SOURCES])}{more}"]


def make_view(document: ComparedDocument) -> View:
    """Return the view of a comparison, or of recordings."""
    status = STATUS_BY_EXIT_CODE.get(document.exit_code, Status.UNRESOLVED)
    answer = replace(parse_headline(document.says, document.exit_code), next=_list_next(document))
    if isinstance(document, ComparisonDocument):
        return _make_comparison_view(document, answer, status)
    return _make_recorded_view(document, answer, status)


def _make_comparison_view(
    document: ComparisonDocument, answer: ReportedAnswer, status: Status
) -> View:
    bad = document.tensors.first_bad
    likenesses = [f"{bad.tensor} looks like: {text}" for text in bad.looks_like] if bad else []
    lines = []
    for row in document.tensors.rows:
        cells = [_make_cell(row.in_place), _make_cell(row.alone)]
        place = (row.index, row.node, row.op, row.tensor)
        lines.append(TensorLine(*place, cells, str(row.source or ""), row.computed_by or ""))
    return View(
        kind="compare",
        answer=answer,
        status=status,
        facts=[*_iter_comparison_facts(document), *_iter_facts(document)],
        notes=[*likenesses, *document.notes],
        columns=["in place", "alone"],
        lines=lines,
        left_out=[],
        findings=(),
    )


def _make_recorded_view(document: RecordedDocument, answer: ReportedAnswer, status: Status) -> View:
    recordings = document.recordings
    several = len(recordings) > 1
    columns = [run.name for run in recordings]
    if not several:
        columns.append("alone")
    lines = []
    for recorded in document.tensors.rows:
        cells = [_make_recorded_cell(recorded_run) for recorded_run in recorded.runs]
        if not several:
            only = recorded.runs[0]
            cells.append(_make_cell(only.alone if only else None))
        place = (recorded.index, recorded.node, recorded.op, recorded.tensor)
        lines.append(TensorLine(*place, cells, str(recorded.source or "")))
    noted = list(flatten(product([r.name], r.notes) for r in recordings))
    noted += [(run.name, run.mistake) for run in recordings if run.mistake]
    counts = Counter[str]()
    names = defaultdict[str, list[str]](list)
    for left in flatten(run.files.left_out for run in recordings):
        counts[left.why] += left.count
        names[left.why] += left.names
    return View(
        kind="recorded",
        answer=answer,
        status=status,
        facts=[*_iter_recording_facts(document, lines), *_iter_facts(document)],
        notes=[f"{name}: {note}" if several else note for name, note in noted],
        columns=columns,
        lines=lines,
        left_out=[(why, n, drop_repeats(names[why])) for why, n in counts.most_common()],
        findings=document.findings if isinstance(document, IntervalDocument) else (),
    )


@dataclass(frozen=True)
class JudgedTensor:
    """A tensor in place and its error."""

    index: int
    node: str
    tensor: str
    error: float | None
    status: Status | Literal[""]


def list_judged_tensors(document: BisectDocument | ComparedDocument) -> list[JudgedTensor]:
    """Return the tensors of a profile, or those in place of a comparison or of each recording."""
    if isinstance(document, BisectDocument):
        rows = document.whole.profile or ()
        return [JudgedTensor(r.index, r.node, r.tensor, r.error, r.status) for r in rows]
    lines = make_view(document).lines
    cells = flatten(product([n], n.cells[: count_places(document)]) for n in lines)
    return [JudgedTensor(n.index, n.node, n.tensor, c.error, c.status) for n, c in cells]


def count_places(document: ComparedDocument) -> int:
    """Return the number of cells of a line that are of tensors in place; the others are alone."""
    if isinstance(document, RecordedDocument):
        return len(document.recordings)
    return 1


def _make_cell(judgement: Judgement | MissingJudgement | None) -> ComparedCell:
    if judgement is None:
        return ComparedCell()
    if isinstance(judgement, MissingJudgement):
        return ComparedCell(judgement.status, judgement.signature, why=judgement.why)
    return ComparedCell(
        judgement.status,
        judgement.signature,
        judgement.label,
        judgement.sample,
        judgement.why,
        judgement.errors,
    )


def _make_recorded_cell(run: RecordedTensor | None) -> ComparedCell:
    if run is None:
        return ComparedCell()
    match = ", ".join(filter(None, (f"by {run.matched_by}", run.note)))
    if run.in_place is None:
        return ComparedCell(
            Status.UNRESOLVED, why=run.why, recorded_as=run.recorded_as, matched_by=match
        )
    words = {Status.AGREE: "as", Status.FAIL: "unlike"}
    like = words.get(run.beside.status, "") if run.beside else ""
    beside = f"{like} {run.before}" if like and run.in_place.status is Status.FAIL else ""
    judged = _make_cell(run.in_place)
    return replace(judged, recorded_as=run.recorded_as, matched_by=match, beside=beside)


def find_reason(whole: VerdictDocument) -> str:
    """Return the reason of a verdict, with the output that decided and the sample of several."""
    outcome = whole.status, whole.why
    about = next((j for j in whole.outputs if (j.status, j.why) == outcome), None)
    if about is None:
        return whole.why
    sample = f", sample {about.sample}" if about.sample else ""
    return f"{about.name}: {about.why}{sample}"


def _iter_recording_facts(
    document: RecordedDocument, lines: Sequence[TensorLine]
) -> Iterator[tuple[str, str]]:
    for k, run in enumerate(document.recordings):
        compared = sum(bool(line.cells[k].status) for line in lines)
        matched = (
            f"{run.files.format}, {run.precision}: {compared} of {count(lines, 'tensor')}"
            f" matched, {run.tensors.wrong} wrong"
        )
        yield run.name, f"missing: {run.files.missing}" if run.files.missing else matched
        of_run = "" if len(document.recordings) == 1 else f" of {run.name}"
        if run.tensors.first_bad and not run.files.missing:
            good = run.tensors.last_good
            last = "" if good is None else f"; last good: {', '.join(good) or 'the model input'}"
            name = str(run.tensors.source or "")  # a source may have scopes and no line
            source = f"; from {name}" if name else ""
            yield f"first bad tensor{of_run}", f"{run.tensors.first_bad}{last}{source}"


def _iter_comparison_facts(document: ComparisonDocument) -> Iterator[tuple[str, str]]:
    about = document.setup.candidate
    whole = document.whole.verdict
    yield "candidate", " ".join(filter(None, (about.name, about.version, about.precision)))
    yield "whole model", ": ".join(filter(None, (whole.status, find_reason(whole))))


def _iter_facts(document: ComparedDocument) -> Iterator[tuple[str, str]]:
    yield "model", f"{document.model.file}, {count(document.model.nodes, 'node')}"
    yield "criterion", document.setup.criterion
    if samples := [label for label in document.setup.samples if label]:
        yield "samples", list_some(samples, 20)


def _list_next(document: ComparedDocument) -> list[NextCommand]:
    """Return the commands that follow from a comparison that is not right."""
    # Documents of earlier releases have texts.
    following = [_read_text(entry) if isinstance(entry, str) else entry for entry in document.next]
    is_wrong = document.exit_code == 1
    if isinstance(document, ComparisonDocument) and is_wrong and not following:
        model = document.model.path or document.model.file
        arguments = ["subcut", "bisect", model, "-c", document.setup.candidate.name]
        following.append(NextCommand("find the smallest region", arguments))
    return following


def _read_text(text: str) -> NextCommand:
    """Return a command from its text in an earlier release: arguments, five blanks, the purpose."""
    command, _, why = text.partition("     ")
    try:
        arguments = system.split(command)
    except ValueError:  # an edited document may have an open quote
        arguments = command.split()
    return NextCommand(why or "go on", arguments)


Line: TypeAlias = tuple[str, str]  # a label and a text


PINNED_ALONE = "the candidate does not run the file as shipped; with pinned shapes it is right"


class AnswerKind(StrEnum):
    """The kinds of answers."""

    WRONG = "wrong"
    ROUNDING = "rounding"
    FLAKY = "flaky"
    INCONCLUSIVE = "inconclusive"
    REFUSED = "refused"
    RIGHT = "right"


SIGNS = {
    AnswerKind.WRONG: "✗",
    AnswerKind.ROUNDING: "≈",
    AnswerKind.FLAKY: "!",
    AnswerKind.INCONCLUSIVE: "?",
    AnswerKind.REFUSED: "✗",
    AnswerKind.RIGHT: "✓",
}


@dataclass(frozen=True)
class ReportedAnswer:
    """The answer of a search.

    Attributes:
        kind: The kind.
        how: How the candidate fails, in words: `dies of SIGSEGV`; "" for the word of the kind.
        what: The place that is wrong, or the reason of another kind.
        size: The number of nodes; "" if the answer is about the full model.
        cost: Runs and seconds.
        lines: Labels and texts: the first finding, then the full model.
        further: The further findings: a title, and lines.
        next: The commands that follow from the answer.
    """

    kind: AnswerKind
    what: str
    size: str = ""
    cost: str = ""
    lines: Sequence[Line] = ()
    further: Sequence[tuple[str, Sequence[Line]]] = ()
    next: Sequence[NextCommand] = ()
    how: str = ""

    @property
    def name(self) -> str:
        """The first words."""
        return self.how or self.kind

    @property
    def says(self) -> str:
        """The headline in one sentence: `wrong: 2 of 27 nodes: a, b (Pad, MaxPool)`."""
        return ": ".join(filter(None, (self.name, self.size, self.what)))

    @property
    def sign(self) -> str:
        """The mark in front of the kind."""
        return SIGNS[self.kind]


def make_precise_answer(name: str, precise: PreciseSetting) -> ReportedAnswer:
    """Return the answer for a candidate whose outputs agree with a setting of its runtime alone."""
    computes = f"{name} computes in {precise.computes_in}"
    return ReportedAnswer(AnswerKind.ROUNDING, f"{computes}; {precise.says}")


def parse_headline(says: str, exit_code: int) -> ReportedAnswer:
    """Return the answer whose headline a document has."""
    by_code = {0: AnswerKind.RIGHT, 1: AnswerKind.WRONG}.get(exit_code, AnswerKind.INCONCLUSIVE)
    how, _, what = says.partition(": ")
    kind = next(filter(how.startswith, AnswerKind), by_code)
    return ReportedAnswer(kind, what, how=how)
