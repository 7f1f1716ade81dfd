# /// script
# dependencies = ["ncnn==1.0.20261020", "numpy"]
# [tool.subcut]
# says = "ncnn 1.0.20261020, each blob of pnnx 20261020's model, printed as `pretty_print` does"
# alone = ["pnnx==20261020"]
# ///
"""ncnn's blobs as text, `BLOB.txt`, as the `pretty_print` of its docs/Home.md prints them: pnnx numbers the blobs.

Of pnnx, which would bring torch, only the program in its wheel is run.
"""  # noqa: E501

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import ncnn
import numpy as np

PNNX = Path(next(iter(importlib.util.find_spec("pnnx").submodule_search_locations))) / "pnnx"


def converted(model: Path, shape: tuple[int, ...]) -> ncnn.Net:
    """An ONNX file as ncnn's net, with fp32 weights; its files stay beside the ONNX file."""
    words = [PNNX, model.name, f"inputshape=[{','.join(map(str, shape))}]", "fp16=0"]
    subprocess.run(words, cwd=model.parent, check=True)
    net = ncnn.Net()
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    net.load_param(str(model.with_suffix(".ncnn.param")))
    net.load_model(str(model.with_suffix(".ncnn.bin")))
    return net


def printed(value: np.ndarray) -> str:
    """Channels × slices × rows × columns, a row a line; an empty line behind a slice, 24 dashes behind a channel."""  # noqa: E501
    channels, *slices = (1,) * (3 - value.ndim) + value.shape
    text = []
    for channel in value.reshape(channels, -1, *slices[-2:]):
        for part in channel:
            text += ["".join(f"{number:f} " for number in row) + "\n" for row in part] + ["\n"]
        text.append("-" * 24 + "\n")
    return "".join(text)


def main(place: Path, state: str, out: Path) -> None:
    """Convert, run, print each blob."""
    x = np.load(place / "x.npy")
    model = out.parent / f"{state}_ncnn.onnx"
    model.write_bytes((place / f"{state}.onnx").read_bytes())
    net = converted(model, x.shape)
    extractor = net.create_extractor()
    extractor.input("in0", ncnn.Mat(x[0]).clone())
    for blob in net.blobs():
        _, value = extractor.extract(blob.name)
        (out / f"{blob.name}.txt").write_text(printed(np.array(value)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
