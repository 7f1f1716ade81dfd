"""Other values of a node's attributes."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import helper

from subgraph.trials.other_attributes import iter_other_attributes


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("Softmax", {}, {"axis=0 instead of -1", "axis=-2 instead of -1"}),
        ("Elu", {"alpha": 2.0}, {"alpha=1 instead of 2", "alpha=4 instead of 2"}),
        ("DepthToSpace", {"blocksize": 2}, {"mode='CRD' instead of 'DCR'"}),
        ("Transpose", {"perm": [1, 0]}, {"perm=[0, 1] instead of [1, 0]"}),
        ("Relu", {}, set()),
        ("Cast", {"to": 1}, {"saturate=2 instead of 1", "saturate=0 instead of 1"}),
        ("Unknown", {"axis": 1}, set()),
    ],
)
def test_other_values(op: str, attributes: dict[str, Any], expected: set[str]) -> None:
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    assert {other.says for other in iter_other_attributes(node, model)} >= expected


def test_node_takes_the_other_value() -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    next(iter_other_attributes(node, model)).apply(node)
    assert [helper.get_attribute_value(a) for a in node.attribute] == [-1]
