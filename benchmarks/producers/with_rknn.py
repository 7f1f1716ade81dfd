# /// script
# dependencies = [
#     "torch==2.13.0+cpu", "numpy==1.26.4", "onnx==1.18.0", "onnxruntime==1.23.0", "protobuf==4.25.4", "psutil",  # noqa: E501
#     "ruamel.yaml", "scipy", "tqdm", "opencv-python<4.12", "fast-histogram", "setuptools<81",
# ]
# [tool.subcut]
# says = "rknn-toolkit2 2.5.0, accuracy_analysis in its simulator, fp16"
# alone = ["rknn-toolkit2==2.5.0"]
# options = ["--precision", "fp16"]
# ///
"""rknn-toolkit2's accuracy_analysis in its simulator. It pins torch ≤ 2.4.0, which it runs without."""  # noqa: E501

from __future__ import annotations

import os
import sys
from pathlib import Path

from rknn.api import RKNN


def main(place: Path, state: str, out: Path) -> None:
    """Build without quantization and analyze."""
    os.chdir(out.parent)  # it leaves files in the current folder
    rknn = RKNN()
    rknn.config(target_platform="rk3588")
    steps = (
        lambda: rknn.load_onnx(str(place / f"{state}.onnx")),
        lambda: rknn.build(do_quantization=False),
        lambda: rknn.accuracy_analysis(inputs=[str(place / "x.npy")], output_dir=str(out)),
    )
    for step in steps:
        if step():
            raise SystemExit("rknn-toolkit2 refused")
    rknn.release()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
