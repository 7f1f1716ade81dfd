"""Operators outside of the ONNX standard: of custom domains, of onnxruntime, and model-local functions."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, note, warning
from subgraph.inspection.lint._places import LintNode
from subgraph.text import clean

MICROSOFT = ("com.microsoft", "com.ms", "com.microsoft.nchwc")
INLINE = "inline it before converting: onnx.inliner.inline_local_functions"


def check(context: LintContext) -> Iterator[LintIssue]:
    """Each node whose domain is not `ai.onnx`."""
    functions = context.graph.functions
    for node in context.all_nodes:
        if (node.proto.domain, node.op, node.proto.overload) in functions:
            yield note(node, "calls a model-local function, which many converters do not look into", INLINE)
        elif node.domain:
            yield _foreign(node)


def _foreign(node: LintNode) -> LintIssue:
    domain = clean(node.domain)
    if domain.startswith("ai.onnx."):
        reason = f"is of domain '{domain}': few targets beside onnxruntime on the CPU have its operators"
        return note(node, reason, "run this part on the host, or cut the model in front of it")
    if domain.startswith(MICROSOFT):
        reason = f"is of domain '{domain}': onnxruntime alone has its operators"
        return warning(node, reason, "export without onnxruntime's optimisations (or quantize in the QDQ form)")
    reason = f"is of the custom domain '{domain}': the target needs an operator of its own for it"
    return warning(node, reason, "export it as standard operators, or give the target and --custom-ops a plugin")
