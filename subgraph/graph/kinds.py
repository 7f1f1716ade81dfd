"""The kind of a tensor: whether its value depends on values of model inputs, on their shapes, or on
neither."""

from __future__ import annotations

from collections.abc import Iterable

from subgraph.graph.graph import Graph
from subgraph.graph.opsets import STANDARD
from subgraph.graph.properties import SHAPE_OPS
from subgraph.graph.walks import find_ancestors

# The dependencies of a tensor's value, from least to most: nothing, shapes of model inputs, values
# of model inputs.
CONSTANT = 0
SHAPE = 1
VALUE = 2


def find_kinds(graph: Graph, tensors: Iterable[str]) -> dict[str, int]:
    """Find the kind of each tensor by its dependencies: CONSTANT, SHAPE or VALUE.

    SHAPE: every path from a model input to the tensor passes Shape or Size. Random tensors are
    VALUE. Complexity: linear in the nodes upstream; in a prepared graph, linear in the
    tensors.
    """
    names = list(tensors)
    if (cached_kinds := graph.known_kinds) is not None:
        return {
            n: cached_kinds[n] if n in cached_kinds else _find_kind_of_source(graph, n)
            for n in names
        }
    made_by = graph.maker.get
    reads = graph.reads
    ops = graph.ops
    random_nodes = graph.random_nodes
    kind_of_node: dict[int, int] = {}

    def kind(name: str) -> int:
        maker = made_by(name)
        if maker is not None:
            return kind_of_node[maker]
        return _find_kind_of_source(graph, name)

    for i in graph.in_order(find_ancestors(graph, graph.producers(names))):
        highest = max(map(kind, reads[i]), default=CONSTANT)
        if i in random_nodes:
            highest = VALUE
        elif highest == VALUE and ops[i] in SHAPE_OPS and graph.nodes[i].domain in STANDARD:
            highest = SHAPE
        kind_of_node[i] = highest
    return {name: kind(name) for name in names}


def _find_kind_of_source(graph: Graph, name: str) -> int:
    """Return the kind of a tensor that no node produces."""
    return CONSTANT if graph.is_weight(name) else VALUE
