"""A form is proven equal bit for bit, or within rounding; a wrong one, or one that does not run,
never is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subgraph.errors import ModelError, UsageError
from subgraph.questions.blame.rewritten import DIFFERENT, IDENTICAL, NOISE, NOT_RUN, OriginalRegion
from subgraph.runtime.reference import Reference
from tests.helpers import text_models
from tests.helpers.captured_region import fed
from tests.helpers.refusals import raises

SUM = "g (float[4,300] x) => (float[4] y) {{ {} }}"
REGION = text_models.model(SUM.format("y = ReduceMean<axes=[1], keepdims=0>(x)"))


@pytest.fixture
def original(tmp_path: Path, reference: Reference) -> OriginalRegion:
    rng = np.random.default_rng(0)
    samples = [fed(tmp_path / str(k), x=rng.standard_normal((4, 300), np.float32)) for k in (0, 1)]
    return OriginalRegion(REGION, samples, reference, tmp_path / "scratch")


@pytest.mark.parametrize(
    ("nodes", "status"),
    [
        ("y = ReduceMean<axes=[-1], keepdims=0>(x)", IDENTICAL),
        (
            (
                "n = Constant<value_float=0.00333333333>() a = Mul(x, n) i ="
                " Constant<value_ints=[1]>() y = ReduceSum<keepdims=0>(a, i)"
            ),
            NOISE,
        ),
        (
            (
                "n = Constant<value_float=0.0033335>() a = Mul(x, n) i = Constant<value_ints=[1]>()"
                " y = ReduceSum<keepdims=0>(a, i)"
            ),
            DIFFERENT,
        ),
        ("y = ReduceMax<axes=[1], keepdims=0>(x)", DIFFERENT),
        ("y = ReduceMean<axes=[1], keepdims=1>(x)", DIFFERENT),
        ("y = NoSuchOperator(x)", NOT_RUN),
    ],
)
def test_form_is_proven_or_not(original: OriginalRegion, nodes: str, status: str) -> None:
    form = text_models.model(SUM.format(nodes))
    if "keepdims=1" in nodes:
        del form.graph.output[0].type.tensor_type.shape.dim[:]
        form.graph.output[0].type.tensor_type.ClearField("shape")
    assert original.compare(form) == status


def test_one_wrong_sample_of_two_decides(tmp_path: Path, reference: Reference) -> None:
    samples = [
        fed(tmp_path / str(k), x=np.array([sign, sign], np.float32))
        for k, sign in enumerate((1, -1))
    ]
    relu = text_models.model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    same = text_models.model("g (float[2] x) => (float[2] y) { y = Identity(x) }")
    found = OriginalRegion(relu, samples[:1], reference, tmp_path / "one").compare(same)
    assert found == IDENTICAL
    found = OriginalRegion(relu, samples, reference, tmp_path / "two").compare(same)
    assert found == DIFFERENT


@pytest.mark.parametrize(
    ("kind", "values"), [("int32", [1, 2]), ("bool", [True, False]), ("float", [0.0, np.nan])]
)
def test_values_that_rounding_cannot_change_have_to_be_equal(
    tmp_path: Path, reference: Reference, kind: str, values: list[float]
) -> None:
    dtype = {"float": "float32"}.get(kind, kind)
    samples = [fed(tmp_path / "fed", x=np.array(values, dtype))]
    text = f"g ({kind}[2] x) => ({kind}[2] y) {{{{ {{}} }}}}"
    region = text_models.model(text.format("y = Identity(x)"))
    other = {
        "int32": "y = Max(x, k)",
        "bool": "y = Or(x, k)",
        "float": "n = IsNaN(x) y = Where(n, k, x)",
    }[kind]
    form = text_models.model(text.format(other), k=np.array(2, dtype))
    found = OriginalRegion(region, samples, reference, tmp_path / "scratch").compare(form)
    assert found == DIFFERENT


@pytest.mark.parametrize(("scale", "status"), [(0.1, NOISE), (0.101, DIFFERENT), (0.11, DIFFERENT)])
def test_codes_may_differ_as_far_as_rounding_in_the_form_changes_them(
    scale: float, status: str, tmp_path: Path, reference: Reference
) -> None:
    """A sum of steps of 0.02 and 0.03 in steps of 0.1: every tenth lies in the middle of two
    codes."""
    text = "g (uint8[2000] x) => (uint8[2000] y) {{ {} }}"
    zero: dict[str, Any] = {"xs": np.float32(0.02), "ws": np.float32(0.03), "z": np.uint8(3)}
    region = text_models.model(
        text.format("y = com.microsoft.QLinearAdd(x, xs, z, x, ws, z, ys, z)"),
        domains=("com.microsoft",),
        **zero,
        ys=np.float32(0.1),
    )
    form = text_models.model(
        text.format(
            "a = DequantizeLinear(x, xs, z) b = DequantizeLinear(x, ws, z) c = Add(a, b)"
            " y = QuantizeLinear(c, ys, z)"
        ),
        **zero,
        ys=np.float32(scale),
    )
    x = np.random.default_rng(0).integers(0, 255, 2000, np.uint8)
    found = OriginalRegion(
        region, [fed(tmp_path / "fed", x=x)], reference, tmp_path / "scratch"
    ).compare(form)
    assert found == status


def test_sequences_are_compared_element_by_element(tmp_path: Path, reference: Reference) -> None:
    text = (
        "g (float[4] x) => (seq(float[2]) y) {{ s = Constant<value_ints=[2, 2]>() y ="
        " SplitToSequence<axis=0>({}, s) }}"
    )
    region, form = (text_models.model(text.format(x)) for x in ("x", "x"))
    form.graph.node[1].input[0] = "z"
    form.graph.node.insert(0, onnx.helper.make_node("Neg", ["x"], ["z"]))
    original = OriginalRegion(
        region, [fed(tmp_path / "fed", x=np.ones(4, np.float32))], reference, tmp_path / "s"
    )
    assert original.compare(region) == IDENTICAL
    assert original.compare(form) == DIFFERENT


def test_without_samples_nothing_is_proven(tmp_path: Path, reference: Reference) -> None:
    with raises(UsageError, "blame.no-samples"):
        OriginalRegion(REGION, [], reference, tmp_path)


def test_region_that_the_reference_refuses_is_an_error(
    tmp_path: Path, reference: Reference
) -> None:
    region = text_models.model(SUM.format("y = NoSuchOperator(x)"))
    original = OriginalRegion(
        region, [fed(tmp_path, x=np.ones((4, 300), np.float32))], reference, tmp_path / "s"
    )
    with pytest.raises(ModelError):
        original.compare(REGION)
