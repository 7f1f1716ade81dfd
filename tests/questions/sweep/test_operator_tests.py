"""A test that is too new for onnxruntime is converted to an older opset where onnx can do that."""

from __future__ import annotations

from pathlib import Path

import pytest

from subgraph.graph.opsets import get_opset, list_newest_opsets
from subgraph.questions.sweep.operator_tests import find_newest_opset, lower_opset
from tests.helpers import text_models

RELU = "g (float[2] x) => (float[2] y) { y = Relu (x) }"


def test_model_of_a_newer_opset_is_converted() -> None:
    newest = list_newest_opsets()[""]
    lower = lower_opset(text_models.model(RELU, opset=newest), newest - 1)
    assert get_opset(lower) == newest - 1


def test_model_of_an_accepted_opset_is_unchanged() -> None:
    model = text_models.model(RELU, opset=13)
    assert lower_opset(model, 13) is model


def test_new_operator_keeps_its_opset() -> None:
    model = text_models.model(RELU.replace("Relu", "Gelu"), opset=20)
    assert lower_opset(model, 19) is model


def test_newest_opset_is_the_last_that_onnxruntime_accepts(tmp_path: Path) -> None:
    import onnxruntime

    version = find_newest_opset(tmp_path)
    onnxruntime.InferenceSession(tmp_path / f"opset{version}.onnx")
    assert version <= list_newest_opsets()[""]
    newer = tmp_path / f"opset{version + 1}.onnx"
    if newer.exists():
        with pytest.raises(Exception, match=r"IR version|opset"):
            onnxruntime.InferenceSession(newer)
