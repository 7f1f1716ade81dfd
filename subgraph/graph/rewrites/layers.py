"""Layers by others: Gemm as MatMul and Add, a normalization as arithmetic, a pool as a mean."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from subgraph.graph.nested import get_attribute
from subgraph.graph.rewrites._region_model import (
    RegionModel,
    Substitution,
    find_reduced_axes,
    get_argument,
    restrict_to,
)

PER_AXIS = {"kernel_shape", "strides", "dilations", "output_padding", "output_shape"}


@restrict_to("Dropout")
def _rewrite_dropout(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    if new.opset < 12 or get_argument(node, 2):  # of older versions, training is set elsewhere
        return ""
    new.formula("Identity(x)")
    if any(node.output[1:]):
        new.formula("Not(Less(x, x))", node.output[1])
    return "an Identity instead of"


@restrict_to("BatchNormalization")
def _normalize_batch(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    values = [source.value(name) for name in node.input[1:5]]
    rank = source.rank(node.input[0])
    trains = any(node.output[1:]) or get_attribute(node, "training_mode", 0)
    if any(v is None for v in values) or rank is None or trains:
        return ""
    scale, bias, mean, variance = (np.asarray(v, np.float64) for v in values)
    factor = scale / np.sqrt(variance + get_attribute(node, "epsilon", 1e-5))
    form = [-1, *[1] * (rank - 2)]
    offset = (bias - mean * factor).reshape(form)
    new.formula("Add(Mul(x, factor), offset)", factor=factor.reshape(form), offset=offset)
    return "a Mul and an Add instead of"


@restrict_to("InstanceNormalization")
def _normalize_instance(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    x = node.input[0]
    rank = source.rank(x)
    if rank is None or rank < 3:
        return ""
    axes = list(range(2, rank))
    form = [-1, *[1] * (rank - 2)]
    c = new.formula("Sub(x, mean)", "", mean=new.reduce("ReduceMean", x, axes))
    new.formula(
        "Add(Mul(Div(c, Sqrt(Add(variance, epsilon))), scale), bias)",
        c=c,
        variance=new.reduce("ReduceMean", new.formula("Mul(c, c)", "", c=c), axes),
        epsilon=get_attribute(node, "epsilon", 1e-5),
        scale=new.reshape(node.input[1], form),
        bias=new.reshape(node.input[2], form),
    )
    return "its arithmetic, operator by operator, instead of"


@restrict_to("Gemm", floats=True)
def _rewrite_gemm(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    a = node.input[0]
    b = node.input[1]
    c = get_argument(node, 2)
    element = source.element(a)
    a = new.formula("Transpose(x, perm=[1, 0])", "") if get_attribute(node, "transA", 0) else a
    weights = source.value(b)
    if get_attribute(node, "transB", 0) and weights is not None:
        b = new.weight(np.ascontiguousarray(weights.T))
    elif get_attribute(node, "transB", 0):
        b = new.node("Transpose", [b])
    factors = [(get_attribute(node, "alpha", 1.0), a), (get_attribute(node, "beta", 1.0), c)]
    a, c = (new.node("Mul", [t, new.weight(f, element)]) if f != 1 and t else t for f, t in factors)
    new.formula("Add(MatMul(a, b), c)" if c else "MatMul(a, b)", a=a, b=b, c=c)
    if c:
        return "a MatMul and an Add instead of"
    return "a MatMul instead of"


@restrict_to("MatMul", floats=True)
def _rewrite_matmul(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    if [source.rank(n) for n in node.input] != [2, 2]:
        return ""
    new.formula("Gemm(x, y)" if new.opset >= 11 else "Gemm(x, y, 0)")
    return "a Gemm instead of"


@restrict_to("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")
def _rewrite_in_two_dimensions(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    if source.rank(node.input[0]) != 3 or any(node.output[1:]):
        return ""
    raised = new.reduce("Unsqueeze", node.input[0], [2], keepdims=None)
    weights = []
    if "Conv" in node.op_type:
        name = node.input[1]
        kernel = source.value(name)
        if kernel is not None:
            name = new.weight(kernel[:, :, None])
        else:
            name = new.reduce("Unsqueeze", name, [2], keepdims=None)
        weights = [name, *node.input[2:]]
    attributes = {a.name: get_attribute(node, a.name) for a in node.attribute}
    for name in PER_AXIS & attributes.keys():
        attributes[name] = [0 if name == "output_padding" else 1, *attributes[name]]
    if pads := attributes.get("pads"):
        attributes["pads"] = [0, pads[0], 0, pads[1]]
    flat = new.node(node.op_type, [raised, *weights], **attributes)
    new.reduce("Squeeze", flat, [2], node.output[0], keepdims=None)
    return "the same in two dimensions, of which one has length 1, instead of"


@restrict_to("GlobalAveragePool", "GlobalMaxPool")
def _rewrite_global(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    rank = source.rank(node.input[0])
    if rank is None:
        return ""
    op = "ReduceMean" if node.op_type == "GlobalAveragePool" else "ReduceMax"
    new.reduce(op, node.input[0], range(2, rank), node.output[0])
    return f"a {op} instead of"


@restrict_to("ReduceMean")
def _rewrite_mean(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    axes = find_reduced_axes(source, node)
    rank = source.rank(node.input[0])
    if rank is None or rank < 3 or axes != list(range(2, rank)):
        return ""
    if get_attribute(node, "keepdims", 1):
        new.formula("GlobalAveragePool(x)")
    else:
        pooled = new.formula("GlobalAveragePool(x)", "")
        new.reduce("Squeeze", pooled, axes, node.output[0], keepdims=None)
    return "a GlobalAveragePool instead of"


@restrict_to("ReduceMean", floats=True)
def _rewrite_mean_as_sum(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    x = node.input[0]
    axes = find_reduced_axes(source, node)
    shape = source.shape(node.input[0])
    if not axes or shape is None:
        return ""
    total = new.reduce("ReduceSum", x, axes, keepdims=get_attribute(node, "keepdims", 1))
    count = int(np.prod([shape[axis] for axis in axes]))
    new.formula("Div(total, count)", total=total, count=count)
    return f"a ReduceSum divided by {count} instead of"


@restrict_to("HardSigmoid", "HardSwish")
def _rewrite_hard(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    gate = "Min(Max(Add(Mul(x, alpha), beta), 0), 1)"
    if node.op_type == "HardSwish":
        new.formula(f"Mul(x, {gate})", alpha=1 / 6, beta=0.5)
    else:
        slope = get_attribute(node, "alpha", 0.2)
        new.formula(gate, alpha=slope, beta=get_attribute(node, "beta", 0.5))
    return "Mul, Add, Max and Min instead of"


FORMS = [
    _rewrite_dropout,
    _normalize_batch,
    _normalize_instance,
    _rewrite_gemm,
    _rewrite_matmul,
    _rewrite_in_two_dimensions,
    _rewrite_global,
    _rewrite_mean,
    _rewrite_hard,
    _rewrite_mean_as_sum,
]
