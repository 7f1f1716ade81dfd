"""Plain text: the verdict, its reason, what to do next, figures; as `subcut bisect` prints them at
the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from subgraph import system
from subgraph.iterables import drop_repeats
from subgraph.reports._answer import answer
from subgraph.reports._compared import (
    ComparedCell,
    ComparedDocument,
    ReportedAnswer,
    TensorLine,
    View,
    find_reason,
    make_view,
)
from subgraph.reports._words import (
    cleaned,
    format_interval,
    format_outcome,
    format_runtime,
    format_seconds,
    format_state,
    list_left_out,
    list_stderr_lines,
    place,
)
from subgraph.results import Document
from subgraph.results.bisect import BisectDocument
from subgraph.results.common import WholeDocument
from subgraph.results.compare import ComparisonDocument
from subgraph.results.plan import PlanDocument
from subgraph.results.sweep import SweepDocument
from subgraph.text import (
    align_columns,
    count,
    describe_prediction,
    omit_middle,
    shorten_names,
    wrap,
)
from subgraph.verdict import Status

MAX_PLACES = 4  # intervals of a recording that are shown
MAX_FULL_TABLE_ROWS = 12  # a table of at most this many rows is shown in full
MAX_ROWS = 8  # rows that do not agree, in a longer table
LAST_ROWS = 3  # rows at the end of a longer table, if all rows agree
COLUMNS = 100  # columns of a line, unless the terminal is narrower
MAX_LINES = 24  # lines of an answer
MAX_COST_COLUMNS = 22  # fixed, so that the time of a run does not change what fits into a line
UNBROKEN_WIDTH = 1 << 20  # columns of a line that is not broken, because users paste it
INDENT_COLUMNS = 11  # columns of a label and the blanks around it
# The labels of the lines that are shown for each finding after the first one.
BRIEF = (
    "what",
    "error",
    "a bug",
    "rounding",
    "cause",
)


IN_PLACE = (
    "in place: reading intermediate tensors makes them outputs, which may change fusion: a hint,"
    " not a proof"
)


def render(document: BisectDocument, columns: int = COLUMNS, most: int = MAX_LINES) -> str:
    """Return the answer as lines for a terminal: at most `most`, each at most `columns` wide.

    A command is not broken into lines.
    """
    shown = cleaned(document)
    reported = answer(shown)
    more = [
        ("also", "; ".join([title, *(text for label, text in finding_lines if label in BRIEF)]))
        for title, finding_lines in reported.further
    ]
    more += [("note", note) for note in shown.notes]
    lines = [*_format_head(reported, columns), *_lay_out([*reported.lines, *more], columns)]
    last = _format_last_lines(reported, shown.report)
    room = most - len(last)
    if (left := len(lines) - room) > 0:
        omitted = f"{count(left + 1, 'more line')} in the report"
        lines = [*lines[: room - 1], *_lay_out([("…", omitted)], columns)]
    return "\n".join([*lines, *last]) + "\n"


def _format_last_lines(reported: ReportedAnswer, report: str | None) -> list[str]:
    """Return the commands that follow, with the reason for each, and the page."""
    lines = [("next", f"{step.why}: {system.join(step.argv)}") for step in reported.next]
    lines += [("report", report)] if report else []
    return _lay_out(lines, UNBROKEN_WIDTH)


def _format_head(reported: ReportedAnswer, columns: int) -> list[str]:
    """Return the kind, the place, and at the end of the line the number of nodes and the cost."""
    name = f"{reported.name} " if len(reported.name) > 8 else reported.name
    headline = shorten_names(reported.what)
    start = f"{reported.sign} {name:8} "
    ends = "   ".join(filter(None, (reported.size, reported.cost)))
    line = f"{start}{headline}   {ends}"
    if len(start + headline + reported.size) + MAX_COST_COLUMNS <= columns:
        return [line]
    return [*_wrap(start, headline, columns), f"{'':{INDENT_COLUMNS}}{ends}"]


def _lay_out(lines: Iterable[tuple[str, str]], columns: int) -> list[str]:
    """Return labels and texts as lines; a label that repeats is shown once."""
    rows = []
    before = ""
    for label, text in lines:
        shown = "" if label == before else label
        rows += _wrap(f"  {shown:8} ", text, columns)
        before = label
    return rows


def _wrap(start: str, text: str, columns: int) -> list[str]:
    """Return a text in lines, indented below its start; a long name loses its middle, a command
    nothing."""
    return wrap(
        start + (text if columns == UNBROKEN_WIDTH else shorten_names(text)),
        columns,
        INDENT_COLUMNS,
    )


def list_first_lines(document: Document) -> dict[str, object] | None:
    """Return what a page shows next to the network; None for a document of another kind.

    The headline, the lines of each finding, and what follows.
    """
    if isinstance(document, SweepDocument):
        return None
    if isinstance(document, PlanDocument):
        return {"headline": cleaned(document).says, "findings": [], "after": []}
    if isinstance(document, BisectDocument):
        reported = answer(cleaned(document))
        blocks = [reported.lines, *([("also", title), *lines] for title, lines in reported.further)]
        rows = [[shorten_names(f"{label}: {text}") for label, text in lines] for lines in blocks]
        return _format_page(reported, rows)
    compared = cleaned(document)
    view = make_view(compared)
    rows = [[format_interval(f), *place(f)] for f in view.findings]
    totals = _format_totals(compared, view) if isinstance(compared, ComparisonDocument) else []
    return _format_page(view.answer, rows, totals)


def _format_page(
    reported: ReportedAnswer, findings: Sequence[Sequence[str]], after: Iterable[str] = ()
) -> dict[str, object]:
    """Return the headline with its sign, the lines of each finding, and what follows."""
    lines = [*after, *(f"{step.why}: {system.join(step.argv)}" for step in reported.next)]
    says = shorten_names(reported.says)
    return {"headline": says, "sign": reported.sign, "findings": findings, "after": lines}


def render_compared(document: ComparedDocument, *, every: bool = True) -> str:
    """Return a comparison or recordings as lines for a terminal, as `subcut compare` prints them.

    Args:
        document: The comparison, or the recordings.
        every: Show each row of the table; else those that do not agree, and their neighbors.
    """
    shown = cleaned(document)
    view = make_view(shown)
    if isinstance(shown, ComparisonDocument):
        about = shown.setup.candidate
        columns = [f"candidate    {about.name}", *format_runtime(about)[1:]]
        lines = [view.answer.says, "   ".join(columns)]
        lines += _format_whole(shown.whole.verdict)
        if view.lines:
            lines += format_table(view, every=every)
            in_place = (
                shown.whole.in_place
            )  # None, like `looked_at`, in documents of earlier releases
            is_seen = any(line.cells[0].status for line in view.lines)
            if in_place and not is_seen:
                lines.append(f"in place: {format_state(in_place)}   {in_place.why}")
            else:
                lines.append(IN_PLACE)
        lines = [*lines, *_format_totals(shown, view), *(f"note: {note}" for note in shown.notes)]
    else:
        lines = [
            view.answer.says,
            *(f"{name}: {text}" for name, text in view.facts),
            *list_left_out(view),
        ]
        lines += [f"note: {note}" for note in view.notes]
        for finding in view.findings[:MAX_PLACES]:
            lines += [format_interval(finding), *(f"  {line}" for line in place(finding))]
            lines += [f"  case {finding.case}/"] if finding.case else []
        further = len(view.findings) - MAX_PLACES
        lines += [f"and {count(further, 'further place')} (--json)"] if further > 0 else []
        if view.findings:
            lines.append("no trial was possible: nothing is certified")
        elif view.lines:
            lines += format_table(view, every=every)
    lines = [*map(shorten_names, lines), *_format_last_lines(view.answer, shown.report)]
    return "\n".join(lines) + "\n"


def _format_whole(verdict: WholeDocument) -> list[str]:
    lines = [
        f"{name}: {describe_prediction(shares.top1, shares.top5)}"
        for name, shares in verdict.ranking.items()
    ]
    lines += [f"| {line}" for line in list_stderr_lines(verdict)]
    if verdict.build_seconds or verdict.run_seconds:
        times = format_seconds(verdict.build_seconds), format_seconds(verdict.run_seconds)
        lines.append("built in {}, ran in {}".format(*times))
    return [
        f"whole model  {format_state(verdict)}   {find_reason(verdict)}",
        *(f"{'':13}{line}" for line in lines),
    ]


def format_table(shown: View, *, every: bool) -> list[str]:
    """Return a line per tensor, with a column per way in which it was compared.

    Args:
        shown: The comparison.
        every: Show each row; else those that do not agree, and their neighbors.
    """
    by = ["computed by"] if any(t.computed_by for t in shown.lines) else []
    by += ["matched"] if shown.kind == "recorded" else []
    rows = [("", "node", "op", "tensor", *shown.columns, *by)]
    shown_rows = range(len(shown.lines)) if every else _select_rows(shown.lines)
    for k in shown_rows:
        t = shown.lines[k]
        who = [t.computed_by or "-"] if "computed by" in by else []
        if shown.kind == "recorded":
            who.append("; ".join(dict.fromkeys(match for _, match in t.names)) or "-")
        cells = map(format_cell, t.cells)
        rows.append((f"#{t.index}", omit_middle(t.node), t.op, omit_middle(t.tensor), *cells, *who))
    head, *lines = align_columns(rows)
    return [head, *_iter_rows(shown.lines, shown_rows, lines)]


def _select_rows(lines: Sequence[TensorLine]) -> Sequence[int]:
    """Return the positions of the rows that a table shows, in ascending order.

    These are all rows of a short table. Of a longer table they are the rows that do not agree, the
    rows around them and the last compared row. If all rows agree, they are the last rows.
    """
    if len(lines) <= MAX_FULL_TABLE_ROWS:
        return range(len(lines))
    wrong = [k for k, line in enumerate(lines) if not _agrees(line)]
    # If not all wrong rows have room, those that fail in the last column are shown.
    failing = [k for k in wrong if lines[k].cells[-1].status is Status.FAIL]
    shown = drop_repeats([*wrong[:1], *failing, *wrong])[:MAX_ROWS]
    compared = [k for k, line in enumerate(lines) if _is_seen(line)]
    before = [next((j for j in reversed(compared) if j < k), k) for k in shown]
    near = {*shown, *before, *(k + 1 for k in shown), *(compared[-1:] if shown else ())}
    return sorted(near.intersection(range(len(lines)))) or range(len(lines))[-LAST_ROWS:]


def _agrees(line: TensorLine) -> bool:
    """Return whether a tensor agrees wherever it was compared."""
    return all(cell.status in ("", Status.AGREE) for cell in line.cells)


def _is_seen(line: TensorLine) -> bool:
    """Return whether a tensor was compared anywhere."""
    return any(cell.status for cell in line.cells)


def _iter_rows(
    lines: Sequence[TensorLine], rows: Sequence[int], shown: Sequence[str]
) -> Iterator[str]:
    """Yield the rows that are shown, and a line for those that are not between them."""
    ends = [-1, *rows, len(lines)]
    for text, before, here in zip([*shown, ""], ends, ends[1:], strict=False):
        if left := lines[before + 1 : here]:
            wrong = sum(not _agrees(line) for line in left)
            unseen = sum(not _is_seen(line) for line in left)
            if wrong:
                state = f", {wrong} of them wrong or unresolved"
            elif unseen:
                state = f", {unseen} of them not seen, the others agree"
            else:
                state = " that agree"
            yield f"… {count(left, 'row')}{state} (--all)"
        if here < len(lines):
            yield text


def format_cell(cell: ComparedCell) -> str:
    """Return `1.1e-02 FAIL`; a dash for a tensor that was not computed."""
    if not cell.status:
        return "-"
    error = cell.error
    figure = f"{error:.1e} " if error is not None and math.isfinite(error) else ""
    return f"{figure}{format_outcome(cell)}"


def _format_totals(document: ComparisonDocument, shown: View) -> list[str]:
    rows = shown.lines
    bad = document.tensors.first_bad
    status = document.whole.verdict.status
    looked_at = document.whole.looked_at
    if not rows and looked_at and looked_at.others:
        return ["no intermediate tensor was compared"]
    if not rows:
        return ["no tensor to compare: the model's outputs depend on constants and shapes alone"]
    parts = []
    for k, way in enumerate(shown.columns):
        statuses = [line.cells[k].status for line in rows if line.cells[k].status]
        unresolved = statuses.count(Status.UNRESOLVED)
        unsure = f", {unresolved} unresolved" if unresolved else ""
        parts.append(f"{statuses.count(Status.FAIL)} of {len(statuses)} wrong {way}{unsure}")
    end = " (stopped there)" if document.tensors.stopped else ""
    lines = [f"{count(rows, 'tensor')}: {'; '.join(parts)}{end}"]
    if bad:
        lines.append(f"first bad tensor  {bad.tensor}   node {bad.node} ({bad.op})")
        first = bad.index, bad.tensor
        sources = [t.source for t in rows if (t.index, t.tensor) == first]
        lines += [f"source            {source}" for source in filter(None, sources)]
        lines += [f"looks like        {likeness}" for likeness in bad.looks_like]
    elif status is Status.AGREE and looked_at:
        unseen = "" if looked_at.inner else "; without --at, all intermediate tensors are compared"
        inner = count(looked_at.inner, "intermediate tensor")
        lines.append(f"compared: {count(looked_at.outputs, 'output')}, {inner}{unseen}")
    elif status is Status.FAIL:
        lines.append(_explain_whole_alone(document, shown))
    return lines


def _explain_whole_alone(document: ComparisonDocument, shown: View) -> str:
    """Return a sentence on a model that is wrong although no tensor is."""
    looked_at = document.whole.looked_at
    if looked_at and looked_at.others:
        verb = "was" if looked_at.others == 1 else "were"
        left = f"{count(looked_at.others, 'other tensor')} {verb} not compared"
        return f"the full model is wrong, the compared tensors are not: {left}"
    if all(line.cells[-1].status is Status.AGREE for line in shown.lines):
        return (
            "each tensor agrees, yet the whole model is wrong: several nodes together are, as in a"
            " fusion"
        )
    return "no tensor is wrong, yet the whole model is: some could not be judged"
