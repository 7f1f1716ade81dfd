"""Scales of quantized tensors: quantizing and back (covers `storage.scale`), and reading them from
nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from subgraph.graph.graph import load
from subgraph.graph.quantization import is_quantized, scales_of
from subgraph.storage.scale import Scale


@settings(max_examples=60)
@given(st.floats(1e-3, 10), st.integers(-128, 127), st.integers(0, 9))
def test_quantizing_and_back_stays_within_half_a_step(step: float, zero: int, seed: int) -> None:
    scale = Scale((step,), (zero,))
    value = (np.random.default_rng(seed).standard_normal((3, 7)) * step * 20).astype(np.float32)
    stored = scale.quantize(value, "int8")
    inside = (stored > -128) & (stored < 127)
    assert np.all(np.abs(scale.dequantize(stored) - value)[inside] <= step * 0.5001)
    clipped = scale.saturated(value, "int8")
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
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("MaxPool", ["q"], ["p"], kernel_shape=[1, 1]),
        helper.make_node("QuantizeLinear", ["x", "ss", "zz"], ["per"], axis=1),
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    weights = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.25]),
        helper.make_tensor("z", TensorProto.UINT8, [], [3]),
        helper.make_tensor("ss", TensorProto.FLOAT, [2], [0.5, 0.25]),
        helper.make_tensor("zz", TensorProto.INT8, [2], [0, -4]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2, 2, 2]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    plain = Scale((0.25,), (3,))
    assert scales_of(load(tmp_path / "m.onnx")) == {
        "q": plain,
        "p": plain,
        "per": Scale((0.5, 0.25), (0, -4)),
    }
    real = Scale((0.5, 0.25), (0, -4)).dequantize(
        np.array([[[2]], [[0]]], np.int8).reshape(1, 2, 1, 1)
    )
    assert real.reshape(-1).tolist() == [1.0, 1.0]


def test_scale_is_traced_back_from_where_values_are_dequantized(tmp_path: Path) -> None:
    """As tf2onnx writes an int8 model: its input is transposed before it is dequantized. Weights
    are no such values."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Concat", ["t", "t"], ["c"], axis=0),
        helper.make_node("Tile", ["c", "times"], ["u"]),
        helper.make_node("DequantizeLinear", ["u", "s", "z"], ["y"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"]),
        helper.make_node("MatMul", ["y", "v"], ["out"]),
    ]
    weights = [
        helper.make_tensor("s", TensorProto.FLOAT, [], [0.25]),
        helper.make_tensor("z", TensorProto.INT8, [], [3]),
        helper.make_tensor("times", TensorProto.INT64, [2], [1, 1]),
        helper.make_tensor("w", TensorProto.INT8, [2, 1], [1, 2]),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.INT8, [2, 2]),
        helper.make_tensor_value_info("out", TensorProto.FLOAT, [4, 1]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    assert scales_of(load(tmp_path / "m.onnx")) == {"u": (s := Scale((0.25,), (3,))), "c": s}
    nodes[1] = helper.make_node("Identity", ["t"], ["c"])
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    assert set(scales_of(load(tmp_path / "m.onnx"))) == {"u", "c", "t", "x"}
