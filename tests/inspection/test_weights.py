"""How weights spread, and constants that stand in a box."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subgraph.graph.graph import Graph, load
from subgraph.inspection import drawn_network
from subgraph.inspection.drawn_network import Spread, spread, weight_notes
from subgraph.inspection.ranges import measure_weight


def model(path: Path, *values: object) -> Graph:
    """A chain of Add, each with a weight of these."""
    arrays = [numpy_helper.from_array(np.asarray(v), f"w{k}") for k, v in enumerate(values)]
    nodes = [helper.make_node("Add", [f"t{k}", f"w{k}"], [f"t{k + 1}"]) for k in range(len(values))]
    info = helper.make_tensor_value_info("t0", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [info], [], arrays)
    onnx.save(helper.make_model(graph), path)
    return load(path)


def spread_of(graph: Graph, name: str = "w0") -> Spread | None:
    measured = measure_weight(graph, name)
    assert measured and measured.range
    return spread(graph, name, measured.range.summary())


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_deviation_and_histogram_are_those_of_numpy_in_any_pieces(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = (np.random.default_rng(0).normal(3, 20, 1000)).astype(dtype)
    graph = model(tmp_path / "m.onnx", values)
    monkeypatch.setattr(drawn_network, "PIECE", 77)
    found = spread_of(graph)
    assert found and found.deviation == pytest.approx(values.astype(np.float64).std(), rel=1e-6)
    assert (
        found.counts == np.histogram(values.astype(np.float64), 24)[0].tolist()
        and sum(found.counts) == 1000
    )


def test_constant_or_empty_weight_has_no_spread(tmp_path: Path) -> None:
    nan = [np.nan, np.inf, 1.0, 3.0]
    graph = model(tmp_path / "m.onnx", nan, [2.0, 2.0], [np.nan], np.array([-1.7e308, 1.7e308]))
    found = spread_of(graph)
    assert found and (found.deviation, sum(found.counts)) == (1.0, 2), "of the finite values"
    assert [spread_of(graph, name) for name in ("w1", "w2", "w3")] == [None] * 3


def test_notes_on_weights_are_shapes_and_values_of_one_element(tmp_path: Path) -> None:
    values = (
        np.float32(2**0.5),
        np.array([7]),
        True,
        np.array([1.0, 2.0]),
        np.array(["word"], object),
    )
    notes = {0: "1.41421", 1: "7", 2: "True", 3: "⟨2⟩"}
    assert weight_notes(model(tmp_path / "m.onnx", *values)) == notes
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
    assert weight_notes(load(tmp_path / "c.onnx"))[2].startswith("0.25")
