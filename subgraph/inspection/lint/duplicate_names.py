"""Nodes of one graph that share a name."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext, warning


def check(context: LintContext) -> Issues:
    """Each node but the first of a name, within the same graph, body or function."""
    for scope in context.scopes:
        first: dict[str, int] = {}
        for node in scope.nodes if scope.shared_names else ():
            name = str(node.proto.name)
            if (
                name in scope.shared_names
                and first.setdefault(name, node.position) != node.position
            ):
                reason = (
                    f"its name '{name}' is also that of #{first[name]}: onnxruntime refuses such a"
                    " model"
                )
                yield warning(node, reason, "give each node a unique name")
