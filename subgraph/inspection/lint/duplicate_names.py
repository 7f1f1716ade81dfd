"""Nodes of one graph that share a name."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, warning


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each node but the first of a name, in each graph, body and function by itself."""
    for scope in asked.scopes:
        first: dict[str, int] = {}
        for place in scope.places if scope.repeated else ():
            name = str(place.node.name)
            if name in scope.repeated and first.setdefault(name, place.position) != place.position:
                reason = f"its name '{name}' is also that of #{first[name]}: onnxruntime refuses such a model"
                yield warning(place, reason, "give each node a name of its own")
