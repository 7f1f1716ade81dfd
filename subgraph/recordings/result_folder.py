"""Where a recording goes wrong -> one document, and a folder per interval, ready for the device.

manifest.json  run.json
interval/        the first piece: model.onnx, inputs/, outputs/ (reference), candidate/ (what was recorded), repro.py
interval-2/ …    further ones
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from subgraph.cases import case, evidence
from subgraph.cases.case import ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.layout import RUN_JSON
from subgraph.cases.write_case import CaseRequest
from subgraph.documents import to_json
from subgraph.errors import InputError
from subgraph.recordings import document as contrast
from subgraph.recordings.align import cast, fitted
from subgraph.recordings.compare import RunComparison
from subgraph.recordings.interval import Interval
from subgraph.recordings.match import reference_of
from subgraph.runtime.inputs import Feeding
from subgraph.storage import folders
from subgraph.storage.tensors import to_bits
from subgraph.trials.trial import Trials

log = logging.getLogger("subcut")

SCHEMA = "subcut.interval/1"
MOST = 4  # intervals that get a folder
SHOWN = 12  # suspects of one that the document ranks


def document(
    trials: Trials, found: RunComparison, places: Sequence[Interval], criterion: str, command: str,
    reasons: Mapping[int, str],
) -> dict[str, Any]:  # fmt: skip
    """All of it as plain data. `reasons`: why a node is suspect, beside its place."""
    beside = contrast.document(trials, [found], trials.tensors(), criterion)
    return {
        **beside,
        "schema": SCHEMA,
        "command": command,
        "trials": 0,
        "compiled_nodes": 0,
        "model": to_json(replace(case.source_of(trials.graph), path=str(trials.graph.path))),
        "findings": [_finding(trials, found, one, reasons) for one in places],
    }


def _finding(trials: Trials, found: RunComparison, one: Interval, reasons: Mapping[int, str]) -> dict[str, Any]:
    graph = trials.graph
    cell = found.cells[one.bad[0]]
    return {
        "kind": "interval",
        "signature": cell.in_place.signature.value if cell.in_place and cell.in_place.signature else None,
        "nodes": [graph.label(i) for i in one.region.nodes],
        "indices": list(one.region.nodes),
        "certified": False,
        "first": one.first,
        "first_bad": list(one.bad),
        "last_good": list(one.good),
        "wrong_before": list(one.wrong),
        "not_seen": list(one.unseen),
        "adds_an_error": one.adds,
        "in_place": cell.in_place.to_json() if cell.in_place else None,
        "suspects": [
            {"index": i, "node": graph.label(i), "op": graph.ops[i], "weight": weight, "why": reasons.get(i, "")}
            for i, weight in one.suspects[:SHOWN]
        ],
        "case": None,
    }


def save(
    trials: Trials,
    found: RunComparison,
    places: Sequence[Interval],
    told: dict[str, Any],
    place: ResultPlace,
    request: Any,
    feeding: Feeding,
) -> None:
    """Write a folder per interval; the document's findings get their paths.

    Raises:
        OutputError: it cannot be written. ResultExists: something else stands there.
    """
    graph = trials.graph
    case.require_free(place, request, case.source_of(graph), [graph.path])
    with folders.aside(place.path) as work:
        for (name, one), finding in zip(_named(places), told["findings"], strict=False):
            if _write(trials, found, one, ResultPlace(work, name), feeding):
                finding["case"] = str(place.path / name)
        evidence.write_document(told, RUN_JSON, work)
        source = case.source_of(graph)
        case.write_manifest(EvidenceManifest(source=source, command=told["command"], request=request), work)


def _named(places: Sequence[Interval]) -> Iterator[tuple[str, Interval]]:
    for k, one in enumerate(places[:MOST]):
        yield f"interval-{k + 1}" if k else "interval", one


def _write(trials: Trials, found: RunComparison, one: Interval, place: ResultPlace, feeding: Feeding) -> bool:
    """One interval; False where it cannot be cut."""
    graph, nodes = trials.graph, one.region.nodes
    files = replace(feeding, inputs=tuple(Path(w.rpartition("=")[2]).name for w in feeding.inputs))
    request = CaseRequest.of_nodes(graph, nodes, files, freeze=trials.freeze)
    if not evidence.add_case(graph, one.region, request, place, trials.reference, trials.values):
        return False
    add_recorded(trials, found, one.region.outputs, place.path)
    return True


def add_recorded(trials: Trials, found: RunComparison, names: Sequence[str], folder: Path) -> None:
    """What the device recorded, in the model's type and layout, beside the reference's outputs."""
    import numpy as np

    places = evidence.candidate_folders(folder, trials.values.labels)
    stems = folders.safe_names(names)
    for (k, m), into in zip(enumerate(found.matched), places, strict=False):
        for name in names:
            held, right = m.held.get(name), reference_of(trials, name, k)
            if held is None or right is None:
                continue
            try:
                value = cast(fitted(held.entry.read(), right, held.fit), right)
            except InputError as e:
                log.warning("%s: %s", name, e.what)
                continue
            into.mkdir(parents=True, exist_ok=True)
            np.save(
                into / f"{stems[name]}.npy", to_bits(np.ascontiguousarray(value), right.dtype.name), allow_pickle=False
            )
