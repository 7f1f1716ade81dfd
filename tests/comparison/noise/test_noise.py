"""Rounding noise: values that round are perturbed by one rounding, equal values alike; exact
operations add nothing.

Covers `comparison.noise.noise`, `comparison.noise.analysis`, `comparison.noise.perturb`,
`comparison.noise.rounding_nodes`, `comparison.noise.sampler` and `comparison.float_types`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as nps
from onnx import helper

from subgraph.comparison.float_types import FLOATS
from subgraph.comparison.noise import perturb
from subgraph.comparison.noise.noise import Memo, RegionNoise
from subgraph.comparison.noise.rounding_nodes import (
    Constants,
    NodeWriter,
    compute_noise_scale,
    write_perturbed,
)
from subgraph.errors import ModelError
from subgraph.graph import region as regions
from subgraph.precision import Precision
from subgraph.runtime.backends import ort
from subgraph.runtime.capture import capture_samples, list_needed_inputs
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.storage.digest import digest
from subgraph.storage.dtypes import TYPE_NUMBERS
from subgraph.storage.store import Store
from tests.helpers import text_models
from tests.helpers.captured_region import Make, f32, largest_deviation, normal
from tests.helpers.examples import examples
from tests.helpers.refusals import raises

FP32 = Precision.FP32
FP16 = Precision.FP16
BF16 = Precision.BF16
INT8 = Precision.INT8

Array = np.ndarray[Any, Any]
LAW = settings(max_examples=examples(60), deadline=None, database=None, derandomize=True)
CLAIMS = st.sampled_from([FP32, FP16, BF16, INT8])
TYPES = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16]
ANY = nps.arrays(np.float32, nps.array_shapes(max_side=6), elements=st.floats(width=32))


def stored_runs(folder: Path) -> tuple[Memo, list[str]]:
    """A memo that stores runs in `folder`, and the labels of those that were made."""
    store = Store(folder / "store")
    labels = list[str]()

    def memo(label: str, make: Callable[[Path], dict[str, Any]]) -> tuple[dict[str, Any], Path]:
        def record(room: Path) -> dict[str, Any]:
            labels.append(label)
            return make(room)

        return store.memo(digest(label), record)

    return memo, labels


# ------------------------------------------------------------ values


Perturb = Callable[[Array, Precision, int], Array]


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory: pytest.TempPathFactory) -> Perturb:
    """Values as the inserted nodes perturb them."""
    folder = tmp_path_factory.mktemp("perturbed")
    runs: dict[tuple[str, str], Any] = {}

    def perturb_values(x: Array, claim: Precision, key: int) -> Array:
        dtype = x.dtype.name
        if (dtype, claim) not in runs:
            write = NodeWriter(Constants("c"), 17, "n")
            write_perturbed(write, "x", "y", dtype, claim, ("k", "scale"), None)
            number = TYPE_NUMBERS[dtype]
            ends = [helper.make_tensor_value_info(n, number, None) for n in "xy"]
            fed = [
                helper.make_tensor_value_info(n, TYPE_NUMBERS["float32"], [])
                for n in ("k", "scale")
            ]
            graph = helper.make_graph(
                write.nodes, "g", [ends[0], *fed], [ends[1]], list(write.constants.tensors.values())
            )
            model = helper.make_model(
                graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
            )
            path = folder / f"{dtype} {claim}.onnx"
            path.write_bytes(model.SerializeToString())
            runs[dtype, claim] = ort.load(path, {"opt": "disable", "threads": 1})
        factor = perturb.compute_factor(key)
        scale = compute_noise_scale(claim, dtype, factor)
        y = runs[dtype, claim](
            {"x": x, "k": np.array(factor, np.float32), "scale": np.array(scale, np.float32)}
        )["y"]
        assert isinstance(y, np.ndarray) and y.dtype == x.dtype and y.shape == x.shape
        return y

    return perturb_values


@LAW
@given(ANY, CLAIMS, st.integers(0, 2**64 - 1), st.sampled_from(TYPES))
def test_equal_values_move_alike_and_by_no_more_than_rounding(
    perturbed: Perturb, values: Array, claim: Precision, key: int, dtype: Any
) -> None:
    with np.errstate(over="ignore"):
        x = values.astype(dtype)
    y = perturbed(x, claim, key)
    before, after, bits = (v.reshape(-1) for v in (x.astype(np.float64), y.astype(np.float64), x))
    for one in np.unique(bits.view(f"u{x.itemsize}")):
        same = bits.view(f"u{x.itemsize}") == one
        assert len(np.unique(y.reshape(-1)[same].view(f"u{x.itemsize}"))) == 1
    assert (np.isfinite(after) == np.isfinite(before)).all() and (after[before == 0] == 0).all()
    fits = np.abs(before) <= perturb.MAX_PERTURBED
    eps = max(claim.eps, FLOATS[np.dtype(dtype).name])
    span = float(np.ptp(np.append(before[fits], 0)))
    limit = span / 255 if claim == INT8 else np.abs(before) * eps
    # of its own type
    own = np.abs(before) * FLOATS[np.dtype(dtype).name] * (2 if x.itemsize < 4 else 1) + 2.0**-24
    with np.errstate(invalid="ignore"):
        moved = np.abs(after - before)
    assert (moved[fits] <= (1.37 * limit + own + 1e-30 * np.abs(before))[fits]).all()
    if claim != INT8:
        assert (np.sign(after[fits]) == np.sign(before[fits])).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_random_numbers_have_the_mean_square_of_uniform_ones_and_are_independent(
    perturbed: Perturb, dtype: Any
) -> None:
    """At bf16, whose eps is coarse enough to see them in all types but bfloat16 itself."""
    x = np.unique(np.abs(normal(40_000).astype(np.float16).astype(dtype)))
    x = x[x > 0.01]
    keys = [
        perturb.compute_key(*which)
        for which in (("t", 0, 0), ("t", 0, 1), ("t", 1, 0), ("s", 0, 0), ("t", 0, 0, 1))
    ]
    before = x.astype(np.float64)
    runs = [
        (perturbed(x, BF16, key).astype(np.float64) - before) / before / BF16.eps for key in keys
    ]
    for u in runs:
        assert np.abs(u).max() < 1.37 + (dtype is ml_dtypes.bfloat16)
        assert abs(u.mean()) < 8 / len(x) ** 0.5
        assert dtype is ml_dtypes.bfloat16 or abs(u.std() - 3**-0.5) < 0.05
    assert np.abs(np.corrcoef(runs) - np.eye(5)).max() < 8 / len(x) ** 0.5


def test_opposite_values_move_oppositely(perturbed: Perturb) -> None:
    x = normal(1000)
    assert (perturbed(-x, FP16, 5) == -perturbed(x, FP16, 5)).all()


@pytest.mark.parametrize("claim", [FP32, FP16, BF16, INT8])
def test_masks_stay_and_nothing_overflows(perturbed: Perturb, claim: Precision) -> None:
    lowest = float(np.finfo(np.float32).min)
    mask = np.array([lowest, -np.inf, np.inf, 0, 1], np.float32)
    assert (perturbed(mask, claim, 3)[:4] == mask[:4]).all()
    for key in range(20):
        assert np.isfinite(perturbed(np.array([65504, -65504], np.float16), claim, key)).all()


def test_int8_leaves_the_plateau_of_a_mask_and_stays_within_the_range(perturbed: Perturb) -> None:
    scores = np.where(np.arange(64) % 4 == 0, f32(-10000), np.abs(normal(64)))
    for key in range(8):
        moved = perturbed(scores.astype(np.float32), INT8, key)
        rest = scores > -1e4
        assert (moved[~rest] == -10000).all() and 0 < np.abs(moved - scores)[rest].max() < 0.03
        assert moved[rest].min() >= 0 and moved.max() <= scores.max()


# ------------------------------------------------------------ regions

EXACT = {
    "Reshape": "y = Reshape(x, shape)",
    "Transpose": "y = Transpose(x)",
    "Relu": "y = Relu(x)",
    "Gather": "y = Gather(x, shape)",
    "MaxPool": "a = Unsqueeze(x, axes) y = MaxPool <kernel_shape=[2]> (a)",
    "Clip": "y = Clip(x, low)",
    "Pad": "y = Pad(x, pads, low)",
    "Concat": "y = Concat <axis=0> (x, x)",
}


@pytest.mark.parametrize("op", EXACT)
def test_exact_ops_add_nothing(make: Make, perturbed: Perturb, op: str) -> None:
    """Each value of the output is one of the perturbed input's, or a parameter as it is."""
    x = normal(4, 4)
    kind = "float[a,b,c]" if op == "MaxPool" else "float[a]" if op == "Reshape" else "float[a,b]"
    weights = {
        "shape": np.array([-1] if op == "Reshape" else [1, 0]),
        "axes": np.array([0]),
        "pads": np.array([0, 1, 1, 0]),
        "low": np.float32(0.1),
    }
    captured = make(f"g (float[4,4] x) => ({kind} y) {{ {EXACT[op]} }}", {"x": x}, **weights)
    for k, output in enumerate(captured.noise.get_output("y").perturb(BF16, 2)):
        fed = perturbed(x, BF16, perturb.compute_key("0", 0, k))  # the first key
        allowed = np.concatenate([fed.reshape(-1), f32([0, 0.1])])
        assert np.isin(output, allowed).all() and (output != captured.reference("y")).any()


