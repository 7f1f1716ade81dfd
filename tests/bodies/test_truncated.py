"""Loops that end earlier, and Loops that count. Covers `bodies.truncated`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from fixtures import bodies
from subgraph.bodies.model import Body, open_body, split_selector
from subgraph.bodies.truncated import (
    COUNTER_START,
    RAN,
    TRIPS,
    make_counting_loop,
    make_state_name,
    truncate_loop,
)
from subgraph.graph import graph as graphs
from subgraph.graph.nested import iter_nodes
from subgraph.graph.region import prepare_graph

X = bodies.values(1)
# of what the Loop reads
TYPES = {"t3": helper.make_tensor_type_proto(TensorProto.FLOAT, bodies.SHAPE)}


def loop(folder: Path) -> Body:
    planted = bodies.planted(1, ["Loop"])
    onnx.save(planted.model, folder / "m.onnx")
    graph = prepare_graph(graphs.load(folder / "m.onnx"))
    found = split_selector(graph, planted.path[0])
    assert found
    return open_body(graph, found[0])


def run(model: Any, **fed: Any) -> dict[str, Any]:
    """What onnxruntime gives."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {i.name: fed[i.name.split(":")[-1]] for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def test_loop_that_ends_earlier_holds_no_operator_that_the_model_does_not(tmp_path: Path) -> None:
    """A candidate may have no Add for int64: that it refuses one of ours says nothing."""
    body = loop(tmp_path)
    model = truncate_loop(body, TYPES, 2)
    operators = {node.op_type for node in iter_nodes(model.graph.node)}
    assert operators <= {node.op_type for node in iter_nodes(body.graph.model.graph.node)}
    made = run(model, t3=X)
    assert [made[name].shape for name in (make_state_name(0), "t6")] == [(2, 3), (2, 2, 3)]


def test_loop_counts_its_iterations(tmp_path: Path) -> None:
    body = loop(tmp_path)
    assert {
        name: int(value) for name, value in run(make_counting_loop(body, TYPES), t3=X).items()
    } == {RAN: COUNTER_START + 5}
    made = run(
        make_counting_loop(body, TYPES, truncated=True), t3=X, **{TRIPS.split(":")[-1]: np.array(3)}
    )
    assert (int(made[RAN]), made[make_state_name(0)].shape) == (3, (2, 3))
