"""Clip of integers, which opset 12 allows and many runtimes do not have."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.graph.graph import VALUE
from subgraph.inspection.lint import LintContext, LintIssue, note, warning
from subgraph.inspection.lint._places import LintNode

FIRST = 12  # opset; before it `types` says that the model is invalid
FIX = "use Min and Max, or put a Cast to float32 before it and one back behind it"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each Clip of integers. On a chain that only computes shapes it is a note: converters fold those."""
    for place in asked.nodes("Clip"):
        dtype = place.dtype(place.input(0)) or place.dtype(str(place.node.output[0]) if place.node.output else "")
        if "int" not in dtype or (place.version or 0) < FIRST:
            continue
        if _on_data(asked, place):
            reason = f"clips {dtype}: runtimes from before opset 12, and many converters, have Clip for floats only"
            yield warning(place, reason, FIX)
        else:
            reason = f"clips {dtype}, on the way to a shape: where the converter does not fold it, it may be refused"
            yield note(place, reason, FIX)


def _on_data(asked: LintContext, place: LintNode) -> bool:
    """Does a value of the model's inputs get here? Inside of bodies and functions nobody knows: yes."""
    if place.scope is not asked.scopes[0]:
        return True
    name = place.input(0)
    return asked.graph.kinds([name])[name] == VALUE
