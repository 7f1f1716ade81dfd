"""What of a model is drawn."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from subgraph.graph.graph import load
from subgraph.inspection.drawn_network import network, type_text


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
    drawn = network(load(tmp_path / "m.onnx"))
    assert drawn.types == {"x": "float32 batch×3", "y": "float32 1×?×?", "z": "float32 scalar"}
    assert drawn.scopes == [("layer1", "0"), ()]


def test_size_that_is_computed_is_a_question_mark() -> None:
    """`floor(floor(width/2 - 1/2)/2 - 1/2) + 1` tells nobody anything in a box; a name does."""
    dims: list[str | int | None] = ["batch", 3, "floor(width/2 - 1/2) + 1", "unk__475", None]
    proto = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, dims)
    assert type_text(proto, {}) == "float32 batch×3×?×?×?"
    assert type_text(proto, {"batch": 2, "width": 320}) == "float32 2×3×160×?×?"
