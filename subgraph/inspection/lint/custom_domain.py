"""Operators outside of the ONNX standard: of custom domains, of onnxruntime, and model-local functions."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, note, warning
from subgraph.inspection.lint._places import LintNode
from subgraph.text import clean

MICROSOFT = ("com.microsoft", "com.ms", "com.microsoft.nchwc")
INLINE = "inline it before converting: onnx.inliner.inline_local_functions"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each node whose domain is not `ai.onnx`."""
    functions = asked.graph.functions
    for place in asked.places:
        if (place.node.domain, place.op, place.node.overload) in functions:
            yield note(place, "calls a model-local function, which many converters do not look into", INLINE)
        elif place.domain:
            yield _foreign(place)


def _foreign(place: LintNode) -> LintIssue:
    domain = clean(place.domain)
    if domain.startswith("ai.onnx."):
        reason = f"is of domain '{domain}': few targets beside onnxruntime on the CPU have its operators"
        return note(place, reason, "run this part on the host, or cut the model in front of it")
    if domain.startswith(MICROSOFT):
        reason = f"is of domain '{domain}': onnxruntime alone has its operators"
        return warning(place, reason, "export without onnxruntime's optimisations (or quantize in the QDQ form)")
    reason = f"is of the custom domain '{domain}': the target needs an operator of its own for it"
    return warning(place, reason, "export it as standard operators, or give the target and --custom-ops a plugin")
