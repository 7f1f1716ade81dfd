"""A cut in Caffe's own form, read again, gives the same bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import subgraph
from fixtures.caffe import layer, net, resnet50, write
from subgraph.errors import UsageError
from subgraph.origins.caffe import messages
from subgraph.types import Array
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process


@pytest.fixture(scope="module")
def prototxt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A narrow ResNet-50; the tests share its conversion as well."""
    return write(
        resnet50(width=2, size=32, classes=3), tmp_path_factory.mktemp("caffe") / "net.prototxt"
    )


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def again(folder: Path) -> None:
    """Run the cut as ONNX and the cut as Caffe has it on equal inputs."""
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    answers = []
    for model in (folder / "model.onnx", subgraph.load(folder / "model.prototxt").path):
        session = ort.InferenceSession(model)
        names = sorted(o.name for o in session.get_outputs())
        for i in session.get_inputs():
            feeds.setdefault(i.name, rng.standard_normal(i.shape).astype(np.float32))
        answers.append(
            (names, session.run(names, {i.name: feeds[i.name] for i in session.get_inputs()}))
        )
    (names, one), (others, two) = answers
    assert names == others
    for a, b in zip(one, two, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("start", "end", "layers"),
    [
        ("pool1", "res2a_relu", 17),
        ("bn_conv1", "conv1_relu", 3),  # in place: the blobs have names of their own
        ("fc1000", "prob", 2),  # from where the layer begins, which flattens
        pytest.param("res4a", "prob", None, marks=pytest.mark.slow),
    ],
)
def test_cut_of_a_network(prototxt: Path, start: str, end: str, layers: int | None) -> None:
    words = (prototxt, "--start", start, "--end", end, "--as", "caffe", "--no-capture")
    (case,) = in_process("cut", *words).document["results"]
    assert {"model.prototxt", "model.caffemodel"} <= set(case["files"])
    if layers:
        assert len(messages.read(Path(case["path"]) / "model.prototxt").all("layer")) == layers
    again(Path(case["path"]))


def test_old_layers_and_a_bottom_whose_shape_alone_is_used(tmp_path: Path) -> None:
    old = """
        input: "x" input_dim: 1 input_dim: 3 input_dim: 6 input_dim: 6
        layers { name: "c" type: CONVOLUTION bottom: "x" top: "c" convolution_param { num_output: 2 kernel_size: 3 } }
        layers { name: "n" type: LRN bottom: "c" top: "n" lrn_param { alpha: 0.5 } }
        layers { name: "f" type: INNER_PRODUCT bottom: "n" top: "f" inner_product_param { num_output: 2 } }
    """  # noqa: E501
    layers = [layer("ReLU", "a", "x"), layer("Pooling", "p", "x", pooling_param={"kernel_size": 2})]
    layers += [layer("Crop", "b", "a p", crop_param={"offset": 1}), layer("TanH", "c", "b")]
    for prototxt, start, end in ((old, "n", "f"), (net(*layers, x=(1, 2, 6, 6)), "b", "c")):
        path = write(prototxt, tmp_path / f"{start}.prototxt")
        words = ("--start", start, "--end", end, "--as", "caffe", "--no-capture")
        (case,) = in_process("cut", path, *words).document["results"]
        again(Path(case["path"]))


def test_unwritable_output_is_an_error(tmp_path: Path, prototxt: Path) -> None:
    for words, code, about in (
        (["fc1000", "--as", "tensorflow", "--no-capture"], "option.unknown-value", "caffe"),
        (["fc1000/flatten", "--as", "caffe", "--no-capture"], "caffe.cut-inside-layer", "fc1000"),
    ):
        with raises(UsageError, code, about):
            in_process("cut", prototxt, "--start", "pool5", "--end", *words)
    onnx_path = shutil.copyfile(subgraph.load(prototxt).path, tmp_path / "m.onnx")
    with raises(UsageError, "caffe.not-prototxt", "m.onnx"):
        in_process("cut", onnx_path, "--end", "prob", "--as", "caffe", "--no-capture")