def test_runs_repeat_and_differ_from_each_other(make: Make) -> None:
    text = "g (float[8,8] x) => (float[8,8] y) { a = MatMul(x, w) y = Softmax(a) }"
    x = normal(8, 8)
    w = normal(8, 8, seed=1)
    first, same = (
        make(text, {"x": x}, w=w).noise.get_output("y").perturb(FP32, 2) for _ in range(2)
    )
    assert all((a == b).all() for a, b in zip(first, same, strict=True))
    assert (first[0] != first[1]).any()


EQUAL = "g (float[1,64] x) => (float[1,64] y) { a = MatMul(x, w) y = Softmax(a) }"


def test_ties_are_broken_where_many_sums_are_equal(make: Make) -> None:
    """All weights are one, so all sums are equal and large: rounded differently, their softmax may
    be anything."""
    x = 1e6 * (2 + normal(1, 64))
    captured = make(EQUAL, {"x": x}, w=np.ones((64, 64), np.float32))
    noise = captured.noise.get_output("y")
    right = captured.reference("y")
    assert largest_deviation(noise.perturb(FP32, 4), right) < 1e-6
    assert largest_deviation(noise.break_ties(FP32, 4, 10.0), right) > 0.1
    other = make(EQUAL, {"x": x}, w=normal(64, 64)).noise.get_output("y")
    assert not other.break_ties(FP32, 4, 10.0), "these sums differ"


