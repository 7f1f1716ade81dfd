"""Each BatchNormalization after a Conv is folded into its weights, as quantizers do before they
quantize."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import numpy_helper

from subgraph.editing.draft import Draft
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph, load
from subgraph.types import Array

EPSILON = 1e-5  # of a BatchNormalization that names none


def fold_batch_norms(graph: Graph, folder: Path) -> Graph:
    """Return the model without the BatchNormalizations that follow a Conv, a file in `folder`;
    itself without any."""
    pairs = list(_iter_pairs(graph))
    if not pairs:
        return graph
    draft = Draft(graph)
    nodes = draft.model.graph.node
    for conv, norm in pairs:
        weight, bias = _fold(graph, conv, norm)
        node = nodes[conv]
        name = graph.nodes[norm].output[0]
        node.input[:] = [node.input[0], f"{name}:weight", f"{name}:bias"]
        node.output[0] = name
        stored = [
            numpy_helper.from_array(weight, f"{name}:weight"),
            numpy_helper.from_array(bias, f"{name}:bias"),
        ]
        draft.model.graph.initializer.extend(stored)
    draft.drop_nodes([norm for _, norm in pairs])
    path = folder / graph.path.name
    draft.save(path)
    return load(path)


def _iter_pairs(graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield the indices of each Conv and of the BatchNormalization that alone reads it, all with
    constant weights."""
    for norm, node in enumerate(graph.nodes):
        if graph.ops[norm] != "BatchNormalization" or len(graph.makes[norm]) > 1:
            continue
        name = node.input[0]
        conv = graph.maker.get(name)
        if conv is None or graph.ops[conv] != "Conv" or name in graph.outputs:
            continue
        constants = [*node.input[1:], *graph.nodes[conv].input[1:]]
        is_constant = all(
            graph.constant(constant) is not None for constant in constants if constant
        )
        trains = any(a.name == "training_mode" and a.i for a in node.attribute)
        if is_constant and len(graph.readers[name]) == 1 and not trains:
            yield conv, norm


def _fold(graph: Graph, conv: int, norm: int) -> tuple[Array, Array]:
    """Return the weight and the bias of a Conv with its BatchNormalization in them."""
    node = graph.nodes[norm]
    scale, shift, mean, variance = (_value(graph, name) for name in node.input[1:5])
    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), EPSILON)
    _, weight_name, *bias_name = graph.nodes[conv].input
    weight = _value(graph, weight_name)
    bias = _value(graph, bias_name[0]) if bias_name and bias_name[0] else np.zeros(len(weight))
    factor = scale / np.sqrt(variance + epsilon)
    folded = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    return folded.astype(np.float32), ((bias - mean) * factor + shift).astype(np.float32)


def _value(graph: Graph, name: str) -> Array:
    tensor = graph.constant(name)
    assert tensor is not None
    return protobuf.to_array(tensor, graph.path).astype(np.float64)
