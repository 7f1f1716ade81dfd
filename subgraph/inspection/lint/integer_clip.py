"""Clip of integers, which opset 12 allows and many runtimes do not have."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext, note, warning

FIRST_OPSET = 12  # that allows it; before, rule `types` reports an invalid model
FIX = "use Min and Max, or put a Cast to float32 before it and a Cast back after it"


def check(context: LintContext) -> Issues:
    """Yield each Clip of integers; a note if it only computes shapes, which converters fold."""
    for node in context.nodes("Clip"):
        dtype = node.dtype(node.input(0)) or node.dtype(node.output(0))
        if "int" not in dtype or (node.version or 0) < FIRST_OPSET:
            continue
        if context.depends_on_values(node, [node.input(0)]):
            reason = (
                f"clips {dtype}: runtimes from before opset 12, and many converters, have Clip for"
                " floats only"
            )
            yield warning(node, reason, FIX)
        else:
            reason = (
                f"clips {dtype}, on the way to a shape: where the converter does not fold it, it"
                " may be refused"
            )
            yield note(node, reason, FIX)
