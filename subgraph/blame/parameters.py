"""Inputs of a model that only set how operators work: a shape, axes, a number of elements, scales.

Exporters make them initializers; onnx's operator tests, and some models, take them as inputs.
Another value of one is another model, rather than another sample.
"""

from __future__ import annotations

from dataclasses import replace

from subgraph.graph.graph import Graph
from subgraph.graph.opsets import STANDARD
from subgraph.graph.region import Region

REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
POSITIONS = {  # of the inputs that ONNX's specification takes such values from
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
} | {f"Reduce{name}": (1,) for name in REDUCTIONS}


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
            k in POSITIONS.get(node.op_type, ())
            for k, read in enumerate(node.input)
            if read == name
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
