"""A plan's lists -> what their tools make of them: each tool that is installed is run, and its
model is judged.

A tool that excludes a node still lowers what the node's producers output, so that the node reads
lowered values all the same. A list that is refused is widened by the producers of what its nodes
read until its model is accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from subgraph.errors import OutOfTime, SubcutError
from subgraph.plan.lists import Kept
from subgraph.plan.plan import Planner
from subgraph.plan.search import Found
from subgraph.results.plan import TriedList
from subgraph.text import clean
from subgraph.trials.score import Judged, not_run

log = logging.getLogger("subcut")

MAX_RUNS = 8  # of a tool

Convert = Callable[[Path, Path], Path]  # the list's file, a folder -> the tool's model


def try_list(
    planner: Planner, found: Found, tool: str, module: ModuleType, to: str | None
) -> tuple[Kept, TriedList | None]:
    """Return the list of a tool, and what its model with it is worth; None if the tool was not run.

    The list is widened until that model is accepted; if none is, it is the plan's own one.

    Args:
        to: The precision in which the plan's lowered model was made; None if the user gave that
            model.
    """
    narrowest = planner.kept_nodes(found.kept)
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
            tried = TriedList(tool, added, listed.accepted, listed.score, clean(listed.why))
            if listed.accepted:
                return wider, tried
            first = first or tried
            rounds = max(1, 2 * rounds)
            before, wider = wider, planner.kept_nodes(found.kept, rounds)
            if len(wider.nodes) == len(before.nodes):
                break
    except OutOfTime as e:
        log.info("%s is not tried any more: %s", clean(tool), e.what)
    return narrowest, first


def _judge(planner: Planner, tool: str, module: ModuleType, kept: Kept, convert: Convert) -> Judged:
    """Return what the tool's model with a list is worth.

    Raises:
        OutOfTime: The time is used up.
    """
    folder = planner.trials.model.new_folder()
    listed = folder / module.FILE
    listed.write_text(module.render(kept), encoding="utf-8")
    try:
        return planner.judge_file(convert(listed, folder))
    except OutOfTime:
        raise
    except SubcutError as e:
        return not_run(f"{tool}: {e.what}")
