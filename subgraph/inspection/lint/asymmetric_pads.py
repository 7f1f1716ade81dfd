"""Padding that is not the same at both ends of an axis, also where SAME comes to that."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, note
from subgraph.inspection.lint._windows import WEIGHTED, Window, windows

POOLS = ("MaxPool", "AveragePool", "LpPool")
FIX = "put a Pad node in front (minus infinity for MaxPool) and leave the node's own pads at 0, or make them equal"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each convolution and pooling whose padding is uneven, a transposed one's by its own pads only."""
    for place in asked.nodes(*WEIGHTED, *POOLS):
        found = windows(place)
        uneven = [w for w in found or () if w.begin != w.end]
        if not uneven:
            continue
        if uneven[0].auto != "NOTSET" and place.op == "ConvTranspose":
            continue  # SAME means another sum there
        yield note(place, f"{_said(uneven[0])}: targets with one number per axis pad both ends alike", FIX)


def _said(window: Window) -> str:
    own = f"{window.begin} at the beginning and {window.end} at the end"
    return f"pads {own}" if window.auto == "NOTSET" else f"auto_pad={window.auto} comes to {own} here"
