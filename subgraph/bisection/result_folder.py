"""A finished search -> a folder that a vendor can run: the region with its tensors, what came instead, the report.

manifest.json  run.json  report.html  report.md
culprit/          the region: model.onnx, inputs/, outputs/ (reference), candidate/ (what came), repro.py
culprit-agrees/   its nearest neighbour that agrees, the same way
culprit-2/ …      further findings
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from subgraph import plugins
from subgraph.bisection.oracle import NodeOracle
from subgraph.cases import case, write_case
from subgraph.cases.case import Case, ResultPlace
from subgraph.cases.layout import REPORT_FILES, RUN_JSON
from subgraph.errors import SubcutError
from subgraph.graph import region as regions
from subgraph.graph.region import Region
from subgraph.runtime.inputs import Feeding
from subgraph.storage import folders
from subgraph.storage.tensors import Record
from subgraph.trials import candidate_model

log = logging.getLogger("subcut")

MOST = 8  # findings that get a folder; a model with more has one reason, and each folder holds its weights


def require_free(place: ResultPlace, request: Any, asked: NodeOracle) -> None:
    """May the result go there? Asked before the search, not after.

    Raises:
        ResultExists: something else stands in the way.
    """
    graph = asked.trials.graph
    case.require_free(place, request, case.source_of(graph), [graph.path])


def save(asked: NodeOracle, document: dict[str, Any], place: ResultPlace, request: Any, feeding: Feeding) -> Case:
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
        (work / RUN_JSON).write_text(json.dumps(document, indent=1) + "\n", encoding="ascii")
        for form, file in REPORT_FILES.items():
            text: str = plugins.load("reports", form).render(document)
            (work / file).write_text(text, encoding="utf-8")
        manifest = {
            "schema": "subcut.evidence/1",
            "source": case.source_of(asked.trials.graph),
            "command": document["command"],
            "request": request,
            "versions": case.versions(),
        }
        case.write_manifest(manifest, work)
    return Case(place.path, manifest)


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
    graph = asked.trials.graph
    try:
        region = regions.of_nodes(graph, nodes)
        request = write_case.CaseRequest(
            start=tuple(graph.label(i) for i in nodes[:1]),
            end=tuple(graph.label(i) for i in nodes[-1:]),
            freeze=asked.trials.freeze,
            **vars(feeding),
        )
        write_case.write_region(graph, region, request, place, asked.trials.reference, asked.trials.values)
    except SubcutError as e:
        log.warning("no folder for %s: %s", place.name, e.what)
        return False
    return True


def _add_candidate(asked: NodeOracle, nodes: list[int], folder: Path) -> None:
    """What the candidate gave for a region, beside the reference's outputs."""
    region = regions.of_nodes(asked.trials.graph, nodes)
    answer = asked.given(region)
    labels = folders.safe_names(label or str(k) for k, label in enumerate(asked.trials.values.labels))
    for label, tensors in zip(labels.values(), answer.tensors, strict=False):
        into = folder / "candidate" / label if len(labels) > 1 else folder / "candidate"
        into.mkdir(parents=True, exist_ok=True)
        stems = folders.safe_names(tensors)
        _copy(tensors.items(), stems, into)
    if asked.trials.candidate_model:
        _add_model(asked, region, list(labels.values()), folder / "candidate")


def _add_model(asked: NodeOracle, region: Region, labels: Sequence[str], into: Path) -> None:
    """The piece of the candidate's own model, what it was fed in its own form, and which tensors these are."""
    trials, other = asked.trials, asked.trials.candidate_model
    assert other
    room = trials.new_folder()
    cut, fed = trials.write_cut(region, trials.values.records, room)
    for file in room.glob("model.onnx*"):
        shutil.copyfile(file, into / file.name)
    for label, records in zip(labels, fed, strict=True):
        place = into / "inputs" / label if len(labels) > 1 else into / "inputs"
        place.mkdir(parents=True, exist_ok=True)
        _copy([(r.name, r) for r in records], folders.safe_names(cut.inputs), place)
    (into / candidate_model.EDGE).write_text(json.dumps(other.edge(region), indent=1) + "\n", encoding="ascii")


def _copy(tensors: Iterable[tuple[str, Record]], stems: Mapping[str, str], into: Path) -> None:
    for name, record in tensors:
        for k, file in enumerate(record.files):
            stem = stems[name] if len(record.files) == 1 else f"{stems[name]}#{k}"
            shutil.copyfile(file, into / f"{stem}.npy")
