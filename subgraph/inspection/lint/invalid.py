"""What the ONNX standard forbids: unknown operators and attributes, missing inputs, cycles, damaged weights."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.graph.operators import Schemas
from subgraph.inspection.lint import LintContext, LintIssue, note, warning

OWN_RULES = ("type", "name")  # kinds of problems that rules `types` and `duplicate-names` report
LOOK = "subcut inspect shows what stands around it"


def check(context: LintContext) -> Iterator[LintIssue]:
    """The problems that `subcut inspect` lists, and those of nodes in local functions, whose types are unknown."""
    yield from (context.problem_issue(p, LOOK) for p in context.problems if p.kind not in OWN_RULES)
    functions = frozenset(context.graph.functions)
    for scope in context.scopes:
        if scope.nodes and scope.nodes[0].top is None:
            schemas = Schemas(scope.opsets, functions)
            for node in scope.nodes:
                for issue in schemas.check(node.proto, {}):
                    yield (warning if issue.fatal else note)(node, issue.what, issue.hint or LOOK, issue.tensor)
