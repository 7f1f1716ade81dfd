"""One HTML page that opens offline: verdict, the region drawn, error along depth, steps, environment.

No scripts and no external resources; a content policy in the page forbids both. Charts and drawings are inline SVG.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING

from subgraph.drawing import chart, layered
from subgraph.reports import (
    UNKNOWN,
    Document,
    cleaned,
    error,
    evidence,
    headline,
    other_model,
    percent,
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
    word,
)
from subgraph.text import columns, count, short

if TYPE_CHECKING:
    from jinja2 import Environment

FILE = "report.html"
TEMPLATE = "html.jinja"
MAX_DRAWN = 80  # nodes, and twice as many edges; a larger drawing cannot be read
LABEL, OP, TENSOR = 24, 18, 22  # characters of a name in the drawing; the rest is in its title
ADVANCE = 7.0  # pixels of a character at 11.5 px in the widest of the usual monospace fonts (0.602 em)
MAX_LISTED = 200  # nodes of a finding
PLACES = {"from": "model input", "to": "model output"}


@dataclass
class Box:
    """A node of the drawing, or an input or output of the model (`own`); `x`, `y`: its centre, `width` in pixels."""

    label: str
    text: str
    op: str
    inside: bool
    own: bool
    width: float
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Arrow:
    """One or more tensors from box to box: an SVG path, and the centre of its text."""

    path: str
    x: float
    y: float
    text: str
    width: float
    tensors: str
    inside: bool


@dataclass(frozen=True)
class Drawing:
    """The region and the nodes around it, of which `left_out` are missing."""

    width: int
    height: int
    boxes: list[Box]
    lines: list[Arrow]
    left_out: int


def render(document: Document) -> str:
    """The document as a page."""
    shown = cleaned(document)
    findings = [_view(finding, number) for number, finding in enumerate(shown["findings"], 1)]
    text = resources.files("subgraph.reports").joinpath(TEMPLATE).read_text(encoding="utf-8")
    view = {
        "d": shown,
        "depth": _depth(shown),
        "headline": headline(shown),
        "lines": shares(shown) + other_model(shown),
    }
    return _environment().from_string(text).render(view, findings=findings).rstrip("\n") + "\n"


def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    words = (
        count,
        error,
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


# ---------------------------------------------------------------------------------------------------- drawing


def drawing(neighbours: Document | None) -> Drawing | None:
    """The region and the nodes around it, as boxes and curves; None without a region, or if it is too large."""
    if not neighbours or not neighbours["nodes"]:
        return None
    if len(neighbours["nodes"]) > MAX_DRAWN or len(neighbours["edges"]) > 2 * MAX_DRAWN:
        return None
    nodes = {n["index"]: _box(n["label"], n["op"], n["index"], n["inside"]) for n in neighbours["nodes"]}
    tensors: dict[layered.Edge, list[str]] = {}
    for edge in neighbours["edges"]:
        source, target = _end(nodes, edge, "from"), _end(nodes, edge, "to")
        if source in nodes and target in nodes:
            tensors.setdefault((source, target), []).append(edge["tensor"])
    texts = {edge: _edge_text(names, nodes, edge) for edge, names in tensors.items()}
    picture = layered.layered(
        {n: box.width for n, box in nodes.items()},
        {edge: max(columns(text) * ADVANCE, layered.THIN) for edge, text in texts.items()},
    )
    for n, (x, y) in picture.boxes.items():
        nodes[n].x, nodes[n].y = round(x, 1), round(y, 1)
    lines = [
        Arrow(
            path=_curve(points),
            x=round(picture.labels[edge][0], 1),
            y=round(picture.labels[edge][1], 1),
            text=texts[edge],
            width=columns(texts[edge]) * ADVANCE,
            tensors=", ".join(tensors[edge]),
            inside=nodes[edge[0]].inside and nodes[edge[1]].inside,
        )
        for edge, points in picture.paths.items()
    ]
    return Drawing(round(picture.width), round(picture.height), list(nodes.values()), lines, neighbours["left_out"])


def _box(label: str, op: str, index: int | None, inside: bool) -> Box:
    texts = short(label, LABEL) or UNKNOWN, short(op, OP) + (f" #{index}" if index is not None else "")
    return Box(label, *texts, inside, index is None, max(96.0, max(map(columns, texts)) * ADVANCE + 20))


def _end(nodes: dict[int, Box], edge: Document, way: str) -> int:
    """The node at one end; for inputs and outputs of the model a box of its own, before or behind all others."""
    if edge[way] is not None:
        return int(edge[way])
    own = _box(edge["tensor"], PLACES[way], None, False)
    known = (n for n, box in nodes.items() if box == own)
    number = next(known, min(nodes) - 1 if way == "from" else max(nodes) + 1)
    nodes[number] = own
    return number


def _edge_text(names: list[str], nodes: dict[int, Box], edge: layered.Edge) -> str:
    """The tensor's name; empty if a box has it already."""
    if any(nodes[n].own for n in edge):
        return ""
    return short(names[0], TENSOR) + (f" +{len(names) - 1}" if len(names) > 1 else "")


def _curve(points: list[tuple[float, float]]) -> str:
    """Points as an SVG path: curved between rows, straight through one."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for k, ((x1, y1), (x2, y2)) in enumerate(pairwise(points)):
        half = (y1 + y2) / 2
        curved = f"C{x1:.1f} {half:.1f} {x2:.1f} {half:.1f} {x2:.1f} {y2:.1f}"
        parts.append(curved if k % 2 == 0 else f"L{x2:.1f} {y2:.1f}")
    return "".join(parts)
