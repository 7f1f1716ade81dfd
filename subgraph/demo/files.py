"""The files of the demo, as bytes, which are the same on each call.

The model is an image classifier of 28 nodes with seeded weights. The candidate `wrong.py` computes
`stem/pad` and `stem/pool` wrong if one model has both, and right if a model has only one. The
fault is in `wrong.py`, not in a runtime.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 8
SIZE = 16
CLASSES = 10
BLOCKS = 4
SEED = 169  # with this seed the fault changes the predicted class
# The versions that the oldest supported onnxruntime reads.
OPSET = 17
IR_VERSION = 8
PROJECT_FILE = """\
# Read by subcut in this folder and below it; options on the command line win.
input = "input.npy"    # what the model is fed
"""


def make_files() -> dict[str, bytes]:
    """Return the content of each file that `subcut demo` writes, by its name."""
    rng = np.random.default_rng(SEED)
    array = io.BytesIO()
    np.save(array, rng.standard_normal((1, 3, SIZE, SIZE), np.float32))
    return {
        "model.onnx": _make_model(rng).SerializeToString(deterministic=True),
        "input.npy": array.getvalue(),
        "wrong.py": Path(__file__).with_name("wrong.py").read_bytes(),
        "subcut.toml": PROJECT_FILE.encode(),
    }


def _make_model(rng: np.random.Generator) -> onnx.ModelProto:
    """Make the model: stem with a padded AveragePool, four residual blocks, ten classes.

    `image` (1, 3, 16, 16) is its input, `classes` (1, 10) its output.
    """
    nodes = []
    weights = []

    def weight(name: str, *shape: int) -> str:
        values = rng.standard_normal(shape, np.float32) * math.sqrt(2 / math.prod(shape[1:]))
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def node(op: str, name: str, *reads: str, makes: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(op, reads, [makes or f"{name}:0"], name=name, **attributes))
        return makes or f"{name}:0"

    def conv(name: str, x: str, inputs: int) -> str:
        return node(
            "Conv", name, x, weight(f"{name}.weight", CHANNELS, inputs, 3, 3), pads=[1, 1, 1, 1]
        )

    x = node("Relu", "stem/relu", conv("stem/conv", "image", 3))
    weights.append(
        numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64), "stem/pad.pads")
    )
    x = node("Pad", "stem/pad", x, "stem/pad.pads")
    x = node("AveragePool", "stem/pool", x, kernel_shape=[3, 3], strides=[2, 2])
    for block in (f"block{i + 1}" for i in range(BLOCKS)):
        y = node("Relu", f"{block}/relu1", conv(f"{block}/conv1", x, CHANNELS))
        y = node("Add", f"{block}/add", x, conv(f"{block}/conv2", y, CHANNELS))
        x = node("Relu", f"{block}/relu2", y)
    x = node("Flatten", "head/flatten", node("GlobalAveragePool", "head/mean", x))
    x = node("Gemm", "head/classes", x, weight("head/classes.weight", CLASSES, CHANNELS), transB=1)
    node("Softmax", "head/softmax", x, makes="classes", axis=1)
    ends = [
        helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, SIZE, SIZE]),
        helper.make_tensor_value_info("classes", TensorProto.FLOAT, [1, CLASSES]),
    ]
    graph = helper.make_graph(nodes, "demo", ends[:1], ends[1:], weights)
    return helper.make_model(
        graph,
        producer_name="subcut demo",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
