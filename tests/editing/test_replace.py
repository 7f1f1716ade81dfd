"""A cut that is put back gives the model that it was cut out of; an edited one is joined by name,
or refused.

Covers `editing.replace`, `editing.draft` and `editing.effect`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fixtures import graphs
from fixtures.graphs import CASES, CutCase
from subgraph.editing.draft import Draft
from subgraph.editing.effect import compute_values, list_unfrozen_constants, measure_effect
from subgraph.editing.replace import replace
from subgraph.errors import DataError, ModelError, SubcutError, UnknownName, UsageError
from subgraph.graph.cut import cut_region
from subgraph.graph.graph import Graph, load
from subgraph.graph.region import Region, find_region
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

WHOLE = [c for c in CASES if c.refused is None]
LIGHT = (
    "bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19"
    " zfnet512".split()
)
PIECES = 3  # per kind of model: the table's, and two more


def some_cuts(
    graph: Graph, seed: int, *first: tuple[tuple[str, ...], tuple[str, ...]]
) -> Iterator[Region]:
    """Regions that can be cut without a run: the first, and others at random."""
    rng = random.Random(seed)
    nodes = [i for i in range(len(graph.nodes)) if graph.makes[i]]
    pairs = [(i, j) for i in nodes for j in nodes if graph.rank[i] <= graph.rank[j]]
    random_ones = [
        ((graph.makes[i][0],), (graph.makes[j][0],)) for i, j in rng.sample(pairs, len(pairs))
    ]
    for start, end in (*first, *random_ones):
        try:
            region = find_region(graph, start, end)
            cut_region(graph, region)
        except SubcutError:
            continue
        yield region


def put_back(graph: Graph, region: Region, folder: Path, **options: Any) -> Path:
    """The region cut out, saved, loaded and put back."""
    folder.mkdir()
    cut_region(graph, region).save(folder / "piece.onnx")
    replace(graph, region, load(folder / "piece.onnx"), **options).save(folder / "new.onnx")
    return folder / "new.onnx"


@pytest.mark.turns(3)
@pytest.mark.parametrize("case", WHOLE, ids=lambda c: f"{c.number}: {c.title}")
def test_cut_that_is_put_back_changes_nothing(
    case: CutCase, tmp_path: Path, reference: Reference
) -> None:
    graph = load(case.build(tmp_path))
    for k, region in zip(
        range(PIECES), some_cuts(graph, case.number, (case.start, case.end)), strict=False
    ):
        try:
            path = put_back(graph, region, tmp_path / str(k))
        except DataError:
            assert has_line(case.title, "missing")  # of a weight that the whole needs
            return
        before = Draft(graph).model
        after = Draft(load(path)).model
        assert nodes_of(after) == nodes_of(before)
        assert {v.name: v for v in after.graph.value_info}.items() <= {
            v.name: v for v in before.graph.value_info
        }.items()
        for part in ("input", "quantization_annotation"):
            ours, theirs = (
                sorted(map(str, getattr(model.graph, part))) for model in (after, before)
            )
            assert ours == theirs, part
        assert list(after.graph.output) == list(before.graph.output)
        assert list(after.metadata_props) == list(before.metadata_props)
        assert {f.name for f in after.functions} == {f.name for f in before.functions}
        assert {t.name for t in after.graph.initializer} == {
            t.name for t in before.graph.initializer
        }
        if case.runs and not case.options:
            assert {row.status for row in measure_effect(graph, path, Feeding(), reference)} <= {
                "same"
            }


def nodes_of(model: onnx.ModelProto) -> list[str]:
    """The nodes as texts, without their names, of which a cut changes those that several nodes
    share."""
    nodes = [type(node).FromString(node.SerializeToString()) for node in model.graph.node]
    for node in nodes:
        node.ClearField("name")
    return sorted(map(str, nodes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*LIGHT[:3], *(pytest.param(name, marks=pytest.mark.rare) for name in LIGHT[3:])]
)
def test_light_networks_are_the_same_again(name: str, tmp_path: Path, reference: Reference) -> None:
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    graph = load(folder / f"light_{name}.onnx")
    for k, region in zip(range(PIECES), some_cuts(graph, len(name)), strict=False):
        path = put_back(graph, region, tmp_path / str(k))
        assert nodes_of(onnx.load(path)) == nodes_of(onnx.load(graph.path))
        if k == 0:
            assert {row.status for row in measure_effect(graph, path, Feeding(), reference)} == {
                "same"
            }


def save(model: onnx.ModelProto, path: Path) -> Graph:
    onnx.save(model, path)
    return load(path)


def piece(
    nodes: list[onnx.NodeProto], way: Mapping[str, str], opset: int = 17, **weights: Any
) -> onnx.ModelProto:
    """A model `way` = {input: output} of one tensor, 2×8."""
    ((given, made),) = way.items()
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in (given, made)]
    tensors = [numpy_helper.from_array(v, n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "piece", infos[:1], infos[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture
def model(tmp_path: Path) -> Graph:
    """x → before → first → middle → last → after → y, 2×8; MatMuls but for first and last."""
    return save(graphs.plain(), tmp_path / "m.onnx")


def test_edited_piece_takes_the_place_and_names_are_unique(
    model: Graph, tmp_path: Path, reference: Reference
) -> None:
    """Its weight has a name that is taken by another, its node too."""
    region = find_region(model, ["first"], ["last"])
    (given,), (made,) = region.inputs, region.outputs
    nodes = [
        helper.make_node("Mul", [given, "W0"], ["h2"], name="before"),
        helper.make_node("Relu", ["h2"], [made], name="last"),
    ]
    other = save(piece(nodes, {given: made}, W0=np.array([2], np.float32)), tmp_path / "p.onnx")
    draft = replace(model, region, other)
    draft.save(tmp_path / "new.onnx")
    new = load(tmp_path / "new.onnx")
    assert [(n.name, n.op_type) for n in new.nodes] == [
        ("before", "MatMul"),
        ("before_2", "Mul"),
        ("last", "Relu"),
        ("after", "MatMul"),
    ]
    assert set(new.weights) == {"W0", "W0_2", "W2"} and draft.remarks == [
        "1 name: W0 taken already, so numbered"
    ]
    (row,) = measure_effect(model, tmp_path / "new.onnx", Feeding(), reference)
    assert row.status == "changed" and row.max_rel and row.max_rel > 0.01
    onnx.checker.check_model(str(tmp_path / "new.onnx"), full_check=True)


def test_names_of_the_boundary_may_be_mapped(model: Graph, tmp_path: Path) -> None:
    region = find_region(model, ["first"], ["last"])
    (given,), (made,) = region.inputs, region.outputs
    other = save(
        piece([helper.make_node("Relu", ["in"], ["out"])], {"in": "out"}), tmp_path / "p.onnx"
    )
    with raises(UnknownName, "edit.unknown-tensor", "reads 'in'") as e:
        replace(model, region, other)
    assert f"{given} in" in e.value.hint
    with raises(UsageError, "edit.output-missing", made):
        replace(model, region, other, {given: "in"})
    replace(model, region, other, {given: "in", made: "out"}).save(tmp_path / "new.onnx")
    onnx.checker.check_model(str(tmp_path / "new.onnx"), full_check=True)


def test_another_type_or_shape_at_the_edge_is_refused(model: Graph, tmp_path: Path) -> None:
    region = find_region(model, ["first"], ["last"])
    (given,), (made,) = region.inputs, region.outputs
    wrong = piece([helper.make_node("Relu", [given], [made])], {given: made})
    wrong.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    with raises(ModelError, "edit.types-differ", made, "float32 2×8", "float16 2×8"):
        replace(model, region, save(wrong, tmp_path / "p.onnx"))


def test_piece_that_depends_on_its_own_output_is_refused(model: Graph, tmp_path: Path) -> None:
    region = find_region(model, ["first"], ["middle"])
    (made,) = region.outputs
    other = save(
        piece([helper.make_node("Relu", ["later"], [made])], {"later": made}), tmp_path / "p.onnx"
    )
    with raises(ModelError, "edit.cycle", "'last'"):
        replace(model, region, other, {model.outputs[0]: "later"})


def test_opsets_are_reconciled_or_refused(model: Graph, tmp_path: Path) -> None:
    """Relu means the same in 17 and 13; ReduceSum of 11 has its axes as an attribute, and onnx
    converts it."""
    region = find_region(model, ["first"], ["last"])
    (given,), (made,) = region.inputs, region.outputs
    same = save(
        piece([helper.make_node("Relu", [given], [made])], {given: made}, opset=14),
        tmp_path / "a.onnx",
    )
    assert replace(model, region, same).remarks == []
    old = piece(
        [helper.make_node("ReduceSum", [given], [made], axes=[0], keepdims=1)],
        {given: made},
        opset=11,
    )
    del old.graph.output[0].type.tensor_type.shape.dim[:]
    old.graph.output[0].type.tensor_type.ClearField("shape")
    draft = replace(model, region, save(old, tmp_path / "b.onnx"))
    (remark,) = draft.remarks
    assert has_line(remark, "b.onnx", "11 to 17")
    draft.save(tmp_path / "new.onnx")
    onnx.checker.check_model(str(tmp_path / "new.onnx"))
    new = piece([helper.make_node("Gelu", [given], [made])], {given: made}, opset=20)
    with raises(ModelError, "opset.not-convertible", "c.onnx has opset 20, m.onnx 17; Gelu") as e:
        replace(model, region, save(new, tmp_path / "c.onnx"))
    assert has_line(e.value.hint, "export", "20")


def test_frozen_shapes_are_computed_again_unless_they_were_edited(
    tmp_path: Path, reference: Reference
) -> None:
    graph = save(graphs.shape_chain(), tmp_path / "m.onnx")
    case = next(c for c in CASES if c.title.startswith("shape chain") and c.refused is None)
    region = find_region(graph, case.start, case.end)
    folder = tmp_path / "values"
    assert region.shapes
    boundary = [*region.inputs, *region.shapes]
    values = compute_values(graph, boundary, Feeding(), reference, folder)
    cut_region(graph, region, values.records, folder).save(tmp_path / "piece.onnx")
    other = load(tmp_path / "piece.onnx")
    computed = list_unfrozen_constants(graph, region, other, Feeding(), reference)
    assert tuple(computed) == region.shapes
    replace(graph, region, other, computed=computed).save(tmp_path / "new.onnx")
    assert [n.name for n in load(tmp_path / "new.onnx").nodes] == [n.name for n in graph.nodes]
    edited = onnx.load(tmp_path / "piece.onnx")
    for tensor in edited.graph.initializer:
        if tensor.name in region.shapes:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, tensor.name))
    found = list_unfrozen_constants(
        graph, region, save(edited, tmp_path / "e.onnx"), Feeding(), reference
    )
    assert found == []


def test_function_of_the_same_name_and_another_body_gets_a_name(tmp_path: Path) -> None:
    graph = save(graphs.nested_functions(), tmp_path / "m.onnx")
    region = find_region(graph, ["first"], ["last"])
    cut_region(graph, region).save(tmp_path / "piece.onnx")
    edited = onnx.load(tmp_path / "piece.onnx")
    edited.functions[0].doc_string = "another"
    name = edited.functions[0].name
    draft = replace(graph, region, save(edited, tmp_path / "e.onnx"))
    assert f"{name}_2" in {f.name for f in draft.model.functions}
    draft.save(tmp_path / "new.onnx")
    onnx.checker.check_model(str(tmp_path / "new.onnx"))


def test_external_weights_stay_external_and_leave_no_memory(tmp_path: Path) -> None:
    (case,) = [c for c in CASES if c.title == "external data with offsets"]
    graph = load(case.build(tmp_path))
    path = put_back(graph, find_region(graph, case.start, case.end), tmp_path / "out")
    assert (tmp_path / "out" / "new.onnx.data").stat().st_size > 0
    ours, theirs = (
        {t.name: numpy_helper.to_array(t) for t in onnx.load(p).graph.initializer}
        for p in (graph.path, path)
    )
    assert ours.keys() == theirs.keys() and all(
        np.array_equal(v, theirs[n]) for n, v in ours.items()
    )
