"""A model of another format is recognized, by its first bytes or its suffix, and the user is told
what to do."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from fixtures import graphs
from subgraph.errors import ModelError, UsageError
from subgraph.graph import protobuf
from subgraph.storage import file_kinds
from tests.helpers.refusals import raises
from tests.helpers.run_command import in_process

# The beginnings of files as their formats define them.
FROZEN_GRAPH = b"\x0a\x1b\x0a\x05input\x12\x0bPlaceholder*\x0b\x0a\x05dtype"
SAVED_MODEL = b"\x08\x01\x12\x90\x01\x0a\x80\x22\x05serve2\x0btensorflow"
CAFFE_NET = b"\x0a\x03VGG\x92\x06\x10\x0a\x04data\x12\x05Input\xa2\x06"
PADDLE_PROGRAM = b"\n\x9a\x05\x08\0\x10" + b"\xff" * 9 + b"\x01\x1a\x20"
KINDS = [
    ("g.pb", FROZEN_GRAPH, "TensorFlow graph", "subcut convert "),
    ("saved_model.pb", SAVED_MODEL, "SavedModel", "subcut convert "),
    ("g.pbtxt", b'node {\n  name: "input"\n  op: "Add"\n}\n', "TensorFlow graph", "as_text=False"),
    ("net.espdl", b"EDL2" + bytes(60), "ESP-DL", "-c"),
    ("post.prototxt", b'name: "ssd"\ntidl_ssd {\n  box_input: "a"\n}\n', "TIDL", ".onnx"),
    (
        "quant.json",
        b'{"configs": {"conv": {"x": {"bit_width": 8}}}}',
        "quantization table",
        ".onnx",
    ),
    ("m.encodings", b'{"activation_encodings": []}', "quantization table", ".onnx"),
    ("deploy.prototxt", b'name: "VGG"\ninput: "data"\nlayer {\n', "Caffe", "other half"),
    ("vgg.caffemodel", CAFFE_NET, "Caffe model", "other half"),
    ("m.tflite", b"\x20\x00\x00\x00TFL3\x14\x00", "TensorFlow Lite", "ai-edge-litert"),
    ("m.pt", b"\x80\x02ctorch._utils\n_rebuild_tensor", "PyTorch", "torch.onnx.export"),
    ("m.safetensors", struct.pack("<Q", 60) + b'{"w":{"dtype":"F32"}}', ".safetensors", "its code"),
    ("m.engine", b"ftrt\xf0\x00\x00\x00", "TensorRT engine", "built from"),
    ("m.rknn", b"RKNN\x00\x00\x00\x00", "Rockchip", "built from"),
    ("m.om", b"IMOD\x00\x01\x00\x00", "Ascend", "built from"),
    ("m.param", b"7767517\n75 83\nInput data 0 1 data\n", "ncnn", "converted from"),
    ("m.xml", b'<?xml version="1.0"?>\n<net name="m" version="11">', "OpenVINO", "converted from"),
    ("inference.pdmodel", PADDLE_PROGRAM, "Paddle", "subcut convert "),
    ("inference.json", b'{"base_code":{"magic":"pir","version":1}}', "Paddle", "-o model.onnx"),
    ("m.pte", b"\x30\0\0\0ET12", "ExecuTorch", "torch.onnx.export"),
    ("m.kmodel", b"LDMK\x07\0\0\0", ".kmodel", "built from"),
    ("m.params", struct.pack("<QQQ", 0x112, 0, 2), "MXNet", "mxnet.onnx.export_model"),
    ("m-symbol.json", b'{\n  "nodes": [\n    {\n      "op": ', "MXNet", "mxnet.onnx.export_model"),
    ("m.tnnproto", b'"1 48 1 4206624772 ,"\n"data 4 1 3 224 224 0 ,"\n', "TNN", "converted from"),
    ("m.tnnmodel", struct.pack("<I", 0xFABC0002), "TNN", "converted from"),
    ("yolov3.cfg", b"# Testing\n[net]\nbatch=1\n", "Darknet", "a converter"),
    ("m.tar", b"model.onnx" + b"\0" * 247 + b"ustar", "tar archive", "tar xf "),
    ("m.onnx.bz2", b"BZh91AY&SY\0", "bzip2", "bunzip2 -k "),
    ("m.onnx.xz", b"\xfd7zXZ\0", "xz archive", "unxz -k "),
    ("m.onnx.zst", b"\x28\xb5\x2f\xfd", "zstd", "unzstd "),
    ("m.h5", b"\x89HDF\r\n\x1a\n", "Keras", "m.h5 -o model.onnx"),
]


@pytest.mark.parametrize(("name", "head", "about", "advice"), KINDS, ids=[k[0] for k in KINDS])
@pytest.mark.parametrize("renamed", [False, True])
def test_file_of_another_kind_is_named(
    tmp_path: Path, name: str, head: bytes, about: str, advice: str, renamed: bool
) -> None:
    path = tmp_path / name
    if renamed:
        path = tmp_path / "model.onnx"
        advice = advice.replace(name, path.name)
    path.write_bytes(head + b"\0" * 500 if b"\n" not in head[:20] or b"\0" in head else head)
    with raises(ModelError, "model.not-onnx", about) as refusal:
        protobuf.read(path)
    assert advice in refusal.value.hint


@pytest.mark.parametrize(
    ("head", "about"),
    [
        ("# proto-message: ModelProto\n\n# by hand\nir_version: 8\n", "protobuf's text"),
        ('# two\n  # lines\n<ir_version: 8, opset_import: ["" : 13]>\n', "ONNX model as text"),
        ('\ufeff{"irVersion": "8"}', "as JSON"),
        ('# proto-message: GraphDef\nnode {\n  name: "input"\n}\n', "a TensorFlow graph"),
    ],
)
def test_text_may_begin_with_comments(tmp_path: Path, head: str, about: str) -> None:
    (tmp_path / "m.onnx").write_text(head, "utf-8")
    with raises(ModelError, "model.not-onnx", about):
        protobuf.read(tmp_path / "m.onnx")


def test_format_without_a_mark_is_named_by_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "m.mnn").write_bytes(b"\x18\0\0\0\0\0\0\0" * 10)
    with raises(ModelError, "model.not-onnx", "MNN") as refusal:
        protobuf.read(tmp_path / "m.mnn")
    assert "-c mnn" in refusal.value.hint


def test_files_that_libraries_here_write_are_named(tmp_path: Path) -> None:
    model = graphs.plain()
    onnx.save(model, tmp_path / "m.textproto", format="textproto")
    np.save(tmp_path / "a.npy", np.ones(3))
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    settings = ort.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "m.ort")
    settings.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(model.SerializeToString(), settings)
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:  # the layout of torch.export.save
        archive.writestr("m/data/weights/weight_0", "\0" * 9000)
        archive.writestr("m/models/model.json", "{}")
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:  # that of torch.save
        archive.writestr("m/data.pkl", b"\x80\x02cmy.net\nNet\n.")
        archive.writestr("m/.data/serialization_id", b"1")
    with zipfile.ZipFile(
        tmp_path / "state.pt", "w"
    ) as archive:  # its names are far behind its weights
        archive.writestr("m/data/0", bytes(9000))
        archive.writestr(
            "m/data.pkl", b"\x80\x02ccollections\nOrderedDict\nctorch._utils\n_rebuild_tensor_v2\n."
        )
    with zipfile.ZipFile(tmp_path / "tensors.pt", "w") as archive:  # of a list
        archive.writestr(
            "m/data.pkl",
            b"\x80\x02]ctorch._utils\n_rebuild_tensor_v2\nccollections\nOrderedDict\n.",
        )
    with zipfile.ZipFile(tmp_path / "m.dlc", "w") as archive:
        archive.writestr("model.params", bytes(100))
        archive.writestr("dlc.metadata", b"")
    with zipfile.ZipFile(tmp_path / "js.pt", "w") as archive:  # that of torch.jit.save
        for file in ("data/0", "data.pkl", "code/__torch__/linear.py", ".data/serialization_id"):
            archive.writestr(f"js/{file}", b"1")
    onnx.save(model, tmp_path / "m.json", format="json")
    onnx.save(model, tmp_path / "m.onnxtxt", format="onnxtxt")
    (tmp_path / "m.onnx.gz").write_bytes(gzip.compress(model.SerializeToString()))
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\0\0\0" + bytes(16))
    (tmp_path / "half.pt2").write_bytes((tmp_path / "m.pt2").read_bytes()[:5000])
    kinds = {
        "state.pt": "a state_dict",
        "tensors.pt": "a PyTorch file of tensors",
        "m.dlc": ".dlc",
        "half.pt2": "truncated",
        "m.textproto": "as protobuf's text",
        "a.npy": ".npy",
        "a.npz": ".npz",
        "m.ort": ".ort",
        "m.pt2": "exported program",
        "m.pt": "a PyTorch file",
        "js.pt": "a TorchScript file",
        "m.json": "an ONNX model as JSON",
        "m.onnxtxt": "an ONNX model as text",
        "m.onnx.gz": "a gzip archive",
        "m.gguf": "a GGUF file",
    }
    for name, kind in kinds.items():
        with pytest.raises(ModelError) as refusal:
            protobuf.read(tmp_path / name)
        assert kind in refusal.value.what
        assert refusal.value.hint


@pytest.mark.parametrize(
    ("files", "kind", "advice"),
    [
        (["saved_model.pb"], "a TensorFlow SavedModel", "convert {} -o model.onnx"),
        (
            ["inference.pdmodel", "inference.pdiparams"],
            "a Paddle model",
            "convert {} -o model.onnx",
        ),
        (["inference.json", "inference.pdiparams"], "a Paddle model", "convert {} -o model.onnx"),
        (
            ["Manifest.json", "Data/com.apple.CoreML/model.mlmodel"],
            "a Core ML model",
            "converted from",
        ),
        (["readme.txt"], "", ""),
    ],
)
def test_folder_of_another_framework_is_named(
    tmp_path: Path, files: list[str], kind: str, advice: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = file_kinds.recognize_folder(tmp_path)
    assert (found.name if found else "") == kind
    assert advice.format(tmp_path) in (found.advice if found else "")
    with pytest.raises(UsageError) as refusal:
        in_process("inspect", tmp_path)
    assert kind in refusal.value.what
    assert advice.format(tmp_path) in refusal.value.hint or not kind
