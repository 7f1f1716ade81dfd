"""BatchNormalization in the weights of the Conv before it: the same outputs, one node less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subgraph.graph.graph import load
from subgraph.planning.scales import fold_batch_norms
from tests.helpers import text_models
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
    folded = fold_batch_norms(load(tmp_path / "m.onnx").prepare(), tmp_path / "folded")
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
    graph = load(tmp_path / "m.onnx").prepare()
    assert fold_batch_norms(graph, tmp_path / "folded") is graph
