"""One HTML page that opens offline: verdict, the region drawn, error along depth, steps, environment.

No scripts and no external resources; a content policy in the page forbids both. Charts and drawings are inline SVG.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from subgraph.drawing import chart
from subgraph.drawing.layout import Drawer
from subgraph.drawing.network import Network
from subgraph.drawing.svg import STYLE, Marks, svg
from subgraph.reports import (
    UNKNOWN,
    Document,
    View,
    cleaned,
    error,
    evidence,
    figure,
    headline,
    interval_title,
    listed,
    other_model,
    outcome,
    percent,
    place,
    predictions,
    region,
    replay_command,
    runs,
    runtime,
    seconds,
    sentences,
    shape,
    shares,
    size,
    stderr,
    title,
    view,
    word,
)
from subgraph.text import count, short

if TYPE_CHECKING:
    from jinja2 import Environment

FILE = "report.html"
TEMPLATE, COMPARED = "html.jinja", "compared.jinja"
WIDTH = 960.0  # pixels of the page
MAX_LISTED = 200  # nodes of a finding


def render(document: Document) -> str:
    """The document as a page."""
    shown = cleaned(document)
    findings = [_view(finding, number) for number, finding in enumerate(shown["findings"], 1)]
    about = {
        "d": shown,
        "depth": _depth(shown),
        "headline": headline(shown),
        "lines": shares(shown) + other_model(shown),
    }
    heading = f"{shown['model']['file']}: {about['headline']}"
    return _page(TEMPLATE, heading, about | {"findings": findings})


def render_compared(document: Document) -> str:
    """A comparison as a page: the verdict, what to do next, each place drawn, the errors, a table of all tensors."""
    shown = cleaned(document)
    told = view(shown)
    findings = [
        finding | {"number": k, "title": interval_title(finding), "lines": place(finding),
                   "drawing": drawing(finding.get("neighbours"))}
        for k, finding in enumerate(told.findings, 1)
    ]  # fmt: skip
    heading = f"{shown['model']['file']}: {told.headline}"
    return _page(COMPARED, heading, {"d": shown, "v": told, "findings": findings, "charts": _errors(shown, told)})


def _errors(document: Document, told: View) -> list[tuple[str, chart.Chart]]:
    """A chart for each column, with the places of the one that they are of."""
    charts = []
    for k, column in enumerate(told.columns):
        points = [
            chart.Point(line.index, line.cells[k].error, line.cells[k].status, f"#{line.index} {line.node}")
            for line in told.lines
        ]  # fmt: skip
        marks = [f["indices"] for f in told.findings] if document.get("narrowed") in (column, None) else []
        words = {"x": "node, in topological order", "label": f"Error of every tensor: {column}"}
        if any(point.error is not None for point in points):
            charts.append((column, chart.chart(points, marks, words)))
    return charts


def _page(template: str, title: str, shown: Document) -> str:
    return (
        _environment().get_template(template).render(shown, page_title=title, drawing_style=STYLE).rstrip("\n") + "\n"
    )


def _source(name: str) -> str:
    return resources.files("subgraph.reports").joinpath(name).read_text(encoding="utf-8")


def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    words = (
        count,
        error,
        figure,
        listed,
        outcome,
        percent,
        predictions,
        region,
        replay_command,
        runs,
        runtime,
        seconds,
        shape,
        short,
        size,
        word,
    )
    environment.filters.update({f.__name__: f for f in words})
    return environment


def _view(finding: Document, number: int) -> Document:
    """A finding with what the template shows of it: words, drawing, charts."""
    growth = [chart.Point(g["nodes"], g["error"], "", "") for g in finding.get("growth", ())]
    words = {"x": "first nodes of the model", "label": "Error after so many nodes"}
    return finding | {
        "number": number,
        "title": title(finding),
        "sentences": sentences(finding),
        "evidence": evidence(finding),
        "stderr": stderr(finding),
        "drawing": drawing(finding["neighbours"]),
        "bars": chart.bars(finding["histogram"]) if finding["histogram"] else None,
        "curve": chart.chart(growth, (), words) if growth else None,
        "contributors": finding.get("contributors", ()),
        "listed": finding["nodes"][:MAX_LISTED],
    }


def _depth(document: Document) -> chart.Chart | None:
    rows = document["profile"]
    if not rows:
        return None
    points = [chart.Point(r["index"], r["error"], r["status"], f"#{r['index']} {r['node']}") for r in rows]
    words = {"x": "node, in topological order", "label": "Error of every tensor in place, along the model"}
    return chart.chart(points, [f["indices"] for f in document["findings"]], words)


def drawing(neighbours: Document | None) -> str:
    """The region, marked as wrong, and the nodes around it as SVG; empty without a region."""
    if not neighbours or not neighbours["nodes"]:
        return ""
    nodes = sorted(neighbours["nodes"], key=lambda node: node["index"])
    at = {node["index"]: k for k, node in enumerate(nodes)}
    edges = [(e["tensor"], at.get(e["from"]), at.get(e["to"])) for e in neighbours["edges"]]
    reads: list[list[str]] = [[] for _ in nodes]
    makes: list[list[str]] = [[] for _ in nodes]
    for tensor, source, target in edges:
        if source is not None and tensor not in makes[source]:
            makes[source].append(tensor)
        if target is not None:
            reads[target].append(tensor)
    network = Network(
        names=[node["label"] or UNKNOWN for node in nodes],
        ops=[f"{node['op']} #{node['index']}" for node in nodes],
        reads=reads,
        makes=makes,
        inputs=list(dict.fromkeys(tensor for tensor, source, _ in edges if source is None)),
        outputs=list(dict.fromkeys(tensor for tensor, _, target in edges if target is None)),
    )
    wrong = {tensor for k, node in enumerate(nodes) if node["inside"] for tensor in makes[k]}
    marks = Marks(failed=wrong, makes=dict(enumerate(map(tuple, makes))))
    return svg(Drawer(network).layout(width=WIDTH), marks, "The region and its neighbours", style=False)
