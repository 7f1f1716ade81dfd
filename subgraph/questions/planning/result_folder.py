"""The folder of a plan: `model.onnx`, `lists/`, `plan.json`, its report and `manifest.json`, and
the document.

Each tool that is installed is run with its list, and its model is judged. A tool that excludes a
node still lowers what the node's producers output, so that the node reads lowered values all the
same. A list that is refused is widened by the producers of the tensors that its nodes read until
its model is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from subgraph import plugins
from subgraph.cases import case, evidence
from subgraph.cases.case import ModelSource, ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.layout import PLAN_JSON
from subgraph.editing.draft import Draft
from subgraph.errors import OutOfTime, SubcutError
from subgraph.log import log
from subgraph.questions.planning.find_plan import Planner
from subgraph.questions.planning.lists import Kept
from subgraph.questions.planning.smallest_set import SmallestSet
from subgraph.results.plan import KeptPlace, PlanDocument, PlanFiles, TriedList
from subgraph.storage import folders
from subgraph.text import clean
from subgraph.trials.score import ModelJudgement, judge_not_run

MODEL = "model.onnx"
RESCALED = "rescaled.onnx"
LISTS = "lists"


MAX_RUNS = 8  # of a tool
Convert = Callable[[Path, Path], Path]  # the list's file, a folder -> the tool's model


def save(
    planner: Planner,
    smallest_set: SmallestSet,
    document: PlanDocument,
    place: ResultPlace,
    source: ModelSource,
    to: str | None,
) -> PlanDocument:
    """Write the folder, at a place that is free; return the document with its paths.

    Args:
        source: The user's model.
        to: As of `try_list`.

    Raises:
        OutputError: it cannot be written.
    """
    with folders.write_aside(place.path) as work:
        model = None
        if not planner.models.twin.by_command:
            planner.models.make_draft(smallest_set.levels).save(work / MODEL)
            model = (place.path / MODEL).as_posix()
        result = document.result
        if (scales := result.scales) and (scales.weights or scales.factors):
            Draft(planner.trials.graph).save(work / RESCALED)
            scales = replace(scales, model=(place.path / RESCALED).as_posix())
            result = replace(result, scales=scales)
        (work / LISTS).mkdir()
        lists = {}
        tried = list[TriedList]()
        for name in plugins.list_own_names("plan-lists"):
            module = plugins.load("plan-lists", name)
            listed_nodes, tried_list = try_list(planner, smallest_set, name, module, to)
            (work / LISTS / module.FILE).write_text(module.render(listed_nodes), encoding="utf-8")
            tried += filter(None, [tried_list])
            lists[name] = (place.path / LISTS / module.FILE).as_posix()
        files = PlanFiles(model=model, lists=lists, tried_lists=tried, path=place.path.as_posix())
        document = replace(document, result=result, files=files)
        evidence.write_document(document, work, PLAN_JSON)
        setup = document.setup
        request = {
            "precision": setup.precision,
            "unit": setup.unit,
            "criterion": setup.criterion,
        }
        manifest = EvidenceManifest(source=source, command=document.command, request=request)
        case.write_manifest(manifest, work)
    return document


def describe_kept_places(planner: Planner, smallest_set: SmallestSet) -> list[KeptPlace]:
    """Describe each place that is kept."""
    graph = planner.trials.graph
    descriptions = []
    for k, level in smallest_set.levels.items():
        place = planner.models.places[k]
        descriptions.append(
            KeptPlace(
                name=place.name,
                nodes=[graph.label(i) for i in place.nodes],
                ops=[graph.ops[i] for i in place.nodes],
                tensors=sorted({name for _, name in place.reads if name}),
                error=planner.errors.get(k),
                gear=planner.models.name_gear(level),
            )
        )
    return descriptions


def try_list(
    planner: Planner, smallest_set: SmallestSet, tool: str, module: ModuleType, to: str | None
) -> tuple[Kept, TriedList | None]:
    """Return the list of a tool, and what its model with it is worth; None if the tool was not run.

    The list is widened until that model is accepted; if none is, it is the plan's own one.

    Args:
        to: The precision to which the plan lowered the model; None if the user named the lowered
            model.
    """
    narrowest = planner.models.find_kept_nodes(smallest_set.kept)
    if not to or not hasattr(module, "apply") or not module.is_usable(to):
        return narrowest, None
    model = planner.trials.model
    deadline = planner.trials.model.reference.deadline

    def convert(listed: Path, folder: Path) -> Path:
        path: Path = module.apply(model.graph, model.values.records, to, listed, folder, deadline)
        return path

    first: TriedList | None = None
    wider = narrowest
    rounds = 0
    try:
        for _ in range(MAX_RUNS):
            listed = _judge(planner, tool, module, wider, convert)
            added = len(wider.nodes) - len(narrowest.nodes)
            log.info("%s with %d nodes more than the plan: %s", clean(tool), added, listed.why)
            tried = TriedList(tool, added, listed.agrees, listed.score, clean(listed.why))
            if listed.agrees:
                return wider, tried
            first = first or tried
            rounds = max(1, 2 * rounds)
            before = wider
            wider = planner.models.find_kept_nodes(smallest_set.kept, rounds)
            if len(wider.nodes) == len(before.nodes):
                break
    except OutOfTime as e:
        log.info("%s is not tried any more: %s", clean(tool), e.what)
    return narrowest, first


def _judge(
    planner: Planner, tool: str, module: ModuleType, kept: Kept, convert: Convert
) -> ModelJudgement:
    """Return what the tool's model with a list is worth.

    Raises:
        OutOfTime: The time is used up.
    """
    folder = planner.trials.model.new_folder()
    listed = folder / module.FILE
    listed.write_text(module.render(kept), encoding="utf-8")
    try:
        return planner.runner.judge_file(convert(listed, folder))
    except OutOfTime:
        raise
    except SubcutError as e:
        return judge_not_run(f"{tool}: {e.what}")