def test_ties_are_broken_where_the_reference_has_infinities_inside(make: Make) -> None:
    """Each perturbed run of it is asked once more without noise."""
    text = (
        "g (float[4] x) => (float[4] y) { a = MatMul(x, w) e = Exp(x) i = Reciprocal(e) y = Add(a,"
        " i) }"
    )
    noise = make(
        text, {"x": np.full(4, 100, np.float32)}, w=np.ones((4, 4), np.float32)
    ).noise.get_output("y")
    assert len(noise.break_ties(FP32, 2, 10.0)) == 2


def test_ties_are_known_from_stored_runs(make: Make, tmp_path: Path) -> None:
    memo, made = stored_runs(tmp_path)
    for _ in range(2):
        noise = make(
            EQUAL, {"x": normal(1, 64)}, w=np.ones((64, 64), np.float32), memo=memo
        ).noise.get_output("y")
        assert len(noise.break_ties(FP32, 2, 10.0)) == 2
    assert len(made) == 3, "one run that shows the ties, and two that break them"


@LAW
@given(ANY, CLAIMS, st.integers(0, 2**64 - 1))
def test_untied_shifts_are_finite_and_differ_for_equal_values(
    values: Array, claim: Precision, key: int
) -> None:
    by = perturb.draw_untied_shift(values, claim, key, 3.0)
    assert by.shape == values.shape and np.isfinite(by).all() and (by[values == 0] == 0).all()
    same = np.full(values.shape, 7, np.float32)
    assert len(np.unique(perturb.draw_untied_shift(same, claim, key, 3.0))) > 0.9 * same.size - 1


