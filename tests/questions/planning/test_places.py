"""What of a model may be lowered, and what is lowered together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from subgraph.graph.graph import Graph
from subgraph.graph.region import prepare_graph
from subgraph.precision import Precision
from subgraph.questions.planning.places import (
    OUTPUT,
    Quantized,
    Rounded,
    Twin,
    Unit,
    compute_weight_scales,
    list_narrowable,
    list_places,
    name_blocks,
    round_nodes,
)
from subgraph.storage.dtypes import Scale
from tests.helpers import text_models

NET = """
g (float[1, 4] x, int64[1] k, bool c) => (float[1, 4] y, float[?, ?] z) {
    [first] h = MatMul (x, w)
    [relu] r = Relu (h)
    [second] y = MatMul (r, w)
    [shape] s = Shape (r)
    [reshape] f = Reshape (r, k)
    [both] z = If (c) <then_branch = a () => (float[1, 4] t) { t = Neg (r) },
                       else_branch = b () => (float[1, 4] e) { e = Abs (r) }>
}
"""
FORM = Quantized(Scale((0.1,), (0,)), "int8")


@pytest.fixture
def net(tmp_path: Path) -> Graph:
    return prepare_graph(text_models.load(tmp_path, NET, w=np.eye(4, dtype=np.float32)))


def test_place_is_what_one_node_reads_and_each_output(net: Graph) -> None:
    twin = Twin(Precision.INT8, {"x": FORM, "w": FORM, "r": FORM, "y": FORM})
    found = {place.name: place.reads for place in list_places(net, twin, Unit.NODE)}
    assert found["first"] == {(0, "x"), (0, "w")} and found["second"] == {(2, "r"), (2, "w")}
    assert found["output y"] == {(OUTPUT, "y")} and "relu" not in found
    by_operator = {place.name: place.nodes for place in list_places(net, twin, Unit.OPERATOR)}
    assert by_operator["MatMul"] == (0, 2) and by_operator["output y"] == ()
    by_scale = {place.name: place.reads for place in list_places(net, twin, Unit.SCALE)}
    assert by_scale["w"] == {(0, "w"), (2, "w")} and by_scale["y"] == {(OUTPUT, "y")}


def test_block_ends_where_one_tensor_alone_goes_on(tmp_path: Path) -> None:
    """Two residual blocks, with what follows them; a mask that both read passes by."""
    text = """
    g (float[1, 4] x, float[1, 4] mask) => (float[1, 4] y) {
        [stem] s = MatMul (x, w)  [stem_relu] a = Relu (s)
        [left] b = MatMul (a, w)  [masked] c = Mul (b, mask)  [add] d = Add (c, a)  [relu] e = Relu (d)
        [left2] f = MatMul (e, w) [masked2] h = Mul (f, mask) [add2] i = Add (h, e) [end] y = Tanh (i)
    }
    """  # noqa: E501
    graph = prepare_graph(text_models.load(tmp_path, text, w=np.eye(4, dtype=np.float32)))
    assert dict.fromkeys(name_blocks(graph).values()) == dict.fromkeys(
        ["stem … stem_relu", "left … relu", "left2 … end"]
    )
    twin = Twin(Precision.INT8, {"x": FORM, "a": FORM, "e": FORM, "y": FORM})
    found = {place.name: place.reads for place in list_places(graph, twin, Unit.BLOCK)}
    assert found["left … relu"] == {(2, "a"), (4, "a")} and found["output y"] == {(OUTPUT, "y")}


def test_float_nodes_without_bodies_compute_in_16_bits(net: Graph) -> None:
    assert list_narrowable(net) == {
        0: Rounded("float16", (0, 1), (0,)),
        1: Rounded("float16", (0,), (0,)),
        2: Rounded("float16", (0, 1), (0,)),
        4: Rounded("float16", (0,), (0,)),
    }
    assert {form.dtype for form in round_nodes(net, Precision.BF16).rounded.values()} == {
        "bfloat16"
    }


def test_scales_of_resize_stay_float(tmp_path: Path) -> None:
    text = "g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) { y = Resize (x, , s) }"
    graph = prepare_graph(text_models.load(tmp_path, text, s=np.array([1, 1, 2, 2], np.float32)))
    assert list_narrowable(graph) == {0: Rounded("float16", (0,), (0,))}


def test_cast_output_has_the_type_of_its_attribute(tmp_path: Path) -> None:
    """It was called float16, and was float32: no model with such a Cast ran."""
    text = (
        "g (float[1, 4] x) => (float[1, 4] y) { c = Cast <to = 1> (x) r = Relu (c) y = CastLike (r,"
        " x) }"
    )
    graph = prepare_graph(text_models.load(tmp_path, text, opset=17))
    assert list_narrowable(graph) == {
        1: Rounded("float16", (0,), (0,)),
        2: Rounded("float16", (0, 1), (0,)),
    }


def test_weight_is_quantized_by_channel() -> None:
    value = np.array([[1.27, -0.5], [0, 0], [-2.54, 1]], np.float32)
    scale = compute_weight_scales(value, 0)
    assert (
        scale.step == pytest.approx((0.01, 1.0, 0.02))
        and scale.zero == (0, 0, 0)
        and scale.axis == 0
    )
    assert np.abs(scale.dequantize(scale.quantize(value, "int8")) - value).max() <= 0.01
    assert compute_weight_scales(value, -1).axis == 1
