"""A cut as the body of a Loop of one iteration. Covers `bodies.as_loop`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from fixtures import bodies
from subgraph.bodies.as_loop import as_loop
from subgraph.errors import ModelError
from subgraph.graph.cut import cut
from subgraph.graph.graph import load
from tests.helpers import text_models


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_it_gives_what_the_cut_gives(opset: int, tmp_path: Path) -> None:
    graph = text_models.load(
        tmp_path,
        "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { a = Relu(x) [n] y = Neg(a) b = Abs(a) z = Add(b, y) }",
        lambda m: setattr(m.opset_import[0], "version", opset),
    )
    piece = cut(graph)
    model = as_loop(piece)
    onnx.checker.check_model(model)
    x = {"x": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)}
    ours, plain = (onnxruntime.InferenceSession(m.SerializeToString()) for m in (model, piece.to_model()))
    assert [o.name for o in ours.get_outputs()] == [o.name for o in plain.get_outputs()]
    for one, other in zip(ours.run(None, x), plain.run(None, x), strict=True):
        assert one.shape == other.shape
        assert np.array_equal(one, other)
    assert "n" in {node.name for node in model.graph.node[0].attribute[0].g.node}


def test_nodes_with_bodies_go_into_it_as_well(tmp_path: Path) -> None:
    planted = bodies.planted(1, ["Loop", "If"])
    onnx.save(planted.model, tmp_path / "m.onnx")
    piece = cut(load(tmp_path / "m.onnx"))
    x = {"x": bodies.values(0)}
    ours, plain = (onnxruntime.InferenceSession(m.SerializeToString()) for m in (as_loop(piece), piece.to_model()))
    for one, other in zip(ours.run(None, x), plain.run(None, x), strict=True):
        assert np.array_equal(one, other)


def test_a_sequence_cannot_be_collected(tmp_path: Path) -> None:
    graph = text_models.load(tmp_path, "g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x) }")
    with pytest.raises(ModelError, match="no tensor"):
        as_loop(cut(graph))
