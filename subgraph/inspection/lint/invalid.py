"""An invalid model: unknown operators or attributes, missing inputs, cycles, damaged weights."""

from __future__ import annotations

from subgraph.inspection.lint import Issues, LintContext

LOOK = "subcut inspect shows its neighbors"


def check(context: LintContext) -> Issues:
    """Return the problems that `subcut inspect` lists, but for those of rule `types`."""
    return (context.problem_issue(p, LOOK) for p in context.problems if p.kind != "type")
