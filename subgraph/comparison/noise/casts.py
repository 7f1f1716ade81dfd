"""Casts to float16 or bfloat16 that a model has, and what it was made from has not: they excuse no
rounding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from subgraph.comparison.noise.analysis import cast_type
from subgraph.comparison.noise.perturb import is_exact
from subgraph.graph.graph import Graph
from subgraph.graph.properties import REARRANGES
from subgraph.precision import Precision
from subgraph.types import Array

# Ops that make no new values; a Cast to a wider type is one.
CARRIERS = REARRANGES | {"Cast"}


def find_unrounded(
    graph: Graph, known: Collection[str], value: Callable[[str], Array]
) -> dict[str, str]:
    """Results of narrow Casts, by which whatever computed the values does not round, and the
    tensors that show it.

    A runtime may keep float32 between such Casts. A translation may not: where the original has the
    Cast, its values are those of the narrow type.

    Args:
        known: tensors that have a value. value: the one of a tensor, as the original computes it.
    """
    found = {}
    for i in range(len(graph.nodes)):
        type_ = (
            Precision.of_type(cast_type(graph.nodes[i]))
            if graph.ops[i] == "Cast"
            else Precision.FP32
        )
        if not type_.narrow:
            continue
        seen = next((n for n in _carried(graph, graph.makes[i][0]) if n in known), None)
        if (
            seen is not None
            and (values := value(seen)).dtype.kind == "f"
            and not is_exact(values, type_)
        ):
            found[graph.makes[i][0]] = seen
    return found


def _carried(graph: Graph, name: str) -> Iterator[str]:
    """The tensors that hold the values of this one; the nearest first."""
    names = [name]
    for held in names:
        yield held
        readers = [
            i
            for i in graph.readers.get(held, ())
            if graph.ops[i] in CARRIERS and graph.reads[i][0] == held
        ]
        names += [graph.makes[i][0] for i in readers]
