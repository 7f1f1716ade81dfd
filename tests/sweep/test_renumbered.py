"""A test that is too new by its number alone is stamped with an older one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from subgraph.graph.opsets import newest_opsets, opset_of
from subgraph.sweep.renumbered import newest_taken, renumbered
from subgraph.types import Array
from tests.helpers import text_models

X = np.array([-1, 2], np.float32)
RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


def older(text: str, expected: Array, own: int, newest: int, fed: Array = X, **more: Any) -> Any:
    model = text_models.model(text, opset=own, **more)
    made = renumbered(model, {"x": fed}, [expected], (1e-5, 1e-6), newest)
    assert (made is model) == (opset_of(made) == own), "another number is another model"
    return made


def test_only_the_number_is_new() -> None:
    """Relu takes integers from opset 14 on, and is as before for floats."""
    made = older(RELU, np.maximum(X, 0), 14, 13)
    assert (opset_of(made), made.ir_version) == (13, 7)
    onnx.checker.check_model(made)


@pytest.mark.parametrize(
    ("text", "expected", "own", "newest", "fed"),
    [
        (RELU, np.maximum(X, 0), 13, 13, X),  # not too new
        (RELU, X, 14, 13, X),  # other values are expected
        (
            RELU.replace("float", "int32"),
            np.array([0, 2], np.int32),
            14,
            13,
            np.array([-1, 2], np.int32),
        ),  # a new type
        (RELU.replace("Relu", "Gelu"), X, 20, 19, X),  # a new operator
        (RELU.replace("Relu(x)", 'Gelu<approximate = "tanh">(x)'), X, 20, 19, X),
        (
            "g (float[2] x) => (float[1] y) { y = ReduceSum(x, a) }",
            np.ones(1, np.float32),
            13,
            12,
            X,
        ),  # another form
    ],
)
def test_new_operator_is_not_renumbered(
    text: str, expected: Array, own: int, newest: int, fed: Array
) -> None:
    more: dict[str, Any] = {"a": np.array([0])} if "ReduceSum" in text else {}
    assert opset_of(older(text, expected, own, newest, fed, **more)) == own


def test_the_newest_opset_that_onnxruntime_takes(tmp_path: Path) -> None:
    import onnxruntime

    version = newest_taken(tmp_path)
    onnxruntime.InferenceSession(tmp_path / f"opset{version}.onnx")
    assert version <= newest_opsets()[""]
    if (newer := tmp_path / f"opset{version + 1}.onnx").exists():
        with pytest.raises(Exception, match=r"IR version|opset"):
            onnxruntime.InferenceSession(newer)
