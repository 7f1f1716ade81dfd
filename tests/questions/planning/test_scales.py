"""A float model before it is lowered: the same outputs, from weights that are lowered better.

BatchNormalization goes into the weights of the Conv before it, and the sizes of channels into the
weights around them. `tests/inspection/test_overflow.py` has the scales for float16."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st

import subgraph
from fixtures import unequal
from subgraph.graph.graph import load
from subgraph.graph.region import prepare_graph
from subgraph.inspection.overflow import Scaling
from subgraph.questions.planning.scales import find_channel_exponents, fold_batch_norms, rescale
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from tests.helpers import text_models
from tests.helpers.examples import examples
from tests.helpers.runs import evaluate

NET = """
g (float[2, 4, 5, 5] x) => (float[2, 6, 5, 5] y) {
    [conv] c = Conv <group = 2, pads = [1, 1, 1, 1]> (x, w)
    [norm] n = BatchNormalization <epsilon = 0.01> (c, s, b, m, v)
    [relu] y = Relu (n)
}
"""
READ_TWICE = NET.replace("[relu] y = Relu (n)", "[relu] r = Relu (n) [more] y = Add (r, c)")


@pytest.fixture
def weights() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    drawn = {name: rng.normal(size=6).astype(np.float32) for name in "sbm"}
    w = rng.normal(size=(6, 2, 3, 3)).astype(np.float32)
    return {**drawn, "v": rng.uniform(0.5, 2, 6).astype(np.float32), "w": w}


def test_folded_model_gives_the_same(tmp_path: Path, weights: dict[str, Any]) -> None:
    text_models.save(tmp_path / "m.onnx", NET, **weights)
    folded = fold_batch_norms(prepare_graph(load(tmp_path / "m.onnx")), tmp_path / "folded")
    assert [node.name for node in folded.nodes] == ["conv", "relu"]
    x = np.random.default_rng(0).normal(size=(2, 4, 5, 5)).astype(np.float32)
    assert np.allclose(
        evaluate(folded.path, {"x": x})["y"],
        evaluate(tmp_path / "m.onnx", {"x": x})["y"],
        atol=1e-5,
    )


def test_conv_that_another_node_reads_is_left_as_it_is(
    tmp_path: Path, weights: dict[str, Any]
) -> None:
    text_models.save(tmp_path / "m.onnx", READ_TWICE, **weights)
    graph = prepare_graph(load(tmp_path / "m.onnx"))
    assert fold_batch_norms(graph, tmp_path / "folded") is graph


# ------------------------------------------------------------ channels

LARGE = 2.0**8  # the third channel of a tensor, next to the others
IMAGE = "g (float[2, 3, 6, 6] x) => (float[2, 5] y) {"
HEAD = "[flat] f = Flatten(r) [fc] y = Gemm<transB=1>(f, w9, b9) }"
STEM = "[stem] c = Conv<pads=[1,1,1,1]>(x, w1, b1)"
PLAIN = f"{IMAGE} {STEM} [relu] r = Relu(c) {HEAD}"
TOKENS = "g (float[2, 6, 4] x) => (float[2, 5] y) {"
NETS = {
    "a Relu and a Flatten": PLAIN,
    "a BatchNormalization before": f"""{IMAGE} [stem] i = Conv<pads=[1,1,1,1]>(x, w0)
        [norm] c = BatchNormalization(i, large, b1, mean, one) [relu] r = Relu(c) {HEAD}""",
    "a depthwise Conv": f"""{IMAGE} {STEM} [relu] d = PRelu(c, slope)
        [deep] e = Conv<pads=[1,1,1,1], group=4>(d, w2, b1) [leaky] r = LeakyRelu(e) {HEAD}""",
    "a residual block": f"""{IMAGE} {STEM} [relu] d = Relu(c)
        [one] e = Conv(d, w3, b3) [two] g = Conv(e, w4, b1) [add] a = Add(g, d)
        [max] r = MaxPool<kernel_shape=[1,1]>(a) {HEAD}""",
    "a ConvTranspose": f"""{IMAGE} {STEM} [up] e = ConvTranspose<group=2>(c, w5)
        [relu] r = Relu(e) [last] q = Conv(r, w3, b3) [pool] p = GlobalAveragePool(q)
        [flat] f = Flatten(p) [fc] y = Gemm<transB=1>(f, w6) }}""",
    "rows": """g (float[2, 3] x) => (float[2, 5] y) {
        [one] m = MatMul(x, w7) [bias] c = Add(m, b1) [relu] r = Relu(c)
        [two] y = MatMul(r, w8) }""",
    "a LayerNormalization": f"""{TOKENS} [norm] c = LayerNormalization<axis=-1>(x, large, b1)
        [two] m = MatMul(c, w8) [mean] y = ReduceMean<axes=[1], keepdims=0>(m) }}""",
    "tokens": f"""{TOKENS} [one] m = MatMul(x, w12) [bias] c = Add(m, b1) [max] r = Clip(c, zero)
        [pool] s = ReduceMean<axes=[1], keepdims=0>(r) [two] y = Gemm(s, w8) }}""",
    "an axis that moves": f"""{TOKENS} [one] m = MatMul(x, w12) [bias] c = Add(m, b1)
        [turn] t = Transpose<perm=[0,2,1]>(c) [wide] u = Unsqueeze(t, last)
        [pad] p = Pad(u, pads) [deep] d = Conv<group=4>(p, w13) [two] e = Conv(d, w3, b3)
        [drop] s = Squeeze(e, last) [back] g = Transpose<perm=[0,2,1]>(s)
        [first] h = Gather<axis=1>(g, zero64) [fc] y = Gemm<transB=1>(h, w6) }}""",
    "factors of channels": f"""{TOKENS} [one] m = Mul(x, large) [bias] c = Add(m, b1)
        [cat] q = Concat<axis=1>(c, token) [part] a, b = Split<axis=1>(q, parts)
        [sum] r = Sum(a, a) [two] u = MatMul(r, w8)
        [mean] y = ReduceMean<axes=[1], keepdims=0>(u) }}""",
}
RANDOM = np.random.default_rng(5)
CHANNEL = np.array([1, 1, LARGE, 1])


def draw(*shape: int, rows: Any = 1.0, columns: Any = 1.0) -> Any:
    """Weights, of which rows are multiplied by factors, and columns."""
    ends = [1] * (len(shape) - 2)
    value = RANDOM.normal(size=shape) * np.reshape(rows, (-1, 1, *ends))
    return (value * np.reshape(columns, (1, -1, *ends))).astype(np.float32)


WEIGHTS: dict[str, Any] = {
    "w0": draw(4, 3, 3, 3),
    "w1": draw(4, 3, 3, 3, rows=CHANNEL),
    "w2": draw(4, 1, 3, 3),
    "w3": draw(6, 4, 1, 1, columns=1 / CHANNEL),
    "w4": draw(4, 6, 1, 1, rows=CHANNEL),
    "w5": draw(4, 2, 1, 1, rows=1 / CHANNEL),
    "w6": draw(5, 6),
    "w7": draw(3, 4, columns=CHANNEL),
    "w8": draw(4, 5, rows=1 / CHANNEL),
    "w9": draw(5, 144, columns=np.repeat(1 / CHANNEL, 36)),
    "b1": (RANDOM.normal(size=4) * CHANNEL).astype(np.float32),
    "b3": draw(6, 1).ravel(),
    "b9": draw(5, 1).ravel(),
    "w12": draw(4, 4, columns=CHANNEL),
    "w13": draw(4, 1, 3, 1).repeat(1, 0),
    "token": draw(2, 1, 4) * CHANNEL.astype(np.float32),
    "zero": np.float32(0),
    "zero64": np.int64(0),
    "last": np.array([-1], np.int64),
    "parts": np.array([3, 4], np.int64),
    "pads": np.array([0, 0, 1, 0, 0, 0, 1, 0], np.int64),
    "large": CHANNEL.astype(np.float32),
    "mean": np.zeros(4, np.float32),
    "one": np.ones(4, np.float32),
    "slope": np.full((4, 1, 1), 0.1, np.float32),
}


def even_out(path: Path, x: Any, reference: Reference) -> tuple[dict[str, Any], Path]:
    """Return the exponents of the channels, and the scaled model."""
    np.save(path.with_name("x.npy"), x)
    graph = prepare_graph(load(path))
    feeding = Feeding((str(path.with_name("x.npy")),))
    samples = feeding.plan(graph, graph.inputs)
    values = ReferenceValues(graph, reference, samples, path.parent / "values")
    values.need([*graph.inputs, *graph.iter_outputs(graph.order)])
    inner = {name: r for name, r in values.records[0].items() if name not in graph.outputs}
    scaling = Scaling(graph, {name: record.shapes[0] for name, record in inner.items()})
    exponents = find_channel_exponents(values, scaling)
    made = rescale(scaling, exponents)
    assert not made.factors
    made.draft.save(path.with_name("scaled.onnx"))
    onnx.checker.check_model(str(path.with_name("scaled.onnx")), full_check=True)
    return exponents, path.with_name("scaled.onnx")


def save_net(folder: Path, text: str) -> tuple[Path, Any]:
    weights = {name: w for name, w in WEIGHTS.items() if f"{name}," in text or f"{name})" in text}
    x = RANDOM.normal(size=[*map(int, re.findall("\\d+", text.partition("x")[0]))])
    return text_models.save(folder / "m.onnx", text, **weights), x.astype(np.float32)


@pytest.mark.parametrize("text", NETS.values(), ids=NETS)
def test_large_channel_is_divided_and_the_outputs_are_equal(
    text: str, tmp_path: Path, reference: Reference
) -> None:
    path, x = save_net(tmp_path, text)
    exponents, scaled = even_out(path, x, reference)
    assert np.array_equal(evaluate(scaled, {"x": x})["y"], evaluate(path, {"x": x})["y"])
    relative = exponents["c"].ravel() - np.median(exponents["c"])
    assert relative.argmax() == 2 and 6 <= relative[2] <= 10
    assert "y" not in exponents


STOPS = {
    "a Concat": f"{IMAGE} {STEM} [cat] r = Concat<axis=1>(c, c) [q] q = Conv(r, w10) "
    "[flat] f = GlobalAveragePool(q) [shape] y = Flatten(f) }",
    "a Sigmoid": f"{IMAGE} {STEM} [end] r = Sigmoid(c) {HEAD}",
    "a Clip": f"{IMAGE} {STEM} [end] r = Clip(c, low, high) {HEAD}",
    "a Softmax of a branch": f"{IMAGE} {STEM} [a] s = Softmax(c) [b] r = Add(c, s) {HEAD}",
    "a product of two tensors": f"{IMAGE} {STEM} [mul] r = Mul(c, c) {HEAD}",
    "an output": f"{IMAGE} {STEM} [relu] r = Relu(c) {HEAD}".replace(
        "(float[2, 5] y)", "(float[2, 5] y, float[2, 4, 6, 6] c)"
    ),
    "an input that is added": f"{IMAGE} {STEM} [add] r = Add(c, z) {HEAD}".replace(
        "x)", "x, float[2, 4, 6, 6] z)", 1
    ),
    "an If that reads it": f"""{IMAGE} {STEM} [if] r = If (yes) <
        then_branch = t () => (float[2, 4, 6, 6] a) {{ a = Relu(c) }},
        else_branch = e () => (float[2, 4, 6, 6] b) {{ b = Neg(c) }}> {HEAD}""",
}


@pytest.mark.parametrize("text", STOPS.values(), ids=STOPS)
def test_tensor_whose_values_are_needed_is_not_scaled(
    text: str, tmp_path: Path, reference: Reference
) -> None:
    more = {
        "w10": draw(5, 8, 1, 1),
        "low": np.float32(0),
        "high": np.float32(6),
        "yes": np.bool_(True),
    }
    weights = {name: w for name, w in (WEIGHTS | more).items() if name in text}
    path = text_models.save(tmp_path / "m.onnx", text, **weights)
    x = RANDOM.normal(size=(2, 3, 6, 6)).astype(np.float32)
    assert even_out(path, x, reference)[0] == {}


def test_shared_weights_are_scaled_for_each_node(tmp_path: Path, reference: Reference) -> None:
    text = f"""{IMAGE} {STEM} [relu] d = Relu(c) [one] e = Conv(d, w11) [two] g = Conv(e, w11)
        [sig] h = Sigmoid(g) [pool] p = GlobalAveragePool(h) [flat] f = Flatten(p)
        [fc] y = MatMul(f, w8) }}"""
    weights = {name: WEIGHTS[name] for name in ("w1", "b1", "w8")}
    path = text_models.save(tmp_path / "m.onnx", text, **weights, w11=draw(4, 4, 1, 1))
    x = RANDOM.normal(size=(2, 3, 6, 6)).astype(np.float32)
    exponents, scaled = even_out(path, x, reference)
    assert "d" in exponents and "g" not in exponents
    used = {node.name: node.input for node in onnx.load(scaled).graph.node}
    assert used["one"][1] != used["two"][1]
    assert np.array_equal(evaluate(scaled, {"x": x})["y"], evaluate(path, {"x": x})["y"])


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_law_scaled_channels_keep_the_outputs(
    reference: Reference, tmp_path_factory: pytest.TempPathFactory, seed: int, planted: bool
) -> None:
    path = tmp_path_factory.mktemp("law") / "m.onnx"
    onnx.save(unequal.build(seed, planted=planted), path)
    x = unequal.draw_input(seed, 0)
    _, scaled = even_out(path, x, reference)
    expected = evaluate(path, {"x": x})["y"]
    assert np.allclose(evaluate(scaled, {"x": x})["y"], expected, rtol=1e-6, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "helps"), [(3, True), (104, False)])
def test_scales_are_kept_if_the_quantized_model_is_better(
    seed: int, helps: bool, tmp_path: Path
) -> None:
    onnx.save(unequal.build(seed), tmp_path / "m.onnx")
    inputs = [unequal.draw_input(seed, k) for k in range(4)]
    arguments: dict[str, Any] = {"to": "int8", "inputs": inputs, "score": "sqnr", "at_least": 20}
    found = subgraph.plan(tmp_path / "m.onnx", rescale=True, output=tmp_path / "out", **arguments)
    scales = found.result.scales
    assert scales and scales.noise and scales.difference == 0
    assert (scales.noise[1] < scales.noise[0]) is helps
    assert bool(scales.tensors) is helps and (scales.model is not None) is helps
    assert any("no scale helps" in note for note in found.notes) is not helps
    assert all(max(tensor.channels) == tensor.exponent for tensor in scales.tensors)
    before = subgraph.plan(tmp_path / "m.onnx", output=tmp_path / "before", **arguments)
    assert any("--rescale" in note for note in before.notes) is helps
    after = found.result.score
    assert after and after.as_it_is is not None
    first = before.result.score
    assert first and first.as_it_is is not None
    assert (after.as_it_is > first.as_it_is + 10) is helps