def test_noise_grows_with_eps(make: Make) -> None:
    captured = make(
        "g (float[8,8] x) => (float[8,8] y) { a = MatMul(x, w) y = Tanh(a) }",
        {"x": normal(8, 8)},
        w=normal(8, 8),
    )
    sizes = [
        largest_deviation(captured.noise.get_output("y").perturb(claim, 4), captured.reference("y"))
        for claim in (FP32, FP16, BF16)
    ]
    assert (
        1e-8 < sizes[0] < 1e-5
        and 500 < sizes[1] / sizes[0] < 50_000
        and 4 < sizes[2] / sizes[1] < 16
    )


def test_parameters_and_exponents_stay(make: Make) -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z) { y = Pow(x, two) z = Clip(x, two, high) }"
    x = f32([-1, 1e3, 3, 9])
    captured = make(text, {"x": x}, two=np.float32(2), high=np.float32(5))
    for output in captured.noise.get_output("z").perturb(BF16, 3):
        assert output[0] == 2 and output[1] == 5 and output[3] == 5
    # (-1) to a power of 2.01 is NaN
    assert all((d[:1] > 0).all() for d in captured.noise.get_output("y").perturb(BF16, 3))


def test_shapes_in_floats_are_computed_exactly(make: Make) -> None:
    """Shape → Cast → Mul → Floor → Resize: one bit less and another shape results."""
    text = """g (float[1,1,h,w] x) => (float[a,b,c,d] y) {
        s = Shape(x) f = Cast <to=1> (s) m = Mul(f, scale) l = Floor(m) n = Cast <to=7> (l) e = Cast <to=1> (n)
        q = Div(e, f) y = Resize <mode="linear"> (x, roi, q) }"""  # noqa: E501
    weights = {"scale": f32([1, 1, 2, 3]), "roi": np.zeros(0, np.float32)}
    captured = make(text, {"x": normal(1, 1, 3, 3)}, **weights)
    assert [d.shape for d in captured.noise.get_output("y").perturb(BF16, 4)] == [(1, 1, 6, 9)] * 4


def test_scales_that_constants_make_are_computed_exactly(make: Make) -> None:
    """Concat → Cast → Resize of a float16 model: 1.999 times as large was one row less."""
    text = """g (float[1,1,h,w] x) => (float[a,b,c,d] y) {
        one = Constant<value = float[2] {1.0, 1.0}>() two = Constant<value = float[2] {2.0, 2.0}>()
        s = Concat<axis = 0>(one, two) h = Cast<to = 10>(s) f = Cast<to = 1>(h)
        y = Resize <mode = "nearest"> (x, roi, f) }"""
    captured = make(text, {"x": normal(1, 1, 3, 3)}, roi=np.zeros(0, np.float32))
    assert [d.shape for d in captured.noise.get_output("y").perturb(BF16, 4)] == [(1, 1, 6, 6)] * 4


