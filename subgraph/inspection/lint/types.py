"""Tensors of a type that their operator does not take: an int64 Clip below opset 12, mixed types."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.graph.validate import node_title
from subgraph.inspection.lint import LintContext, LintIssue, note, warning

KIND = "type"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """What does not fit the operators' schemas, and declared types that are not the real ones."""
    for p in asked.problems:
        if p.kind == KIND:
            who = "" if p.node is None else node_title(asked.graph, p.node)
            reason = p.what.removeprefix(who).lstrip(": ")
            yield (warning if p.fatal else note)(asked.at(p.node), reason, p.hint, p.tensor)
