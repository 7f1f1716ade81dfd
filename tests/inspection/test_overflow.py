"""Tensors that leave a precision, the powers of two that bring them back, and the proof.

Covers `inspection.overflow`, `questions.planning.scales`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from subgraph.graph.graph import Graph, load
from subgraph.graph.shape_inference import infer_types
from subgraph.inspection.overflow import Overflow, TroubleKind
from subgraph.inspection.ranges import measure
from subgraph.precision import Precision
from subgraph.questions.planning.lower import lower_model
from subgraph.questions.planning.places import round_nodes
from subgraph.questions.planning.scales import rescale
from subgraph.runtime.inputs import Feeding
from tests.helpers import text_models
from tests.helpers.runs import evaluate

RNG = np.random.default_rng(0)
F = np.float32
IMAGE = RNG.normal(size=(1, 3, 8, 8)).astype(F)
ROWS = RNG.normal(size=(2, 64)).astype(F)
CONV = """g (float[1,3,8,8] x) => (float[1,4] y) {
    [first] a = Conv<pads=[1,1,1,1]>(x, w1, b1) [relu] b = Relu(a) [second] c = Conv(b, w2)
    [pool] d = GlobalAveragePool(c) [flat] y = Flatten(d) }"""
CONV_WEIGHTS: dict[str, Any] = {
    "w1": (RNG.normal(size=(8, 3, 3, 3)) * 1e4).astype(F),
    "b1": (RNG.normal(size=8) * 1e3).astype(F),
    "w2": (RNG.normal(size=(4, 8, 1, 1)) * 1e-4).astype(F),
}
NORM = """g (float[2,64] x) => (float[2,4] y) {
    [mean] m = ReduceMean<axes=[-1]>(x) [sub] d = Sub(x, m) [sq] q = Pow(d, two)
    [var] v = ReduceMean<axes=[-1]>(q) [eps] e = Add(v, epsilon) [root] s = Sqrt(e)
    [div] n = Div(d, s) [gamma] g = Mul(n, gm) [fc] y = MatMul(g, w) }"""
NORM_WEIGHTS: dict[str, Any] = {
    "two": F(2),
    "gm": RNG.normal(size=64).astype(F),
    "w": RNG.normal(size=(64, 4)).astype(F),
}
STREAM = """g (float[2,64] x) => (float[2,4] y) {
    [up] a = MatMul(x, w1) [norm] h = LayerNormalization<axis=-1>(a, gm) [f] u = MatMul(h, w2)
    [add] z = Add(a, u) [last] k = LayerNormalization<axis=-1>(z, gm) [fc] y = MatMul(k, w) }"""
STREAM_WEIGHTS: dict[str, Any] = {
    **{name: NORM_WEIGHTS[name] for name in ("gm", "w")},
    "w1": (RNG.normal(size=(64, 64)) * 2e4).astype(F),
    "w2": RNG.normal(size=(64, 64)).astype(F),
}
# Both factors of the product are beyond float16, and the product more so.
SCORES = """g (float[2,64] x) => (float[2,2] y) {
    [q] q = MatMul(x, w1) [k] k = MatMul(x, w1) [kt] t = Transpose(k) [qk] s = MatMul(q, t)
    [small] m = Mul(s, tiny) [soft] y = Softmax<axis=-1>(m) }"""
SCORES_WEIGHTS: dict[str, Any] = {"w1": STREAM_WEIGHTS["w1"], "tiny": F(1e-13)}
MASK = """g (float[1,2,6,8] x, float[1,6] mask) => (float[1,2,6,8] y) {
    [kt] k = Transpose<perm=[0,1,3,2]>(x) [qk] s = MatMul(x, k) [sub] i = Sub(one, mask)
    [mul] big = Mul(i, large) [un] wide = Unsqueeze(big, axes) [add] t = Add(s, wide)
    [soft] p = Softmax<axis=-1>(t) [pv] y = MatMul(p, x) }"""
HEADS = RNG.normal(size=(1, 2, 6, 8)).astype(F)
KEPT = np.array([[1, 1, 1, 1, 0, 0]], F)


def find(
    folder: Path, graph: Graph, feeds: dict[str, Any], precision: Precision = Precision.FP16
) -> Overflow:
    words = []
    for name, value in feeds.items():
        np.save(folder / f"{name}.npy", value)
        words.append(f"{name}={folder / name}.npy")
    names = list(graph.iter_outputs(range(len(graph.nodes))))
    measured = measure(graph, names, Feeding(tuple(words)), infer_types(graph))
    return Overflow(graph, measured, precision)


def exponents(found: Overflow) -> dict[str, int | None]:
    return {trouble.tensor: trouble.exponent for trouble in found.troubles}


def run_rounded(path: Path, x: Any) -> Any:
    """The output of a model that rounds its values to float16 at each node, by onnxruntime."""
    graph = load(path)
    twin = round_nodes(graph, Precision.FP16)
    how = {read: twin.make_lowering(read) for read in twin.reads(graph)}
    lower_model(graph, how, simulated=True).save(path.with_name("rounded.onnx"))
    return evaluate(path.with_name("rounded.onnx"), {"x": x})["y"]


def run_in_float16(path: Path, x: Any) -> Any:
    """The output of a model whose weights and input are float16, as numpy computes it."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            value = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    outputs: Any = ReferenceEvaluator(model).run(None, {"x": x.astype(np.float16)})
    return outputs[0]


VANISHES = NORM_WEIGHTS | {"epsilon": F(1e-12)}
GROWS = NORM_WEIGHTS | {"epsilon": F(1e-6)}


