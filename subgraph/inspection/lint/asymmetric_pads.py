"""Padding that is not the same at both ends of an axis, also if SAME comes to that."""

from __future__ import annotations

from subgraph.graph.properties import WINDOWS
from subgraph.inspection.lint import Issues, LintContext, note
from subgraph.inspection.lint._windows import list_windows

FIX = (
    "put a Pad node in front (minus infinity for MaxPool) and leave the node's own pads at 0, or"
    " make them equal"
)


def check(context: LintContext) -> Issues:
    """Each convolution and pooling with uneven padding; of ConvTranspose, explicit padding only."""
    for node in context.nodes(*WINDOWS):
        uneven = next((w for w in list_windows(node) or () if w.begin != w.end), None)
        if uneven is None or (uneven.auto != "NOTSET" and node.op == "ConvTranspose"):
            continue  # SAME is computed in another way for ConvTranspose
        pads = f"{uneven.begin} at the beginning and {uneven.end} at the end"
        if uneven.auto == "NOTSET":
            reason = f"pads {pads}"
        else:
            reason = f"auto_pad={uneven.auto} comes to {pads} here"
        yield note(node, f"{reason}: targets with one number per axis pad both ends alike", FIX)
