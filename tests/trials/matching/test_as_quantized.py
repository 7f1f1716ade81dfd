"""Weights of the reference's model that are taken as the candidate's model quantizes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.graph.graph import load
from subgraph.trials.matching.as_quantized import iter_useless, quantize_reference
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
    return quantize_reference(load(ours), load(theirs), folder / "new")[0].array("w")


SCALES = (np.abs(WEIGHT).max(0) / 127).astype(np.float32)
ZEROS = np.zeros(6, np.int8)


def test_a_scale_per_channel(tmp_path: Path) -> None:
    found = taken(tmp_path, DEQUANTIZED, c=codes(SCALES), s=SCALES, z=ZEROS)
    assert np.allclose(found, codes(SCALES) * SCALES, atol=1e-7)
    assert not np.array_equal(found, WEIGHT)


def test_a_weight_of_16_bits(tmp_path: Path) -> None:
    scale = SCALES / 256
    held = np.round(WEIGHT / scale).astype(np.int16)
    found = taken(tmp_path, DEQUANTIZED, opset=21, c=held, s=scale, z=ZEROS.astype(np.int16))
    assert np.allclose(found, held * scale, atol=1e-7)


def test_a_transposed_weight(tmp_path: Path) -> None:
    found = taken(tmp_path, TRANSPOSED, c=codes(SCALES).T, s=SCALES, z=ZEROS)
    assert np.allclose(found, codes(SCALES) * SCALES, atol=1e-7)


def test_a_transposed_weight_of_an_operator_that_reads_codes(tmp_path: Path) -> None:
    text = """g (uint8[1,8] x, float xs, uint8 xz) => (float[1,6] y) {
        y = com.microsoft.QGemm <transB = 1> (x, xs, xz, w_quantized, w_scale, w_zero_point) }"""
    names = {"w_quantized": codes(SCALES).T, "w_scale": SCALES, "w_zero_point": ZEROS}
    assert np.allclose(taken(tmp_path, text, **names), codes(SCALES) * SCALES, atol=1e-7)


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


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_weight_before_a_normalization(tmp_path: Path, is_folded: bool) -> None:
    """As it is, or as a tool folds the normalization into it before it quantizes."""
    weight = WEIGHT.reshape(8, 6, 1, 1)
    ones = np.ones(8, np.float32)
    factor = np.float32(3) * np.arange(1, 9, dtype=np.float32).reshape(8, 1, 1, 1)
    ours = """g (float[1,6,2,2] x) => (float[1,8,2,2] y) {
        c = Conv (x, w) y = BatchNormalization (c, g, h, h, v) }"""
    theirs = """g (float[1,6,2,2] x) => (float[1,8,2,2] y) {
        w2 = DequantizeLinear (q, s) c = Conv (x, w2) y = Relu (c) }"""
    scales = {"g": factor.reshape(-1), "h": 0 * ones, "v": ones}
    real = weight * factor if is_folded else weight
    step = np.float32(np.abs(real).max() / 127)
    codes_of_weight = np.round(real / step).astype(np.int8)
    mine = text_models.save(tmp_path / "m.onnx", ours, w=weight, **scales)
    other = text_models.save(tmp_path / "q.onnx", theirs, q=codes_of_weight, s=step)
    (tmp_path / "new").mkdir()
    graph, share = quantize_reference(load(mine), load(other), tmp_path / "new")
    values = codes_of_weight * step / (factor if is_folded else 1)
    taken_weight = graph.array("w")
    assert taken_weight is not None
    assert share == 1 and np.allclose(taken_weight, values, atol=1e-5)


def test_a_weight_whose_columns_are_lost_is_not_taken(tmp_path: Path) -> None:
    """One scale for columns of which the largest is a thousand times the smallest."""
    scaled = WEIGHT * np.logspace(0, 3, 6, dtype=np.float32)
    step = np.float32(np.abs(scaled).max() / 127)
    ours = text_models.save(tmp_path / "m.onnx", OURS, w=scaled)
    weights = {"c": np.round(scaled / step).astype(np.int8), "s": step, "z": np.int8(0)}
    theirs = text_models.save(tmp_path / "q.onnx", DEQUANTIZED, **weights)
    assert quantize_reference(load(ours), load(theirs), tmp_path)[1] == 0


def test_a_weight_with_a_dead_column_is_taken(tmp_path: Path) -> None:
    """Training leaves columns unused; no scale holds them beside the others."""
    weight = WEIGHT * np.array([1, 1, 1e-5, 1, 1, 1], np.float32)
    step = np.float32(np.abs(weight).max() / 127)
    ours = text_models.save(tmp_path / "m.onnx", OURS, w=weight)
    weights = {"c": np.round(weight / step).astype(np.int8), "s": step, "z": np.int8(0)}
    theirs = text_models.save(tmp_path / "q.onnx", DEQUANTIZED, **weights)
    assert quantize_reference(load(ours), load(theirs), tmp_path)[1] == 1


def test_text_and_single_numbers_are_no_weights(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) { w = DequantizeLinear (q, s) y = Add (x, w) }"
    held = {"q": np.arange(4, dtype=np.int8), "s": np.float32(1)}
    other = load(text_models.save(tmp_path / "other.onnx", text, opset=17, **held))
    texts = np.full(4, "a", dtype=object)
    constants = {"t": texts, "k": np.arange(4), "one": np.asarray(np.float32(3))}
    assert list(iter_useless(constants, other)) == []
