# /// script
# dependencies = ["openvino==2026.4.1"]
# [tool.subcut]
# says = "OpenVINO 2026.4.1 on the CPU in f32, each op an output"
# ///
"""OpenVINO with all ops as outputs: each output as `.npy`, by the op's friendly name."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import openvino as ov


def main(place: Path, state: str, out: Path) -> None:
    """Record one run."""
    core = ov.Core()
    model = core.read_model(place / f"{state}.onnx")
    ops = [
        op
        for op in model.get_ordered_ops()
        if op.get_type_name() not in ("Parameter", "Constant", "Result")
    ]
    model.add_outputs(
        [(op.get_friendly_name(), i) for op in ops for i in range(op.get_output_size())]
    )
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    values = compiled([np.load(place / "x.npy")])
    names = [_name(result.input_value(0)) for result in model.get_results()]
    for k, name in enumerate(names):
        np.save(out / f"{name}.npy", values[k])


def _name(port: ov.Output) -> str:
    """The op's, with the number of the output where there are several."""
    op = port.get_node()
    number = f".{port.get_index()}" if op.get_output_size() > 1 else ""
    return f"{op.get_friendly_name()}{number}".replace("/", "_")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
