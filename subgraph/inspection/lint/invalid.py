"""What the ONNX standard forbids: unknown operators and attributes, missing inputs, cycles, damaged weights."""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.graph.operators import Schemas
from subgraph.graph.validate import node_title
from subgraph.inspection.lint import LintContext, LintIssue, note, warning

OWN_RULES = ("type", "name")  # kinds of problem that `types` and `duplicate-names` tell of
LOOK = "subcut inspect shows what stands around it"


def check(asked: LintContext) -> Iterator[LintIssue]:
    """The problems that `subcut inspect` lists, and those of nodes in local functions, of which no type is known."""
    for p in asked.problems:
        if p.kind not in OWN_RULES:
            who = "" if p.node is None else node_title(asked.graph, p.node)
            reason = p.what.removeprefix(who).lstrip(": ")
            yield (warning if p.fatal else note)(asked.at(p.node), reason, p.hint or LOOK, p.tensor)
    functions = frozenset(asked.graph.functions)
    for scope in asked.scopes:
        if scope.places and scope.places[0].top is None:
            schemas = Schemas(scope.opsets, functions)
            for place in scope.places:
                for f in schemas.check(place.node, {}):
                    yield (warning if f.fatal else note)(place, f.what, f.hint or LOOK, f.tensor)
