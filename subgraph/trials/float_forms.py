"""Operators that quantize their inputs as they run, computed in float with the same weights.

A candidate may compute them so: it is nearer to the exact values than the reference is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from functools import partial

import numpy as np
from onnx import NodeProto, parser

from subgraph.comparison import MAX_KERNEL_ERROR
from subgraph.comparison.metrics import compute_norm
from subgraph.comparison.pair import compute_differences
from subgraph.graph import protobuf
from subgraph.graph.opsets import get_opset
from subgraph.runtime.run_result import Feeds
from subgraph.storage.tensors import find_largest
from subgraph.trials.judge import Judge
from subgraph.types import Array

DOMAIN = "subcut.float"
MICROSOFT = "com.microsoft"
IN_FLOAT = "it computes in float what the reference quantizes"
ROUNDINGS = 4  # of the claimed precision, as a share of the largest value
# Of an LSTM's weight i{weight}, of the shape (directions, inputs, 4 · hidden): it times its scale,
# as the standard operator has it.
LSTM_WEIGHT = """
    q{weight} = Cast<to = 1>(i{weight}) zero{weight} = Cast<to = 1>(i{zero})
    per{weight} = Constant<value = int64[3] {{0, 1, -1}}>()
    z{weight} = Reshape(zero{weight}, per{weight}) s{weight} = Reshape(i{scale}, per{weight})
    d{weight} = Sub(q{weight}, z{weight}) m{weight} = Mul(d{weight}, s{weight})
    w{weight} = Transpose<perm = [0, 2, 1]>(m{weight})"""


def _write_lstm(inputs: list[str], outputs: list[str]) -> str:
    weights = LSTM_WEIGHT.format(weight=1, scale=8, zero=9)
    weights += LSTM_WEIGHT.format(weight=2, scale=10, zero=11)
    read = [inputs[0], "w1", "w2", *inputs[3:8]]
    while read and not read[-1]:
        read.pop()
    return f"{weights} {', '.join(outputs)} = LSTM({', '.join(read)})"


def _write_matmul(inputs: list[str], outputs: list[str]) -> str:
    _, _, _, zero, bias, *_ = [*inputs, "", ""]
    lines = f"q = Cast<to = 1>(i1) z = Cast<to = 1>({zero}) d = Sub(q, z)"
    lines = lines if zero else "d = Cast<to = 1>(i1)"
    product = "p" if bias else outputs[0]
    lines += f" w = Mul(d, i2) {product} = MatMul(i0, w)"
    return lines + f" {outputs[0]} = Add(p, {bias})" * bool(bias)


# By operator: the body of a function of its inputs i0, i1 … and outputs o0, o1 …; "" is absent.
FORMS: Mapping[str, Callable[[list[str], list[str]], str]] = {
    "DynamicQuantizeLSTM": _write_lstm,
    "DynamicQuantizeMatMul": _write_matmul,
}


def is_in_float(judge: Judge, given: Feeds, names: Collection[str]) -> bool:
    """Return whether a candidate's outputs are those of the operators in float, element by element.

    Args:
        judge: The judge of the candidate.
        given: The candidate's outputs per sample.
        names: The outputs that count.

    Raises:
        SubcutError: The reference cannot run the model in float.
    """
    whole = judge.model.whole()
    if FORMS.keys().isdisjoint(judge.model.graph.ops[i] for i in whole.nodes):
        return False
    change = partial(call_functions, DOMAIN, _write_float)
    exact = judge.model.run_on_reference(whole, change=change)
    share = max(MAX_KERNEL_ERROR, ROUNDINGS * judge.precision.eps)
    pairs = zip(read_outputs(exact, names), read_outputs(given, names), strict=True)
    return all(_is_near(expected, values, share) for expected, values in pairs)


def _is_near(expected: Array, values: Array, share: float) -> bool:
    """Return whether no element deviates by more than a share of the largest, and no integer at
    all."""
    if expected.shape != values.shape or expected.dtype.kind not in "fV":
        return np.array_equal(expected, values)
    off = find_largest(compute_differences(expected, values))
    return off <= share * find_largest(expected.astype(np.float64))


def read_outputs(samples: Feeds, names: Collection[str]) -> list[Array]:
    """Return these tensors of all samples."""
    return [sample[name].array() for sample, name in itertools.product(samples, names)]


def measure_distance(expected: Array, given: Array) -> float:
    """Return the distance of an output; infinite if the shapes differ."""
    is_alike = expected.shape == given.shape
    if is_alike:
        return compute_norm(compute_differences(expected, given).reshape(-1))
    return math.inf


def _write_float(node: protobuf.NodeProto, name: str, opset: int) -> bytes | None:
    """Return the function that computes a node in float, and omit its absent tensors; None for
    other operators."""
    if node.op_type not in FORMS or node.domain != MICROSOFT:
        return None
    inputs = [f"i{i}" if name else "" for i, name in enumerate(node.input)]
    outputs = [f"o{i}" if name else "" for i, name in enumerate(node.output)]
    body = FORMS[node.op_type](inputs, outputs)
    given, returned = (", ".join(filter(None, names)) for names in (inputs, outputs))
    written = parser.parse_function(
        f'<opset_import: ["" : {opset}], domain: "{DOMAIN}"> {name} ({given}) => ({returned})'
        f" {{ {body} }}"
    )
    if node.op_type == "DynamicQuantizeLSTM":
        written.node[-1].attribute.extend(NodeProto.FromString(node.SerializeToString()).attribute)
    function: bytes = written.SerializeToString()
    for values in (node.input, node.output):
        used = [name for name in values if name]
        del values[:]
        values.extend(used)
    return function


def call_functions(
    domain: str,
    write: Callable[[protobuf.NodeProto, str, int], bytes | None],
    model: protobuf.ModelProto,
) -> None:
    """Let nodes of a model call functions in place of their operators.

    Args:
        domain: The domain of the functions.
        write: Returns the function of a node that gets this name, for an opset; None if the node
            stays.
        model: The model, which is changed.
    """
    opset = get_opset(model)
    for k, node in enumerate(model.graph.node):
        function = write(node, f"F{k}", opset)
        if function is not None:
            model.functions.add().MergeFromString(function)
            del node.attribute[:]
            node.op_type = f"F{k}"
            node.domain = domain
    model.opset_import.add(domain=domain, version=1)
    model.ir_version = max(model.ir_version, 8)  # before it there are no functions
