"""A finished search -> a folder that a vendor can run: the region with its tensors, what came instead, the report.

manifest.json  run.json  report.html  report.md
culprit/          the region: model.onnx, inputs/, outputs/ (reference), candidate/ (what came), repro.py
culprit-agrees/   its nearest neighbour that agrees, the same way
culprit-2/ …      further findings
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from subgraph.bisection.oracle import NodeOracle
from subgraph.cases import case, evidence
from subgraph.cases.case import ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.layout import CANDIDATE, REPORT_FILES, RUN_JSON
from subgraph.cases.write_case import CaseRequest
from subgraph.documents import to_json
from subgraph.graph import region as regions
from subgraph.graph.region import Region
from subgraph.runtime.inputs import Feeding
from subgraph.storage import folders
from subgraph.trials import candidate_model

MOST = 8  # findings that get a folder; a model with more has one reason, and each folder holds its weights


def require_free(place: ResultPlace, request: Any, asked: NodeOracle) -> None:
    """May the result go there? Asked before the search, not after.

    Raises:
        ResultExists: something else stands in the way.
    """
    graph = asked.trials.graph
    case.require_free(place, request, case.source_of(graph), [graph.path])


def save(asked: NodeOracle, document: dict[str, Any], place: ResultPlace, request: Any, feeding: Feeding) -> None:
    """Write it all. The document's findings get the path of their folder, and it the path of its page.

    Raises:
        OutputError: it cannot be written. ResultExists: something else stands there meanwhile.
    """
    require_free(place, request, asked)
    with folders.aside(place.path) as work:
        for name, finding in _named(document["findings"]):
            nodes = finding["indices"]
            if not nodes or not _region(asked, nodes, ResultPlace(work, name), feeding):
                continue
            finding["case"] = str(place.path / name)
            _add_candidate(asked, nodes, work / name)
            if finding["nearest"]:
                _region(asked, finding["nearest"]["indices"], ResultPlace(work, f"{name}-agrees"), feeding)
        document["report"] = str(place.path / REPORT_FILES["html"])
        evidence.write_document(document, RUN_JSON, work)
        for file, text in evidence.rendered_reports(document).items():
            (work / file).write_text(text, encoding="utf-8")
        source = case.source_of(asked.trials.graph)
        case.write_manifest(EvidenceManifest(source=source, command=document["command"], request=request), work)


def _named(findings: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    words = {"culprit": "culprit", "flaky": "flaky", "unresolved": "in-doubt", "accumulated": "accumulated"}
    taken: dict[str, int] = {}
    for finding in findings[:MOST]:
        if finding["kind"] == "accumulated":  # that is the whole model
            continue
        word = words[finding["kind"]]
        taken[word] = taken.get(word, 0) + 1
        yield word if taken[word] == 1 else f"{word}-{taken[word]}", finding


def _region(asked: NodeOracle, nodes: list[int], place: ResultPlace, feeding: Feeding) -> bool:
    """Cut a region into a folder of its own, with reference values; False where that cannot be had."""
    trials = asked.trials
    region = regions.of_nodes(trials.graph, nodes)
    request = CaseRequest.of_nodes(trials.graph, nodes, feeding, freeze=trials.freeze)
    return evidence.add_case(trials.graph, region, request, place, trials.reference, trials.values)


def _add_candidate(asked: NodeOracle, nodes: list[int], folder: Path) -> None:
    """What the candidate gave for a region, beside the reference's outputs."""
    region = regions.of_nodes(asked.trials.graph, nodes)
    answer = asked.given(region)
    labels = asked.trials.values.labels
    for into, tensors in zip(evidence.candidate_folders(folder, labels), answer.tensors, strict=False):
        evidence.copy_tensors(tensors, folders.safe_names(tensors), into)
    if asked.trials.candidate_model:
        _add_model(asked, region, labels, folder / CANDIDATE)


def _add_model(asked: NodeOracle, region: Region, labels: Sequence[str], into: Path) -> None:
    """The piece of the candidate's own model, what it was fed in its own form, and which tensors these are."""
    trials, other = asked.trials, asked.trials.candidate_model
    assert other
    room = trials.new_folder()
    cut, fed = trials.write_cut(region, trials.values.records, room)
    for file in room.glob("model.onnx*"):
        shutil.copyfile(file, into / file.name)
    for place, records in zip(evidence.sample_folders(into / "inputs", labels), fed, strict=True):
        evidence.copy_tensors({r.name: r for r in records}, folders.safe_names(cut.inputs), place)
    evidence.write_document(to_json(other.boundary_matches(region)), candidate_model.EDGE, into)
