"""Pooling with ceil_mode=1 whose output has another size than with rounding down."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext, note, warning
from subgraph.inspection.lint._windows import Window, format_window, iter_hanging, list_windows

FIX = (
    "pad the end with a Pad node (minus infinity for MaxPool) so that all windows fit, and set"
    " ceil_mode=0"
)


def check(context: LintContext) -> Issues:
    """Yield an issue for each pooling whose last window extends over the end."""
    for node in context.nodes("MaxPool", "AveragePool", "LpPool"):
        if node.attribute("ceil_mode", 0) != 1:
            continue
        axes = list_windows(node) or []
        over = list(iter_hanging(axes))
        if any(w.size is not None for w in over):
            up = _format_sizes(axes, ceil=True)
            down = _format_sizes(axes, ceil=False)
            reason = (
                f"ceil_mode=1 makes the output {up}: targets that ignore it round down to {down}"
            )
            yield warning(node, reason, FIX)
        elif over:
            reason = (
                "ceil_mode=1, and the input's size is open: for some sizes targets that ignore it"
                " give another shape"
            )
            yield note(node, reason, FIX)


def _format_sizes(axes: list[Window], *, ceil: bool) -> str:
    return format_window([n for w in axes if (n := w.outputs(ceil=ceil)) is not None])
