"""The table of operators' properties: rows of ONNX's operators that agree with their schemas."""

from __future__ import annotations

from itertools import chain

import pytest
from onnx import defs

from subgraph.graph import properties
from subgraph.graph.properties import PROPERTIES, TABLE

SCHEMAS = {schema.name: schema for schema in defs.get_all_schemas()}
FORMER = {"Scatter"}  # operators that newer opsets do not have
ONNXRUNTIME = {  # operators of onnxruntime
    *("QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearGlobalAveragePool"),
    *("DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulNBits"),
    *("QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QLinearSoftmax"),
}


def test_each_row_names_an_operator() -> None:
    assert PROPERTIES.keys() - SCHEMAS.keys() <= FORMER | ONNXRUNTIME


def test_rows_are_sorted_and_unique() -> None:
    names = [line.split()[0] for line in TABLE.strip().splitlines()]
    assert names == sorted(set(names))


def test_each_word_of_the_table_is_a_set_or_a_table() -> None:
    words = set(chain.from_iterable(PROPERTIES.values()))
    held = [one for name, one in vars(properties).items() if name.isupper() and name != "TABLE"]
    assert len(held) == len(words) + 1, "one for each word, and all of them"
    assert all(held)


@pytest.mark.parametrize("operator", sorted(PROPERTIES.keys() & SCHEMAS.keys()))
def test_properties_agree_with_the_schema(operator: str) -> None:
    schema = SCHEMAS[operator]
    attributes = {str(a.type).rpartition(".")[2] for a in schema.attributes.values()}
    its = PROPERTIES[operator]
    assert ("bodies" in its) == ("GRAPH" in attributes)
    assert ("tensor" in its) == ("TENSOR" in attributes)
    first_output = schema.outputs[0]
    outputs = set(first_output.types)
    if "keeps-type" in its:
        assert first_output.type_str == schema.inputs[0].type_str
    if "int64" in its:
        assert outputs == {"tensor(int64)"}
    if "bool" in its:
        assert outputs == {"tensor(bool)"}
    if "float" in its:
        assert not any("int" in name for name in schema.inputs[0].types)
    inputs = [its.get(word, ()) for word in ("parameter", "setting", "scale", "weight")]
    chosen = [its.get(word, ()) for word in ("choice", "step")]
    assert all(k < schema.max_input for k in chain(*inputs))
    assert all(k < schema.max_output for k in chain(*chosen))