def test_weight_behind_a_constant_chain_moves(make: Make) -> None:
    text = "g (float[1,4] x) => (float[1,4] y) { w = DequantizeLinear(q, s) y = MatMul(x, w) }"
    q = np.random.default_rng(0).integers(-128, 127, (4, 4), np.int8)
    captured = make(text, {"x": np.zeros((1, 4), np.float32) + 1}, q=q, s=np.float32(0.01))
    assert "w" in captured.noise.sampler.sites.rounded and captured.region.pulled
    assert (
        largest_deviation(captured.noise.get_output("y").perturb(FP32, 4), captured.reference("y"))
        > 0
    )


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "double"])
def test_other_float_types(make: Make, kind: str) -> None:
    dtype = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "double": np.float64}[kind]
    to = {"float16": 10, "bfloat16": 16, "double": 11}[kind]
    text = (
        f"g (float[32] x) => ({kind}[32] y) {{ a = Exp(x) b = Mul(a, w) y = Cast <to={to}> (b) }}"
    )
    captured = make(text, {"x": normal(32)}, w=normal(32, seed=1))
    assert captured.noise.get_output("y").coarsest_type() == (
        "float32" if kind == "double" else kind
    )
    (output,) = captured.noise.get_output("y").perturb(FP32, 1)
    assert output.dtype == dtype and 0 < largest_deviation([output], captured.reference("y")) < 0.1


def test_float16_weights_and_nodes(make: Make) -> None:
    text = "g (float16[4,4] x) => (float16[4,4] y) { a = MatMul(x, w) y = Relu(a) }"
    captured = make(
        text, {"x": normal(4, 4).astype(np.float16)}, w=normal(4, 4, seed=2).astype(np.float16)
    )
    size = largest_deviation(
        captured.noise.get_output("y").perturb(FP32, 4), captured.reference("y")
    )
    assert 2**-14 < size / np.abs(captured.reference("y")).max() < 2**-7
    assert captured.noise.get_output("y").round_nodes(BF16).dtype == np.float16


def test_bodies_and_functions_read_perturbed_values(make: Make) -> None:
    text = """g (float[4] x, bool c) => (float[4] y) {
        a = Exp(x)
        y = If (c) <then_branch = t () => (float[4] p) { p = Mul(a, w) },
                    else_branch = e () => (float[4] r) { r = Identity(a) }> }"""
    captured = make(text, {"x": normal(4), "c": np.array(True)}, w=normal(4, seed=3))
    assert (
        largest_deviation(captured.noise.get_output("y").perturb(BF16, 4), captured.reference("y"))
        > 0
    )


def test_rounded_is_what_the_type_holds(make: Make) -> None:
    text = "g (float[4] x) => (float[4] y, float[4] z) { y = Mul(x, w) z = Exp(y) }"
    captured = make(text, {"x": f32([1, 300, 3, 4])}, w=f32([0.1, 300, 1, 2]))
    with np.errstate(over="ignore"):
        low = [v.astype(np.float16) for v in (captured.feeds["x"], f32([0.1, 300, 1, 2]))]
        y = np.multiply(*low).astype(np.float32)
    assert (captured.noise.get_output("y").round_nodes(FP16) == y).all() and np.isinf(y[1])
    assert captured.noise.get_output("y").round_nodes(BF16)[0] == np.float32(
        ml_dtypes.bfloat16(0.1)
    )
    assert captured.noise.get_output("z").round_nodes(FP16).dtype == np.float32


def test_bfloat16_before_casts_made_it(make: Make) -> None:
    """Veltkamp's splitting gives the same as a Cast, but for exact ties; masks stay."""
    x = np.concatenate([normal(1000) * 1e3, f32([0, 1e-30, 1e29, -3.4e38])])
    text = (
        "g (float[1004] x) => (float[1004] y) { a = Relu(x) n = Neg(x) b = Relu(n) y = Sub(a, b) }"
    )
    old, new = (
        make(text, {"x": x}, opset=opset).noise.get_output("y").round_nodes(BF16)
        for opset in (9, 17)
    )
    assert (old[:-1] == new[:-1]).all() and old[-1] < -1e38


