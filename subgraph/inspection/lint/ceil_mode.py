"""Pooling with ceil_mode=1, where rounding up gives another size than rounding down."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, note, warning
from subgraph.inspection.lint._windows import Window, hanging, text, windows

FIX = "pad the end with a Pad node (minus infinity for MaxPool) so that all windows fit, and set ceil_mode=0"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each pooling whose last window hangs over the end, or may, where its input's size is open."""
    for place in asked.nodes("MaxPool", "AveragePool", "LpPool"):
        if place.attribute("ceil_mode", 0) != 1:
            continue
        found = windows(place) or []
        over = list(hanging(found))
        if any(w.size is not None for w in over):
            up, down = _sizes(found, ceil=True), _sizes(found, ceil=False)
            reason = f"ceil_mode=1 makes the output {up}: targets that ignore it round down to {down}"
            yield warning(place, reason, FIX)
        elif over:
            reason = (
                "ceil_mode=1, and the input's size is open: for some sizes targets that ignore it give another shape"
            )
            yield note(place, reason, FIX)


def _sizes(found: list[Window], *, ceil: bool) -> str:
    return text([n for w in found if (n := w.outputs(ceil=ceil)) is not None])
