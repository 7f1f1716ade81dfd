"""Rows of a sweep -> its document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from itertools import chain

from subgraph.cases.case import ResultPlace
from subgraph.results.sweep import (
    CandidateEntry,
    NamedTest,
    OnnxruntimeEntry,
    OperatorEntry,
    ResultEntry,
    RowEntry,
    SweepDocument,
    SweepOutcome,
    TestsEntry,
    Totals,
)
from subgraph.storage.folders import safe_name
from subgraph.sweep.expected import Runtime
from subgraph.sweep.operator_tests import NODE, OperatorTest
from subgraph.sweep.sweep import BAD, Sweep, SweepResult, SweepRow


def document(
    sweep: Sweep, rows: Sequence[SweepRow], places: Sequence[ResultPlace], command: str = ""
) -> SweepDocument:
    """The document of a sweep whose cases go to `places`, one per candidate."""
    numbers = range(len(sweep.candidates))
    return SweepDocument(
        exit_code=exit_code(rows),
        command=command,
        criterion=sweep.expected.criterion,
        only=sweep.only,
        tests=_tests(sweep, rows),
        candidates=[
            _candidate(sweep.candidates[k], [r.results[k] for r in rows], places[k])
            for k in numbers
        ],
        operators=_operators(rows),
        networks=[
            totals([row.results[k] for row in rows if row.test.kind != NODE]) for k in numbers
        ],
        differ=[row.test.name for row in rows if len({r.outcome for r in row.results}) > 1],
        onnxruntime=_onnxruntime(sweep, rows),
        left_out=sweep.tests.left_out,
        rows=[_row(row, places) for row in rows],
    )


def exit_code(rows: Sequence[SweepRow]) -> int:
    """1 if anything is wrong, crashes or hangs, even if not every time; 5 if nothing was right
    either; else 0."""
    results = list(chain.from_iterable(row.results for row in rows))
    if any(r.outcome in BAD or r.before for r in results):
        return 1
    return 0 if any(r.outcome is SweepOutcome.RIGHT for r in results) else 5


def totals(results: Sequence[SweepResult]) -> Totals:
    """Number of results by outcome, all outcomes."""
    counts = Counter(r.outcome for r in results)
    return {outcome: counts[outcome] for outcome in SweepOutcome}


def case_name(test: OperatorTest, result: SweepResult) -> str | None:
    """The folder of a bad result's case, within its candidate's; None for other results."""
    return safe_name(test.name) if result.outcome in BAD else None


def result_entry(result: SweepResult, case: str | None = None) -> ResultEntry:
    """One result; `case`: the path of its folder."""
    verdict = result.verdict
    worst = result.verdict.worst
    return ResultEntry(
        status=result.outcome,
        signature=verdict.signature,
        why=verdict.why,
        judged_by=result.judged_by or None,
        phase=verdict.process.get("while"),
        before=result.before or None,
        output=worst.name if worst else None,
        errors=worst.errors if worst else {},
        build_seconds=verdict.build,
        run_seconds=verdict.run,
        case=case,
    )


def _tests(sweep: Sweep, rows: Sequence[SweepRow]) -> TestsEntry:
    nodes = [row.test for row in rows if row.test.kind == NODE]
    operators = len({(t.domain, t.op) for t in nodes})
    version = metadata.version("onnx")
    left_out = len(sweep.tests.left_out)
    return TestsEntry(version, len(rows), operators, len(rows) - len(nodes), left_out)


def _candidate(
    runtime: Runtime, results: Sequence[SweepResult], place: ResultPlace
) -> CandidateEntry:
    candidate = runtime.candidate
    seconds = sum(r.verdict.build + r.verdict.run for r in results)
    return CandidateEntry(
        candidate.name,
        candidate.backend,
        candidate.options,
        runtime.about.version,
        runtime.precision,
        totals(results),
        seconds,
        str(place.path),
    )


def _operators(rows: Sequence[SweepRow]) -> list[OperatorEntry]:
    """By operator, the most interesting first: wrong anywhere, then crashed, and so on; then by
    name."""
    groups: dict[tuple[str, str], list[SweepRow]] = {}
    for row in rows:
        if row.test.kind == NODE:
            groups.setdefault((row.test.op, row.test.domain), []).append(row)
    entries = []
    for (op, domain), some in groups.items():
        each = [totals(results) for results in zip(*(row.results for row in some), strict=True)]
        entries.append(OperatorEntry(op, domain, len(some), each))

    def rank(entry: OperatorEntry) -> tuple[list[int], str]:
        bad = [outcome for outcome in SweepOutcome if outcome is not SweepOutcome.RIGHT]
        return [-sum(t[outcome] for t in entry.totals) for outcome in bad], entry.operator

    return sorted(entries, key=rank)


def _onnxruntime(sweep: Sweep, rows: Sequence[SweepRow]) -> OnnxruntimeEntry:
    counts = Counter(row.reference.outcome for row in rows)
    differing = [row for row in rows if row.reference.outcome == "differs"]
    entries = [NamedTest(row.test.name, row.test.op, row.reference.why) for row in differing]
    agrees = counts["agrees"] + counts["near"]
    return OnnxruntimeEntry(
        sweep.expected.version, agrees, counts["refuses"], counts["crashes"], entries
    )


def _row(row: SweepRow, places: Sequence[ResultPlace]) -> RowEntry:
    test = row.test
    results = []
    for result, place in zip(row.results, places, strict=True):
        name = case_name(test, result)
        results.append(result_entry(result, str(place.path / name) if name else None))
    return RowEntry(test.name, test.op, test.domain, test.kind, row.reference.outcome, results)
