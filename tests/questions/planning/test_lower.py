"""A lowered model: exactly what is meant is lowered, nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subgraph.graph.graph import Graph, load
from subgraph.graph.region import prepare_graph
from subgraph.precision import Precision
from subgraph.questions.planning.lower import count_bytes, lower_model, raise_model
from subgraph.questions.planning.places import (
    OUTPUT,
    Dynamic,
    Quantized,
    Read,
    Twin,
    compute_weight_scales,
    round_nodes,
)
from subgraph.storage.dtypes import Scale
from tests.helpers import text_models
from tests.helpers.runs import evaluate

NET = """
g (float[2, 4] x) => (float[2, 4] y, float[2, 4] h) {
    [first] h = MatMul (x, w)
    [relu] r = Relu (h)
    [second] y = MatMul (r, v)
}
"""
RNG = np.random.default_rng(3)
W, V, X = (RNG.normal(size=(n, 4)).astype(np.float32) for n in (4, 4, 2))
ACTIVATION = Quantized(Scale((0.05,), (3,)), "uint8")
TWIN = Twin(
    Precision.INT8,
    {
        "x": ACTIVATION,
        "h": ACTIVATION,
        "r": ACTIVATION,
        "y": ACTIVATION,
        "w": Quantized(compute_weight_scales(W, 1), "int8"),
    },
)


@pytest.fixture
def net(tmp_path: Path) -> Graph:
    return prepare_graph(text_models.load(tmp_path, NET, w=W, v=V))


def run(
    graph: Graph, twin: Twin, reads: set[Read], folder: Path
) -> tuple[onnx.ModelProto, Mapping[str, Any]]:
    lower_model(graph, {r: twin.make_lowering(r) for r in reads}).save(folder / "low.onnx")
    model = onnx.load(folder / "low.onnx")
    onnx.checker.check_model(model, full_check=True)
    return model, evaluate(folder / "low.onnx", {"x": X})


def through(value: Any, form: Quantized = ACTIVATION) -> Any:
    return form.scale.dequantize(form.scale.quantize(value, form.dtype))


def test_nothing_lowered_is_the_model(net: Graph, tmp_path: Path) -> None:
    model, values = run(net, TWIN, set(), tmp_path)
    assert [n.op_type for n in model.graph.node] == ["MatMul", "Relu", "MatMul"]
    assert {t.name for t in model.graph.initializer} == {"w", "v"}
    assert np.allclose(values["y"], np.maximum(X @ W, 0) @ V, rtol=1e-5, atol=1e-5)


def test_one_read_is_lowered_and_no_other(net: Graph, tmp_path: Path) -> None:
    """By numpy: the second node reads rounded values, and the Relu, which reads the same tensor,
    does not."""
    _, values = run(net, TWIN, {(2, "r")}, tmp_path)
    h = X @ W
    assert np.allclose(values["h"], h, rtol=1e-5, atol=1e-5)
    assert np.allclose(values["y"], through(np.maximum(h, 0)) @ V, rtol=1e-5, atol=1e-5)
    _, values = run(net, TWIN, {(1, "h")}, tmp_path)
    assert np.allclose(values["h"], h, rtol=1e-5, atol=1e-5)
    assert np.allclose(values["y"], np.maximum(through(h), 0) @ V, rtol=1e-5, atol=1e-5)


def test_weight_is_stored_as_its_codes(net: Graph, tmp_path: Path) -> None:
    model, values = run(net, TWIN, {(0, "w"), (0, "x")}, tmp_path)
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    assert "w" not in kinds and kinds["w:codes"] == onnx.TensorProto.INT8
    form = TWIN.forms["w"]
    assert isinstance(form, Quantized)
    assert np.allclose(values["h"], through(X) @ through(W, form), rtol=1e-5, atol=1e-5)
    # else no int8 Add runs
    assert {tuple(t.dims) for t in model.graph.initializer if t.name.startswith("x:")} == {()}
    assert count_bytes(net, TWIN, {(0, "w"): form}) == {"low": 64, "between": 0, "float": 64}
    half = round_nodes(net, Precision.FP16).rounded[0]
    assert count_bytes(net, TWIN, {(0, ""): half}) == {"low": 0, "between": 64, "float": 64}


def test_output_keeps_its_name_and_who_reads_it_its_value(net: Graph, tmp_path: Path) -> None:
    model, values = run(net, TWIN, {(OUTPUT, "h")}, tmp_path)
    assert [o.name for o in model.graph.output] == ["y", "h"]
    assert np.allclose(values["h"], through(X @ W), atol=1e-6)
    assert np.allclose(values["y"], np.maximum(X @ W, 0) @ V, rtol=1e-5, atol=1e-5)
    _, values = run(net, TWIN, {(OUTPUT, "h"), (1, "h"), (2, "r")}, tmp_path)
    assert np.allclose(
        values["y"], through(np.maximum(through(X @ W), 0)) @ V, rtol=1e-5, atol=1e-5
    )


def test_dynamic_ranges_are_those_of_the_values(net: Graph, tmp_path: Path) -> None:
    model, values = run(net, Twin(Precision.INT8, {"x": Dynamic()}), {(0, "x")}, tmp_path)
    assert "DynamicQuantizeLinear" in {n.op_type for n in model.graph.node}
    step = (X.max() - X.min()) / 255
    assert 0 < np.abs(values["h"] - X @ W).max() <= step * np.abs(W).sum(0).max()


@pytest.mark.parametrize(
    ("precision", "eps"), [(Precision.FP16, 2.0**-11), (Precision.BF16, 2.0**-8)]
)
def test_16_bit_weights_are_lowered(
    net: Graph, tmp_path: Path, precision: Precision, eps: float
) -> None:
    twin = round_nodes(net, precision)
    model, values = run(net, twin, {(i, "") for i in range(3)}, tmp_path)
    assert [o.type.tensor_type.elem_type for o in model.graph.output] == [
        onnx.TensorProto.FLOAT
    ] * 2
    exact = np.maximum(X @ W, 0) @ V
    assert 0 < np.abs(values["y"] - exact).max() <= 40 * eps * np.abs(exact).max()
    if precision is Precision.FP16:  # values go on in float16 from node to node
        reads = {n.name: list(n.input) for n in model.graph.node}
        assert reads["relu"] == ["h:float16"] and reads["second"] == ["r:float16", "v:float16"]


def test_16_bits_of_integers_below_the_newest_opset_are_onnxruntimes(
    net: Graph, tmp_path: Path
) -> None:
    twin = Twin(Precision.INT8, {"x": Quantized(Scale((1e-4,), (0,)), "int16")})
    lower_model(net, {(0, "x"): twin.make_lowering((0, "x"))}).save(tmp_path / "low.onnx")
    model = onnx.load(tmp_path / "low.onnx")
    assert {n.domain for n in model.graph.node if "Quantize" in n.op_type} == {"com.microsoft"}
    found = evaluate(tmp_path / "low.onnx", {"x": X})["h"]
    assert np.abs(found - X @ W).max() <= 1e-4 * np.abs(W).sum(0).max()


def test_old_opset_is_raised(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    old = text_models.load(tmp_path, NET, opset=11, w=W, v=V)
    new = raise_model(old, tmp_path / "new")
    assert new.model.opset_import[0].version == 13 and raise_model(new, tmp_path) is new
    assert load(tmp_path / "new" / "model.onnx").ops == old.ops
