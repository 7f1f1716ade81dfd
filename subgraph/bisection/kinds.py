"""Nodes with one operator that fail in the same way -> what only they have: attributes, a number of
inputs."""

from __future__ import annotations

from collections.abc import Collection

from subgraph.graph.graph import Graph
from subgraph.inspection.summary import attribute_text
from subgraph.results.bisect import KindDocument
from subgraph.text import count


def describe_kind(graph: Graph, wrong: Collection[int], *, is_complete: bool) -> KindDocument:
    """The operator of these nodes, and what distinguishes them from its other nodes.

    `is_complete`: whether all other nodes are known to agree.
    """
    op = graph.ops[min(wrong)]
    kind = [i for i, name in enumerate(graph.ops) if name == op]
    right = [_traits(graph, i) for i in kind if i not in wrong]
    common = set.intersection(*(_traits(graph, i) for i in wrong)).difference(*right)
    return KindDocument(op, len(kind), sorted(common) if is_complete and right else [])


def _traits(graph: Graph, node: int) -> set[str]:
    proto = graph.nodes[node]
    inputs = count(sum(map(bool, proto.input)), "input")
    return {inputs, *(f"{a.name}={attribute_text(a)}" for a in proto.attribute)}
