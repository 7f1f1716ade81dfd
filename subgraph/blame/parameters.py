"""Inputs of a model that only set how operators work: a shape, axes, a number of elements, scales.

Exporters make them initializers; onnx's operator tests, and some models, take them as inputs.
Another value of one is another model, rather than another sample.
"""

from __future__ import annotations

from dataclasses import replace

from subgraph.graph.graph import Graph
from subgraph.graph.opsets import STANDARD
from subgraph.graph.properties import SETTINGS
from subgraph.graph.region import Region


def parameters(graph: Graph) -> tuple[str, ...]:
    """The model's inputs that nodes read in such places only. Complexity: linear in their
    readers."""
    return tuple(
        name for name in graph.inputs if graph.readers.get(name) and _only_sets(graph, name)
    )


def _only_sets(graph: Graph, name: str) -> bool:
    nodes = [graph.nodes[i] for i in graph.readers[name]]
    return name not in graph.outputs and all(
        node.domain in STANDARD
        and name in node.input
        and all(
            k in SETTINGS.get(node.op_type, ()) for k, read in enumerate(node.input) if read == name
        )
        for node in nodes
    )


def with_constant_parameters(graph: Graph, region: Region) -> Region:
    """The region with these inputs as constants of its cut, as if they depended on shapes only."""
    constant = {*parameters(graph)}.intersection(region.inputs)
    inputs = tuple(name for name in region.inputs if name not in constant)
    return replace(
        region, inputs=inputs, shapes=(*region.shapes, *(n for n in region.inputs if n in constant))
    )
