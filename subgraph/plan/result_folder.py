"""What a plan gives: `model.onnx`, `lists/`, `plan.json`, its report and `manifest.json`, and the
document."""

from __future__ import annotations

from dataclasses import replace

from subgraph import plugins
from subgraph.cases import case, evidence
from subgraph.cases.case import ModelSource, ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.layout import PLAN_JSON
from subgraph.plan.plan import Planner
from subgraph.plan.search import Found
from subgraph.plan.try_lists import try_list
from subgraph.results.plan import KeptPlace, PlanDocument, TriedList
from subgraph.storage import folders

MODEL = "model.onnx"
LISTS = "lists"


def save(
    planner: Planner,
    found: Found,
    document: PlanDocument,
    place: ResultPlace,
    source: ModelSource,
    to: str | None,
) -> PlanDocument:
    """Write the folder, at a place that is free; returns the document with its paths.

    Args:
        source: The user's model.
        to: As of `try_list`.

    Raises:
        OutputError: it cannot be written.
    """
    with folders.aside(place.path) as work:
        model = None
        if not planner.twin.by_command:
            planner.draft(found.levels).save(work / MODEL)
            model = (place.path / MODEL).as_posix()
        (work / LISTS).mkdir()
        lists = {}
        tried = list[TriedList]()
        for name in plugins.own_names("plan-lists"):
            module = plugins.load("plan-lists", name)
            kept, judged = try_list(planner, found, name, module, to)
            (work / LISTS / module.FILE).write_text(module.render(kept), encoding="utf-8")
            tried += filter(None, [judged])
            lists[name] = (place.path / LISTS / module.FILE).as_posix()
        document = replace(
            document, model=model, lists=lists, tried_lists=tried, path=place.path.as_posix()
        )
        evidence.write_document(document, work, PLAN_JSON)
        request = {
            "precision": document.precision,
            "unit": document.unit,
            "criterion": document.criterion,
        }
        manifest = EvidenceManifest(source=source, command=document.command, request=request)
        case.write_manifest(manifest, work)
    return document


def kept_places(planner: Planner, found: Found) -> list[KeptPlace]:
    """What the document says of each place that is kept."""
    return [_kept_place(planner, k, level) for k, level in found.levels.items()]


def _kept_place(planner: Planner, k: int, level: int) -> KeptPlace:
    graph = planner.trials.graph
    place = planner.places[k]
    return KeptPlace(
        name=place.name,
        nodes=[graph.label(i) for i in place.nodes],
        ops=[graph.ops[i] for i in place.nodes],
        tensors=sorted({name for _, name in place.reads if name}),
        error=planner.errors.get(k),
        gear=planner.gear_name(level),
    )
