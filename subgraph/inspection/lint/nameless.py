"""Nodes without a name."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext, note


def check(context: LintContext) -> Issues:
    """Each node whose name is empty."""
    for node in context.all_nodes:
        if not node.proto.name:
            reason = (
                "no name: converters make one up, so that reports of the target cannot be traced"
                " back to it"
            )
            yield note(
                node,
                reason,
                "name the nodes before converting, after their first output for example",
            )
