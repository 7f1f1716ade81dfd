"""What noise must not do: make NaN, move what is exact, miss bodies or underflow.

Covers `comparison.noise.instrument` and `comparison.noise.element_types`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

from subgraph.comparison.noise.instrument import find_element_types
from subgraph.errors import ModelError
from subgraph.precision import Precision
from subgraph.verdict import Status
from tests.helpers.captured_region import Make, f32, largest_deviation, normal
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

FP32 = Precision.FP32
FP16 = Precision.FP16
BF16 = Precision.BF16
INT8 = Precision.INT8

Array = np.ndarray[Any, Any]
LOOP = """g (float[16] x, int64 n, bool c) => (float[16] y) {
    y = Loop (n, c, x) <body = b (int64 i, bool go, float[16] v) => (bool on, float[16] o) {
        on = Identity(go) e = Mul(v, half) o = Tanh(e) }> }"""
SCAN = """g (float[5,16] x) => (float[16] s, float[5,16] y) {
    z = Constant <value_floats = [0.0]> () n = Constant <value_ints = [16]> () h = Expand(z, n)
    s, y = Scan <num_scan_inputs = 1, body = b (float[16] a, float[16] v) => (float[16] k, float[16] o) {
        t = Add(a, v) k = Tanh(t) o = Exp(k) }> (h, x) }"""  # noqa: E501
IF = """g (float[8,16] x, bool c) => (float[8,16] y) {
    y = If (c) <then_branch = t () => (float[8,16] p) { a = MatMul(x, w) q = Mul(a, a) p = Softmax(q) },
                else_branch = e () => (float[8,16] r) { r = Identity(x) }> }"""  # noqa: E501


# ------------------------------------------------------------ NaN


def test_no_value_becomes_negative_under_a_root(make: Make) -> None:
    """x + (−x) + |…|: tiny sums, and a shift from unperturbed values could push one below zero."""
    text = (
        "g (float[256] x) => (float[256] y) { a = Mul(x, x) b = Sub(a, a) c = Add(b, tiny) y ="
        " Sqrt(c) }"
    )
    captured = make(text, {"x": 100 * normal(256)}, tiny=f32([1e-7]))
    for claim in (FP32, FP16, BF16, INT8):
        assert all(
            np.isfinite(v).all() for v in captured.noise.get_output("y").perturb(claim, 4)
        ), claim


CANCELS = (
    "g (float[4] x) => (float[4] y) { a = Exp(x) b = Exp(x) c = Sub(a, b) d = Add(c, small) y ="
    " Log(d) }"
)


def test_draw_with_nan_is_void_and_drawn_again(make: Make) -> None:
    """The difference of two equal values is perturbed to either sign: half of the draws have a
    negative logarithm."""
    captured = make(CANCELS, {"x": f32([9, 9, 9, 9])}, small=f32([1e-3]))
    noise = captured.noise.get_output("y")
    assert all(np.isfinite(v).all() for v in noise.perturb(FP32, 2))


def test_where_every_draw_is_void_nothing_is_decided(make: Make) -> None:
    text = (
        "g (float[4096] x) => (float[4096] y) { a = Exp(x) b = Exp(x) c = Sub(a, b) d = Add(c,"
        " small) y = Log(d) }"
    )
    captured = make(text, {"x": f32(np.linspace(8, 9, 4096))}, small=f32([1e-3]))
    with raises(ModelError, "noise.not-finite"):
        captured.noise.get_output("y").perturb(BF16, 1)
    ruling = captured.judge(captured.reference("y") + 1, claim=BF16)
    assert ruling.status is Status.UNRESOLVED and has_line(ruling.why, "noise", "measured")


def test_nan_inside_voids_a_draw_whose_outputs_are_finite(make: Make) -> None:
    text = """g (float[4096] x) => (float[4096] y) {
        a = Exp(x) b = Exp(x) c = Sub(a, b) d = Add(c, small) l = Log(d) n = IsNaN(l) y = Where(n, x, l) }"""  # noqa: E501
    captured = make(text, {"x": f32(np.linspace(8, 9, 4096))}, small=f32([1e-3]))
    with raises(ModelError, "noise.not-finite"):
        captured.noise.get_output("y").perturb(BF16, 1)


def test_nan_that_the_reference_has_voids_nothing(make: Make) -> None:
    text = (
        "g (float[4] x) => (float[4] y) { a = Log(x) b = IsNaN(a) c = Where(b, x, a) y = Tanh(c) }"
    )
    captured = make(text, {"x": f32([-1, 0, 2, 3])})
    found = largest_deviation(
        captured.noise.get_output("y").perturb(BF16, 2), captured.reference("y")
    )
    assert found < 0.1


# ------------------------------------------------------------ exact values


@pytest.mark.parametrize("claim", [FP32, FP16, INT8])
def test_ids_in_floats_stay(make: Make, claim: Precision) -> None:
    """One id less is another row of the table."""
    text = "g (float[6] x) => (float[6,4] y) { i = Cast <to=7> (x) y = Gather(table, i) }"
    table = np.round(64 * normal(100, 4)) / 64
    captured = make(text, {"x": f32([1, 7, 42, 99, 0, 13])}, table=table)
    runs = captured.noise.get_output("y").perturb(claim, 4)
    if claim == INT8:  # the table has two axes and is quantized
        assert largest_deviation(runs, captured.reference("y")) < 0.1
    else:
        assert all((v == captured.reference("y")).all() for v in runs)


def test_int8_quantizes_weights_of_two_axes_per_channel(make: Make) -> None:
    """A small channel keeps its relative precision, and a bias is not quantized."""
    w = np.stack([normal(64), 1e-3 * normal(64, seed=1)], axis=1).astype(np.float32)
    text = "g (float[1,64] x) => (float[1,2] m, float[1,2] y) { m = MatMul(x, w) y = Add(x2, b) }"
    captured = make(
        text, {"x": np.ones((1, 64), np.float32)}, w=w, x2=f32([[0, 0]]), b=f32([[1, -3]])
    )
    for value in captured.noise.get_output("m").perturb(INT8, 4):
        assert abs(value[0, 1] - captured.reference("m")[0, 1]) < 1.0
    (wide,) = captured.noise.get_output("m").perturb(INT8, 1)
    assert np.isfinite(wide).all()


def test_quantized_weights_are_exact_in_int8(make: Make) -> None:
    q = np.random.default_rng(0).integers(-127, 128, (8, 8)).astype(np.float32)
    q[:, 0] = 127
    captured = make(
        "g (int64[8] x) => (float[8,8] y) { y = Gather(w, x) }",
        {"x": np.arange(8)},
        w=q * np.float32(0.01),
    )
    assert (captured.noise.get_output("y").perturb(INT8, 1)[0] == captured.reference("y")).all()


# ------------------------------------------------------------ bodies


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (IF, {"x": normal(8, 16), "c": np.array(True)}),
        (LOOP, {"x": normal(16), "n": np.array(9), "c": np.array(True)}),
        (SCAN, {"x": normal(5, 16)}),
    ],
    ids=["If", "Loop", "Scan"],
)
def test_noise_enters_bodies(make: Make, text: str, feeds: dict[str, Array]) -> None:
    """A healthy runtime in float16 rounds inside too: its error is within the noise."""
    captured = make(text, feeds, w=normal(16, 16), half=np.float32(1.7))
    noise = captured.noise.get_output("y")
    rounding = largest_deviation([noise.round_nodes(FP16)], captured.reference("y"))
    size = largest_deviation(noise.perturb(FP16, 4), captured.reference("y"))
    assert 0.3 < size / rounding < 10
    assert captured.judge(noise.round_nodes(FP16), claim=FP16).status is Status.AGREE


def test_body_is_perturbed_where_the_outputs_do_not_round(make: Make) -> None:
    """Two thousand steps of a loop: noise at the output of the Loop alone would be one rounding."""
    captured = make(
        LOOP, {"x": normal(16), "n": np.array(40), "c": np.array(True)}, half=np.float32(1.0)
    )
    scale = np.abs(captured.reference("y")).max()
    found = largest_deviation(
        captured.noise.get_output("y").perturb(BF16, 4), captured.reference("y")
    )
    assert found > 3 * 2**-9 * scale


def test_shapes_exponents_and_counters_in_bodies_stay(make: Make) -> None:
    text = """g (float[4] x, int64 n, bool c) => (float[4] y) {
        e = Identity(two)
        y = Loop (n, c, x) <body = b (int64 i, bool go, float[4] v) => (bool on, float[4] w) {
            on = Identity(go) s = Shape(v) f = Cast <to=1> (s) g = Mul(f, one) k = Cast <to=7> (g)
            p = Pow(v, two) j = Add(i, i) w = Reshape(p, k) }> }"""
    weights = {"two": np.float32(2), "one": np.float32(1)}
    captured = make(
        text, {"x": f32([-1.1, 1, 2, -3]), "n": np.array(2), "c": np.array(True)}, **weights
    )
    for value in captured.noise.get_output("y").perturb(BF16, 4):
        assert value.shape == (4,) and np.isfinite(value).all()


# ------------------------------------------------------------ rounding


def test_rounded_runs_underflow_as_float16_does(make: Make) -> None:
    """1e-5 is a subnormal number of float16, 1e-8 is none: a relative noise shows neither."""
    text = "g (float[3] x) => (float[3] y) { a = Mul(x, small) y = Mul(a, large) }"
    captured = make(text, {"x": f32([1, 1e-3, 1e-6])}, small=f32([1e-2]), large=f32([1e4]))
    low = captured.noise.get_output("y").round_nodes(FP16)
    expected = captured.reference("y")
    assert low[2] == 0 < expected[2] and 1e-4 < abs(low[1] / expected[1] - 1) < 0.1
    found = largest_deviation(captured.noise.get_output("y").perturb(FP16, 4)[:1], expected)
    assert found < expected[0] * 2**-9


def test_rounded_to_int8_has_few_levels(make: Make) -> None:
    captured = make("g (float[4096] x) => (float[4096] y) { y = Tanh(x) }", {"x": normal(4096)})
    low = captured.noise.get_output("y").round_nodes(INT8)
    assert len(np.unique(low)) <= 257 and np.abs(low - captured.reference("y")).max() < 6 / 255


# ------------------------------------------------------------ types


def test_types_follow_from_schemas() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, bool c, int64 k) => (float[n] y) {
        h = Cast <to=10> (x) v, i = TopK(x, k) m = Greater(x, x) z = ConstantOfShape(k) q = Constant <value_ints=[1]> ()
        d = Constant <value = double {0.0}> () s = SplitToSequence(x, k) u = Unheard(x)
        y = If (c) <then_branch = t () => (float16 p) { p = Mul(h, h) },
                    else_branch = e () => (float16 r) { r = Abs(h) }>
        l, w = Loop (k, c, d) <body = b (int64 j, bool g, double a) => (bool o, double f, int64 t) {
            o = Identity(g) f = Exp(a) t = Add(j, j) }> }"""  # noqa: E501
    types = find_element_types(parser.parse_model(text).graph, {}, 17)
    assert {n: types[n] for n in "hvimzqsuylwd"} == {
        "h": "float16",
        "v": "float32",
        "i": "int64",
        "m": "bool",
        "z": "float32",
        "q": "int64",
        "s": "",
        "u": "",
        "y": "float16",
        "l": "float64",
        "w": "int64",
        "d": "float64",
    }
