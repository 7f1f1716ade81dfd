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
    ops = [op for op in model.get_ordered_ops() if op.get_type_name() not in ("Parameter", "Constant", "Result")]
    model.add_outputs([(op.get_friendly_name(), i) for op in ops for i in range(op.get_output_size())])
    names = [r.input_value(0).get_node().get_friendly_name() for r in model.get_results()]
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    values = compiled([np.load(place / "x.npy")])
    for k, name in enumerate(names):
        np.save(out / f"{name.replace('/', '_')}.npy", values[k])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
