"""The result of a loop: as text, and as a folder with loop.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from subgraph import plugins
from subgraph.cases import case
from subgraph.cases.case import ResultPlace
from subgraph.cases.evidence import EvidenceManifest
from subgraph.cases.layout import LOOP_JSON
from subgraph.documents import to_json
from subgraph.graph.graph import Graph
from subgraph.results.loop import LoopDocument, LoopOutcome
from subgraph.storage import folders
from subgraph.text import clean, count
from subgraph.trials.open_trials import Setup


def render_text(document: LoopDocument) -> str:
    """
    >>> from subgraph.results.loop import LoopFinding, LoopOutcome, LoopSetup
    >>> setup = LoopSetup(
    ...     model="m.onnx", candidate="ort", reference="ort", steps=64, prompt=5, states={}
    ... )
    >>> found = LoopFinding(outcome=LoopOutcome.AGREE)
    >>> render_text(LoopDocument(exit_code=0, setup=setup, found=found))
    'right: m.onnx on ort agrees in all 64 steps'
    """
    lines = [_make_headline(document)]
    if document.found.why:
        lines.append(f"  {document.found.why}")
    if document.found.bisection:
        lines.append(plugins.load("reports", "text").render(document.found.bisection).rstrip("\n"))
    if document.report:
        lines.append(f"steps {document.report}")
    return "\n".join(lines)


def _make_headline(document: LoopDocument) -> str:
    model = clean(document.setup.model)
    of = document.setup.steps
    wrong = document.found.first_wrong
    on = f"{model} on {clean(document.setup.candidate)}"
    match document.found.outcome:
        case LoopOutcome.AGREE:
            return f"right: {on} agrees in all {count(of, 'step')}"
        case LoopOutcome.STEP:
            before = f"; the {count(wrong, 'step')} before are right" if wrong else ""
            return f"wrong: {on} fails in step {wrong} of {of}{before}"
        case LoopOutcome.TOGETHER:
            return f"wrong: {on} fails between steps {document.found.since} and {wrong} of {of}"
        case LoopOutcome.ACCUMULATES:
            return (
                f"wrong: {on} accumulates errors over steps: from step {wrong} of {of} on they are"
                " too large"
            )
        case LoopOutcome.FLAKY:
            return f"flaky: {on} answers differently when the same step is run again"
    if wrong is not None:
        return f"unresolved: {on} departs in step {wrong} of {of}"
    return f"unresolved: {on}"


MAX_NAME_LENGTH = 60  # characters of the candidate's name in the folder's


def find_free_place(setup: Setup, graph: Graph, *, force: bool) -> ResultPlace:
    """Return the folder for a result, which is free or holds the same question's result.

    Raises:
        ResultExists: The folder holds something else.
    """
    name = f"loop-{folders.make_safe_name(setup.candidate.name)[:MAX_NAME_LENGTH]}"
    return case.find_free_place(
        ResultPlace(setup.output, name, force), case.describe_source(graph), [graph.path]
    )


def save(document: LoopDocument, place: ResultPlace, graph: Graph, command: str) -> LoopDocument:
    """Write the folder aside, and rename it; the document with its path.

    Raises:
        OutputError: it cannot be written.
    """
    document = replace(document, report=(place.path / LOOP_JSON).as_posix())
    with folders.write_aside(place.path) as work:
        Path(work / LOOP_JSON).write_text(
            json.dumps(to_json(document), indent=1) + "\n", encoding="utf-8"
        )
        case.write_manifest(
            EvidenceManifest(source=case.describe_source(graph), command=command, request=None),
            work,
        )
    return document
