"""A script: `MODEL OUT TYPE SAMPLES [LIST]` quantizes a model by onnxruntime's quantize_static,
calibrated on samples.

SAMPLES is JSON: per sample, input -> .npy file. LIST is JSON, too: further arguments of the
function. Weights are int8 by channel; a Relu stays next to its quantizer, so that tensors keep
their meaning.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

TYPES = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8, "int16": QuantType.QInt16}


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """The samples, one after the other."""

    def __init__(self, samples: list[dict[str, str]]) -> None:
        self._rest: Iterator[dict[str, str]] = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample; None after the last."""
        sample = next(self._rest, None)
        if sample is None:
            return None
        return {n: np.load(f, allow_pickle=False) for n, f in sample.items()}


def main(source: str, output: str, dtype: str, samples: str, listed: str = "") -> None:
    """Quantize, and write the model."""
    model = onnx.load(source)
    _initialize(model.graph)
    arguments = json.loads(Path(listed).read_text(encoding="utf-8")) if listed else {}
    quantize_static(
        model,
        output,
        Samples(json.loads(Path(samples).read_text(encoding="utf-8"))),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=TYPES[dtype],
        weight_type=QuantType.QInt8,
        extra_options={"QDQKeepRemovableActivations": True},
        **arguments,
    )


def _initialize(graph: Any) -> None:
    """Replace Constant nodes by initializers: the quantizer requires its weights as such."""
    outputs = {o.name for o in graph.output}
    nodes_to_keep = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type != "Constant" or value is None or node.output[0] in outputs:
            nodes_to_keep.append(node)
            continue
        tensor = graph.initializer.add()
        tensor.CopyFrom(value)
        tensor.name = node.output[0]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes_to_keep]
    del graph.node[:]
    graph.node.extend(nodes)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # advises to preprocess, which renames tensors
    main(*sys.argv[1:])
