"""Elementwise operators by others: a power as a product, a division by a reciprocal."""

from __future__ import annotations

from functools import reduce

import numpy as np
from onnx import NodeProto, TensorProto

from subgraph.graph.nested import get_attribute
from subgraph.graph.rewrites._region_model import (
    FLOATS,
    RegionModel,
    Substitution,
    get_argument,
    make_formula_form,
    restrict_to,
)
from subgraph.types import JsonObject

BITS: dict[int, int] = {TensorProto.UINT8: 8, TensorProto.UINT16: 16, TensorProto.UINT32: 32}
SIGNED_BITS: dict[int, int] = {TensorProto.INT8: 8, TensorProto.INT16: 16, TensorProto.INT32: 32}
INTEGER_POWERS = range(4, 64)  # of integers, which products keep to the last bit
TANH = "Sub(Mul(Sigmoid(Mul(x, 2)), 2), 1)"
SIGMOID = "Div(1, Add(Exp(Neg(x)), 1))"
SATURATED = {"Tanh": 20.0, "Sigmoid": 80.0, "Erf": 8.0}  # |x| from which float32 is at its limit


@restrict_to("Pow")
def _rewrite_square(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    x = node.input[0]
    exponent = source.value(node.input[1])
    if exponent is None or exponent.size != 1 or exponent.ndim > (source.rank(x) or 0):
        return ""
    is_float = source.element(x) in FLOATS
    number = float(exponent.reshape(-1)[0].astype(np.float64))
    if number == 2:
        new.formula("Mul(x, x)")
        return "a Mul with itself instead of"
    if number == 3:
        new.formula("Mul(x, Mul(x, x))")
        return "two Mul instead of"
    if number in INTEGER_POWERS and not is_float:
        powers = [x]
        while 2 ** len(powers) <= number:
            powers.append(new.node("Mul", [powers[-1], powers[-1]]))
        factors = [power for k, power in enumerate(powers) if int(number) >> k & 1]
        product = reduce(lambda a, b: new.node("Mul", [a, b]), factors)
        new.formula("Identity(product)", product=product)
        return "Mul of squares instead of"
    if number == 0.5 and is_float:
        new.formula("Sqrt(x)")
        return "a Sqrt instead of"
    return ""


@restrict_to("Pow")
def _rewrite_float_power(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    """Rewrite a power of two types, or of integers: a runtime may compute both in float32."""
    base, exponent = map(source.element, node.input)
    if not base or (base == exponent and base in FLOATS):
        return ""
    wide = "Pow(Cast(x, to=double), Cast(y, to=double))"
    new.formula(f"Cast({wide}, to=base)", base=base, double=TensorProto.DOUBLE)
    return "a Pow of float64 instead of"


@restrict_to(*SATURATED)
def _rewrite_saturated(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    x = node.input[0]
    if source.element(x) not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        return ""
    limit = SATURATED[node.op_type]
    if new.opset < 11:
        clipped = new.node("Clip", [x], min=-limit, max=limit)
    else:
        bounds = [new.weight(bound, source.element(x)) for bound in (-limit, limit)]
        clipped = new.node("Clip", [x, *bounds])
    new.node(node.op_type, [clipped], node.output[0])
    return f"a Clip to -{limit:g} … {limit:g}, beyond which nothing changes, before"


@restrict_to("Add", floats=True)
def _rewrite_add(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    for k, name in enumerate(node.input):
        value = source.value(name)
        if value is not None:
            new.formula("Sub(other, value)", other=node.input[1 - k], value=-value)
            return "a Sub of the negative constant instead of"
    return ""


@restrict_to("Div", floats=True)
def _rewrite_constant_divisor(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    divisor = source.value(node.input[1])
    if divisor is None or not np.all(divisor):
        return ""
    new.formula("Mul(x, inverse)", inverse=1 / divisor.astype(np.float64))
    return "a Mul with the constant's reciprocal instead of"


@restrict_to("Div", floats=True)
def _rewrite_reciprocal(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    if source.value(node.input[1]) is not None:
        return ""
    new.formula("Mul(x, Reciprocal(y))")
    return "a Mul with the Reciprocal instead of"


@restrict_to("LeakyRelu", "PRelu", floats=True)
def _rewrite_where(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    slope = get_argument(node, 1) or get_attribute(node, "alpha", 0.01)
    new.formula("Where(Less(x, 0), Mul(x, slope), x)", slope=slope)
    return "a Where instead of"


@restrict_to("Relu", "Clip")
def _rewrite_maximum(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    x = node.input[0]
    element = source.element(x)
    if node.op_type == "Relu":
        bounds = [new.weight(0, element) if element else "", ""]
    elif new.opset >= 11:
        bounds = [get_argument(node, 1), get_argument(node, 2)]
    else:
        limits = (get_attribute(node, "min"), get_attribute(node, "max"))
        bounds = ["" if limit is None else new.weight(limit, element) for limit in limits]
    steps = [(op, bound) for op, bound in zip(("Max", "Min"), bounds, strict=True) if bound]
    for op, bound in steps:
        x = new.node(op, [x, bound], node.output[0] if (op, bound) == steps[-1] else "")
    if not steps:
        return ""
    if node.op_type == "Relu":
        return "a Max or Min instead of"
    return "Max and Min instead of"


@restrict_to("Mod", floats=True)
def _rewrite_remainder(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    """Rewrite a remainder, which has the sign of the divisor, or with `fmod` that of the
    dividend."""
    signed = "Mul(Mod(Abs(x), Abs(y), fmod=1), Sign(x))"
    if get_attribute(node, "fmod", 0):
        new.formula(signed)
        return "a Mod of absolute values and the dividend's sign instead of"
    new.formula("Where(Less(Mul(r, y), 0), Add(r, y), r)", r=new.formula(signed, ""))
    return "a Mod with fmod=1, and the divisor's sign, instead of"


@restrict_to("BitShift")
def _rewrite_shift(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    """Compute in int64, which holds each product of up to 32 bits.

    A shift by more bits than the type has leaves 0 or the sign.
    """
    element = source.element(node.input[0])
    signed = element in SIGNED_BITS
    bits = BITS.get(element) or SIGNED_BITS.get(element)
    if not bits:
        return ""
    numbers = {"zero": 0, "most": bits, "half": 2 ** (bits - 1) if signed else 0, "size": 2**bits}
    constants: JsonObject = {k: new.weight(np.int64(number)) for k, number in numbers.items()}
    constants |= {"powers": new.weight(2 ** np.arange(bits + 1)), "wide": TensorProto.INT64}
    constants["a"] = new.formula("Cast(x, to=wide)", "", **constants)
    constants["p"] = new.formula(
        "Gather(powers, Max(Min(Cast(y, to=wide), most), zero))", "", **constants
    )
    if get_attribute(node, "direction") == "RIGHT":
        new.formula("Cast(Div(Sub(a, Mod(a, p)), p), to=own)", own=element, **constants)
        return "a Div by a power of two instead of"
    new.formula(
        "Cast(Sub(Mod(Add(Mul(a, p), half), size), half), to=own)", own=element, **constants
    )
    return "a Mul with a power of two instead of"


FORMS = [
    _rewrite_square,
    _rewrite_float_power,
    restrict_to("Sqrt")(make_formula_form("Pow(x, 0.5)", "a Pow with 0.5 instead of")),
    _rewrite_saturated,
    restrict_to("Tanh", floats=True)(make_formula_form(TANH, "2·Sigmoid(2x) - 1 instead of")),
    restrict_to("Sigmoid", floats=True)(make_formula_form(SIGMOID, "1 / (1 + Exp(-x)) instead of")),
    restrict_to("Sub", floats=True)(
        make_formula_form("Add(x, Neg(y))", "an Add of the negative instead of")
    ),
    _rewrite_add,
    _rewrite_constant_divisor,
    _rewrite_reciprocal,
    _rewrite_where,
    _rewrite_maximum,
    _rewrite_remainder,
    _rewrite_shift,
]
