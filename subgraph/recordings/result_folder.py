"""Runs against the reference -> one document, cases with recorded values, and a folder.

The document has a row per tensor, the outlier, and the first bad tensor of each run. The folder has
a case per interval. In a case, the recorded tensors enter a cut, and are next to it as `dump_data`.
Its outputs are those that the reference computes from these inputs, so the usual self-check of a
case applies.

manifest.json  run.json
interval/        the first region: model.onnx, inputs/, outputs/ (reference), candidate/, repro.py
interval-2/ …    further ones
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from subgraph.cases import case, evidence, write_case
from subgraph.cases.case import Case, RecordingEntry, ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.layout import CANDIDATE, REPORT_FILES
from subgraph.cases.write_case import CaseRequest
from subgraph.errors import UsageError
from subgraph.graph import region as regions
from subgraph.graph.graph import Graph
from subgraph.graph.region import Region, find_surroundings
from subgraph.iterables import group_values, restrict
from subgraph.origins.source import find_source
from subgraph.recordings.interval import (
    REFERENCE,
    Interval,
    find_departures,
    find_intervals,
    summarize_runs,
)
from subgraph.recordings.matching.align import capture_tensors
from subgraph.recordings.matching.matched import MatchedSample, Reason, run_recorded
from subgraph.recordings.run_comparison import NO_NODE, RunComparison, TensorRow
from subgraph.results.answer import NextCommand
from subgraph.results.compare import (
    INTERVAL_SCHEMA,
    ComparedRecordings,
    DocumentRow,
    IntervalDocument,
    IntervalEnds,
    IntervalFinding,
    IntervalPlace,
    LeftOutReason,
    RecordedDocument,
    RecordedFiles,
    RecordedSetup,
    RecordedTensor,
    RunSummary,
    RunTensors,
    Suspect,
    UnmatchedEntry,
)
from subgraph.runtime.capture import Captured
from subgraph.runtime.inputs import Feeding, Sample
from subgraph.storage import folders
from subgraph.storage.tensors import Record, copy_record
from subgraph.text import count
from subgraph.trials.compare_tensors import describe_model
from subgraph.trials.judge import Judge
from subgraph.trials.reference_model import ReferenceModel
from subgraph.types import StringMap
from subgraph.verdict import Status

MAX_NAMED = 5  # files that were not compared
MAX_CASES = 4  # intervals that get a folder
MAX_SUSPECTS = 12  # of an interval in the document


def make_document(
    judge: Judge,
    comparisons: Sequence[RunComparison],
    names: Sequence[str],
    criterion: str,
    command: str = "",
    *,
    stopped: bool = False,
) -> RecordedDocument:
    """Make the document; `names`: tensors that were looked for; `stopped`: at the first bad one.

    The last good tensors are given only if all tensors were looked for.
    """
    if stopped:
        seen = (k for k, n in enumerate(names, 1) if any(n in c.rows for c in comparisons))
        names = names[: max(seen, default=0)]
    graph = judge.model.graph
    rows = []
    for name in names:
        i = graph.maker[name]
        runs = [_make_recorded_tensor(c.rows.get(name)) for c in comparisons]
        odd = find_outlier(comparisons, name) or None
        source = find_source(graph, i)
        rows.append(DocumentRow(i, graph.label(i), graph.ops[i], name, runs, odd, source))
    complete = stopped or len(names) == len(judge.model.tensors())
    code = choose_exit_code(comparisons)
    found = find_departures(comparisons)
    recordings = [_summarize_run(judge, c, complete) for c in comparisons]
    unresolved = {run.name: run.why for run in recordings if run.status is Status.UNRESOLVED}
    says = summarize_runs(comparisons, found, unresolved)
    if len(recordings) == 1:
        says = _describe_outcome(recordings[0])
    odd = next((row.odd_one_out for row in rows if row.odd_one_out), None)
    return RecordedDocument(
        exit_code=code,
        agree=code == 0,
        recordings=recordings,
        command=command,
        model=describe_model(judge.model.graph),
        says=says,
        setup=RecordedSetup(
            precision=judge.precision, criterion=criterion, samples=judge.model.values.labels
        ),
        tensors=ComparedRecordings(odd_one_out=odd, departures=found, rows=rows),
    )


def _describe_outcome(run: RunSummary) -> str:
    """Describe the outcome of one run: `wrong: 22 of 34 recorded tensors, first conv3`."""
    if run.mistake:
        return f"wrong: {run.mistake}"
    tensors = run.tensors
    if run.status is Status.FAIL:
        where = f", first {tensors.first_bad}" if tensors.first_bad else ""
        of = count(tensors.compared, "recorded tensor")
        return f"wrong: {tensors.wrong} of {of}{where}"
    if run.status is Status.UNRESOLVED:
        return f"inconclusive: {run.why}"
    verb = "agrees" if tensors.compared == 1 else "agree"
    return f"right: {count(tensors.compared, 'recorded tensor')} {verb}"


def choose_exit_code(comparisons: Sequence[RunComparison]) -> int:
    """Return 1 if a recording is wrong; else 5 if one is unresolved; else 0."""
    statuses = {comparison.status for comparison in comparisons}
    codes = ((Status.FAIL, 1), (Status.UNRESOLVED, 5))
    return next((code for status, code in codes if status in statuses), 0)


def _summarize_run(judge: Judge, comparison: RunComparison, complete: bool) -> RunSummary:
    intervals = find_intervals(comparison) if complete and comparison.failing else []
    first = intervals[0] if intervals else None
    run = comparison.run
    recorded = run.recording
    failing = comparison.failing
    first_bad = first.first_bad[0] if first else next(iter(failing), None)
    status = comparison.status
    graph = judge.model.graph
    left = comparison.list_left_out(*Reason)
    lost = [UnmatchedEntry(one.entry.name, one.entry.file, one.why) for one in left]
    names = group_values((one.reason, one.entry.name) for one in left)
    kinds = [LeftOutReason(why, len(group), group[:MAX_NAMED]) for why, group in names.items()]
    for end, number in (recorded.left_out if recorded else {}).items():
        kinds.append(LeftOutReason(f"files of another kind ({end})", number, ()))
    return RunSummary(
        name=run.name,
        precision=run.precision or judge.precision,
        status=status,
        why=_explain_unresolved(comparison) if status is Status.UNRESOLVED else "",
        mistake=comparison.wrong_input,
        notes=comparison.notes,
        inputs={name: row.in_place for name, row in comparison.inputs.items() if row.in_place},
        files=RecordedFiles(
            folder=str(recorded.folder) if recorded else None,
            format=recorded.format if recorded else None,
            missing=run.missing or None,
            matched=comparison.matched[0].summary() if comparison.matched else "",
            lost=lost,
            left_out=sorted(kinds, key=lambda kind: -kind.count),
            unread=len(comparison.list_left_out(Reason.UNREADABLE)),
        ),
        tensors=RunTensors(
            wrong=len(failing),
            compared=sum(row.compared for row in comparison.rows.values()),
            first_bad=first_bad,
            last_good=first.last_good if first else None,
            source=find_source(graph, graph.maker[first_bad]) if first_bad else None,
        ),
    )


def _explain_unresolved(comparison: RunComparison) -> str:
    """Explain why a run against which there is no evidence is not right either."""
    no_node = NO_NODE if comparison.failing else ""
    if why := comparison.run.missing or comparison.too_few or no_node or comparison.silence:
        return why
    broken = [one.entry.file for one in comparison.list_left_out(Reason.UNREADABLE)]
    broken += [row.match.entry.file for row in comparison.rows.values() if row.in_place is None]
    if not broken:
        return "not all that was recorded was compared"
    return f"not compared: {', '.join(broken[:MAX_NAMED])}"


def _make_recorded_tensor(row: TensorRow | None) -> RecordedTensor | None:
    if row is None:
        return None
    match = row.match
    entry = match.entry
    judged = (row.in_place, row.alone, row.before, row.beside, row.why)
    return RecordedTensor(entry.file, entry.name, match.how, match.note, *judged)


def find_outlier(comparisons: Sequence[RunComparison], name: str) -> str:
    """Return which run, or the reference, disagrees with all others about a tensor, or ""."""
    bad = [c for c in comparisons if name in c.rows and c.rows[name].failing]
    if any(name in c.rows and c.rows[name].agreeing for c in comparisons):
        return bad[0].run.name if len(bad) == 1 else ""
    same = all((beside := c.rows[name].beside) and beside.status is Status.AGREE for c in bad[1:])
    return REFERENCE if len(bad) > 1 and same else ""


def make_interval_document(
    judge: Judge,
    comparisons: Sequence[RunComparison],
    narrowed: RunComparison,
    intervals: Sequence[Interval],
    criterion: str,
    command: str,
    troubles: Mapping[int, str],
) -> IntervalDocument:
    """Make the document; `narrowed` has the intervals, `troubles` are those of nodes."""
    runs = make_document(judge, comparisons, judge.model.tensors(), criterion, command)
    graph = judge.model.graph
    findings = []
    for interval in intervals:
        nodes = interval.region.nodes
        in_place = narrowed.rows[interval.first_bad[0]].in_place
        suspects = []
        for i, weight in interval.suspects[:MAX_SUSPECTS]:
            trouble = troubles.get(i, "")
            source = find_source(graph, i)
            suspects.append(Suspect(i, graph.label(i), graph.ops[i], weight, trouble, source))
        ends = IntervalEnds(
            first=interval.first,
            first_bad=interval.first_bad,
            last_good=interval.last_good,
            wrong_before=interval.wrong_before,
            not_seen=interval.unseen,
            adds_an_error=interval.adds_error,
            in_place=in_place,
        )
        finding = IntervalFinding(
            signature=in_place.signature if in_place else None,
            nodes=[graph.label(i) for i in nodes],
            indices=nodes,
            case=None,
            ends=ends,
            place=IntervalPlace(suspects=suspects, neighbours=find_surroundings(graph, nodes)),
        )
        findings.append(finding)
    return IntervalDocument(
        **vars(runs) | {"schema": INTERVAL_SCHEMA}, narrowed=narrowed.run.name, findings=findings
    )


# ------------------------------------------------------------ cases


@dataclass
class RecordedValues:
    """A `write_case.RecordedSource`: recorded tensors enter the region, else the reference's."""

    judge: Judge
    matched: Sequence[MatchedSample]
    region: Region
    recording: RecordingEntry

    @property
    def samples(self) -> Sequence[Sample]:
        """The samples that the reference was fed."""
        return self.judge.model.values.samples

    def copy_to(self, stems: StringMap, folder: Path) -> list[Captured]:
        """Copy the values, as `ReferenceValues.copy_to` does.

        Raises:
            UsageError: an input of the region was not recorded; the hint is another start.
        """
        graph = self.judge.model.graph
        used = self.matched[: len(self.samples)]
        for matched in used:
            matches = matched.matches
            lacking = [n for n in self.region.inputs if n not in matches and n in graph.maker]
            if lacking:
                wider = regions.find_upstream_until(graph, lacking, matches.__contains__)
                what = f"the recording holds no '{lacking[0]}', which the cut reads"
                hint = "cut elsewhere"
                if wider:
                    start = graph.label(wider.nodes[0])
                    hint = f"--start {start} begins at tensors that it holds"
                raise UsageError(what, hint, code="recording.input-missing")
        inputs, outputs = run_recorded(used, self.region)
        values = self.judge.model.values
        out = []
        for k, captured in enumerate(values.copy_to(restrict(stems, values.records[0]), folder)):
            tensors = dict(captured.tensors)
            for name, record in {**inputs[k], **restrict(outputs[k], stems)}.items():
                tensors[name] = copy_record(record, folder / str(k), stems[name])
            out.append(replace(captured, tensors=tensors))
        return out

    def dump(self, stems: StringMap, folder: Path) -> list[dict[str, Record]]:
        """Write per sample the recorded tensors of the region's nodes, as files in `folder/<k>`.

        Their paths are absolute.
        """
        graph = self.judge.model.graph
        samples = []
        for k, m in enumerate(self.matched[: len(self.samples)]):
            names = [n for n in graph.iter_outputs(self.region.nodes) if n in m.matches]
            capture_tensors(self.judge.model, names)
            samples.append(m.save_all(names, folder / str(k), stems))
        return samples


