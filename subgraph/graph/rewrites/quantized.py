"""Quantized operators by floating ones between quantizers, or by integers of 32 bits."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import NodeProto, TensorProto

from subgraph.graph.nested import get_attribute
from subgraph.graph.quantization import unpack_blocks
from subgraph.graph.rewrites._region_model import (
    RegionModel,
    Substitution,
    get_argument,
    restrict_to,
)

MICROSOFT = "com.microsoft"
BINARY = {"QLinearAdd": "Add", "QLinearMul": "Mul", "QLinearMatMul": "MatMul"}
UNARY = {
    "QLinearSigmoid": "Sigmoid",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
}


def _write_real(new: Substitution, names: Sequence[str], axis: int | None = None) -> str:
    """Write codes, scale and zero point as real numbers."""
    return new.node("DequantizeLinear", [n for n in names if n], axis=axis)


@restrict_to("QLinearConv")
def _rewrite_conv(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    if new.opset < 13:  # scales per channel
        return ""
    i = node.input
    channels = source.rank(i[4]) == 1 and source.shape(i[4]) != [1]
    x = _write_real(new, i[0:3])
    w = _write_real(new, i[3:6], 0 if channels else None)
    bias = []
    if name := get_argument(node, 8):
        steps = {"s": i[1], "t": i[4], "real": TensorProto.FLOAT}
        bias = [new.formula("Mul(Cast(b, to=real), Mul(s, t))", "", b=name, **steps)]
    attributes = {a.name: get_attribute(node, a.name) for a in node.attribute}
    y = new.node("Conv", [x, w, *bias], **attributes)
    new.node("QuantizeLinear", [y, *i[6:8]], node.output[0])
    return "a Conv between DequantizeLinear and QuantizeLinear instead of"


def _rewrite_binary(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    i = node.input
    parameters = [*i[1:3], *i[4:]]
    if any(source.rank(n) and source.shape(n) != [1] for n in parameters):
        return ""
    result = new.node(BINARY[node.op_type], [_write_real(new, i[0:3]), _write_real(new, i[3:6])])
    new.node("QuantizeLinear", [result, *filter(None, i[6:8])], node.output[0])
    return f"{BINARY[node.op_type]} between DequantizeLinear and QuantizeLinear instead of"


@restrict_to(*UNARY, domain=MICROSOFT)
def _rewrite_unary(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    if get_attribute(node, "channels_last", 0):
        return ""
    op = UNARY[node.op_type]
    alpha = {"alpha": get_attribute(node, "alpha", 0.01)} if op == "LeakyRelu" else {}
    result = new.node(op, [_write_real(new, node.input[0:3])], **alpha)
    new.node("QuantizeLinear", [result, *filter(None, node.input[3:5])], node.output[0])
    return f"{op} between DequantizeLinear and QuantizeLinear instead of"


@restrict_to("MatMulInteger")
def _rewrite_integers(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    sides = []
    for k in (0, 1):
        wide = new.node("Cast", [node.input[k]], to=TensorProto.INT32)
        if zero := get_argument(node, 2 + k):
            # one per row, whose place depends on the rank
            if source.shape(zero) not in ([], [1]) and k == 0:
                return ""
            wide = new.node("Sub", [wide, new.node("Cast", [zero], to=TensorProto.INT32)])
        sides.append(wide)
    new.node("MatMul", sides, node.output[0])
    return "a MatMul of 32-bit integers instead of"


@restrict_to("MatMulNBits", domain=MICROSOFT)
def _rewrite_blocks(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    codes = source.value(node.input[1])
    scales = source.value(node.input[2])
    order = get_argument(node, 4)  # of the columns, g_idx
    if codes is None or scales is None or order:
        return ""
    zeros = source.value(get_argument(node, 3))
    if zeros is None and get_argument(node, 3):
        return ""
    weights = unpack_blocks(node, codes, scales, zeros)[0]
    bias = get_argument(node, 5)
    new.formula("Add(MatMul(x, w), bias)" if bias else "MatMul(x, w)", w=weights.T, bias=bias)
    return "a MatMul with the weights as real numbers instead of"


FORMS = [
    _rewrite_conv,
    restrict_to(*BINARY)(_rewrite_binary),
    restrict_to(*BINARY, domain=MICROSOFT)(_rewrite_binary),
    _rewrite_unary,
    _rewrite_integers,
    _rewrite_blocks,
]
