"""`load` takes ONNX and Caffe; what belongs to neither is said. An ONNX model loads nothing of
other origins.

Covers `origins.converted`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import onnx
import pytest

import subgraph
from fixtures import graphs
from fixtures.caffe import layer, net, write
from subgraph.errors import ModelError, UsageError
from subgraph.storage.file_kinds import Family, find_family
from tests.helpers import text_models
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process, run_program

SMALL = net(layer("ReLU", "relu", "x"), x=(1, 2))


def test_each_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    onnx.save(graphs.plain(), tmp_path / "m.onnx")
    assert subgraph.load(tmp_path / "m.onnx").path == tmp_path / "m.onnx"
    prototxt = write(SMALL, tmp_path / "net.prototxt")
    for path in (prototxt, prototxt.with_suffix(".caffemodel")):
        assert subgraph.load(path).outputs == ["relu"]
    renamed = prototxt.rename(tmp_path / "net.txt")  # recognized by content
    assert find_family(renamed) is Family.CAFFE
    assert subgraph.load(renamed, weights=str(tmp_path / "net.caffemodel")).outputs == ["relu"]
    with raises(UsageError, "option.conflict", "--weights"):
        subgraph.load(tmp_path / "m.onnx", weights="random:0")
    with raises(ModelError, "model.unreadable", "cannot read"):
        subgraph.load(tmp_path / "none.onnx")
    with raises(ModelError, "model.unreadable", "cannot read"):
        subgraph.load(tmp_path / "none")


@pytest.mark.parametrize("form", ["json", "onnxtxt", "textproto"])
def test_onnx_as_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = graphs.plain()
    path = tmp_path / f"m.{form}"
    with warnings.catch_warnings(action="ignore"):
        onnx.save(model, path, format=form)
    found = onnx.printer.to_text(onnx.load(subgraph.load(path).path, format="protobuf").graph)
    assert found == onnx.printer.to_text(model.graph)
    path.write_bytes(path.read_bytes()[:-20])
    with raises(ModelError, "model.text-unreadable", form):
        subgraph.load(path)


def test_text_with_weights_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = graphs.plain()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    onnx.save(model, tmp_path / "m.json", format="json")
    with raises(ModelError, "model.text-external"):
        subgraph.load(tmp_path / "m.json")


def test_address_is_no_file() -> None:
    with raises(UsageError, "model.is-address") as refusal:
        in_process("inspect", "https://host/m.onnx")
    assert has_line(refusal.value.hint, "download")


@pytest.mark.slow
def test_onnx_model_loads_nothing_of_other_origins(tmp_path: Path) -> None:
    onnx.save(graphs.plain(), tmp_path / "m.onnx")
    program = (
        "import atexit, sys; from subgraph import cli\natexit.register(lambda: print([m for m in"
        " sys.modules if m.startswith('subgraph.origins')]))\nimport os; os._exit ="
        " sys.exit\ncli.main()"
    )
    words = [sys.executable, "-c", program, "inspect", str(tmp_path / "m.onnx"), "--no-run"]
    done = run_program(words)
    # what a node says of where it comes from
    own = "['subgraph.origins', 'subgraph.origins.source']\n"
    assert done.stdout.endswith(own), done.stdout + done.stderr


def test_model_in_memory_is_loaded(tmp_path: Path) -> None:
    file = text_models.load(tmp_path, "g (float[2] x) => (float[2] y) { y = Relu(x) }").path
    for model in (file.read_bytes(), onnx.load(file)):
        assert subgraph.load(model).outputs == ["y"]


@pytest.mark.parametrize("item", [None, 3, ["model.onnx"]])
def test_other_objects_are_no_model(item: object) -> None:
    with raises(UsageError, "api.wrong-type"):
        subgraph.load(item)
