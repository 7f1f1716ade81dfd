"""Errors over the steps of a loop -> an SVG that stands alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from subgraph.drawing.chart import Chart, Point, chart
from subgraph.results.loop import LoopDocument, LoopOutcome
from subgraph.text import clean

STYLE = (
    "text{font:12px"
    " sans-serif;fill:#59616b}.g{stroke:#d6dbe1}.l{fill:none;stroke:#1f5fbf;stroke-width:1.5}"
    ".b{fill:#b3261e}.m{fill:#fff0d4}.w{fill:none;stroke:#b3261e;stroke-width:6;stroke-linecap:round}"
    "@media"
    " (prefers-color-scheme:dark){.p{fill:#15181c}.m{fill:#40300f}text{fill:#a3acb6}.g{stroke:#3a424b}}"  # noqa: E501
)


BELOW = 38.0  # pixels below the axis


def picture(document: LoopDocument) -> str:
    """The error of each step, those that fail in red, the steps that the finding is about
    marked."""
    points = [
        Point(s.step, math.inf if s.error is None else s.error, s.status, f"step {s.step}")
        for s in document.seen
    ]
    found = document.outcome not in (LoopOutcome.AGREE, LoopOutcome.UNRESOLVED)
    marks = (
        [[float(k) for k in (document.since, document.first_wrong) if k is not None]]
        if found
        else []
    )
    label = (
        f"error over {document.steps} steps: {clean(document.model)} on {clean(document.candidate)}"
    )
    unnamed = [point._replace(name="") if point.status != "fail" else point for point in points]
    return "\n".join(_svg(chart(unnamed, marks, {"label": label, "x": "step"}))) + "\n"


def _svg(c: Chart) -> Iterator[str]:
    label = escape(c.words["label"])
    bottom = c.bottom
    height = bottom + BELOW
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {c.width} {height}" role="img"'
        f' aria-label="{label}">'
    )
    yield f'<style>{STYLE}</style><rect class="p" fill="#fff" width="{c.width}" height="{height}"/>'
    for m in c.marks:
        yield f'<rect class="m" x="{m.x}" y="{c.top}" width="{m.width}" height="{bottom - c.top}"/>'
    levels = [*c.levels]
    if c.strange is not None:
        yield f'<text x="{c.left - 6}" y="{c.strange + 4}" text-anchor="end">none</text>'
    for level in levels:
        yield f'<path class="g" d="M{c.left} {level.at}H{c.right}"/>'
        yield (
            f'<text x="{c.left - 6}" y="{level.at + 4}"'
            f' text-anchor="end">{escape(level.label)}</text>'
        )
    for end, anchor in zip(c.ends, ("start", "end"), strict=False):
        yield (
            f'<text x="{end.at}" y="{bottom + 16}"'
            f' text-anchor="{anchor}">{escape(end.label)}</text>'
        )
    middle = (c.left + c.right) / 2
    yield f'<text x="{middle}" y="{bottom + 30}" text-anchor="middle">{escape(c.words["x"])}</text>'
    yield f'<path class="l" d="{c.line}"/><path class="w" d="{c.failing}"/>'
    for p in c.titled:
        error = (
            f"{p.error:.1e}"
            if isinstance(p.error, float) and math.isfinite(p.error)
            else "no output"
        )
        yield (
            f'<circle class="b" cx="{p.x}" cy="{p.y}" r="3"><title>{escape(p.name)}:'
            f" {error}</title></circle>"
        )
    yield "</svg>"