def test_outputs_behind_a_choice(make: Make) -> None:
    text = """g (float[8] x, int64[8] ids) => (float[2] v, int64[2] i, float[2] g, float[8] s, bool[8] m, float[8] w) {
        a = Exp(x) v, i = TopK(a, k) g = Gather(x, i) m = Greater(a, one)
        s = Softmax(a) p = Equal(ids, zero) w = Where(p, a, x) }"""  # noqa: E501
    weights = {"k": np.array([2]), "one": np.float32(1), "zero": np.array(0)}
    noise = make(text, {"x": normal(8), "ids": np.arange(8)}, **weights).noise
    assert {n for n in "vigsmw" if noise.get_output(n).depends_on_choice()} == {"i", "g", "m"}
    assert not any(noise.get_output(n).depends_on_steps() for n in "vigsmw")
    assert noise.get_output("i").op_type() == "TopK"


def test_outputs_behind_steps(make: Make) -> None:
    text = """g (float[8] x) => (uint8[8] q, float[8] d, bool[8] b) {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) b = Greater(d, s) }"""
    noise = make(text, {"x": normal(8)}, s=np.float32(0.1), z=np.uint8(128)).noise
    assert all(noise.get_output(n).depends_on_steps() for n in "qdb")
    assert [n for n in "qdb" if noise.get_output(n).depends_on_choice()] == ["b"]


def test_ranking_holds_the_values_compared(make: Make) -> None:
    text = """g (float[2,5] x) => (int64[2] i, float[2,5] e) {
        e = Exp(x) j = ArgMax <axis=1, keepdims=0> (e) i = Identity(j) }"""
    captured = make(text, {"x": normal(2, 5)})
    ranking = captured.noise.get_output("i").ranking(FP32)
    assert ranking is not None and captured.noise.get_output("e").ranking(FP32) is None
    assert (ranking.values == captured.reference("e")).all() and ranking.axis == 1
    assert (ranking.noise <= 2**-20 * ranking.values).all() and (ranking.noise > 0).mean() > 0.5


def test_stored_runs_are_used_first(make: Make, tmp_path: Path) -> None:
    memo, made = stored_runs(tmp_path)
    text = "g (float[4] x) => (float[4] y) { y = Exp(x) }"
    x = normal(4)
    first = make(text, {"x": x}, memo=memo).noise.get_output("y").perturb(FP32, 4)
    again = make(text, {"x": x}, memo=memo).noise.get_output("y").perturb(FP32, 8)
    assert len(made) == 8 == len(set(made)) and all(
        (a == b).all() for a, b in zip(first, again, strict=False)
    )


def test_region_inside_with_a_frozen_shape(tmp_path: Path, reference: Reference) -> None:
    """As in its cut, the shape that enters is a constant: the noise is that of the region alone."""
    graph = text_models.load(
        tmp_path,
        """g (float[2,6] x) => (float[3,4] z) {
        s = Shape(x) t = Mul(s, by) u = Div(t, of) a = Exp(x) b = Reshape(a, u) z = Tanh(b) }""",
        by=np.array([3, 2]),
        of=np.array([2, 3]),
    )
    region = regions.find_region(graph, ["b"], ["z"])
    assert region.shapes == ("u",) and region.inputs == ("a",)
    names = (*region.inputs, *region.shapes, *region.outputs)
    above = regions.find_upstream(graph, names)
    samples = Feeding().plan(graph, list_needed_inputs(graph, above, names))
    into = tmp_path / "captured"
    into.mkdir()
    stems = {n: f"t{k}" for k, n in enumerate(names)}
    (captured,) = capture_samples(reference, graph, above, stems, samples, into)
    tensors = {name: tensor.rebase(str(into / "0")) for name, tensor in captured.tensors.items()}
    noise = RegionNoise(graph, region, reference, tensors, tmp_path / "scratch")
    (output,) = noise.get_output("z").perturb(FP32, 1)
    assert output.shape == (3, 4) and noise.get_output("z").coarsest_type() == "float32"


