# /// script
# dependencies = ["onnxruntime==1.31.1", "onnx==1.23.2", "sympy"]
# [tool.subcut]
# says = "onnxruntime 1.31.1, qdq_loss_debug on a static QDQ model"
# options = ["--precision", "int8"]
# ///
"""onnxruntime.quantization.qdq_loss_debug: the activations of a QDQ model, as one `.npz`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    qdq_loss_debug,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

CALIBRATED = 8  # inputs


class Inputs(CalibrationDataReader):
    """Arrays, one at a time."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.left: Iterator[np.ndarray] = iter(arrays)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next one as a feed; None behind the last."""
        array = next(self.left, None)
        return None if array is None else {"x": array}


def main(place: Path, state: str, out: Path) -> None:
    """Quantize, run, save."""
    x = np.load(place / "x.npy")
    rng = np.random.default_rng(0)
    prepared, qdq, augmented = (
        place / f"{state}.{word}.onnx" for word in ("prepared", "qdq", "augmented")
    )
    quant_pre_process(place / f"{state}.onnx", prepared)
    more = [rng.standard_normal(x.shape, np.float32) for _ in range(CALIBRATED - 1)]
    quantize_static(
        prepared, qdq, Inputs([x, *more]), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,  # noqa: E501
        weight_type=QuantType.QInt8, per_channel=True, extra_options={"ActivationSymmetric": False},
    )  # fmt: skip
    qdq_loss_debug.modify_model_output_intermediate_tensors(qdq, augmented)
    activations = qdq_loss_debug.collect_activations(str(augmented), Inputs([x]))
    np.savez(out / "activations.npz", **{name: values[0] for name, values in activations.items()})


if __name__ == "__main__":
    ort.set_default_logger_severity(3)
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
