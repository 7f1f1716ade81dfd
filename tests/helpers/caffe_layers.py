"""One layer of Caffe, converted and run, beside an expected value in float64."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from fixtures.caffe import layer, net
from subgraph.origins.caffe import messages, onnx_model
from subgraph.types import Array

X = (2, 6, 7, 5)
# The messages that are not called as their layers.
MESSAGES = {
    "ArgMax": "argmax_param",
    "LSTM": "recurrent_param",
    "PReLU": "prelu_param",
    "ReLU": "relu_param",
}


def convert(prototxt: str, seed: int = 1) -> onnx_model.CaffeNetwork:
    return onnx_model.convert(
        messages.parse(prototxt, Path("net.prototxt")), "net.prototxt", None, seed
    )


def run(prototxt: str, feeds: dict[str, Array]) -> tuple[list[Array], list[Array]]:
    """Outputs of the network, and the blobs of its last layer."""
    converted = convert(prototxt)
    onnx.checker.check_model(converted.model, full_check=True)
    session = ort.InferenceSession(converted.model.SerializeToString())
    read = {i.name for i in session.get_inputs()}
    values = session.run(None, {n: v for n, v in feeds.items() if n in read})
    for output, value in zip(session.get_outputs(), values, strict=True):
        if output.name not in ("detection",):
            assert tuple(output.shape) == value.shape
    return values, [w.array().astype(np.float64) for w in converted.layers[-1].weights]


def parameters_of(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the message with the fields of a type of layer, `{"batch_norm_param": {…}}`; nothing
    for no fields."""
    snake = re.sub("(?<=[a-z])(?=[A-Z])", "_", kind).lower()
    return {MESSAGES.get(kind, f"{snake}_param"): fields} if fields else {}


def check(
    kind: str,
    expected: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]] = (X,),
    top: str = "y",
    positive: bool = False,
    **parameters: Any,
) -> None:
    """Compare the layer's tops with `expected(*bottoms, *blobs)`, an array or a tuple of them."""
    rng = np.random.default_rng(len(kind))
    names = [f"x{k}" for k in range(len(shapes))]
    feeds = {
        n: rng.standard_normal(s).astype(np.float32) for n, s in zip(names, shapes, strict=True)
    }
    if positive:
        feeds = {n: np.abs(v) + np.float32(0.1) for n, v in feeds.items()}
    prototxt = net(
        layer(kind, "the_layer", " ".join(names), top, **parameters),
        **dict(zip(names, shapes, strict=True)),
    )
    values, blobs = run(prototxt, feeds)
    want = expected(*(v.astype(np.float64) for v in feeds.values()), *blobs)
    for value, right in zip(values, want if isinstance(want, tuple) else (want,), strict=True):
        assert value.shape == np.shape(right)
        np.testing.assert_allclose(
            value, right, rtol=2e-5, atol=2e-5 * np.abs(right).max(initial=1e-30)
        )
