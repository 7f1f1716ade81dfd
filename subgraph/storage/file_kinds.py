"""A file that is no ONNX model -> what it is, and what to do with it.

The first bytes decide; the suffix decides only for formats without a mark of their own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from subgraph import system

HEAD = 4096  # bytes of the file that are looked at
TFLITE_PRODUCER = "subcut tflite"  # of the ONNX file of a .tflite's operators

_BUILT = "it was built for one device: name the .onnx that it was built from; the build belongs to a candidate (-c)"
_CONVERT = "subcut convert FILE -o model.onnx"  # which says what it installs for that, and asks
_CONVERT_FOLDER = "subcut convert FOLDER -o model.onnx"
_TEXT_GRAPH = "save the graph as a binary .pb (tf.io.write_graph with as_text=False): subcut convert reads that"

_TFLITE = "name it as the model: subcut reads it (pip install 'subcut[tflite]')"
_CAFFE = "name it .prototxt or .caffemodel, with its other half beside it: subcut reads both"
_TORCH = "export it with its code: torch.onnx.export(model, inputs, 'model.onnx')"
PROGRAM = "this is a PyTorch exported program (.pt2)"
_PT2 = "torch.onnx.export(torch.export.load('FILE'), f='model.onnx') exports it"
_WEIGHTS = "it holds weights without a graph: export the model with its code, as `optimum-cli export onnx` does"

# How the file begins -> what it is, what to do. The first pattern that matches decides.
_MARKS: tuple[tuple[str, str, str], ...] = (
    (r"\Z", "the file is empty", ""),
    (r"version https://git-lfs", "this is a git-lfs pointer", "run `git lfs pull` to get the model itself"),
    (r".{4}ORTM", "this is onnxruntime's .ort format", "use the .onnx it was made from"),
    (r".{4}TFL3", "this is a TensorFlow Lite model", _TFLITE),
    (r"PK\x03\x04.*(\.data/|/data/(weights|constants|sample_inputs)/|archive_format|serialized_exported_program"
     r"|models/model\.json)",
     PROGRAM, _PT2),
    (r"PK\x03\x04.*/(data\.pkl|data/\d|code/|byteorder)", "this is a PyTorch file", _TORCH),
    (r"PK\x03\x04.*\.npy", "this is a .npz of arrays", "name the model first, then the inputs with -i"),
    (r"PK\x03\x04.*(model\.weights\.h5|metadata\.json)", "this is a Keras model",
     _CONVERT),
    (r"PK\x03\x04", "this is a zip archive", "unpack it first"),
    (r"\x80[\x02-\x05].*torch", "this is a PyTorch file", _TORCH),
    (r"\x80[\x02-\x05]", "this is a Python pickle, which subcut never loads", _TORCH),
    (r"\x89HDF\r\n", "this is an HDF5 file, as Keras writes", _CONVERT),
    (r"\x93NUMPY", "this is a .npy array", "name the model first, then the inputs with -i"),
    (r".{6}\0\0\{\s*\"", "this is a .safetensors file", _WEIGHTS),
    (r"RKNN", "this is a Rockchip .rknn model", _BUILT),
    (r"IMOD", "this is an Ascend .om model", _BUILT),
    (r"[a-z]trt", "this is a TensorRT engine", _BUILT),
    (r"7767517\s", "this is an ncnn .param file", "name the .onnx that it was converted from"),
    (r"(<\?xml[^>]*>\s*)?<net\s", "this is OpenVINO's IR (.xml)",
     "name the .onnx that it was converted from; openvino reads that itself (-c openvino)"),
    (r"\s*(ir_version|opset_import)\b[^\0]*:", "this is an ONNX model as text",
     "onnx.save(onnx.load('FILE', format='textproto'), 'model.onnx') converts it"),
    (r"[^\0]*\b(layers?|input_dim|input_shape)\b\s*[:{]", "this is Caffe's network as text (.prototxt)", _CAFFE),
    (r"[^\0]*\bnode\s*\{", "this is a TensorFlow graph as text (.pbtxt)", _TEXT_GRAPH),
    (r"\s*\{\s*\"base_code\"", "this is a Paddle model", _CONVERT),
    (r"\n.{1,5}\x08\0\x10\xff{9}\x01\x1a", "this is a Paddle model", _CONVERT),
    (r"\s*[<{]", "this is text (a web page or JSON), not a model", "download it again"),
    (r"\n.{0,200}(Convolution|InnerProduct|Pooling|\x12\x04Data|\x12\x05Input|\x12\x09DummyData)",
     "this is a Caffe model (.caffemodel)", _CAFFE),
    (r"\n..?\n.{1,200}\x12.(Placeholder|Const|VariableV2|VarHandleOp|NoOp)", "this is a TensorFlow graph (.pb)",
     _CONVERT),
    (r"\x08\x01\x12.*(saved_model|serve|tensorflow|VarHandleOp|Placeholder)", "this is a TensorFlow SavedModel",
     _CONVERT_FOLDER),
)  # fmt: skip
CAFFE_SUFFIXES = (".prototxt", ".caffemodel")
_SUFFIXES = {
    ".pb": ("this looks like a TensorFlow graph", _CONVERT),
    ".caffemodel": ("this looks like a Caffe model", _CAFFE),
    ".pdmodel": ("this looks like a Paddle model", _CONVERT),
    ".pdiparams": ("this looks like the weights of a Paddle model", _CONVERT),
    ".mnn": ("this looks like an MNN model", "name the .onnx that it was converted from; -c mnn converts it itself"),
    ".engine": ("this looks like a TensorRT engine", _BUILT),
    ".plan": ("this looks like a TensorRT engine", _BUILT),
    ".trt": ("this looks like a TensorRT engine", _BUILT),
    ".om": ("this looks like an Ascend .om model", _BUILT),
    ".rknn": ("this looks like a Rockchip .rknn model", _BUILT),
    ".dlc": ("this looks like a Qualcomm .dlc model", _BUILT),
    ".hef": ("this looks like a Hailo .hef model", _BUILT),
    ".mlmodel": ("this looks like a Core ML model", "name the .onnx or PyTorch model that it was converted from"),
    ".bin": ("this looks like the weights of OpenVINO or ncnn, or an input", "name the .onnx file; inputs go to -i"),
    ".pt": ("this looks like a PyTorch file", _TORCH),
    ".pth": ("this looks like a PyTorch file", _TORCH),
}


def is_caffe(path: Path) -> bool:
    """Is this Caffe's prototxt or caffemodel, by its name or its first bytes? A file called `.onnx` is not opened."""
    return path.suffix.lower() in CAFFE_SUFFIXES or _kind_of(path)[1] == _CAFFE


