"""The network that is drawn of a model, sizes in few characters, weights beside a box."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st
from onnx import TensorProto, helper, numpy_helper

from subgraph.graph.graph import Graph, load
from subgraph.inspection.drawn_network import (
    UNKNOWN,
    format_type,
    format_weight_notes,
    make_network,
    shorten_size,
)


def test_types_and_the_scopes_of_the_exporter_are_read(tmp_path: Path) -> None:
    """A dimension with a generated name is unknown."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"], name="n0"),
        helper.make_node("Abs", ["y"], ["z"], name="n1"),
    ]
    for node, scopes in zip(nodes, (["", "layer1", "layer1.0", "relu"], []), strict=True):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [])],
        value_info=[helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "unk__475", None])],
    )
    onnx.save(helper.make_model(graph), str(tmp_path / "m.onnx"))
    drawn = make_network(load(tmp_path / "m.onnx"))
    assert drawn.types == {"x": "float32 batch×3", "y": "float32 1×?×?", "z": "float32 scalar"}
    assert drawn.scopes == [("layer1", "0"), ()]


def test_size_that_is_computed_is_a_question_mark() -> None:
    """`floor(floor(width/2 - 1/2)/2 - 1/2) + 1` tells nobody anything in a box; a name does."""
    dims: list[str | int | None] = ["batch", 3, "floor(width/2 - 1/2) + 1", "unk__475", None]
    proto = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, dims)
    assert format_type(proto, {}) == "float32 batch×3×?×?×?"
    assert format_type(proto, {"batch": 2, "width": 320}) == "float32 2×3×160×?×?"


LAYERS = ("floor(({})/2 - 1/2) + 1", "floor(({} - 1)/2) + 1", "ceiling(({})/2)", "{} + 2 - 2")


@given(st.lists(st.sampled_from(LAYERS), min_size=4, max_size=8))
def test_each_halving_of_a_size_is_counted(layers: list[str]) -> None:
    size = "height"
    for layer in layers:
        size = layer.format(size)
    halvings = sum("/2" in layer for layer in layers)
    assert shorten_size(size) == (f"height/{2**halvings}" if halvings else "height")


@pytest.mark.parametrize(
    ("size", "short"),
    [
        ("N", "N"),
        ("floor(width/3) + floor(width/3)", "2·width/3"),
        ("4*sequence_length + 12", "4·sequence_length"),
        ("Max(sequence_length, 1) + 0", "sequence_length"),
        ("height*width + height", UNKNOWN),
        ("height*height + height", UNKNOWN),
        ("floor(height/2", "floor(height/2"),
        ("floor(height/2 - 1/2", UNKNOWN),
        ("__import__('os').system('true')", UNKNOWN),
        ("2**2**2**2**2**2**2*height", UNKNOWN),
        ("height/0 + floor(height)", UNKNOWN),
        ("(" * 400 + "height" + ")" * 400, UNKNOWN),
        ("height + " * 300 + "1", UNKNOWN),
    ],
)
def test_long_text_ends_in_an_ellipsis(size: str, short: str) -> None:
    assert shorten_size(size) == short


def model(path: Path, *values: object) -> Graph:
    """A chain of Add, each with a weight of these."""
    arrays = [numpy_helper.from_array(np.asarray(v), f"w{k}") for k, v in enumerate(values)]
    nodes = [helper.make_node("Add", [f"t{k}", f"w{k}"], [f"t{k + 1}"]) for k in range(len(values))]
    info = helper.make_tensor_value_info("t0", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [info], [], arrays)
    onnx.save(helper.make_model(graph), path)
    return load(path)


def test_notes_on_weights_are_shapes_and_values_of_one_element(tmp_path: Path) -> None:
    values = (
        np.float32(2**0.5),
        np.array([7]),
        True,
        np.array([1.0, 2.0]),
        np.array(["word"], object),
    )
    notes = {0: "1.41421", 1: "7", 2: "True", 3: "⟨2⟩"}
    assert format_weight_notes(model(tmp_path / "m.onnx", *values)) == notes
    constant = helper.make_node("Constant", [], ["c"], value_float=0.5)
    held = helper.make_node(
        "Constant", [], ["d"], value=numpy_helper.from_array(np.array(0.25, np.float32))
    )
    read = helper.make_node("Clip", ["x", "d", "c"], ["y"])
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    onnx.save(
        helper.make_model(helper.make_graph([constant, held, read], "g", [info], [])),
        tmp_path / "c.onnx",
    )
    assert format_weight_notes(load(tmp_path / "c.onnx"))[2].startswith("0.25")