def write_recorded_case(
    graph: Graph,
    request: CaseRequest,
    place: ResultPlace,
    judge: Judge,
    matched: Sequence[MatchedSample],
    recording: RecordingEntry,
) -> list[Case]:
    """Write a case as `write_case.extract`, with a device's tensors; `recording`: without `files`.

    Raises:
        UsageError: the recording lacks an input of the cut. SubcutError: as `write_case.extract`.
    """
    region, place = write_case.find_place(graph, request, place)
    judge.model.values.need(region.boundary)
    files = {n: m.entry.file for n, m in matched[0].matches.items() if n in region.inputs}
    values = RecordedValues(judge, matched, region, replace(recording, files=files))
    reference = judge.model.reference
    return write_case.write_region(graph, region, request, place, reference, device=values)


def save(
    model: ReferenceModel,
    comparison: RunComparison,
    intervals: Sequence[Interval],
    document: IntervalDocument,
    place: ResultPlace,
    request: object,
    feeding: Feeding,
    next_of: Callable[[IntervalDocument], Sequence[NextCommand]],
) -> IntervalDocument:
    """Write the folder; return the document with the paths of the cases and the next commands.

    Raises:
        OutputError: it cannot be written.
    """
    origin = case.describe_source(model.graph)
    files = (Path(word.rpartition("=")[2]).name for word in feeding.inputs)
    fed = replace(feeding, inputs=tuple(files))
    add_case = partial(evidence.add_case, model.graph, freeze=model.freeze)
    with folders.write_aside(place.path) as work:
        findings = list(document.findings)
        for k, interval in enumerate(intervals[:MAX_CASES]):
            region = interval.region
            target = ResultPlace(work, f"interval-{k + 1}" if k else "interval")
            if not add_case(region, fed, target, model.reference, model.values):
                continue
            stems = folders.make_safe_names(region.outputs)
            places = evidence.list_sample_folders(target.path / CANDIDATE, model.values.labels)
            for matched, folder in zip(comparison.matched, places, strict=False):
                matched.save_all(region.outputs, folder, stems)
            findings[k] = replace(findings[k], case=str(place.path / target.path.name))
        report = (place.path / REPORT_FILES["html"]).as_posix()
        document = replace(document, findings=findings, report=report)
        document = replace(document, next=next_of(document))
        evidence.write_document(document, work)
        told = EvidenceManifest(source=origin, command=document.command, request=request)
        case.write_manifest(told, work)
    return document