def is_torch_program(path: Path) -> bool:
    """Is this an exported program of PyTorch, by its first bytes? A file called `.onnx` is not opened."""
    return _kind_of(path)[0] == PROGRAM


def is_tflite(path: Path) -> bool:
    """Is this a TensorFlow Lite model, by its first bytes?"""
    return _head(path)[4:8] == b"TFL3"


def is_of_tflite(path: Path) -> bool:
    """Is this the ONNX file of a TensorFlow Lite model's operators, or a cut of one, by its first bytes?"""
    return f"\x12{chr(len(TFLITE_PRODUCER))}{TFLITE_PRODUCER}".encode() in _head(path)[:64]


def _kind_of(path: Path) -> tuple[str, str]:
    """As `recognise`; nothing of a file that cannot be read, or is called `.onnx`."""
    head = b"" if path.suffix.lower() == ".onnx" else _head(path)
    return recognise(path, head) if head else ("", "")


def _head(path: Path) -> bytes:
    try:
        if path.is_file():
            with path.open("rb") as file:
                return file.read(HEAD)
    except OSError:
        pass
    return b""


def recognise(path: Path, head: bytes) -> tuple[str, str]:
    """What the file is instead of an ONNX model, and what to do; ("", "") if it is not recognised.

    `head`: its first `HEAD` bytes.
    """
    kind, advice = next(
        # compiled only when a file is no model
        ((kind, advice) for mark, kind, advice in _MARKS if re.match(mark.encode("latin-1"), head, re.DOTALL)),
        _SUFFIXES.get(path.suffix.lower(), ("", "")),
    )
    return kind, _named(advice, path.parent, path.name)


def recognise_folder(folder: Path) -> tuple[str, str]:
    """As `recognise`, of a folder that holds one model of TensorFlow or Paddle."""
    for pattern, kind, advice in _FOLDERS:
        if os.path.isdir(folder) and (found := sorted(folder.glob(pattern))):  # noqa: PTH112 - a name may be too long
            return kind, _named(advice, folder, found[0].name)
    return "", ""


_FOLDERS = (
    ("saved_model.pb", "a TensorFlow SavedModel", _CONVERT_FOLDER),
    ("*.pdmodel", "a Paddle model", _CONVERT_FOLDER),
    ("__model__", "a Paddle model", _CONVERT_FOLDER),
    ("*.pdiparams", "a Paddle model", _CONVERT_FOLDER),
)


def _named(advice: str, folder: Path, file: str) -> str:
    """The advice with the names of this file and folder in it, quoted for a shell."""
    names = {"FILE": str(folder / file), "FOLDER": str(folder)}
    return re.sub(r"\b(FILE|FOLDER)\b", lambda m: system.quote(names[m[0]]), advice)
