# /// script
# dependencies = ["MNN==3.6.1", "numpy"]
# [tool.subcut]
# says = "MNN 3.6.1, a callback at each op, files as MNNV2Basic.out writes them"
# ///
"""MNN's callbacks: the outputs of each op as numbers, `OP_0`, in a folder `output/`."""

from __future__ import annotations

import sys
from pathlib import Path

import _tools
import MNN
import numpy as np


def main(place: Path, state: str, out: Path) -> None:
    """Convert, run, write."""
    model = out.parent / f"{state}.mnn"
    words = [
        "mnnconvert",
        "-f",
        "ONNX",
        "--modelFile",
        str(place / f"{state}.onnx"),
        "--MNNModel",
        str(model),
    ]
    _tools.mnnconvert([*words, "--bizCode", "subcut"])  # MNN.tools.mnnconvert would send statistics
    interpreter = MNN.Interpreter(str(model))
    session = interpreter.createSession({"backend": "CPU", "precision": "high"})
    x = np.load(place / "x.npy")
    fed = interpreter.getSessionInput(session)
    fed.copyFrom(MNN.Tensor(x.shape, MNN.Halide_Type_Float, x, MNN.Tensor_DimensionType_Caffe))
    (out / "output").mkdir()

    def write(tensors: list[MNN.Tensor], info: MNN.OpInfo, before: str = "") -> bool:
        for k, tensor in enumerate(tensors):
            copy = MNN.Tensor(
                tensor.getShape(),
                tensor.getDataType(),
                np.zeros(tensor.getShape(), np.float32),
                tensor.getDimensionType(),
            )
            tensor.copyToHostTensor(copy)
            name = (
                f"{before}{info.getName()}_{k}".replace("/", "_")
                .replace(":", "_")
                .replace(" ", "_")
            )
            np.savetxt(out / "output" / name, np.array(copy.getData()).ravel(), "%g")
        return True

    interpreter.runSessionWithCallBackInfo(session, lambda t, info: write(t, info, "Input_"), write)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
