"""Tensors whose type their operator does not accept: int64 Clip below opset 12, mixed types."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext


def check(context: LintContext) -> Issues:
    """Find inputs that do not fit the schema of their operator, and wrong declared types."""
    return (context.problem_issue(p) for p in context.problems if p.kind == "type")
