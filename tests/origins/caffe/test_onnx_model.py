"""A prototxt becomes a graph: names of tensors, inputs, phases, old forms; the rest is refused by
name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fixtures.caffe import layer, net, resnet50
from subgraph.errors import ModelError
from subgraph.origins.caffe import messages, onnx_model
from subgraph.origins.caffe.caffemodel import WeightBlob
from subgraph.origins.caffe.onnx_model import CONVERTERS, CaffeNetwork
from tests.helpers.refusals import raises
from tests.helpers.runs import evaluate


def convert(
    prototxt: str, weights: Mapping[str, tuple[WeightBlob, ...]] | None = None
) -> CaffeNetwork:
    converted = onnx_model.convert(messages.parse(prototxt, Path("n")), "n", weights)
    onnx.checker.check_model(converted.model, full_check=True)
    return converted


def graph(prototxt: str) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """Inputs, outputs, and (node, its tensor)."""
    g = convert(prototxt).model.graph
    return (
        [i.name for i in g.input],
        [o.name for o in g.output],
        [(n.name, n.output[0]) for n in g.node],
    )


X = {"x": (1, 4, 5, 5)}
CONV: Any = {"convolution_param": {"num_output": 4, "kernel_size": 1}}


def test_layer_in_place_makes_a_tensor_with_its_own_name() -> None:
    chain = net(
        layer("Convolution", "conv", "x", **CONV),
        layer("ReLU", "relu", "conv", "conv"),
        layer("Scale", "scale", "conv", "conv"),
        layer("Pooling", "p", "conv", "pool", pooling_param={"kernel_size": 2}),
        **X,
    )
    assert graph(chain) == (
        ["x"],
        ["pool"],
        [("conv", "conv"), ("relu", "relu"), ("scale", "scale"), ("p", "pool")],
    )


def test_names_that_two_tensors_would_have() -> None:
    both = net(
        layer("ReLU", "b", "x", "a"),
        layer("ReLU", "a", "a", "b"),
        layer("ReLU", "c", "b", "b"),
        **X,
    )
    assert graph(both)[2] == [("b", "a"), ("a", "b"), ("c", "c")]
    taken = net(
        layer("ReLU", "r", "x", "relu"),
        layer("TanH", "relu", "x", "x"),
        layer("AbsVal", "end", "x"),
        **X,
    )
    assert graph(taken)[2] == [("r", "relu"), ("relu", "x@relu"), ("end", "end")]


def test_inputs_in_all_forms() -> None:
    relu = 'layer { name: "r" type: "ReLU" bottom: "data" top: "r" }'
    dims = " ".join(f"input_dim: {n}" for n in (1, 3, 4, 5))
    shape = "shape { dim: 1 dim: 3 dim: 4 dim: 5 }"
    for front in (
        f'input: "data" {dims}',
        'input: "data" input_shape { dim: [1, 3, 4, 5] }',
        (
            f'layer {{ name: "in" type: "Input" top: "data" top: "label" input_param {{ {shape}'
            f" {shape} }} }}"
        ),
        f'layer {{ name: "in" type: "DummyData" top: "data" dummy_data_param {{ {shape} }} }}',
        (
            'layer { name: "in" type: "MemoryData" top: "data" top: "label" memory_data_param {'
            " batch_size: 1 channels: 3 height: 4 width: 5 } }"
        ),
    ):
        converted = convert(f"{front} {relu}")
        assert [(i.name, converted.shapes[i.name]) for i in converted.model.graph.input] == [
            ("data", (1, 3, 4, 5))
        ]
    data = (
        'layer { name: "d" type: "Data" top: "data" top: "l" data_param { batch_size: 2 crop_size:'
        " 7 } }"
    )
    assert convert(f"{data} {relu}").shapes["data"] == (2, 3, 7, 7)


def test_only_the_layers_of_a_test_are_there() -> None:
    lines = [
        'layer { name: "t" type: "HDF5Data" top: "x" include { phase: TRAIN } }',
        'layer { name: "a" type: "ReLU" bottom: "x" top: "a" include { phase: TEST } }',
        'layer { name: "b" type: "TanH" bottom: "x" top: "a" exclude { phase: TEST } }',
        'layer { name: "c" type: "TanH" bottom: "x" top: "a" include { stage: "deploy" } }',
        'layer { name: "d" type: "Accuracy" bottom: "a" bottom: "label" top: "acc" }',
        'layer { name: "e" type: "Silence" bottom: "a" }',
    ]
    assert graph(net(*lines, **X)) == (["x"], ["a"], [("a", "a")])


def test_layers_as_before_2014() -> None:
    old = """
        input: "x" input_dim: 1 input_dim: 3 input_dim: 6 input_dim: 6
        layers { name: "c" type: CONVOLUTION bottom: "x" top: "c" blobs_lr: 1 weight_decay: 0
                 convolution_param { num_output: 2 kernel_size: 3 } }
        layers { name: "r" type: RELU bottom: "c" top: "c" }
        layers { name: "f" type: INNER_PRODUCT bottom: "c" top: "f" inner_product_param { num_output: 2 } }
    """  # noqa: E501
    weights: Any = {  # four dims, as old files have
        "c": (blob(2, 3, 3, 3), blob(1, 1, 1, 2)),
        "f": (blob(1, 1, 2, 32), blob(1, 1, 1, 2)),
    }
    model = convert(old, weights).model.graph
    assert [n.op_type for n in model.node] == ["Conv", "Relu", "Flatten", "Gemm"]
    assert {i.name: list(i.dims) for i in model.initializer}["f.weight"] == [2, 32]


def blob(*shape: int) -> WeightBlob:
    return WeightBlob(shape, values=np.ones(shape, np.float32))


def test_weights_that_do_not_fit() -> None:
    prototxt = net(layer("Convolution", "conv", "x", **CONV), **X)
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, "caffe.layer-refused", "'conv' (Convolution)"),
        ({"conv": (blob(4, 4, 1, 1),)}, "caffe.layer-refused", "only 1 blobs"),
        ({"conv": (blob(4, 3, 1, 1), blob(4))}, "caffe.layer-refused", "4×4×1×1 as blob 0"),
    ]
    for weights, code, about in cases:
        with raises(ModelError, code, about) as refusal:
            convert(prototxt, weights)
        assert "--weights" in refusal.value.hint


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("Convolutoin", "Convolution"),
        ("Python", ", ".join(sorted(CONVERTERS))),
        ("PSROIPooling", "known: "),
    ],
)
def test_unknown_layer_is_named(kind: str, hint: str) -> None:
    lines = f'layer {{ name: "u" type: "{kind}" bottom: "x" top: "u" reorg_param {{ stride: 2 }} }}'
    with raises(ModelError, "caffe.unsupported-layer", "line 4: layer 'u'", kind) as refusal:
        convert(net(lines, **X))
    assert hint in refusal.value.hint


def test_sizes_that_no_machine_has() -> None:
    for shape in ((1, 3, 100_000, 100_000), (1, 0, 4, 4), (-1, 3, 4, 4)):
        with raises(ModelError, "caffe.wrong-shape", "'x'"):
            convert(net(layer("ReLU", "r", "x"), x=shape))


def test_random_weights_leave_the_softmax_open() -> None:
    """So that a wrong layer shows at the output of a network whose weights are random."""
    model = convert(resnet50(width=4, size=64, classes=10)).model
    data = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)
    (probabilities,) = evaluate(model, {"data": data}).values()
    assert probabilities.max() < 0.9