@pytest.mark.parametrize(
    ("text", "weights", "x", "cured", "factors"),
    [
        (CONV, CONV_WEIGHTS, IMAGE, {"a": 5, "b": 5}, 0),
        (NORM, VANISHES, ROWS * F(1e-4), {"e": -26}, 1),
        (NORM, GROWS, ROWS * F(900), {"q": 12, "v": 12, "e": 12}, 1),
        (STREAM, STREAM_WEIGHTS, ROWS, {"a": 7, "z": 7}, 0),
        (SCORES, SCORES_WEIGHTS, ROWS, {"q": 29, "k": 7, "t": 7, "s": 29}, 1),
    ],
    ids=[
        "activations",
        "a variance that vanishes",
        "squares of a norm",
        "a stream of residuals",
        "both factors of a product",
    ],
)
def test_a_power_of_two_in_the_weights_cures_it(
    tmp_path: Path, text: str, weights: Any, x: Any, cured: Any, factors: int
) -> None:
    graph = text_models.load(tmp_path, text, **weights)
    found = find(tmp_path, graph, {"x": x})
    assert exponents(found) == cured
    made = rescale(found.scaling, found.exponents)
    made.draft.save(tmp_path / "scaled.onnx")
    assert len(made.factors) == factors
    onnx.checker.check_model(onnx.load(tmp_path / "scaled.onnx"), full_check=True)
    expected = evaluate(graph.path, {"x": x})["y"]
    assert np.array_equal(evaluate(tmp_path / "scaled.onnx", {"x": x})["y"], expected)
    again = find(tmp_path, load(tmp_path / "scaled.onnx"), {"x": x})
    assert not again.troubles
    judges = [run_rounded] if text in (STREAM, SCORES) else [run_rounded, run_in_float16]
    scale = np.abs(expected).max()
    for judge in judges:
        with np.errstate(all="ignore"):
            before, after = [judge(path, x) for path in (graph.path, tmp_path / "scaled.onnx")]
        assert not np.abs(before - expected).max() < 0.05 * scale
        assert np.abs(after - expected).max() < 0.02 * scale


NO_WEIGHT_BEFORE = "g (float[1,8] x) => (float[1,8] y) { [e] a = Exp(x) [m] y = Mul(a, w) }"
AN_OUTPUT = "g (float[1,8] x) => (float[1,8] y) { [e] y = Exp(x) }"
READ_AS_IT_IS = "g (float[1,8] x) => (float[1,8] y) { [m] a = Mul(x, w) [t] y = Sin(a) }"


@pytest.mark.parametrize(
    ("text", "weights"),
    [(NO_WEIGHT_BEFORE, {"w": F(1e-6)}), (AN_OUTPUT, {}), (READ_AS_IT_IS, {"w": F(6e4)})],
)
def test_a_tensor_without_a_cure_has_no_exponent(tmp_path: Path, text: str, weights: Any) -> None:
    graph = text_models.load(tmp_path, text, **weights)
    found = find(tmp_path, graph, {"x": np.full((1, 8), 13, F)})
    assert [t.kind for t in found.troubles] == [TroubleKind.OVERFLOW]
    assert exponents(found).popitem()[1] is None
    assert not found.exponents


def test_a_mask_is_large_on_purpose(tmp_path: Path) -> None:
    weights: dict[str, Any] = {"one": F(1), "large": F(-1e9), "axes": np.array([1, 2], np.int64)}
    found = find(tmp_path, text_models.load(tmp_path, MASK, **weights), {"x": HEADS, "mask": KEPT})
    assert {t.tensor: t.kind for t in found.troubles} == dict.fromkeys(
        ("big", "wide", "t"), TroubleKind.MASK
    )
    assert not found.exponents


def test_large_scores_without_a_mask_are_no_mask(tmp_path: Path) -> None:
    weights: dict[str, Any] = {"one": F(1), "large": F(-10), "axes": np.array([1, 2], np.int64)}
    feeds = {"x": HEADS * F(300), "mask": KEPT}
    found = find(tmp_path, text_models.load(tmp_path, MASK, **weights), feeds)
    assert {t.kind for t in found.troubles} == {TroubleKind.OVERFLOW}


@pytest.mark.parametrize(("end", "count"), [("Tanh", 0), ("Relu", 2)])
def test_infinity_is_as_right_as_a_large_number(tmp_path: Path, end: str, count: int) -> None:
    text = f"g (float[1,8] x) => (float[1,8] y) {{ [m] a = Mul(x, w) [end] y = {end}(a) }}"
    graph = text_models.load(tmp_path, text, w=F(6e4))
    found = find(tmp_path, graph, {"x": np.full((1, 8), 13, F)})
    assert len(found.troubles) == count


def test_a_variance_under_a_larger_epsilon_is_no_trouble(tmp_path: Path) -> None:
    graph = text_models.load(tmp_path, NORM, **NORM_WEIGHTS, epsilon=F(1e-5))
    assert not find(tmp_path, graph, {"x": ROWS * F(1e-4)}).troubles


def test_the_root_of_a_small_power_is_no_trouble(tmp_path: Path) -> None:
    """The magnitudes of a spectrum: a root of zero divides nothing."""
    text = """g (float[1,8] x) => (float[1,8] y) {
        [sq] q = Mul(x, x) [root] r = Sqrt(q) [y] y = Neg(r) }"""
    x = np.linspace(1e-5, 1, 8, dtype=F).reshape(1, 8)
    assert not find(tmp_path, text_models.load(tmp_path, text), {"x": x}).troubles


def test_nothing_leaves_bfloat16(tmp_path: Path) -> None:
    graph = text_models.load(tmp_path, CONV, **CONV_WEIGHTS)
    assert not find(tmp_path, graph, {"x": IMAGE}, Precision.BF16).troubles
