"""The halves of a Caffe model find each other; it is accepted wherever a model is, and kept
converted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import subgraph
from fixtures.caffe import layer, net, resnet50, write
from subgraph.errors import UsageError
from subgraph.origins.caffe import conversion
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

SMALL = net(
    layer("Convolution", "conv", "x", convolution_param={"num_output": 3, "kernel_size": 3}),
    layer("ReLU", "relu", "conv", "conv"),
    layer("InnerProduct", "fc", "conv", inner_product_param={"num_output": 2}),
    name="small",
    x=(1, 2, 5, 5),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def test_the_other_half_is_found(tmp_path: Path) -> None:
    prototxt = write(SMALL, tmp_path / "a.prototxt")
    weights = tmp_path / "a.caffemodel"
    assert conversion.find_model(prototxt) == conversion.CaffeModel(prototxt, weights)
    assert conversion.find_model(weights) == conversion.CaffeModel(prototxt, weights)
    assert conversion.find_model(prototxt, "random:3") == conversion.CaffeModel(prototxt, None, 3)
    other = weights.rename(tmp_path / "b.caffemodel")
    assert conversion.find_model(prototxt).weights == other  # the only one
    assert conversion.find_model(prototxt, str(other)).weights == other


@pytest.mark.parametrize(
    ("names", "weights", "code"),
    [
        ([], None, "caffe.file-missing"),
        (["b.caffemodel", "c.caffemodel"], None, "caffe.ambiguous-file"),
        ([], "random:x", "file.not-found"),
    ],
)
def test_missing_file_has_a_code(
    names: list[str], weights: str | None, code: str, tmp_path: Path
) -> None:
    """What is said is in tests/said/caffe.md."""
    (tmp_path / "a.prototxt").write_text(SMALL)
    for name in names:
        (tmp_path / name).touch()
    with raises(UsageError, code, weights or "a.prototxt"):
        conversion.find_model(tmp_path / "a.prototxt", weights)


def test_converted_model_is_used_again_until_its_files_change(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prototxt = write(SMALL, tmp_path / "a.prototxt")
    first = conversion.to_onnx(prototxt)
    assert first.name == "a.prototxt"
    assert cache in first.parents
    stamp = first.stat().st_mtime_ns
    assert conversion.to_onnx(prototxt) == first
    assert first.stat().st_mtime_ns == stamp
    write(SMALL, prototxt, seed=1)
    assert conversion.to_onnx(prototxt) != first
    monkeypatch.setattr("subgraph.origins.converted.MAX_CONVERTED_BYTES", 3 * first.stat().st_size)
    latest = [conversion.to_onnx(prototxt, f"random:{seed}") for seed in range(5)]
    assert {p.name for p in first.parent.parent.iterdir()} <= {p.parent.name for p in latest}
    assert 1 <= len([*first.parent.parent.iterdir()]) <= 3
    assert latest[-1].is_file()


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert conversion.to_onnx(write(SMALL, tmp_path / "a.prototxt")).is_file()


def test_large_weights_are_those_of_the_caffemodel(tmp_path: Path) -> None:
    wide = net(
        layer("InnerProduct", "fc", "x", inner_product_param={"num_output": 300}), x=(1, 100)
    )
    path = write(wide, tmp_path / "a.prototxt")
    blob = conversion.find_model(path).convert().layers[0].weights[0]
    model = onnx.load(subgraph.load(path).path, format="protobuf")
    weight = next(i for i in model.graph.initializer if i.name == "fc.weight")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(weight), blob.array())


def test_large_filter_repeats_its_random_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VGG-16 has 138 million weights: to look at names, drawing each of them is too much."""
    monkeypatch.setattr("subgraph.origins.caffe.builder.MAX_DRAWN_WEIGHTS", 1009)
    path = tmp_path / "a.prototxt"
    path.write_text(
        net(layer("InnerProduct", "fc", "x", inner_product_param={"num_output": 30}), x=(1, 100))
    )
    converted = conversion.to_onnx(path, "random:0")
    assert [p.name for p in converted.parent.iterdir()] == ["a.prototxt"]
    weight, _ = onnx.load(converted, format="protobuf").graph.initializer
    values = onnx.numpy_helper.to_array(weight)
    (fc,) = conversion.find_model(path, "random:0").convert().layers
    np.testing.assert_array_equal(values, fc.weights[0].array())
    assert (
        values.shape == (30, 100)
        and len(np.unique(values)) == 1009
        and len(np.unique(values, axis=0)) == 30
    )
    assert 0.8 < values.std() / 0.1 < 1.2


@pytest.mark.slow
def test_the_worked_example(tmp_path: Path) -> None:
    """MindStudio's: ResNet-50 by its layers' names, pool1 to res2a_relu: 17 layers, the input
    1×64×112×112."""
    (tmp_path / "ResNet-50-deploy.prototxt").write_text(resnet50())
    (case,) = in_process(
        "--start", "pool1", "--end", "res2a_relu", "--weights", "random:0"
    ).document["results"]
    assert len(case["region"]["nodes"]) == 17
    assert [(i["name"], i["shape"]) for i in case["inputs"]] == [
        ("conv1_relu", [[1, 64, 112, 112]])
    ]
    assert [(i["name"], i["shape"]) for i in case["outputs"]] == [
        ("res2a_relu", [[1, 256, 56, 56]])
    ]
    assert case["check"]["status"] == "identical"


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "net.prototxt", "r0", "--no-run"],
        ["inspect", "r0", "--no-run"],
        ["cut", "--start", "r1", "--end", "r2", "--dry-run"],
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                ["lint", "net.prototxt"],
                ["dump", "net.caffemodel", "r0"],
                ["compare", "net.prototxt", "--at", "r2"],
                ["bisect", "net.prototxt", "--within", "r1..r2"],
                ["manual", "start", "net.prototxt"],
            )
        ),
    ],
    ids=lambda words: words[0],
)
def test_each_command_takes_caffe(tmp_path: Path, words: list[str]) -> None:
    layers = [layer("ReLU", f"r{k}", f"r{k - 1}") for k in range(1, 4)]
    write(
        net(
            layer("Pooling", "r0", "x", pooling_param={"kernel_size": 2, "stride": 2}),
            *layers,
            x=(1, 2, 5, 5),
        ),
        tmp_path / "net.prototxt",
    )
    document = in_process(*words).document
    assert document["exit_code"] == (words[0] == "lint")  # which names the pooling that rounds up
    if words[0] == "cut":
        assert len(document["region"]["nodes"]) == 2
