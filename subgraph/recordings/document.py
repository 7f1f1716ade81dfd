"""Several runs against the reference -> one document: a row per tensor, the outlier, the first bad
tensor."""

from __future__ import annotations

from collections.abc import Sequence

from subgraph.origins.source import find_source
from subgraph.recordings.departure import REFERENCE, find_departures, summarize_runs
from subgraph.recordings.interval import find_intervals
from subgraph.recordings.matching.matched import Reason
from subgraph.recordings.run_comparison import RunComparison, TensorRow
from subgraph.results.recorded import (
    DocumentRow,
    LeftOutReason,
    RecordedDocument,
    RecordedTensor,
    RunSummary,
    UnmatchedEntry,
)
from subgraph.text import count
from subgraph.trials.compare_tensors import describe_model
from subgraph.trials.judge import Judge
from subgraph.trials.reference_model import ReferenceModel
from subgraph.verdict import Status

MAX_NAMED = 5  # files that were not compared


def make_document(
    judge: Judge,
    comparisons: Sequence[RunComparison],
    names: Sequence[str],
    criterion: str,
    command: str = "",
    *,
    stopped: bool = False,
) -> RecordedDocument:
    """The document. `names`: the tensors that were looked for; `stopped`: comparing ended at the
    first bad one.

    The last good tensors are given only if all tensors were looked for.
    """
    if stopped:
        names = names[
            : max(
                (k for k, n in enumerate(names, 1) if any(n in c.rows for c in comparisons)),
                default=0,
            )
        ]
    rows = [_make_row(judge.model, comparisons, name) for name in names]
    complete = stopped or len(names) == len(judge.model.tensors())
    code = choose_exit_code(comparisons)
    found = find_departures(comparisons)
    recordings = [_summarize_run(judge, c, complete) for c in comparisons]
    unresolved = {run.name: run.why for run in recordings if run.status is Status.UNRESOLVED}
    return RecordedDocument(
        exit_code=code,
        agree=code == 0,
        precision=judge.precision,
        criterion=criterion,
        samples=judge.model.values.labels,
        recordings=recordings,
        odd_one_out=next((row.odd_one_out for row in rows if row.odd_one_out), None),
        command=command,
        model=describe_model(judge.model.graph),
        says=(
            _describe_outcome(recordings[0])
            if len(recordings) == 1
            else summarize_runs(comparisons, found, unresolved)
        ),
        departures=found,
        rows=rows,
    )


def _describe_outcome(run: RunSummary) -> str:
    """What one run says: `wrong: 22 of 34 recorded tensors, first conv3`."""
    if run.mistake:
        return f"wrong: {run.mistake}"
    if run.status is Status.FAIL:
        where = f", first {run.first_bad}" if run.first_bad else ""
        return f"wrong: {run.wrong} of {count(run.compared, 'recorded tensor')}{where}"
    if run.status is Status.UNRESOLVED:
        return f"inconclusive: {run.why}"
    return (
        f"right: {count(run.compared, 'recorded tensor')}"
        f" {'agrees' if run.compared == 1 else 'agree'}"
    )


def choose_exit_code(comparisons: Sequence[RunComparison]) -> int:
    """1 where a recording is wrong; else 5 where one is unresolved; else 0."""
    statuses = {comparison.status for comparison in comparisons}
    if Status.FAIL in statuses:
        return 1
    if Status.UNRESOLVED in statuses:
        return 5
    return 0


def _summarize_run(judge: Judge, comparison: RunComparison, complete: bool) -> RunSummary:
    intervals = find_intervals(comparison) if complete and comparison.failing else []
    first = intervals[0] if intervals else None
    run = comparison.run
    recorded = comparison.run.recording
    failing = comparison.failing
    first_bad = first.first_bad[0] if first else next(iter(failing), None)
    status = comparison.status
    return RunSummary(
        name=run.name,
        precision=run.precision or judge.precision,
        status=status,
        why=_explain_unresolved(comparison) if status is Status.UNRESOLVED else "",
        folder=str(recorded.folder) if recorded else None,
        format=recorded.format if recorded else None,
        missing=run.missing or None,
        mistake=comparison.wrong_input,
        matched=comparison.matched[0].summary() if comparison.matched else "",
        notes=comparison.notes,
        inputs={name: row.in_place for name, row in comparison.inputs.items() if row.in_place},
        lost=[
            UnmatchedEntry(one.entry.name, one.entry.file, one.why)
            for one in comparison.left_out(*Reason)
        ],
        left_out=_count_left_out(comparison),
        wrong=len(failing),
        unread=len(comparison.left_out(Reason.UNREADABLE)),
        compared=sum(row.compared for row in comparison.rows.values()),
        first_bad=first_bad,
        last_good=first.last_good if first else None,
        source=find_source(judge.model.graph, judge.model.graph.maker[first_bad])
        if first_bad
        else None,
    )


def _explain_unresolved(comparison: RunComparison) -> str:
    """Why a run that nothing speaks against is not right either."""
    if comparison.run.missing or comparison.too_few:
        return comparison.run.missing or comparison.too_few
    if comparison.silence:
        return comparison.silence
    broken = [one.entry.file for one in comparison.left_out(Reason.UNREADABLE)]
    broken += [row.match.entry.file for row in comparison.rows.values() if row.in_place is None]
    return (
        f"not compared: {', '.join(broken[:MAX_NAMED])}"
        if broken
        else "not all that was recorded was compared"
    )


def _count_left_out(comparison: RunComparison) -> list[LeftOutReason]:
    names: dict[str, list[str]] = {}
    for one in comparison.left_out(*Reason):
        names.setdefault(one.reason, []).append(one.entry.name)
    found = [LeftOutReason(why, len(group), group[:MAX_NAMED]) for why, group in names.items()]
    files = comparison.run.recording.left_out if comparison.run.recording else {}
    found += [LeftOutReason(f"files of another kind ({end})", n, ()) for end, n in files.items()]
    return sorted(found, key=lambda kind: -kind.count)


def _make_row(
    model: ReferenceModel, comparisons: Sequence[RunComparison], name: str
) -> DocumentRow:
    graph = model.graph
    i = model.graph.maker[name]
    runs = [_make_recorded_tensor(c.rows.get(name)) for c in comparisons]
    odd = find_outlier(comparisons, name) or None
    return DocumentRow(i, graph.label(i), graph.ops[i], name, runs, odd, find_source(graph, i))


def _make_recorded_tensor(row: TensorRow | None) -> RecordedTensor | None:
    if row is None:
        return None
    match = row.match
    entry = row.match.entry
    return RecordedTensor(
        entry.file,
        entry.name,
        match.how,
        match.note,
        row.in_place,
        row.alone,
        row.before,
        row.beside,
        row.why,
    )


def find_outlier(comparisons: Sequence[RunComparison], name: str) -> str:
    """The one of the runs and the reference that disagrees with all others about a tensor; "" if
    there is none."""
    bad = [c for c in comparisons if name in c.rows and c.rows[name].failing]
    if any(name in c.rows and c.rows[name].agreeing for c in comparisons):
        return bad[0].run.name if len(bad) == 1 else ""
    same = all((beside := c.rows[name].beside) and beside.status is Status.AGREE for c in bad[1:])
    return REFERENCE if len(bad) > 1 and same else ""
