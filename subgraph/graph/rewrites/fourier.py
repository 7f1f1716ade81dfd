"""A DFT as a MatMul with sines and cosines."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from subgraph.graph.nested import get_attribute
from subgraph.graph.rewrites._region_model import (
    RegionModel,
    Substitution,
    get_argument,
    restrict_to,
)

MAX_POINTS = 2048  # points


@restrict_to("DFT", floats=True)
def _write_products(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    """Multiply x (…, n·c) by a matrix (n·c, m·d): n inputs of c parts, m outputs of d parts."""
    before = source.shape(node.input[0])
    after = source.shape(node.output[0])
    axis = _find_axis(source, node)
    element = source.element(node.input[0])
    if before is None or after is None or axis is None:
        return ""
    rank = len(before)
    length = source.value(get_argument(node, 1))
    axis %= rank
    inverse = bool(get_attribute(node, "inverse", 0))
    half = bool(get_attribute(node, "onesided", 0))
    if (get_argument(node, 1) and length is None) or axis == rank - 1 or (inverse and half):
        return ""
    n = before[axis]
    points = n if length is None else int(length.reshape(-1)[0])
    if max(points, n) > MAX_POINTS:
        return ""
    c = before[-1]
    m = after[axis]
    d = after[-1]
    used = np.arange(n)[:, None] < points
    turns = np.outer(np.arange(n), np.arange(m)) / points
    factors = np.exp((2j if inverse else -2j) * np.pi * turns) * used
    factors = factors / points if inverse else factors
    parts = [factors, 1j * factors][:c]  # what a real and an imaginary input give
    rows = [np.stack([part.real, part.imag][:d], axis=-1) for part in parts]
    matrix = np.stack(rows, axis=1).reshape(n * c, m * d)
    order = [*(k for k in range(rank - 1) if k != axis), axis, rank - 1]
    moved = new.node("Transpose", [node.input[0]], perm=order)
    leading = [before[k] for k in order[:-2]]
    product = new.node(
        "MatMul", [new.reshape(moved, [*leading, n * c]), new.weight(matrix, element)]
    )
    shaped = new.reshape(product, [*leading, m, d])
    new.node("Transpose", [shaped], node.output[0], perm=[int(k) for k in np.argsort(order)])
    return "a MatMul with sines and cosines instead of"


def _find_axis(source: RegionModel, node: NodeProto) -> int | None:
    """Find the axis, an attribute before opset 20; None unless it is constant."""
    if source.opset < 20:
        return int(get_attribute(node, "axis", 1))
    value = source.value(get_argument(node, 2))
    if not get_argument(node, 2):
        return -2
    if value is None:
        return None
    return int(value.reshape(-1)[0])


FORMS = [_write_products]