def test_shape_that_depends_on_values(make: Make) -> None:
    """It runs: tensors of unknown shape are not perturbed themselves."""
    text = """g (float[64] x) => (float[n] y) {
        a = Mul(x, x) m = Greater(a, half) i = NonZero(m) j = Squeeze(i, zero) p = Gather(a, j) y = Exp(p) }"""  # noqa: E501
    x = np.full(64, 0.5**0.5, np.float32) * np.linspace(0.98, 1.02, 64, dtype=np.float32)
    noise = make(text, {"x": x}, half=np.float32(0.5), zero=np.array([0])).noise
    assert len({d.shape for d in noise.get_output("y").perturb(BF16, 4)}) > 1


def test_failed_run_is_a_model_error_each_time(make: Make) -> None:
    text = """g (float[4] x) => (float[n] y) {
        a = Exp(x) s = ReduceMax <keepdims=0> (a) f = Mul(s, one) c = Cast <to=7> (f) i = Reshape(c, flat)
        o = ConstantOfShape(i) y = Add(o, x) }"""  # noqa: E501
    captured = make(
        text, {"x": np.log(f32([1, 2, 3, 4.0001]))}, one=np.float32(1), flat=np.array([1])
    )
    for _ in range(2):
        with raises(ModelError, "backend.run-failed"):
            captured.noise.get_output("y").perturb(INT8, 8)


@pytest.mark.parametrize("opset", [10, 17])
def test_hundredth_of_a_models_own_steps_is_moved_by_one(opset: int, make: Make) -> None:
    region = make(
        "g (float[100, 100] x) => (uint8[100, 100] y) { y = QuantizeLinear (x, s, z) }",
        {"x": normal(100, 100)},
        opset=opset,
        s=np.float32(0.1),
        z=np.uint8(100),
    )
    right = region.reference("y").astype(int)
    runs = [
        run.astype(int) - right for run in region.noise.get_output("y").perturb(Precision.FP32, 2)
    ]
    for moved in runs:
        assert set(np.unique(moved)) == {-1, 0, 1}
        assert 0.005 < (moved != 0).mean() < 0.02 and abs(moved.mean()) < 0.005
    assert (runs[0] != runs[1]).any()
    assert (
        region.noise.get_output("y").quantizes()
        and (region.noise.get_output("y").round_nodes(Precision.FP16) == right).mean() > 0.98
    )


# ------------------------------------------------------------ what a quantizer rounds

QUANTIZERS = {"s": np.float32(0.1), "t": np.float32(0.3), "z": np.int8(2)}
PAIR = " %s = QuantizeLinear (%s, %s, z) %s = DequantizeLinear (%s, %s, z)"
FIRST = PAIR % ("q", "a", "s", "b", "q", "s")


@pytest.mark.parametrize(
    ("nodes", "source"),
    [
        ("a = Exp(x)" + PAIR % ("q", "a", "s", "y", "q", "s"), "exp"),
        ("a = Exp(x)" + FIRST + PAIR % ("p", "b", "t", "y", "p", "t"), "exp in steps"),
        ("a = Exp(x)" + FIRST + " c = Abs(b)" + PAIR % ("p", "c", "t", "y", "p", "t"), ""),
        ("a = Exp(x)" + FIRST + " y = Abs(b)", ""),
    ],
    ids=["quantizer", "requantization", "behind another quantizer", "no quantizer"],
)
def test_what_the_only_quantizer_rounds_is_known(make: Make, nodes: str, source: str) -> None:
    """A requantization rounds steps that the region itself makes."""
    x = normal(1, 40) / 2
    text = f"g (float[1,40] x) => (float[1,40] y) {{ {nodes} }}"
    found = make(text, {"x": x}, **QUANTIZERS).noise.get_output("y").find_quantized_values()
    if not source:
        assert found is None
        return
    assert found and found.is_coarse and found.zero == 2
    step = 0.1 if source == "exp" else 0.3
    real = np.exp(x) if source == "exp" else np.round(np.exp(x) / np.float32(0.1)) * 0.1
    np.testing.assert_allclose(found.exact, real / step + 2, rtol=1e-5)
