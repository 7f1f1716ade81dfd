"""One HTML page that opens offline: verdict, findings and the whole network drawn, error along
depth, tensors, steps.

No external resources, and one script, which sorts and filters tables and replays the search; a
content policy in the page forbids any other. The page shows everything without it. Charts and
drawings are inline SVG.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import repeat
from typing import TYPE_CHECKING, Any

from subgraph import system
from subgraph.drawing import chart, svg
from subgraph.iterables import flatten
from subgraph.reports._answer import answer, find_evidence
from subgraph.reports._compared import (
    ComparedDocument,
    JudgedTensor,
    count_places,
    list_judged_tensors,
    make_view,
)
from subgraph.reports._network import draw_network, draw_region, name_mark
from subgraph.reports._words import (
    BAD,
    cleaned,
    describe_sweep,
    format_deviation,
    format_error,
    format_interval,
    format_list,
    format_outcome,
    format_percent,
    format_region,
    format_runtime,
    format_seconds,
    format_state,
    list_indices,
    place,
)
from subgraph.results.bisect import BisectDocument, FindingDocument
from subgraph.results.compare import IntervalDocument
from subgraph.results.plan import PlanDocument
from subgraph.results.sweep import SweepDocument, SweepOutcome, Totals
from subgraph.text import count, omit_middle, shorten_names
from subgraph.types import Fields
from subgraph.verdict import Status

if TYPE_CHECKING:
    from jinja2 import Environment

FILE = "report.html"
TEMPLATE = "html.jinja"
COMPARED = "compared.jinja"
SWEPT = "sweep.jinja"
PLANNED = "plan.jinja"
# Worst first.
SIGNS = {
    SweepOutcome.WRONG: "✗",
    SweepOutcome.CRASHED: "✗",
    SweepOutcome.TIMEOUT: "✗",
    SweepOutcome.UNRESOLVED: "?",
    SweepOutcome.REFUSED: "–",
    SweepOutcome.RIGHT: "✓",
}
MAX_TESTS = 2000  # of a sweep, listed
SCRIPT = "page.js"
MAX_LISTED = 200  # nodes of a finding


def render(document: BisectDocument) -> str:
    """Return a search as a page."""
    shown = cleaned(document)
    reported = answer(shown)
    sections = [("Evidence", ()), *reported.further]
    numbered = enumerate(zip(shown.findings, sections, strict=False), 1)
    places: dict[int, dict[str, object]] = {}
    for number, finding in enumerate(shown.findings, 1):
        for i in list_indices(finding):
            places.setdefault(i, {"number": number, "called": name_mark(finding)})
    about = {
        "d": shown,
        "a": reported,
        "next": [(step.why, system.join(step.argv)) for step in reported.next],
        "network_drawn": draw_network(document, list_judged_tensors(document)),
        "places": places,
        "depth": _make_depth_chart(shown),
        "findings": [
            _make_finding_fields(finding, number, *drawing)
            for number, (finding, drawing) in numbered
        ],
    }
    return _render_page(TEMPLATE, f"{shown.model.file}: {reported.says}", about)


def render_compared(document: ComparedDocument) -> str:
    """Return a comparison as a page: verdict, next commands, drawn places, errors, all tensors."""
    shown = cleaned(document)
    summary = make_view(shown)
    findings = [
        {
            **vars(finding),
            **vars(finding.place),
            "number": k,
            "title": format_interval(finding),
            "lines": place(finding),
            "drawing": draw_region(finding),
        }
        for k, finding in enumerate(summary.findings, 1)
    ]
    heading = f"{shown.model.file}: {summary.answer.says}"
    charts = []
    for k, column in enumerate(summary.columns):
        points = [
            chart.Point(
                line.index, line.cells[k].error, line.cells[k].status, f"#{line.index} {line.node}"
            )
            for line in summary.lines
        ]
        is_narrowed = _find_narrowed(shown) in (column, None)
        marks = [f.indices for f in summary.findings] if is_narrowed else []
        labels = {"x": "nodes, in topological order", "label": f"Error of every tensor: {column}"}
        if any(point.error is not None for point in points):
            charts.append((column, chart.make_log_chart(points, marks, labels)))
    about = {
        "d": shown,
        "v": summary,
        "next": [(step.why, system.join(step.argv)) for step in summary.answer.next],
        "charts": charts,
        "network_drawn": draw_network(document, _list_rows(document)),
    }
    return _render_page(COMPARED, heading, about | {"findings": findings})


def render_sweep(document: SweepDocument) -> str:
    """Return a sweep as a page: operators × candidates, and each test that is not right."""
    shown = cleaned(document)
    names = [c.name for c in shown.candidates]
    results = flatten(zip(repeat(r), r.results, names) for r in shown.rows)
    bad = [row for row in results if row[1].status is not SweepOutcome.RIGHT]
    bad.sort(key=lambda row: list(SIGNS).index(row[1].status))
    about = {
        "d": shown,
        "headline": (headline := describe_sweep(shown)),
        "bad": bad,
        "most": MAX_TESTS,
        "signs": SIGNS,
        "words": list(SIGNS),
    }
    return _render_page(SWEPT, headline, about)


def render_plan(document: PlanDocument) -> str:
    """Return a plan as a page: the places in float, the score by their number, sensitivities."""
    shown = cleaned(document)
    float_nodes = {place.name for place in shown.result.kept or ()}
    places = [
        chart.Point(k, trial.error, "fail" if trial.name in float_nodes else "", trial.name)
        for k, trial in enumerate(shown.trials.sensitivity)
    ]
    errors = {
        "x": "places, in the order of the model",
        "label": "The error of the outputs with one place alone lowered",
    }
    about = {
        "d": shown,
        "curve": _make_curve(shown),
        "places": chart.make_log_chart(places, (), errors) if places else None,
        "total": sum((shown.result.weights or {}).values()),
    }
    return _render_page(PLANNED, shown.says, about)


def _make_curve(shown: PlanDocument) -> chart.Chart | None:
    """Return the score over the number of kept places; None if fewer than two models have one."""
    tried = [t for t in shown.trials.tried if t.score is not None]
    points = [
        chart.Point(t.kept, t.score, "" if t.accepted else "fail", f"{t.kept} places kept")
        for t in tried
    ]
    labels = {
        "x": "places that are kept",
        "label": "The score over the number of places that are kept",
    }
    marks = [len(shown.result.kept)] if shown.result.kept is not None else []
    if len(points) > 1:
        return chart.make_linear_chart(points, marks, labels)
    return None


def draw_plan_curve(document: PlanDocument) -> str:
    """Return the curve of a plan as SVG, without a style; "" without a curve."""
    curve = _make_curve(cleaned(document))
    macros: Any = _make_environment().get_template("_macros.jinja").module
    return str(macros.chart(curve)) if curve else ""


def find_worst_class(totals: Totals) -> str:
    """Return the class of a cell: that of its worst outcome."""
    outcome = next((word for word in SIGNS if totals[word]), SweepOutcome.RIGHT)
    if outcome in BAD:
        return Status.FAIL
    if outcome is SweepOutcome.RIGHT:
        return Status.AGREE
    return Status.UNRESOLVED


def rank(totals: Totals) -> float:
    """Return a number that is larger for a cell with more and worse outcomes."""
    return sum(
        float(min(totals[word], 99)) * math.pow(100, -k)
        for k, word in enumerate(SIGNS)
        if word is not SweepOutcome.RIGHT
    )


def _list_rows(document: ComparedDocument) -> list[JudgedTensor]:
    """Return the tensors in place.

    Of several recordings, the one that was narrowed down counts, else the worst one.
    """
    summary = make_view(document)
    places = range(count_places(document))
    narrowed = [k for k in places if summary.columns[k] == _find_narrowed(document)]
    worst = {Status.FAIL: 2, Status.UNRESOLVED: 1}
    rows = []
    for line in summary.lines:
        one = max(
            (line.cells[k] for k in narrowed or places),
            key=lambda cell: worst.get(cell.status or Status.AGREE, 0),
        )
        rows.append(JudgedTensor(line.index, line.node, line.tensor, one.error, one.status))
    return rows


def _find_narrowed(document: ComparedDocument) -> str | None:
    """Return the recording that was narrowed down; None for any."""
    if isinstance(document, IntervalDocument):
        return document.narrowed
    return None


def _render_page(template: str, title: str, shown: Fields) -> str:
    script = _read_source(SCRIPT)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    around = {
        "page_title": title,
        "drawing_style": svg.STYLE,
        "script": script,
        "script_hash": f"sha256-{digest}",
    }
    return (
        _make_environment().get_template(template).render({**shown, **around}).rstrip("\n") + "\n"
    )


def _read_source(name: str) -> str:
    return resources.files("subgraph.reports").joinpath(name).read_text(encoding="utf-8")


@cache  # a page has several templates, a command several pages
def _make_environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_read_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (
        count,
        format_error,
        format_list,
        format_outcome,
        format_percent,
        rank,
        format_region,
        format_runtime,
        format_seconds,
        omit_middle,
        shorten_names,
        format_deviation,
        format_state,
        find_worst_class,
    )
    environment.filters.update({f.__name__: f for f in filters})
    return environment


def _make_finding_fields(
    finding: FindingDocument, number: int, heading: str, lines: Sequence[tuple[str, str]]
) -> dict[str, object]:
    """Return a finding with the words, drawing and charts of the template."""
    growth = [chart.Point(g.nodes, g.error, "", "") for g in finding.effect.growth or ()]
    labels = {"x": "first nodes of the model", "label": "Error after these nodes"}
    return {
        **vars(finding),
        **vars(finding.place),
        **vars(finding.run),
        "number": number,
        "called": name_mark(finding),
        "title": heading,
        "lines": lines,
        "evidence": find_evidence(finding)[1],
        "drawing": draw_region(finding),
        "curve": chart.make_log_chart(growth, (), labels) if growth else None,
        "contributors": finding.effect.contributors or (),
        "listed": finding.nodes[:MAX_LISTED],
    }


def _make_depth_chart(document: BisectDocument) -> chart.Chart | None:
    rows = document.whole.profile
    if not rows:
        return None
    points = [chart.Point(r.index, r.error, r.status, f"#{r.index} {r.node}") for r in rows]
    labels = {
        "x": "nodes, in topological order",
        "label": "Error of every tensor in place, along the model",
    }
    drawn = chart.make_log_chart(points, list(map(list_indices, document.findings)), labels)
    if not drawn.hidden:
        return drawn
    # A note for findings without a wrong tensor in the chart; its lines fit a phone.
    if document.whole.verdict.status is not Status.FAIL:
        note = ["in place, nothing is wrong here:", "what was found fails alone"]
    elif any(row.status is Status.FAIL for row in rows):
        places = ", ".join(map(str, drawn.hidden))
        note = [
            f"nothing wrong at finding {places} in this run:",
            "reading intermediate tensors hid the fault there",
        ]
    else:
        note = ["nothing is wrong in this run:", "reading intermediate tensors hid the fault"]
    return replace(drawn, note=note)
