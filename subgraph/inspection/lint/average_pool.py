"""AveragePool with count_include_pad that some targets ignore: padding counts, or does not."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext, note, warning
from subgraph.inspection.lint._windows import iter_hanging, list_windows

INCLUDED = "put a Pad node in front, which every target counts, and set pads to 0"
EXCLUDED = (
    "make sure that the converter keeps count_include_pad=0, and compare this node on the target"
)


def check(context: LintContext) -> Issues:
    """Yield an issue for each AveragePool with a window that extends over the edge."""
    for node in context.nodes("AveragePool"):
        included = node.attribute("count_include_pad", 0)
        ceil = node.attribute("ceil_mode", 0)
        axes = list_windows(node)
        if not axes or included is None:
            continue
        padded = any(w.begin or w.end for w in axes)
        if included and padded:
            if ceil:
                beyond = ", and beyond it where ceil_mode lets the last window hang over"
            else:
                beyond = ""
            reason = (
                "count_include_pad=1: targets that divide by the real cells only differ along the"
                f" edge{beyond}"
            )
            yield warning(node, reason, INCLUDED)
        elif padded:
            reason = (
                "padded, with count_include_pad=0: targets that divide by the whole window differ"
                " along the edge"
            )
            yield note(node, reason, EXCLUDED)
        elif included and ceil and any(w.size is not None for w in iter_hanging(axes)):
            reason = (
                "ceil_mode=1 and count_include_pad=1: runtimes differ in whether cells that hang"
                " over the end count"
            )
            yield warning(node, reason, INCLUDED)
