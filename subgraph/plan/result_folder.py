"""What a plan gives: `model.onnx`, `lists/`, `plan.json`, `manifest.json` in a folder, and the document."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from subgraph import plugins
from subgraph.cases import case
from subgraph.cases.case import ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.documents import to_json
from subgraph.graph.graph import Graph
from subgraph.plan.lists import Kept
from subgraph.plan.places import OUTPUT
from subgraph.plan.plan import Planner
from subgraph.plan.search import Found
from subgraph.results.plan import KeptPlace, PlanDocument
from subgraph.storage import folders

MODEL, LISTS, DOCUMENT = "model.onnx", "lists", "plan.json"


def save(planner: Planner, found: Found, document: PlanDocument, place: ResultPlace) -> PlanDocument:
    """Write the folder, at a place that is free; returns the document with its paths.

    Raises:
        OutputError: it cannot be written.
    """
    graph = planner.trials.graph
    kept = kept_of(planner, found)
    with folders.aside(place.path) as work:
        planner.draft(found.kept).save(work / MODEL)
        (work / LISTS).mkdir()
        lists = {}
        for name in plugins.own_names("plan-lists"):
            module = plugins.load("plan-lists", name)
            (work / LISTS / module.FILE).write_text(module.render(kept), encoding="utf-8")
            lists[name] = (place.path / LISTS / module.FILE).as_posix()
        document = replace(document, model=(place.path / MODEL).as_posix(), lists=lists, path=place.path.as_posix())
        (work / DOCUMENT).write_bytes(case.as_json(to_json(document)))
        request = {"precision": document.precision, "unit": document.unit, "criterion": document.criterion}
        manifest = EvidenceManifest(source=case.source_of(graph), command=document.command, request=request)
        case.write_manifest(manifest, work)
    return document


def kept_of(planner: Planner, found: Found) -> Kept:
    """What the lists name."""
    graph = planner.trials.graph
    reads = [read for k in found.kept for read in planner.places[k].reads]
    nodes = graph.in_order({i for i, _ in reads if i != OUTPUT})
    lowered = {i for i, _ in planner.reads(found.kept) if i != OUTPUT}
    whole = {graph.ops[i] for i in nodes} - {graph.ops[i] for i in lowered}
    return Kept(
        nodes=[graph.label(i) for i in nodes],
        tensors=[n for i in nodes for n in graph.makes[i]],
        outputs=sorted({name for i, name in reads if i == OUTPUT}),
        operators=sorted(whole),
    )


def kept_places(planner: Planner, found: Found) -> list[KeptPlace]:
    """What the document says of each place that is kept."""
    return [*map(partial(_kept_place, planner.trials.graph, planner), found.kept)]


def _kept_place(graph: Graph, planner: Planner, k: int) -> KeptPlace:
    place = planner.places[k]
    return KeptPlace(
        name=place.name,
        nodes=[graph.label(i) for i in place.nodes],
        ops=[graph.ops[i] for i in place.nodes],
        tensors=sorted({name for _, name in place.reads if name}),
        error=planner.errors.get(k),
    )
