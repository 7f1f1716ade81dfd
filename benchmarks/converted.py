"""A float32 model -> the same in lower precision, as people convert it: every tensor keeps its name and its meaning.

Each function returns a model with inferred types.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

Feeds = Mapping[str, npt.NDArray[Any]]

# What hardware computes in bfloat16 while the rest stays float32, and which of their inputs: data and weights.
PRODUCTS = {
    "Conv": (0, 1),
    "ConvTranspose": (0, 1),
    "Gemm": (0, 1),
    "MatMul": (0, 1),
    "LSTM": (0, 1, 2),
    "GRU": (0, 1, 2),
}
MASK = -1000  # no weight is as low as this
# A Relu that is left to the clipping of the quantization behind it would leave its name to what comes before it.
KEEPING = {"QDQKeepRemovableActivations": True}


def fp16(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """Everything in float16, by onnxruntime's own converter, which leaves some ops (TopK, Range) in float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return _typed(convert_float_to_float16(model))


def bf16(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """Simulated, since onnxruntime's CPU has no such kernels: what enters a product is rounded to bfloat16, the product
    itself is float32, as where a runtime is allowed "fast math" (Arm's BFMMLA, x86's AMX, TF32's way)."""
    found = _copy(model)
    nodes: list[onnx.NodeProto] = []
    rounded: dict[str, str] = {}
    for node in found.graph.node:
        for k in PRODUCTS.get(node.op_type, ()):
            name = node.input[k]
            if name not in rounded:
                rounded[name] = f"{name}:rounded"
                nodes.append(helper.make_node("Cast", [name], [f"{name}:narrow"], to=TensorProto.BFLOAT16))
                nodes.append(helper.make_node("Cast", [f"{name}:narrow"], [f"{name}:rounded"], to=TensorProto.FLOAT))
            node.input[k] = rounded[name]
        nodes.append(node)
    copies = [_copy_node(node) for node in nodes]
    del found.graph.node[:]
    found.graph.node.extend(copies)
    return _typed(found)


def int8(model: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """Statically quantized by onnxruntime, calibrated on these very inputs, QuantizeLinear and DequantizeLinear around
    each op: int8 weights with a scale per channel, uint8 activations. Masked scores stay float: in 255 steps from the
    mask to the scores all scores would be equal, and the attention gone."""
    from onnxruntime.quantization import QuantType, quantize_static

    logging.disable(logging.WARNING)  # advises to preprocess, which renames tensors
    try:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "int8.onnx"
            quantize_static(
                _copy(model), out, _once(feeds), per_channel=True, nodes_to_exclude=_masked(model),
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, extra_options=KEEPING,
            )  # fmt: skip
            return _typed(onnx.load(out))
    finally:
        logging.disable(logging.NOTSET)


def _masked(model: onnx.ModelProto) -> list[str]:
    """The nodes that add a mask, and those that read the sum."""
    masks = {t.name for t in model.graph.initializer if numpy_helper.to_array(t).min(initial=0) <= MASK}
    adders = [node for node in model.graph.node if masks.intersection(node.input)]
    sums = {name for node in adders for name in node.output}
    return [node.name for node in model.graph.node if node in adders or sums.intersection(node.input)]


def _once(feeds: Feeds) -> Any:
    """A reader that gives one set of inputs."""
    from onnxruntime.quantization import CalibrationDataReader

    left = [dict(feeds)]

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships no types
        def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
            return left.pop() if left else None

    return Reader()


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """With types inferred anew: converters leave the old ones."""
    del model.graph.value_info[:]
    return shape_inference.infer_shapes(model)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _copy_node(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


CONVERSIONS: dict[str, Callable[[onnx.ModelProto, Feeds], onnx.ModelProto]] = {"fp16": fp16, "bf16": bf16, "int8": int8}
