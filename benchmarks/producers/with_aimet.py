# /// script
# dependencies = ["aimet-onnx==2.42.0", "torch==2.13.0+cpu"]
# [tool.subcut]
# says = "aimet-onnx 2.42.0, LayerOutputUtil, of the float model"
# ///
"""AIMET's LayerOutputUtil: `outputs/layer_outputs_0/NAME.raw`, and `inputs/`, which it was fed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from aimet_onnx.layer_output_utils import LayerOutputUtil


def main(place: Path, state: str, out: Path) -> None:
    """Run, record."""
    recorder = LayerOutputUtil(onnx.load(place / f"{state}.onnx"), str(out))
    recorder.generate_layer_outputs(np.load(place / "x.npy"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
