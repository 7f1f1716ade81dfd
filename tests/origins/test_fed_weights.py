"""A weight that the model lists among its inputs may be fed; another one stays a constant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from subgraph.errors import InputError
from subgraph.origins.converted import move_weights_to_inputs
from tests.helpers import text_models
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

TEXT = "g (float[3] x) => (float[3] y) { [mul] a = Mul(x, w) [add] y = Add(a, v) }"


def listed(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))


def test_listed_weight_is_fed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text_models.load(
        tmp_path, TEXT, listed, w=np.array([1, 1, 1], np.float32), v=np.array([0, 0, 1], np.float32)
    )
    for name, value in (("x", [1, 2, 3]), ("w", [2, 2, 2])):
        np.save(f"{name}.npy", np.array(value, np.float32))
    in_process("dump", "model.onnx", "y", "-i", "x=x.npy", "-o", "own")
    in_process("dump", "model.onnx", "y", "-i", "x=x.npy", "-i", "w=w.npy", "-o", "fed")
    assert [np.load(f"{folder}/y.npy").tolist() for folder in ("own", "fed")] == [
        [1, 2, 4],
        [2, 4, 7],
    ]
    with raises(InputError, "input.is-weight", "v"):
        in_process("dump", "model.onnx", "y", "-i", "x=x.npy", "-i", "v=w.npy", "-o", "fed")


def test_model_without_such_a_weight_stays(tmp_path: Path) -> None:
    path = text_models.load(tmp_path, TEXT, w=np.ones(3, np.float32), v=np.ones(3, np.float32)).path
    assert move_weights_to_inputs(path, {"w", "x"}) == path
