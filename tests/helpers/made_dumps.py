"""Small dumps in each format that is read, as its tool writes them."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from fixtures import ROOT, producers
from fixtures.other_hand import write_tidl
from subgraph import plugins
from subgraph.types import Array

OURS = ROOT / "fixtures/dumps"
FORMATS = plugins.list_names("dumps")


def ieb(array: Array, number: int, size: int | None = None) -> bytes:
    """An OpenVINO blob."""
    dims = [*array.shape, *[0] * (7 - array.ndim)]
    size = array.nbytes if size is None else size
    return (
        struct.pack(
            "<4sHBB7IB3B4Q", b"IEB0", 256, number, array.ndim, *dims, 255, 0, 0, 0, 72, size, 0, 0
        )
        + array.tobytes()
    )


ONE = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
DUMPFILE = "Conv2D.conv1.3.0.1585884515795667"


def _ascend_folder(folder: Path) -> None:
    shutil.copytree(OURS / "ascend", folder, dirs_exist_ok=True)


def _converted(folder: Path) -> None:
    np.save(folder / f"{DUMPFILE}.output.0.npy", ONE)
    ONE.astype(np.float16).tofile(folder / f"{DUMPFILE}.input.0.1_2_3_4.float16.NCHW.bin")


def _horizon(folder: Path) -> None:
    ONE.tofile(folder / "model_infer_output_0_prob.bin")
    (folder / "layer-1-Dequantize-fc-output-0-fc_out.txt").write_text("0.5\n1.5\n")


def _openvino(folder: Path) -> None:
    (folder / "#3_Convolution_conv1_out0.ieb").write_bytes(ieb(ONE, 4))


def _onnx_pb(folder: Path) -> None:
    (folder / "input_0.pb").write_bytes(numpy_helper.from_array(ONE, "x").SerializeToString())


def _qnn(folder: Path) -> None:
    (folder / "Result_0").mkdir()
    ONE.tofile(folder / "Result_0/conv1.raw")


def _raw(folder: Path) -> None:
    ONE.tofile(folder / "x.bin")
    (folder / "manifest.json").write_text(
        json.dumps(
            {"tensors": [{"name": "x", "file": "x.bin", "dtype": "float32", "shape": [1, 2, 3, 4]}]}
        )
    )


def copied(kind: str) -> Callable[[Path], Any]:
    return lambda folder: shutil.copytree(OURS / kind, folder, dirs_exist_ok=True)


def _safetensors(folder: Path) -> None:
    header = json.dumps(
        {"x": {"dtype": "F32", "shape": ONE.shape, "data_offsets": [0, ONE.nbytes]}}
    ).encode()
    (folder / "x.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + ONE.tobytes()
    )


def _torch(folder: Path) -> None:
    """A tensor as torch.save writes it."""
    opcodes = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
        b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x18tQK\x00(K\x01K\x02K\x03K\x04t(K\x18K\x0cK\x04K\x01t"
        b"\x89ccollections\nOrderedDict\n)RtR."
    )
    with zipfile.ZipFile(folder / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", opcodes)
        archive.writestr("x/data/0", ONE.tobytes())


def _msprobe(folder: Path) -> None:
    (folder / "dump_tensor_data").mkdir()
    _torch(folder / "dump_tensor_data")
    call = {"input_args": [], "output": [{"type": "torch.Tensor", "data_name": "x.pt"}]}
    (folder / "dump.json").write_text(
        json.dumps({"task": "tensor", "data": {"Module.a.b.Conv2d.forward.0": call}})
    )


def _trtexec(folder: Path) -> None:
    tensors_of = [{"name": "x", "dimensions": "1x2x3x4", "values": ONE.reshape(-1).tolist()}]
    (folder / "output.json").write_text(json.dumps(tensors_of))


def _ncnn(folder: Path) -> None:
    (folder / "x.txt").write_text(producers.ncnn_text(ONE[0]))


def _aimet(folder: Path) -> None:
    producers.aimet_folder(folder, [[ONE]], [{"x": ONE}], nhwc=False)


MADE: dict[str, Callable[[Path], Any]] = {
    "aimet": _aimet,
    "ascend": _ascend_folder,
    "ascend-converted": _converted,
    "horizon": _horizon,
    "mnn": copied("mnn"),
    "msprobe": _msprobe,
    "ncnn": _ncnn,
    "npy": lambda folder: np.save(folder / "x.npy", ONE),
    "onnx-pb": _onnx_pb,
    "openvino": _openvino,
    "polygraphy": copied("polygraphy"),
    "qnn": _qnn,
    "raw": _raw,
    "rknn": copied("rknn"),
    "safetensors": _safetensors,
    "text": lambda folder: (folder / "x.txt").write_text("0.5\n1.5\n"),
    "tidl": lambda folder: write_tidl.traces(folder, {"x": ONE}, bits=32),
    "tnn": copied("tnn"),
    "torch": _torch,
    "trtexec": _trtexec,
}
