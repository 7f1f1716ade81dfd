"""The order of operands and sums: operands swapped, a reduction axis by axis, a product in two."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from subgraph.graph.nested import get_attribute
from subgraph.graph.properties import COMMUTES, NESTS
from subgraph.graph.rewrites._region_model import (
    RegionModel,
    Substitution,
    find_reduced_axes,
    get_argument,
    restrict_to,
)

MIN_CHANNELS = 8  # channels; fewer are not worth two products


@restrict_to(*COMMUTES)
def _swap(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    if len(set(node.input)) < 2:
        return ""
    new.copy(node).input.reverse()
    return "the operands swapped in"


@restrict_to(*NESTS)
def _reduce_each_axis(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    axes = find_reduced_axes(source, node)
    x = node.input[0]
    if not axes or len(axes) < 2:
        return ""
    keep = get_attribute(node, "keepdims", 1)
    for axis in reversed(axes):
        output = node.output[0] if axis == axes[0] else ""
        x = new.reduce(node.op_type, x, [axis], output, keepdims=keep)
    return "one axis after the other in"


@restrict_to("MatMul")
def _rewrite_columns(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    weights = source.value(node.input[1])
    rank = source.rank(node.input[0])
    if weights is None or weights.ndim != 2 or weights.shape[1] < MIN_CHANNELS or not rank:
        return ""
    halves = map(new.weight, np.array_split(weights, 2, axis=1))
    parts = [new.node("MatMul", [node.input[0], half]) for half in halves]
    new.node("Concat", parts, node.output[0], axis=rank - 1)
    return "two MatMul of half the columns each instead of"


@restrict_to("MatMul", floats=True)
def _rewrite_rows(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    weights = source.value(node.input[1])
    rank = source.rank(node.input[0])
    if (
        weights is None
        or weights.ndim != 2
        or len(weights) < MIN_CHANNELS
        or not rank
        or new.opset < 10
    ):
        return ""
    half = len(weights) // 2
    parts = []
    for begin, stop in ((0, half), (half, len(weights))):
        bounds = [new.integers([n]) for n in (begin, stop, rank - 1)]
        part = new.node("Slice", [node.input[0], *bounds])
        parts.append(new.node("MatMul", [part, new.weight(weights[begin:stop])]))
    new.node("Add", parts, node.output[0])
    return "the sum of two MatMul of half the length each instead of"


@restrict_to("Conv")
def _rewrite_channels(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    weights = source.value(node.input[1])
    bias = source.value(get_argument(node, 2))
    known = weights is not None and (bias is not None or not get_argument(node, 2))
    if (
        weights is None
        or not known
        or get_attribute(node, "group", 1) != 1
        or len(weights) < MIN_CHANNELS
    ):
        return ""
    constants = [weights] if bias is None else [weights, bias]
    parts = []
    for half in zip(*(np.array_split(constant, 2) for constant in constants), strict=True):
        copied = new.copy(node)
        copied.output[0] = new.name("half")
        copied.input[:] = [node.input[0], *map(new.weight, half)]
        copied.name = new.name("Conv_half")
        parts.append(copied.output[0])
    new.node("Concat", parts, node.output[0], axis=1)
    return "two Conv of half the channels each instead of"


FORMS = [_swap, _reduce_each_axis, _rewrite_columns, _rewrite_rows, _rewrite_channels]
