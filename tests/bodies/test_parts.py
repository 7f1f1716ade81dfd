"""All graphs of a model, numbered on."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import external_data_helper

from fixtures import bodies
from subgraph.bodies import model as module
from subgraph.bodies.descend import enter_body
from subgraph.bodies.model import find_part, parts
from subgraph.graph.graph import load
from tests.helpers.facts import has_line


@pytest.mark.parametrize("seed", range(10))
def test_each_node_has_one_number_and_the_name_by_which_it_is_cut(
    tmp_path: Path, seed: int
) -> None:
    planted = bodies.planted(seed)
    onnx.save(planted.model, tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    whole = parts(graph)
    known = list(whole.all())
    numbers = [part.first + i for part in known for i in range(len(part.graph.nodes))]
    assert numbers == list(range(whole.size))
    inner = known[-1].graph.label(len(known[-1].graph.nodes) - 1)
    found = graph
    names: tuple[str, ...] = (inner,)
    while deeper := enter_body(found, names):  # as `subcut cut` finds it
        _, found, names = deeper
    assert list(found.node_names) == list(known[-1].graph.node_names) and names == (inner,)
    wrong = "/".join([*planted.path, planted.node])
    part, name = find_part(known, wrong.replace("/body/", "/body@2/"))
    assert name in part.graph.names and part.graph.names[name] < len(part.graph.nodes)
    assert find_part(known, graph.label(0)) == (whole, graph.label(0))


def test_body_without_its_weights_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = bodies.planted(1, ("Loop",)).model
    for tensor in model.graph.initializer:
        if tensor.name.startswith("w"):
            external_data_helper.set_external_data(tensor, "gone.bin", offset=0, length=36)
            tensor.ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    whole = parts(load(tmp_path / "m.onnx"))
    assert (
        whole.size == len(whole.graph.nodes)
        and has_line(caplog.text, "loop4")
        and "gone.bin" in caplog.text
    )


def test_function_with_too_many_calls_is_omitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(bodies.planted(9).model, tmp_path / "m.onnx")
    graph = load(tmp_path / "m.onnx")
    monkeypatch.setattr(module, "MAX_NODES", parts(graph).size - len(graph.nodes) - 1)
    assert len(graph.nodes) < parts(graph).size <= len(graph.nodes) + module.MAX_NODES
