"""Integer operators in a wider type, wrapped as the narrow type, or by exact others."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from subgraph.graph.nested import get_attribute
from subgraph.graph.properties import OVERFLOWS
from subgraph.graph.rewrites._region_model import (
    RegionModel,
    Substitution,
    find_reduced_axes,
    restrict_to,
)

# Narrow type → bits, whether it has a sign, and the type that holds its sums and products, or their
# last bits.
NARROW: dict[int, tuple[int, bool, int]] = {
    TensorProto.UINT8: (8, False, TensorProto.INT32),
    TensorProto.INT8: (8, True, TensorProto.INT32),
    TensorProto.UINT16: (16, False, TensorProto.INT64),
    TensorProto.INT16: (16, True, TensorProto.INT64),
    TensorProto.UINT32: (32, False, TensorProto.INT64),
    TensorProto.INT32: (32, True, TensorProto.INT64),
}
NAMES = {number: name.lower() for name, number in TensorProto.DataType.items()}
COUNTED = (TensorProto.INT32, TensorProto.INT64)  # types that CumSum and ArgMax take everywhere


@restrict_to(*OVERFLOWS)
def _rewrite_wider(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    """Compute in the wider type: an overflow keeps its last bits, as ONNX defines it, and a runtime
    that saturates has them there."""
    element = source.element(node.input[0])
    if element not in NARROW:
        return ""
    bits, signed, wide = NARROW[element]
    casts = [
        new.node("Cast", [n], to=wide) if source.element(n) == element else n for n in node.input
    ]
    copied = new.copy(node)
    copied.input[:] = casts
    if source.element(node.output[0]) != element:
        return f"{NAMES[wide]} instead of {NAMES[element]} in"
    copied.output[0] = new.name("wide")
    half = new.weight(2 ** (bits - 1), wide)
    size = new.weight(2**bits, wide)
    text = "Sub(Mod(Add(wide, half), size), half)" if signed else "Mod(wide, size)"
    new.formula(f"Cast({text}, to=own)", wide=copied.output[0], half=half, size=size, own=element)
    return f"{NAMES[wide]} instead of {NAMES[element]}, wrapped as that is, in"


@restrict_to("ReduceMax", "ReduceMin", "ReduceSum")
def _rewrite_reduction(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    axes = find_reduced_axes(source, node)
    if not axes or source.element(node.input[0]) not in COUNTED or new.opset < 11:
        return ""
    x = node.input[0]
    is_sum = node.op_type == "ReduceSum"
    for axis in axes:
        if is_sum:
            sums = new.node("CumSum", [x, new.weight(np.int64(axis))])
            x = new.node("Gather", [sums, new.integers([-1])], axis=axis)
        else:
            best = new.node(f"Arg{node.op_type.removeprefix('Reduce')}", [x], axis=axis, keepdims=1)
            x = new.node("GatherElements", [x, best], axis=axis)
    if get_attribute(node, "keepdims", 1):
        new.formula("Identity(last)", last=x)
    else:
        new.reduce("Squeeze", x, axes, node.output[0], keepdims=None)
    words = "the end of a CumSum" if is_sum else "the elements at the ArgMax or ArgMin"
    return f"{words} instead of"


FORMS = [_rewrite_wider, _rewrite_reduction]
