"""A TopK by counting the elements before each; of equal elements, the lower index comes first."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto

from subgraph.graph.nested import get_attribute
from subgraph.graph.rewrites._region_model import RegionModel, Substitution, restrict_to

INT32 = TensorProto.INT32
MAX_ELEMENTS = 2048  # elements of the axis: every one is compared with every other


@restrict_to("TopK")
def _count(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    shape = source.shape(node.input[0])
    axis = get_attribute(node, "axis", -1)
    if not shape or new.opset < 13 or axis not in (-1, len(shape) - 1) or shape[-1] > MAX_ELEMENTS:
        return ""
    x = node.input[0]
    n = shape[-1]
    rank = len(shape)
    mine, others = (new.reduce("Unsqueeze", x, [at], keepdims=None) for at in (rank, rank - 1))
    before = "Greater(other, own)" if get_attribute(node, "largest", 1) else "Less(other, own)"
    sides = {"other": others, "own": mine, "earlier": new.weight(np.tri(n, k=-1, dtype=np.bool_))}
    ties = "And(Equal(other, own), earlier)"
    place = new.formula(f"Cast(Or({before}, {ties}), to=int)", "", int=INT32, **sides)
    place = new.reduce("ReduceSum", place, [rank], keepdims=0)
    ends = {"begin": new.weight(np.int32(0)), "step": new.weight(np.int32(1)), "int": INT32}
    count = new.reduce("Squeeze", node.input[1], [0], keepdims=None)
    places = new.formula("Range(begin, Cast(k, to=int), step)", "", k=count, **ends)
    places = new.reduce("Unsqueeze", places, [1], keepdims=None)
    place = new.reduce("Unsqueeze", place, [rank - 1], keepdims=None)
    chosen = new.formula("Cast(Equal(p, q), to=int)", "", p=place, q=places, int=INT32)
    indices = new.node("ArgMax", [chosen], node.output[1], axis=rank, keepdims=0)
    if node.output[0]:
        new.node("GatherElements", [x, indices], node.output[0], axis=rank - 1)
    return "counting the elements that come before each, instead of"


FORMS = [_count]
