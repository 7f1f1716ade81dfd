"""Tensors of the candidate's model are matched by name, by the user's map, by value; doubtful ones
are not.

Covers `trials.matching.match_tensors` and `trials.matching.matched_tensor`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper

from subgraph.errors import UnknownName, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.region import prepare_graph
from subgraph.storage.dtypes import Scale
from subgraph.trials.matching.match_tensors import ModelValues, match_tensors, profile_of, read_map
from subgraph.trials.matching.matched_tensor import MatchedTensor
from tests.helpers.examples import examples
from tests.helpers.refusals import raises

Values = Mapping[str, npt.NDArray[Any]]


def model(
    path: Path, nodes: list[tuple[str, list[str], str]], inputs: list[str], output: str
) -> Graph:
    """A graph of (op, inputs, output) without types."""
    made = [helper.make_node(op, reads, [name], name=f"n_{name}") for op, reads, name in nodes]
    ends = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names]
        for names in (inputs, [output])
    ]
    graph = helper.make_graph(made, "g", ends[0], ends[1])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return prepare_graph(load(path))


def draw(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def ours(tmp_path: Path) -> Graph:
    """x → a → b → c → y."""
    nodes = [("Sin", ["x"], "a"), ("Relu", ["a"], "b"), ("Sin", ["b"], "c"), ("Neg", ["c"], "y")]
    return model(tmp_path / "ours.onnx", nodes, ["x"], "y")


MINE = {name: draw(k, 1, 4, 5, 6) for k, name in enumerate("xabcy")}


def found(
    ours: Graph, other: Graph, theirs: Values, said: Mapping[str, str] | None = None
) -> dict[str, MatchedTensor]:
    return match_tensors(ModelValues(ours, MINE.get), ModelValues(other, theirs.get), said)


def test_by_name_by_map_and_by_value(ours: Graph, tmp_path: Path) -> None:
    nodes = [("Sin", ["x"], "a"), ("Relu", ["a"], "B"), ("Sin", ["B"], "C"), ("Neg", ["C"], "y")]
    other = model(tmp_path / "other.onnx", nodes, ["x"], "y")
    theirs = {
        "x": MINE["x"],
        "a": MINE["a"],
        "B": MINE["b"],
        "C": MINE["c"].transpose(0, 2, 3, 1),
        "y": MINE["y"],
    }
    names = found(ours, other, theirs, {"b": "B"})
    assert {n: (m.name, m.how) for n, m in names.items()} == {
        "x": ("x", "name"),
        "a": ("a", "name"),
        "b": ("B", "map"),
        "c": ("C", "value"),
        "y": ("y", "name"),
    }
    assert names["c"].perm == (0, 2, 3, 1)


def test_names_alone_where_the_other_model_cannot_be_run(ours: Graph, tmp_path: Path) -> None:
    other = model(tmp_path / "other.onnx", [("Sin", ["x"], "a"), ("Neg", ["a"], "y")], ["x"], "y")
    assert set(found(ours, other, {})) == {"x", "a", "y"}


def test_two_that_hold_the_same_are_not_told_apart(ours: Graph, tmp_path: Path) -> None:
    """Neither is a copy of the other, so no match is certain."""
    nodes = [("Sin", ["x"], "P"), ("Cos", ["x"], "Q"), ("Add", ["P", "Q"], "y")]
    other = model(tmp_path / "other.onnx", nodes, ["x"], "y")
    theirs = {"x": MINE["x"], "P": MINE["b"], "Q": MINE["b"], "y": MINE["y"]}
    assert "b" not in found(ours, other, theirs)


def test_value_of_a_tensor_that_has_a_name_is_no_other_one(ours: Graph, tmp_path: Path) -> None:
    """`Q` holds `b`, whose name is another tensor; `a` is near, since a bias is small."""
    nodes = [("Sin", ["x"], "b"), ("Sin", ["b"], "Q"), ("Neg", ["Q"], "y")]
    other = model(tmp_path / "other.onnx", nodes, ["x"], "y")
    mine = {**MINE, "a": MINE["b"] * np.float32(1.01)}
    theirs = {"x": MINE["x"], "b": MINE["b"], "Q": MINE["b"], "y": MINE["y"]}
    names = match_tensors(ModelValues(ours, mine.get), ModelValues(other, theirs.get))
    assert "a" not in names


def test_of_copies_the_first_is_meant(ours: Graph, tmp_path: Path) -> None:
    nodes = [("Sin", ["x"], "P"), ("Transpose", ["P"], "Q"), ("Neg", ["Q"], "y")]
    other = model(tmp_path / "other.onnx", nodes, ["x"], "y")
    theirs = {"x": MINE["x"], "P": MINE["b"], "Q": MINE["b"].transpose(0, 2, 3, 1), "y": MINE["y"]}
    assert found(ours, other, theirs)["b"].name == "P"


def test_the_order_of_the_graphs_is_kept(ours: Graph, tmp_path: Path) -> None:
    """A tensor above one in the reference's model cannot be below its match, whatever the values
    are."""
    nodes = [("Sin", ["x"], "c"), ("Sin", ["c"], "A"), ("Neg", ["A"], "y")]
    other = model(tmp_path / "other.onnx", nodes, ["x"], "y")
    theirs = {"x": MINE["x"], "c": MINE["c"], "A": MINE["a"], "y": MINE["y"]}
    names = found(ours, other, theirs)
    assert names["c"].name == "c" and "a" not in names


def test_behind_a_fault_axes_are_in_the_order_of_the_tensors_before(tmp_path: Path) -> None:
    """Height and width are equal, and the values are far off, so that they do not tell the order. A
    Transpose does."""
    nodes = [("Transpose", ["x"], "t"), ("Sin", ["t"], "a"), ("Relu", ["a"], "y")]
    made = [helper.make_node(op, reads, [name], name=name) for op, reads, name in nodes]
    made[0].attribute.append(helper.make_attribute("perm", [0, 3, 1, 2]))
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, None)] for n in ("x", "y")]
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(made, "g", ends[0], ends[1])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "ours.onnx")
    other = model(tmp_path / "other.onnx", [("Sin", ["x"], "a"), ("Relu", ["a"], "y")], ["x"], "y")
    x = draw(0, 1, 6, 6, 6)
    right = {
        "x": x,
        "t": (t := x.transpose(0, 3, 1, 2)),
        "a": np.sin(t),
        "y": np.maximum(np.sin(t), 0),
    }
    wrong = {"x": x, "a": 9 * draw(1, 1, 6, 6, 6), "y": 9 * draw(2, 1, 6, 6, 6)}
    names = match_tensors(
        ModelValues(prepare_graph(load(tmp_path / "ours.onnx")), right.get),
        ModelValues(other, wrong.get),
    )
    assert {n: m.perm for n, m in names.items()} == {"x": (), "a": (0, 2, 3, 1), "y": (0, 2, 3, 1)}


def test_uninformative_tensor_is_not_matched_by_value(ours: Graph, tmp_path: Path) -> None:
    """A mask of ones fits everywhere."""
    ones = np.ones((1, 4, 5, 6), np.float32)
    other = model(tmp_path / "other.onnx", [("Sin", ["x"], "P"), ("Neg", ["P"], "y")], ["x"], "y")
    theirs = {"x": MINE["x"], "P": ones, "y": MINE["y"]}
    names = match_tensors(
        ModelValues(ours, (MINE | {"b": ones}).get), ModelValues(other, theirs.get)
    )
    assert "b" not in names


def test_map_that_names_nothing(ours: Graph, tmp_path: Path) -> None:
    other = model(
        tmp_path / "other.onnx", [("Sin", ["x"], "first"), ("Neg", ["first"], "y")], ["x"], "y"
    )
    with raises(UnknownName, "map.unknown-name", "frist", "other.onnx"):
        found(ours, other, {}, {"a": "frist"})
    with raises(UnknownName, "map.unknown-name", "aa", "ours.onnx"):
        found(ours, other, {}, {"aa": "first"})


def test_map_files(tmp_path: Path) -> None:
    file = tmp_path / "map.txt"
    file.write_text("a A\nb\n")
    with raises(UsageError, "map.malformed", "line 2"):
        read_map(file)
    file.write_text("# ours theirs\na  A\n\nb=B  # the second\nc\tthe C\nd, D\n")
    assert read_map(file) == {"a": "A", "b": "B", "c": "the C", "d": "D"}
    with raises(UsageError, "map.unreadable"):
        read_map(tmp_path)


# ------------------------------------------------------------ values in and out


@settings(max_examples=60)
@given(st.permutations(range(4)), st.integers(0, 9))
def test_turning_and_back_changes_nothing(perm: list[int], seed: int) -> None:
    value = draw(seed, 2, 3, 4, 5)
    there = MatchedTensor("t", "value", tuple(perm))
    assert there.to_candidate(value).shape == tuple(value.shape[k] for k in perm)
    assert np.array_equal(there.to_reference(there.to_candidate(value), "float32"), value)


def test_both_models_may_be_quantized() -> None:
    """By the same scale codes stay codes; by another, or in one model alone, the real numbers
    decide."""
    codes = np.arange(-128, 128).astype(np.int8).reshape(16, 16)
    own = Scale((0.25,), (3,))
    other = Scale((0.5,), (-7,))
    same = MatchedTensor("t", "name", (1, 0), "int8", own, own)
    assert np.array_equal(same.to_candidate(codes), codes.T)
    assert np.array_equal(same.to_reference(codes.T, "int8"), codes)
    coarser = MatchedTensor("t", "name", (), "int8", other, own)
    back = coarser.to_reference(coarser.to_candidate(codes), "int8")
    assert abs(back.astype(int) - codes).max() == 1
    real = MatchedTensor("t", "name", reference_scale=own).with_type("float32")
    assert real.to_candidate(codes)[0, 0] == (-128 - 3) * 0.25
    assert np.array_equal(real.to_reference(real.to_candidate(codes), "int8"), codes)
    assert MatchedTensor("t", "name", reference_scale=own).with_type("int8").scale == own


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.floats(0, 2))
def test_law_profiles_are_never_further_apart_than_the_tensors(
    seed: int, size: int, apart: float
) -> None:
    """So nothing that is near is passed over, in whatever order its axes are; alike, both are as
    long as the tensor."""
    a = draw(seed, size)
    b = a + np.float32(apart) * draw(seed + 1, size)
    one = profile_of(a)
    other = profile_of(np.random.default_rng(seed).permutation(b))
    found = np.linalg.norm(one - other)
    assert found <= np.linalg.norm(a.astype(np.float64) - b) * (1 + 1e-9) + 1e-9
    assert np.linalg.norm(one) == pytest.approx(np.linalg.norm(a.astype(np.float64)))
    assert (
        np.isnan(profile_of(np.array([1, np.inf]))).all()
        and np.isnan(profile_of(np.zeros(0))).all()
    )


def test_renamed_outputs_are_paired_by_their_sizes(tmp_path: Path) -> None:
    ours = _two_outputs(tmp_path / "ours.onnx", "wide", "narrow")
    theirs = _two_outputs(tmp_path / "theirs.onnx", "first", "second")
    values = {"x": draw(0, 1, 9), "wide": draw(1, 1, 9), "narrow": draw(2, 1, 2)}
    other = {"x": values["x"], "first": draw(3, 1, 9), "second": draw(4, 1, 2)}
    names = match_tensors(ModelValues(ours, values.get), ModelValues(theirs, other.get))
    pairs = {n: (m.name, m.how) for n, m in names.items()}
    assert pairs.pop("x") == ("x", "name")
    assert pairs == {"wide": ("first", "place"), "narrow": ("second", "place")}


def test_renamed_outputs_of_one_size_are_not_paired(tmp_path: Path) -> None:
    ours = _two_outputs(tmp_path / "ours.onnx", "a", "b")
    theirs = _two_outputs(tmp_path / "theirs.onnx", "c", "d")
    values = {name: draw(k, 1, 2) for k, name in enumerate("xab")}
    other = {name: draw(k + 9, 1, 2) for k, name in enumerate("xcd")}
    names = match_tensors(ModelValues(ours, values.get), ModelValues(theirs, other.get))
    assert set(names) == {"x"}


def _two_outputs(path: Path, first: str, second: str) -> Graph:
    graph = model(path, [("Sin", ["x"], first), ("Neg", ["x"], second)], ["x"], first)
    proto = onnx.load(path)
    proto.graph.output.append(helper.make_tensor_value_info(second, TensorProto.FLOAT, None))
    onnx.save(proto, path)
    return prepare_graph(load(graph.path))


def test_report_of_onnx2tf_is_a_map(ours: Graph, tmp_path: Path) -> None:
    """A Sin and the Relu after it became one tensor, which has the value of the Relu."""
    rows = [("a", "n_a", "b__0"), ("b", "n_b", "b__0"), ("c__0", "n_c", "c__0"), ("z", "n_z", "z")]
    keys = ("onnx_output_name", "onnx_op_name", "resolved_tflite_tensor_name")
    more = {"onnx_output_index": 0, "exists_in_final_model": True}
    records = [dict(zip(keys, row, strict=True)) | more for row in rows]
    (tmp_path / "report.json").write_text(json.dumps({"records": records}))
    assert read_map(tmp_path / "report.json", ours) == {"b": "b__0", "c": "c__0"}


def test_other_json_is_no_map(ours: Graph, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    with raises(UsageError, "map.malformed", "report.json"):
        read_map(tmp_path / "report.json", ours)
