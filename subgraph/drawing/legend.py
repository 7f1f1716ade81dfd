"""The legend of the operators' kinds, above a drawing: the foot of a long network is not in sight.

A drawing of a few boxes has none, since each box names its operator; nor has one of a single kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from subgraph.drawing.families import WORDS

LEAST_BOXES, LEAST_KINDS = 8, 2  # with a hue; the drawing of fewer needs no legend
LEFT = 10.0
TOP = 8.0
ROW = 18.0
SWATCH, GAP, LETTER = 16.0, 6.0, 6.7  # pixels


def legend(families: Sequence[str], width: float) -> tuple[str, float, float]:
    """The legend as SVG, at most as wide as the drawing if its words allow, with its width and height.

    `families`: the kind of each box that has one. Without a legend: no text, 0 and 0.

    >>> legend(["multiply"] * 5 + ["layout"] * 5, 400.0)[1:]
    (400.0, 26.0)
    """  # noqa: E501
    found = [kind for kind in WORDS if kind in families]
    if len(found) < LEAST_KINDS or len(families) < LEAST_BOXES:
        return "", 0.0, 0.0
    sizes = [SWATCH + GAP + len(WORDS[kind]) * LETTER for kind in found]
    width = max(width, 2 * LEFT + max(sizes))
    x = LEFT
    y = TOP
    parts = []
    for kind, size in zip(found, sizes, strict=True):
        if x > LEFT and x + size > width - LEFT:
            x, y = LEFT, y + ROW
        parts.append(_item(kind, x, y))
        x += size + 2 * GAP
    return f'<g class="legend">{"".join(parts)}</g>', width, y + ROW


def _item(kind: str, x: float, y: float) -> str:
    """A small box of the kind, and what it means."""
    return (
        f'<g class="node {kind}"><rect class="frame" x="{x:g}" y="{y:g}" width="{SWATCH:g}"'
        f' height="12" rx="2"/><rect class="strip {kind}" x="{x + SWATCH - 5:g}" y="{y + 2:g}"'
        f' width="4" height="8"/></g><text x="{x + SWATCH + GAP:g}"'
        f' y="{y + 10:g}">{escape(WORDS[kind])}</text>'
    )
