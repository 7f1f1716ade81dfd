"""Nodes without a name."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.inspection.lint import LintContext, LintIssue, note


def check(asked: LintContext) -> Iterator[LintIssue]:
    """Each node whose name is empty."""
    for place in asked.places:
        if not place.node.name:
            reason = "no name: converters make one up, so that reports of the target cannot be traced back to it"
            yield note(place, reason, "name the nodes before converting, after their first output for example")
