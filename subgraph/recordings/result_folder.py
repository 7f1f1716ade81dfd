"""The intervals of a recording -> one document, and a folder with a case per interval, ready for
the device.

manifest.json  run.json
interval/        the first region: model.onnx, inputs/, outputs/ (reference), candidate/ (recorded),
repro.py interval-2/ …    further ones
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from subgraph.cases import case, evidence
from subgraph.cases.case import ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.layout import REPORT_FILES
from subgraph.cases.write_case import CaseRequest
from subgraph.graph.region import surroundings
from subgraph.origins.source import source
from subgraph.recordings import document as run_document
from subgraph.recordings.interval import Interval
from subgraph.recordings.run_comparison import RunComparison
from subgraph.results.common import NextCommand
from subgraph.results.recorded import INTERVAL_SCHEMA, IntervalDocument, IntervalFinding, Suspect
from subgraph.runtime.inputs import Feeding
from subgraph.storage import folders
from subgraph.trials.judge import Judge
from subgraph.trials.reference_model import ReferenceModel

MAX_CASES = 4  # intervals that get a folder
MAX_SUSPECTS = 12  # of an interval in the document


def document(
    judge: Judge,
    comparisons: Sequence[RunComparison],
    narrowed: RunComparison,
    intervals: Sequence[Interval],
    criterion: str,
    command: str,
    troubles: Mapping[int, str],
) -> IntervalDocument:
    """The document; `narrowed`: the one with the intervals; `troubles`: of nodes, as
    `known_troubles` gives them."""
    runs = run_document.document(judge, comparisons, judge.model.tensors(), criterion, command)
    return IntervalDocument(
        **vars(runs)
        | {
            "schema": INTERVAL_SCHEMA,
            "model": replace(runs.model, path=str(judge.model.graph.path)),
        },
        narrowed=narrowed.run.name,
        findings=[_finding(judge.model, narrowed, interval, troubles) for interval in intervals],
    )


def _finding(
    model: ReferenceModel,
    comparison: RunComparison,
    interval: Interval,
    troubles: Mapping[int, str],
) -> IntervalFinding:
    graph = model.graph
    nodes = interval.region.nodes
    in_place = comparison.rows[interval.first_bad[0]].in_place
    return IntervalFinding(
        signature=in_place.signature if in_place else None,
        nodes=[graph.label(i) for i in nodes],
        indices=nodes,
        first=interval.first,
        first_bad=interval.first_bad,
        last_good=interval.last_good,
        wrong_before=interval.wrong_before,
        not_seen=interval.unseen,
        adds_an_error=interval.adds_error,
        in_place=in_place,
        suspects=[
            Suspect(i, graph.label(i), graph.ops[i], weight, troubles.get(i, ""), source(graph, i))
            for i, weight in interval.suspects[:MAX_SUSPECTS]
        ],
        neighbours=surroundings(graph, nodes),
        case=None,
    )


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
    """Write the folder, at a place that is free; return the document with the paths of the cases
    and the next commands.

    Raises:
        OutputError: it cannot be written.
    """
    origin = case.source_of(model.graph)
    with folders.aside(place.path) as work:
        findings = list(document.findings)
        for k, interval in enumerate(intervals[:MAX_CASES]):
            name = f"interval-{k + 1}" if k else "interval"
            if _write_case(model, comparison, interval, ResultPlace(work, name), feeding):
                findings[k] = replace(findings[k], case=str(place.path / name))
        document = replace(
            document, findings=findings, report=(place.path / REPORT_FILES["html"]).as_posix()
        )
        document = replace(document, next=next_of(document))
        evidence.write_document(document, work)
        case.write_manifest(
            EvidenceManifest(source=origin, command=document.command, request=request), work
        )
    return document


def _write_case(
    model: ReferenceModel,
    comparison: RunComparison,
    interval: Interval,
    place: ResultPlace,
    feeding: Feeding,
) -> bool:
    """The case of one interval, with the recorded outputs as the candidate's; False where it cannot
    be cut."""
    graph = model.graph
    region = interval.region
    fed = replace(
        feeding, inputs=tuple(Path(word.rpartition("=")[2]).name for word in feeding.inputs)
    )
    request = CaseRequest.of_nodes(graph, region.nodes, fed, freeze=model.freeze)
    if not evidence.add_case(graph, region, request, place, model.reference, model.values):
        return False
    stems = folders.safe_names(region.outputs)
    places = evidence.candidate_folders(place.path, model.values.labels)
    for matched, folder in zip(comparison.matched, places, strict=False):
        matched.save_all(region.outputs, folder, stems)
    return True
