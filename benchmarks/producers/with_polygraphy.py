# /// script
# dependencies = ["polygraphy==0.53.6", "onnxruntime==1.31.1", "onnx==1.23.2", "numpy"]
# [tool.subcut]
# says = "Polygraphy 0.53.6, --onnxrt, 2 iterations"
# ///
"""`polygraphy run --onnxrt --save-inputs --save-outputs` with all tensors and two iterations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(place: Path, state: str, out: Path) -> None:
    """Record two iterations, each with an input of its own."""
    saved = ["--save-inputs", out / "inputs.json", "--save-outputs", out / "outputs.json"]
    command = [
        Path(sys.executable).with_name("polygraphy"),
        "run",
        place / f"{state}.onnx",
        "--onnxrt",
    ]
    command += ["--onnx-outputs", "mark", "all", "--iterations", "2", *saved]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
