"""Weights of the reference's model that are taken as the candidate's model quantizes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.graph.graph import load
from subgraph.trials.matching.as_quantized import quantize_reference
from tests.helpers import text_models

WEIGHT = np.random.default_rng(3).standard_normal((8, 6)).astype(np.float32)
OURS = "g (float[1,8] x) => (float[1,6] y) { y = MatMul (x, w) }"
DEQUANTIZED = """g (float[1,8] x) => (float[1,6] y) {
    v = DequantizeLinear <axis = 1> (c, s, z) y = MatMul (x, v) }"""
TRANSPOSED = """g (float[1,8] x) => (float[1,6] y) {
    v = DequantizeLinear <axis = 0> (c, s, z) y = Gemm <transB = 1> (x, v) }"""
INTEGER = """g (float[1,8] x) => (float[1,6] y) {
    q, a, b = DynamicQuantizeLinear (x) i = MatMulInteger (q, w_quantized, b, w_zero_point)
    f = Cast <to = 1> (i) m = Mul (a, w_scale) y = Mul (f, m) }"""


def codes(scale: Any) -> Any:
    return np.round(WEIGHT / scale).astype(np.int8)


def taken(folder: Path, text: str, opset: int = 17, **constants: Any) -> Any:
    """The reference's weight, if a candidate's model has this text and these constants."""
    ours = text_models.save(folder / "m.onnx", OURS, w=WEIGHT)
    theirs = text_models.save(folder / "q.onnx", text, opset=opset, **constants)
    (folder / "new").mkdir()
    return quantize_reference(load(ours), load(theirs), folder / "new").graph.array("w")


SCALES = (np.abs(WEIGHT).max(0) / 127).astype(np.float32)
ZEROS = np.zeros(6, np.int8)


def test_a_scale_per_channel(tmp_path: Path) -> None:
    found = taken(tmp_path, DEQUANTIZED, c=codes(SCALES), s=SCALES, z=ZEROS)
    assert np.allclose(found, codes(SCALES) * SCALES, atol=1e-7)
    assert not np.array_equal(found, WEIGHT)


def test_a_transposed_weight(tmp_path: Path) -> None:
    found = taken(tmp_path, TRANSPOSED, c=codes(SCALES).T, s=SCALES, z=ZEROS)
    assert np.allclose(found, codes(SCALES) * SCALES, atol=1e-7)


def test_a_weight_of_dynamic_quantization(tmp_path: Path) -> None:
    scale = np.float32(np.abs(WEIGHT).max() / 127)
    names = {"w_quantized": codes(scale), "w_scale": scale, "w_zero_point": np.int8(0)}
    assert np.allclose(taken(tmp_path, INTEGER, **names), codes(scale) * scale, atol=1e-7)


def test_scales_in_blocks(tmp_path: Path) -> None:
    scale = (np.abs(WEIGHT).reshape(2, 4, 6).max(1) / 127).astype(np.float32)
    steps = np.repeat(scale, 4, 0)
    text = DEQUANTIZED.replace("axis = 1", "axis = 0, block_size = 4").replace(", z)", ")")
    found = taken(tmp_path, text, opset=21, c=codes(steps), s=scale)
    assert np.allclose(found, codes(steps) * steps, atol=1e-7)


@pytest.mark.parametrize("factor", [np.roll(SCALES, 1) / SCALES, 40 * np.ones(6, np.float32)])
def test_a_wrong_scale_takes_nothing(tmp_path: Path, factor: Any) -> None:
    """Nor does one so coarse that any weight would be near its codes."""
    scales = SCALES * factor.astype(np.float32)
    written = codes(scales) if factor.min() > 1 else codes(SCALES)
    found = taken(tmp_path, DEQUANTIZED, c=written, s=scales, z=ZEROS)
    assert np.array_equal(found, WEIGHT)


def test_one_wrong_element_remains(tmp_path: Path) -> None:
    wrong = codes(SCALES)
    wrong[2, 3] += 50
    found = taken(tmp_path, DEQUANTIZED, c=wrong, s=SCALES, z=ZEROS)
    assert found[2, 3] == WEIGHT[2, 3]
    assert (found != WEIGHT).mean() > 0.8
