"""Scales of quantized tensors: quantizing and back (covers `storage.scale`), and reading them from
nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from subgraph.graph.quantization import find_squashed, find_tensor_scales, is_quantized
from subgraph.storage.dtypes import Scale
from tests.helpers import text_models


@settings(max_examples=60)
@given(st.floats(1e-3, 10), st.integers(-128, 127), st.integers(0, 9))
def test_quantizing_and_back_stays_within_half_a_step(step: float, zero: int, seed: int) -> None:
    scale = Scale((step,), (zero,))
    value = (np.random.default_rng(seed).standard_normal((3, 7)) * step * 20).astype(np.float32)
    stored = scale.quantize(value, "int8")
    inside = (stored > -128) & (stored < 127)
    assert np.all(np.abs(scale.dequantize(stored) - value)[inside] <= step * 0.5001)
    clipped = scale.compute_saturated_share(value, "int8")
    assert clipped <= 1 - inside.mean() and (clipped == 0) <= bool(
        np.abs(scale.dequantize(stored) - value).max() <= step
    )


QUANTIZED = "QuantizeLinear QLinearConv QGemm DynamicQuantizeLinear DynamicQuantizeLSTM MatMulInteger".split()  # noqa: E501


@pytest.mark.parametrize("op", QUANTIZED)
def test_model_that_quantizes_as_it_runs_is_quantized(op: str) -> None:
    assert is_quantized(["Add", op])
    assert not is_quantized(["Add", "Conv", "LSTM"])


def test_scales_are_read_from_the_nodes(tmp_path: Path) -> None:
    """Of QuantizeLinear, per tensor and per channel, and of an operator that passes quantized
    values on."""
    text = """g (float[1,2,2,2] x) => (float[1,2,2,2] y)
    <float s = {0.25}, uint8 z = {3}, float[2] ss = {0.5, 0.25}, int8[2] zz = {0, -4}> {
        q = QuantizeLinear(x, s, z)
        p = MaxPool<kernel_shape = [1, 1]>(q)
        per = QuantizeLinear<axis = 1>(x, ss, zz)
        y = DequantizeLinear(p, s, z)
    }"""
    plain = Scale((0.25,), (3,))
    assert find_tensor_scales(text_models.load(tmp_path, text)) == {
        "q": plain,
        "p": plain,
        "per": Scale((0.5, 0.25), (0, -4)),
    }
    real = Scale((0.5, 0.25), (0, -4)).dequantize(
        np.array([[[2]], [[0]]], np.int8).reshape(1, 2, 1, 1)
    )
    assert real.reshape(-1).tolist() == [1.0, 1.0]


TRACED = """g (int8[2,2] x) => (float[4,1] out)
<float s = {0.25}, int8 z = {3}, int64[2] times = {1, 1}, int8[2,1] w = {1, 2}> {
    t = Transpose<perm = [1, 0]>(x)
    c = CONCAT
    u = Tile(c, times)
    y = DequantizeLinear(u, s, z)
    v = DequantizeLinear(w, s, z)
    out = MatMul(y, v)
}"""


@pytest.mark.parametrize(
    ("node", "traced"), [("Concat<axis = 0>(t, t)", "u c"), ("Identity(t)", "u c t x")]
)
def test_scale_is_traced_back_from_where_values_are_dequantized(
    node: str, traced: str, tmp_path: Path
) -> None:
    """As tf2onnx writes an int8 model: its input is transposed before it is dequantized. Weights
    are no such values."""
    graph = text_models.load(tmp_path, TRACED.replace("CONCAT", node))
    assert find_tensor_scales(graph) == dict.fromkeys(traced.split(), Scale((0.25,), (3,)))


@pytest.mark.parametrize(("readers", "step"), [("y = Neg(a)", 0.5), ("y = Add(a, b)", 0.25)])
def test_scale_of_codes_is_the_one_that_all_readers_take(
    readers: str, step: float, tmp_path: Path
) -> None:
    """Codes of the step 0.25: read with 0.5 alone, or with 0.75 as well."""
    text = f"""g (float[2] x) => (float[2] y)
    <float s = {{0.25}}, float t = {{0.5}}, float u = {{0.75}}> {{
        q = QuantizeLinear(x, s)
        a = DequantizeLinear(q, t)
        {"b = DequantizeLinear(q, u)" * ("b" in readers)}
        {readers}
    }}"""
    assert find_tensor_scales(text_models.load(tmp_path, text))["q"] == Scale((step,), (0,))


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("h = Relu(x) y = Softmax(h)", ["h"]),
        ("h = Relu(x) p = Sigmoid(h) q = Transpose(p) y = Identity(q)", ["h"]),
        (
            "h = Relu(x) a = ReduceMax(h) b = Sub(h, a) c = Exp(b) d = ReduceSum(c) y = Div(c, d)",
            ["h"],
        ),
        ("h = Relu(x) a = Neg(h) b = Exp(a) c = Add(b, one) y = Div(one, c)", ["h"]),
        ("h = Softmax(x) y = MatMul(h, w)", []),
        ("y = Relu(x)", []),
        ("h = Relu(x) a = Exp(h) y = Add(a, h)", []),
        ("y = Softmax(x)", []),  # the model's input needs no look
        ("h = Neg(x) a = Tanh(h) b = Abs(x) c = Sigmoid(b) y = Concat<axis=0>(a, c)", ["h", "b"]),
    ],
)
def test_inputs_of_squashing_operators_are_found(
    nodes: str, found: list[str], tmp_path: Path
) -> None:
    weights = {"one": np.ones((1,), np.float32), "w": np.ones((4, 4), np.float32)}
    used: dict[str, Any] = {
        name: weights[name] for name in weights.keys() & re.findall(r"\w+", nodes)
    }
    graph = text_models.load(
        tmp_path, f"g (float[4, 4] x) => (float[A, B] y) {{ {nodes} }}", **used
    )
    assert find_squashed(graph, graph.outputs) == found
