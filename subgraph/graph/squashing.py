"""Outputs that a squashing operator computes: saturated values hide errors of its input.

Found are Softmax, Sigmoid and the like, and the Exp in the quotient of the same functions in single
operators.
"""

from __future__ import annotations

from collections.abc import Iterable

from subgraph.graph.graph import Graph
from subgraph.graph.properties import REARRANGES, SQUASHES

# Operators that move values, and those of a softmax or sigmoid in single operators.
MOVING = REARRANGES | {"Cast", "Concat", "Slice", "Split"}
ARITHMETIC = frozenset("Add Div Log Mul Neg Reciprocal ReduceMax ReduceSum Sub".split())
MAX_DEPTH = 6  # nodes between an output and the squashing operator


def find_squashed(graph: Graph, outputs: Iterable[str]) -> list[str]:
    """Return the tensors that enter the squashing operators nearest to the outputs, in topological
    order."""
    found: dict[str, int] = {}
    stack = [(name, 0, False) for name in outputs]
    seen = set()
    while stack:
        tensor, depth, is_quotient = stack.pop()
        node = graph.maker.get(tensor)
        if node is None or tensor in seen or depth > MAX_DEPTH:
            continue
        seen.add(tensor)
        operator = graph.ops[node]
        if operator in SQUASHES or (operator == "Exp" and is_quotient):
            entering = graph.reads[node][0]
            if operator == "Exp":
                entering = _skip_shift(graph, entering)
            if entering in graph.maker:
                found[entering] = graph.maker[entering]
        elif operator in MOVING | ARITHMETIC:
            is_quotient = is_quotient or operator in ("Div", "Reciprocal")
            stack += [(name, depth + 1, is_quotient) for name in graph.reads[node]]
    return sorted(found, key=lambda name: graph.rank[found[name]])


def _skip_shift(graph: Graph, tensor: str) -> str:
    """Return the tensor before a negation, and before its largest value is subtracted."""
    node = graph.maker.get(tensor)
    if node is None or not graph.reads[node]:
        return tensor
    first, *others = graph.reads[node]
    is_shift = graph.ops[node] == "Sub" and any(
        _has_producer(graph, name, "ReduceMax") for name in others
    )
    return first if is_shift or graph.ops[node] == "Neg" else tensor


def _has_producer(graph: Graph, tensor: str, operator: str) -> bool:
    node = graph.maker.get(tensor)
    return node is not None and graph.ops[node] == operator
