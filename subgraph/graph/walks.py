"""Walks along the tensors of a graph: to a producer, and to all nodes upstream or downstream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from subgraph.graph.graph import Graph
from subgraph.reach import reach


def find_producer_label(graph: Graph, name: str) -> str | None:
    """Return the label of a tensor's producer; None for an input of the model."""
    maker = graph.maker.get(name)
    return None if maker is None else graph.label(maker)


def find_operator(graph: Graph, name: str) -> str:
    """Return the operator that computes a tensor; "" if no node does."""
    maker = graph.maker.get(name)
    return "" if maker is None else graph.ops[maker]


def skip_operators(graph: Graph, name: str, operators: Collection[str]) -> str:
    """Return the tensor upstream of nodes of these operators, along their first inputs."""
    while find_operator(graph, name) in operators and graph.reads[graph.maker[name]]:
        name = graph.reads[graph.maker[name]][0]
    return name


def iter_predecessors(graph: Graph, i: int) -> Iterator[int]:
    """Return the producers of the inputs of node `i`, with repetitions."""
    return graph.producers(graph.reads[i])


def iter_successors(graph: Graph, i: int) -> Iterator[int]:
    """Yield nodes that read a tensor that node `i` produces, with repetitions."""
    for name in graph.makes[i]:
        yield from graph.readers.get(name, ())


def find_ancestors(graph: Graph, nodes: Iterable[int], floor: int = -1) -> set[int]:
    """Return nodes, and all nodes that they depend on, except those of a rank below `floor`.

    Complexity: linear in the result.
    """
    rank = graph.rank
    reads = graph.reads
    maker = graph.maker
    ancestors = set(nodes)
    stack = list(ancestors)
    while stack:
        for name in reads[stack.pop()]:
            producer = maker.get(name)
            if producer is not None and producer not in ancestors and rank[producer] >= floor:
                ancestors.add(producer)
                stack.append(producer)
    return ancestors


def find_descendants(graph: Graph, nodes: Iterable[int]) -> set[int]:
    """Return nodes, and all nodes that depend on them.

    Complexity: linear in the result, once `Graph.readers` is built.
    """
    return reach(nodes, lambda i: iter_successors(graph, i))


def find_ancestors_until(
    graph: Graph, nodes: Iterable[int], stops: Callable[[str], bool]
) -> set[int]:
    """Return nodes, and all nodes that they depend on through tensors for which `stops` is
    false."""
    return reach(
        nodes, lambda i: graph.producers(name for name in graph.reads[i] if not stops(name))
    )
