"""A model whose file changes while a page shows it: nothing is done with the new file by numbers of
the old one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import set_external_data

from subgraph.view.values import ModelChanged, OpenedModel, open_model
from tests.helpers.chain_models import chain
from tests.helpers.refusals import raises


def refused(opened: OpenedModel) -> bool:
    try:
        opened.require(opened.key)
    except ModelChanged:
        return True
    return False


def test_file_that_is_written_again_in_any_way_is_another_one(tmp_path: Path) -> None:
    for way in ("in place", "replaced", "gone", "same size and time"):
        path = chain(tmp_path / "m.onnx", ["a", "b", "c"])
        opened = open_model(path)
        assert not refused(opened)
        data = path.read_bytes()
        before = path.stat()
        if way == "in place":
            path.write_bytes(data + b"\0")
        elif way == "gone":
            path.unlink()
        else:
            other = tmp_path / "new.onnx"
            other.write_bytes(data.replace(b"Relu", b"Selu"))
            os.utime(
                other,
                ns=(
                    before.st_atime_ns,
                    before.st_mtime_ns if "time" in way else before.st_mtime_ns + 1,
                ),
            )
            other.replace(path)
        assert refused(opened), way


def test_weights_in_another_file_count(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", ["a"])
    model = onnx.load(path)
    weight = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    set_external_data(weight, "w.data", 0, 16)
    weight.ClearField("raw_data")
    model.graph.initializer.append(weight)
    path.write_bytes(model.SerializeToString())
    assert not refused(open_model(path))  # a model without its weights can be looked at
    (tmp_path / "w.data").write_bytes(bytes(16))
    opened = open_model(path)
    assert not refused(opened)
    (tmp_path / "w.data").write_bytes(bytes(20))
    assert refused(opened)


def test_numbers_of_another_reading_are_refused(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", ["a"])
    one = open_model(path)
    other = open_model(path)
    for key in (other.key, None, "", 0):
        with raises(ModelChanged, "model.changed", "m.onnx"):
            one.require(key)
