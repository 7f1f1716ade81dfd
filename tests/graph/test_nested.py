"""What a model holds at any depth, on a model with bodies in bodies and a function. Covers
`graph.opsets`."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from subgraph.graph import nested, opsets

NESTED = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[2] x, bool c) => (float[2] z) {
    [if] z = If(c) <else_branch = BRANCH, then_branch = BRANCH>
}
<domain: "local", opset_import: ["" : 17]>
Inner (a) => (b) { b = Relu(a) }
<domain: "local", opset_import: ["" : 17, "local" : 1]>
Outer (a) => (b) { b = local.Inner(a) }
"""
BRANCH = """branch () => (float[2] y) {
    y = If(c) <else_branch = DEEP, then_branch = DEEP>
    k = Constant<value = float kt {1}>()
}"""
DEEP = "deep () => (float[2] y) <float[2] w = {1, 1}> { y = local.Outer(x) }"


def _nested() -> onnx.ModelProto:
    """Return an If in whose branches is an If: the inner one reads `x`, and calls a function that
    calls another."""
    return onnx.parser.parse_model(NESTED.replace("BRANCH", BRANCH).replace("DEEP", DEEP))


def test_nodes_come_outer_first_and_in_order() -> None:
    model = _nested()
    branch = ["If", "Outer", "Outer", "Constant"]
    assert [n.op_type for n in nested.iter_nodes(model.graph.node)] == ["If", *branch, *branch]
    assert [n.op_type for n in nested.iter_model_nodes(model)] == [
        "If",
        *branch,
        *branch,
        "Relu",
        "Inner",
    ]
    assert [g.name for g in nested.iter_graphs(model.graph)] == [
        "g",
        *["branch", "deep", "deep"] * 2,
    ]


def test_bodies_are_named_by_their_attributes() -> None:
    (node,) = _nested().graph.node
    assert [name for name, _ in nested.iter_named_bodies(node)] == ["else_branch", "then_branch"]
    several = helper.make_node("Custom", [], ["y"], domain="own")
    several.attribute.add(name="graphs", type=nested.GRAPHS_ATTRIBUTE).graphs.extend(
        nested.list_bodies(node)
    )
    assert [name for name, _ in nested.iter_named_bodies(several)] == ["graphs[0]", "graphs[1]"]


@pytest.mark.parametrize(
    ("written", "default", "read"),
    [
        (5, 1, 5),
        ("a", "b", "a"),
        ([3, 4], [1, 1], [3, 4]),
        ([3, 4], (1, 1), [3, 4]),
        ([], [1, 1], []),
        (helper.make_tensor("t", TensorProto.FLOAT, [], [1.0]), 1, 1),
        ("SAME_UPPER", 1, 1),
        (2.0, 1, 1),
        ([0.5], [1, 1], [1, 1]),
        (3, [1, 1], [1, 1]),
        (5, None, 5),
    ],
)
def test_attribute_has_the_kind_of_its_default(written: Any, default: Any, read: Any) -> None:
    node = helper.make_node("Own", [], ["y"])
    kind = onnx.AttributeProto.INTS if written == [] else None
    node.attribute.append(helper.make_attribute("a", written, attr_type=kind))
    assert nested.get_attribute(node, "a", default) == read
    assert nested.get_attribute(node, "b", default) == default


def test_tensors_are_found_at_any_depth() -> None:
    model = _nested()
    model.graph.sparse_initializer.add()
    names = [t.name for t in nested.iter_tensors(model.graph)]
    assert names == ["", "", *["w", "w", "kt"] * 2]
    assert list(nested.iter_tensors(model.functions[0])) == []


def test_functions_are_called_from_bodies_and_through_others() -> None:
    model = _nested()
    functions = nested.list_functions(model)
    assert list(functions) == [("local", "Inner", ""), ("local", "Outer", "")]
    assert nested.find_called(model.graph.node, functions) == set(functions)
    assert nested.find_called([helper.make_node("Relu", ["a"], ["b"])], functions) == set()


def test_captured_names_are_found() -> None:
    (node,) = _nested().graph.node
    assert nested.list_captured(node) == ["c", "x"]


def test_elements_of_a_field_can_be_its_own() -> None:
    model = _nested()
    nested.assign(model.functions, [model.functions[1], model.functions[0]])
    assert [f.name for f in model.functions] == ["Outer", "Inner"]


def test_imported_versions_are_found() -> None:
    model = _nested()
    assert opsets.read_imports(model) == {"": 17, "local": 1}
    assert opsets.get_opset(model) == 17
    del model.opset_import[:]
    assert (opsets.get_opset(model), opsets.get_opset(model, 0)) == (1, 0)
    model.opset_import.add(domain="ai.onnx", version=9)
    assert opsets.read_imports(model) == {"": 9}


def test_schema_is_found_for_any_version() -> None:
    assert opsets.find_schema("Relu", 17).since_version == 14
    assert [opsets.find_schema("Relu", version) for version in (0, -1, 1 << 70)] == [
        None,
        None,
        None,
    ]
    assert opsets.find_schema("Relu", 17, "own") is None


def test_nodes_newer_than_an_opset_are_found() -> None:
    assert [(n.op_type, since) for n, since in opsets.find_newer_nodes(_nested(), 13)] == [
        ("If", 16)
    ] * 3 + [("Relu", 14)]
