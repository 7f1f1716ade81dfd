"""onnxscript's optimizer, with its rewrite rules, and the operators whose constants it folds."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx

from subgraph.questions.blame.makers import Making

PACKAGE = "onnxscript"
FOLD = "fold "


def steps(making: Making) -> list[str]:
    """Return the names of its rules, and `fold OPERATOR` for each operator of the model."""
    nodes = onnx.load(making.model, load_external_data=False).graph.node
    return [*{FOLD + node.op_type for node in nodes}, *{_name(rule) for rule in _list_rules()}]


def make(making: Making) -> None:
    """Write the optimized model."""
    from onnxscript import ir, optimizer, rewriter

    kept = [rule for rule in _list_rules() if _name(rule) not in making.skip]
    unused = rewriter.RewriteRule(_match_nothing, _match_nothing)  # an empty list is refused
    rewriter._DEFAULT_REWRITE_RULES = (*kept, unused)
    model = ir.load(making.model)
    optimizer.optimize_ir(
        model, should_fold=lambda node: False if FOLD + node.op_type in making.skip else None
    )
    ir.save(model, making.made)


def _match_nothing(op: Any, x: Any) -> Any:
    return op.Nothing(x, _domain="subcut.nothing")


@cache
def _list_rules() -> tuple[Any, ...]:
    """Return its own rules, which `make` replaces by fewer ones."""
    from onnxscript import rewriter

    return tuple(rewriter._DEFAULT_REWRITE_RULES)


def _name(rule: Any) -> str:
    """Return the name of a rule, or else of the function that writes its nodes."""
    return str(rule.name or getattr(rule._replacement_pattern._function, "__name__", "unnamed"))
