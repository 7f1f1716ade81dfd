"""Declared types of tensors."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from subgraph.graph.value_types import find_declared_types
from tests.helpers import text_models


def test_types_come_from_inputs_outputs_and_value_info(tmp_path: Path) -> None:
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[N] y) <int64[3] a> { a = Foo(x)  b = Foo(a)  y = Foo(b) }",
        domains=(),
    )
    assert set(find_declared_types(g)) == {"x", "y", "a"}
    assert set(find_declared_types(g, {"a", "b", "y"})) == {"a", "y"}
    assert find_declared_types(g, ["a"])["a"].tensor_type.elem_type == onnx.TensorProto.INT64


@pytest.mark.parametrize("length", [1, 127, 128, 300, 20_000])
def test_type_is_found_by_a_name_of_any_length(tmp_path: Path, length: int) -> None:
    """Names are compared before a value_info is decoded; a length above 127 takes two bytes
    there."""
    name = "ü" * (length // 2) + "n" * (length % 2)
    info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, [3])
    g = text_models.load(
        tmp_path,
        "g (float[2] x) => (float[2] y) { y = Relu(x) }",
        lambda m: m.graph.value_info.append(info),
    )
    assert find_declared_types(g, [name])[name].tensor_type.elem_type == onnx.TensorProto.FLOAT16
    assert find_declared_types(g, ["other"]) == {}
