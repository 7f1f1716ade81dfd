"""The forms in which toolkits write the names of a model's tensors, and a form that the user gives.

Covers `trials.matching.name_forms`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from subgraph.errors import UnknownName
from subgraph.graph.graph import Graph, load
from subgraph.recordings.matching.names import ModelNames
from subgraph.trials.matching.match_tensors import ModelValues, match_tensors
from subgraph.trials.matching.name_forms import NameForm, expand_map
from tests.helpers import text_models
from tests.helpers.refusals import raises

TEXT = "g (float[4] x) => (float[2] y) { [act] a = Relu(x) [cut] y, z = Split(a) }"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return load(text_models.save(tmp_path / "m.onnx", TEXT))


@pytest.mark.parametrize(
    ("recorded", "tensor"),
    [
        ("a_Relu", "a"),
        ("a_Relu_f32", "a"),
        ("a_Relu_si8", "a"),
        ("onnx_node!act", "a"),
        ("act/fq_output_0", "a"),
        ("a:0", "a"),
        ("x:0", "x"),
        ("cut:0", "y"),
        ("cut:1", "z"),
        ("act:0/WithoutBiases", "a"),
        ("act/fq_output_0:1", "a"),
        ("act_out_blob_data", "a"),
        ("a_DequantizeLinear_Output", "a"),
        ("b_Relu", None),
    ],
)
def test_name_in_the_form_of_a_toolkit(recorded: str, tensor: str | None, graph: Graph) -> None:
    found = ModelNames(graph, ["x", "a", "y", "z"], str).find_form(recorded)
    assert (found[0] if found else None) == tensor


def test_name_with_an_ending_is_likely(graph: Graph) -> None:
    names = ModelNames(graph, ["x", "a", "y", "z"], str)
    assert names.likely("y_int8")[0] == "y" and names.likely("act/WithoutBiases")[0] == "a"


def test_form_of_a_node_needs_one(graph: Graph) -> None:
    assert NameForm("{node}").spell(graph, "x") == "" == NameForm("{node}").spell(graph, "z")


def test_map_with_a_form_is_a_line_for_each_tensor(graph: Graph) -> None:
    known = {"L_act_0": "L_act_0", "L_cut_1": "L_cut_1", "other": "other"}
    lines = {"{tensor}": "L_{node}_{index}", "y": "other"}
    assert expand_map(lines, graph, known) == {"a": "L_act_0", "z": "L_cut_1", "y": "other"}


def test_form_that_no_name_has_is_refused(graph: Graph) -> None:
    with raises(UnknownName, "map.unknown-name"):
        expand_map({"{tensor}": "L_{node}"}, graph, {"a": "a"})


def test_tensors_of_another_model_are_named_by_a_form(graph: Graph, tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[2] y) { L_a = Relu(x) y, L_z = Split(L_a) }"
    other = load(text_models.save(tmp_path / "other.onnx", text))
    values = {"x": np.zeros(4, np.float32), "a": np.zeros(4, np.float32)}
    ours = ModelValues(graph, values.get)
    found = match_tensors(ours, ModelValues(other, values.get), {"{tensor}": "L_{tensor}"})
    assert (found["a"].name, found["a"].how) == ("L_a", "map")
