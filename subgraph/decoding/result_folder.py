"""What a loop leaves: loop.json, and steps.html, a page with the errors over the steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from subgraph.cases import case
from subgraph.cases.case import ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.layout import LOOP_JSON
from subgraph.documents import to_json
from subgraph.graph.graph import Graph
from subgraph.results.loop import LoopDocument
from subgraph.storage import folders
from subgraph.trials.session import Setup

NAME_LENGTH = 60  # characters of the candidate's name in the folder's
PAGE = "steps.html"
DOCUMENT = LOOP_JSON


def free_place(setup: Setup, graph: Graph, *, force: bool) -> ResultPlace:
    """
    Raises:
        ResultExists: something else stands there.
    """
    name = f"loop-{folders.safe_name(setup.candidate.name)[:NAME_LENGTH]}"
    return case.free_place(
        ResultPlace(setup.output, name, force), case.source_of(graph), [graph.path]
    )


def save(document: LoopDocument, place: ResultPlace, graph: Graph, command: str) -> LoopDocument:
    """Write the folder aside, and rename it; the document with the page's path.

    Raises:
        OutputError: it cannot be written.
    """
    from subgraph.reports.html import render_loop  # jinja2, which few results need

    document = replace(document, report=(place.path / PAGE).as_posix())
    with folders.aside(place.path) as work:
        Path(work / PAGE).write_text(render_loop(document), encoding="utf-8")
        Path(work / DOCUMENT).write_text(
            json.dumps(to_json(document), indent=1) + "\n", encoding="utf-8"
        )
        case.write_manifest(
            EvidenceManifest(source=case.source_of(graph), command=command, request=None), work
        )
    return document
