"""A file that is not an ONNX model -> what it is, and what to do with it.

The first bytes decide, of a zip the names of its members; the suffix decides only for formats
without such a mark.
"""

from __future__ import annotations

import os
import re
import zipfile
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from subgraph import system
from subgraph.lazy import pickletools
from subgraph.text import split_signature

HEAD_BYTES = 4096  # bytes of the file that are looked at
MAX_PICKLE = 16 << 20  # bytes of a data.pkl that is looked through
_OF_TENSORS = {"collections", "torch", "torch._utils"}  # what a dictionary of tensors imports
TFLITE_PRODUCER = "subcut tflite"  # of the ONNX file of a .tflite's operators

_BUILT = (
    "it was built for one device: name the .onnx that it was built from; the build belongs to a"
    " candidate (-c)"
)
_CONVERT = "subcut convert FILE -o model.onnx"  # which names its packages, and waits for consent
_CONVERT_FOLDER = "subcut convert FOLDER -o model.onnx"
_TEXT_GRAPH = (
    "save the graph as a binary .pb (tf.io.write_graph with as_text=False): subcut convert reads"
    " that"
)

_TFLITE = "name it as the model: subcut reads it (pip install ai-edge-litert)"
_CAFFE = (
    "name it .prototxt or .caffemodel, with its other half in the same folder: subcut reads both"
)
_TORCH = "export it with its code: torch.onnx.export(model, inputs, 'model.onnx')"
_TORCH_SCRIPT = (
    "torch.onnx.export(torch.jit.load('FILE'), inputs, 'model.onnx', dynamo=False) exports it"
)
_PT2 = "torch.onnx.export(torch.export.load('FILE'), f='model.onnx') exports it"
_STATE = (
    "it holds weights without a graph: load it into its module (load_state_dict), and " + _TORCH
)
_WEIGHTS = (
    "it holds weights without a graph: export the model with its code, as `optimum-cli export onnx`"
    " does"
)
_TENSORS = (
    "as a recording: --recorded FILE; weights go into their module (load_state_dict), which "
    "torch.onnx.export(model, inputs, 'model.onnx') exports"
)
_DEVICE_FILE = "name the .onnx that it belongs to"
_ONNX_AS = "every command takes it by a name that does not end in .onnx"
_INPUTS = "name the model first, then the inputs with -i"
_ORIGINAL = "name the .onnx that it was converted from"
_MXNET = (
    "mxnet.onnx.export_model('SYMBOL.json', 'WEIGHTS.params', [input shape]) of MXNet 1.9 writes it"
    " as ONNX"
)


class Family(StrEnum):
    """Formats of models that subcut reads, or that one of its converters reads."""

    CAFFE = "Caffe"
    KERAS = "Keras"
    ONNX_JSON = "ONNX as JSON"
    ONNX_TEXT = "ONNX as text"
    ONNX_TEXTPROTO = "ONNX as protobuf's text"
    PADDLE = "Paddle"
    TENSORFLOW = "TensorFlow"
    TFLITE = "TensorFlow Lite"
    TORCH_PROGRAM = "a PyTorch exported program"


class FileKind(NamedTuple):
    """The kind of a file or folder that is not an ONNX model.

    Attributes:
        name: The name, with its article.
        advice: The next step of the user; may be empty.
        family: The format; None if subcut does not read it.
        by_suffix: Whether only the name of the file shows the kind.
    """

    name: str
    advice: str
    family: Family | None = None
    by_suffix: bool = False

    @property
    def sentence(self) -> str:
        verb = "looks like" if self.by_suffix else "is"
        return f"this {verb} {self.name}"


_PYTORCH_FILE = FileKind("a PyTorch file", _TORCH)
_TENSORS_FILE = FileKind("a PyTorch file of tensors", _TENSORS)
_TIDL = FileKind("TIDL's description of the post-processing (.prototxt)", _DEVICE_FILE)
_ESPDL = FileKind("an ESP-DL .espdl model", _BUILT)
_PADDLE_MODEL = FileKind("a Paddle model", _CONVERT, Family.PADDLE)
_ENGINE = FileKind("a TensorRT engine", _BUILT)
_RKNN = FileKind("a Rockchip .rknn model", _BUILT)
_OM = FileKind("an Ascend .om model", _BUILT)
_DLC = FileKind("a Qualcomm .dlc model", _BUILT)
_TNN = FileKind("a TNN model", _ORIGINAL)
_CORE_ML = FileKind("a Core ML model", "name the .onnx or PyTorch model that it was converted from")
_DARKNET = FileKind(
    "a Darknet network",
    "Darknet writes no ONNX: a converter does, such as demo_darknet2onnx.py of pytorch-YOLOv4",
)
_KMODEL = FileKind("a Kendryte .kmodel", _BUILT)
_STATE_DICT = FileKind("a state_dict of PyTorch", _STATE)
_SAVED_MODEL = FileKind("a TensorFlow SavedModel", _CONVERT_FOLDER, Family.TENSORFLOW)

_COMMENTS = r"(?:\s*#[^\n]*\n)*\s*"  # as they come before a model as text
# How the file begins -> what it is. The first pattern that matches decides.
_MARKS: tuple[tuple[str, FileKind], ...] = (
    (r"\Z", FileKind("an empty file", "")),
    (
        r"version https://git-lfs",
        FileKind("a git-lfs pointer", "run `git lfs pull` to get the model itself"),
    ),
    (r".{4}ORTM", FileKind("onnxruntime's .ort format", "use the .onnx it was made from")),
    (r".{4}TFL3", FileKind("a TensorFlow Lite model", _TFLITE, Family.TFLITE)),
    (r".{4}ET\d\d", FileKind("an ExecuTorch program (.pte)", _TORCH)),
    (r"LDMK", _KMODEL),
    (r"[EP]DL[12]", _ESPDL),
    (r"\x12\x01\0{14}", FileKind("weights of MXNet (.params)", _MXNET)),
    (r"[\x02\x04]\0\xbc\xfa", _TNN),
    (r"\"\d+ \d+ \d+ 420662477[02] ", _TNN),
    (r"\x1f\x8b", FileKind("a gzip archive", "unpack it first: gunzip -k FILE")),
    (r"BZh\d1AY&SY", FileKind("a bzip2 archive", "unpack it first: bunzip2 -k FILE")),
    (r"\xfd7zXZ", FileKind("an xz archive", "unpack it first: unxz -k FILE")),
    (r"\x28\xb5\x2f\xfd", FileKind("a zstd archive", "unpack it first: unzstd FILE")),
    (r".{257}ustar", FileKind("a tar archive", "unpack it first: tar xf FILE")),
    (r"GGUF", FileKind("a GGUF file, weights for llama.cpp", _WEIGHTS)),
    (r"\x80[\x02-\x05].*torch", _PYTORCH_FILE),
    (r"\x80[\x02-\x05]", FileKind("a Python pickle, which subcut never loads", _TORCH)),
    (r"\x89HDF\r\n", FileKind("an HDF5 file, as Keras writes", _CONVERT, Family.KERAS)),
    (r"\x93NUMPY", FileKind("a .npy array", _INPUTS)),
    (r".{6}\0\0\{\s*\"", FileKind("a .safetensors file", _WEIGHTS)),
    (r"RKNN", _RKNN),
    (r"IMOD", _OM),
    (r"[a-z]trt", _ENGINE),
    (r"7767517\s", FileKind("an ncnn .param file", _ORIGINAL)),
    (
        r"(<\?xml[^>]*>\s*)?<net\s",
        FileKind(
            "OpenVINO's IR (.xml)",
            "name the .onnx that it was converted from; openvino reads that itself (-c openvino)",
        ),
    ),
    (
        _COMMENTS + r"(ir_version|opset_import)\b[^\0]*:",
        FileKind("an ONNX model as protobuf's text", _ONNX_AS, Family.ONNX_TEXTPROTO),
    ),
    (
        _COMMENTS + r"<\s*(ir_version|opset_import)\s*:",
        FileKind("an ONNX model as text", _ONNX_AS, Family.ONNX_TEXT),
    ),
    (
        r"(?i)(\xef\xbb\xbf)?\s*\{\s*\"(ir_?version|producer_?name|opset_?import|graph)\"",
        FileKind("an ONNX model as JSON", _ONNX_AS, Family.ONNX_JSON),
    ),
    (r"\s*([#;][^\n]*\s+)*\[(net|network)\]", _DARKNET),
    (
        r"(?s)\s*\{\s*\"nodes\"\s*:\s*\[\s*\{[^}]*\"op\"\s*:",
        FileKind("a network of MXNet (symbol.json)", _MXNET),
    ),
    (
        r"\s*\{[^\0]*\"(configs|\w*encodings|\w*bit_?width|zero_?points?|quant\w*)\"\s*:",
        FileKind("a quantization table as JSON", _DEVICE_FILE),
    ),
    (r"[^\0]*\b(caffe_ssd|tf_od_api|tidl_\w+)\s*\{", _TIDL),
    (
        r"[^\0]*\b(layers?|input_dim|input_shape)\b\s*[:{]",
        FileKind("Caffe's network as text (.prototxt)", _CAFFE, Family.CAFFE),
    ),
    (r"[^\0]*\bnode\s*\{", FileKind("a TensorFlow graph as text (.pbtxt)", _TEXT_GRAPH)),
    (r"\s*\{\s*\"base_code\"", _PADDLE_MODEL),
    (r"\n.{1,5}\x08\0\x10\xff{9}\x01\x1a", _PADDLE_MODEL),
    (r"\s*[<{]", FileKind("text (a web page or JSON), not a model", "download it again")),
    (
        r"\n.{0,200}(Convolution|InnerProduct|Pooling"
        r"|\x12\x04Data|\x12\x05Input|\x12\x09DummyData)",
        FileKind("a Caffe model (.caffemodel)", _CAFFE, Family.CAFFE),
    ),
    (
        r"\n..?\n.{1,200}\x12.(Placeholder|Const|VariableV2|VarHandleOp|NoOp)",
        FileKind("a TensorFlow graph (.pb)", _CONVERT, Family.TENSORFLOW),
    ),
    (r"\x08\x01\x12.*(saved_model|serve|tensorflow|VarHandleOp|Placeholder)", _SAVED_MODEL),
)
# The members of a zip, one on a line -> what it is.
_MEMBERS: tuple[tuple[str, FileKind], ...] = (
    (r"^(model\.params|dlc\.metadata)", _DLC),
    (
        r"/data/(weights|constants|sample_inputs)/|archive_format|serialized_exported_program"
        r"|models/model\.json",
        FileKind("a PyTorch exported program (.pt2)", _PT2, Family.TORCH_PROGRAM),
    ),
    (r"/code/__torch__", FileKind("a TorchScript file", _TORCH_SCRIPT)),
    (r"/(data\.pkl|byteorder)$", _PYTORCH_FILE),
    (r"\.npy$", FileKind("a .npz of arrays", _INPUTS)),
    (r"^(model\.weights\.h5|metadata\.json)$", FileKind("a Keras model", _CONVERT, Family.KERAS)),
    (r"Data/com\.apple\.CoreML/", _CORE_ML),
    (r"", FileKind("a zip archive", "unpack it first")),
)
CAFFE_SUFFIXES = (".prototxt", ".caffemodel")
_SUFFIXES = {
    ".pb": FileKind("a TensorFlow graph", _CONVERT, Family.TENSORFLOW),
    ".caffemodel": FileKind("a Caffe model", _CAFFE, Family.CAFFE),
    ".pdmodel": _PADDLE_MODEL,
    ".pdiparams": FileKind("the weights of a Paddle model", _CONVERT, Family.PADDLE),
    ".mnn": FileKind(
        "an MNN model", "name the .onnx that it was converted from; -c mnn converts it itself"
    ),
    ".engine": _ENGINE,
    ".plan": _ENGINE,
    ".trt": _ENGINE,
    ".om": _OM,
    ".rknn": _RKNN,
    ".dlc": _DLC,
    ".cfg": _DARKNET,
    ".weights": _DARKNET,
    ".kmodel": _KMODEL,
    ".espdl": _ESPDL,
    ".hef": FileKind("a Hailo .hef model", _BUILT),
    ".mlmodel": _CORE_ML,
    ".bin": FileKind(
        "the weights of OpenVINO or ncnn, or an input", "name the .onnx file; inputs go to -i"
    ),
    ".pt": _PYTORCH_FILE,
    ".pth": _PYTORCH_FILE,
}
_PADDLE_FOLDER = FileKind("a Paddle model", _CONVERT_FOLDER, Family.PADDLE)
_FOLDERS = (
    ("saved_model.pb", _SAVED_MODEL),
    ("*.pdmodel", _PADDLE_FOLDER),
    ("__model__", _PADDLE_FOLDER),
    ("*.pdiparams", _PADDLE_FOLDER),
    ("Data/com.apple.CoreML/*", _CORE_ML),
)


def find_family(path: Path) -> Family | None:
    """Return the format of a model, by its first bytes, Caffe's also by its name; None for ONNX,
    and for what is unknown.

    A file called `.onnx` may only be TensorFlow Lite's instead.
    """
    head = _read_head(split_signature(path)[0])
    if path.suffix.lower() in CAFFE_SUFFIXES:
        kind = recognize(path, head) if head else None
        if kind and kind.name == _TIDL.name:
            return None
        return Family.CAFFE
    if head[4:8] == b"TFL3":
        return Family.TFLITE
    kind = recognize(path, head) if head and path.suffix.lower() != ".onnx" else None
    return kind.family if kind else None


def is_named_as_model(spec: str) -> bool:
    """Return whether a SPEC is the file of a model: by its suffix, or TensorFlow Lite's by its
    content, perhaps with a signature."""
    return spec.endswith((".onnx", ".tflite")) or find_family(Path(spec)) is Family.TFLITE


def is_of_tflite(path: Path) -> bool:
    """Return whether a file is ONNX of TensorFlow Lite's operators, by its first bytes."""
    return f"\x12{chr(len(TFLITE_PRODUCER))}{TFLITE_PRODUCER}".encode() in _read_head(path)[:64]


def _read_head(path: Path) -> bytes:
    try:
        if path.is_file():
            with path.open("rb") as file:
                return file.read(HEAD_BYTES)
    except OSError:
        pass
    return b""


def recognize(path: Path, head: bytes | None = None) -> FileKind | None:
    """Return the kind of a file that is not an ONNX model; None if it is not recognized.

    `head`: its first `HEAD_BYTES` bytes; without them they are read.
    """
    head = _read_head(path) if head is None else head
    # The patterns are compiled only if a file is not a model.
    kind = _recognize_zip(path) if head.startswith(b"PK\x03\x04") else None
    kind = kind or next(
        (kind for mark, kind in _MARKS if re.match(mark.encode("latin-1"), head, re.DOTALL)), None
    )
    if kind is None and (kind := _SUFFIXES.get(path.suffix.lower())):
        kind = kind._replace(by_suffix=True)
    if kind:
        return _fill_advice(kind, path.parent, path.name)
    return None


def _recognize_zip(path: Path) -> FileKind:
    """Return the kind of a zip, by its members, of PyTorch's by the imports of its pickle."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            kind = next(
                kind for mark, kind in _MEMBERS if re.search(mark, "\n".join(names), re.MULTILINE)
            )
            pickled = next((name for name in names if name.endswith("/data.pkl")), "")
            if (
                kind is _PYTORCH_FILE
                and pickled
                and archive.getinfo(pickled).file_size < MAX_PICKLE
            ):
                data = archive.read(pickled)
                if not _list_imports(data) <= _OF_TENSORS:
                    return kind
                if data[2:].startswith(b"ccollections"):
                    return _STATE_DICT
                return _TENSORS_FILE
            return kind
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return FileKind("a zip archive that is truncated or damaged", "download it again")


def _list_imports(pickle: bytes) -> set[str]:
    """Return the modules that a pickle names, without loading it."""
    found: set[str] = set()
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(pickle):
        if opcode.name == "GLOBAL":
            found.add(str(argument).partition(" ")[0])
        elif opcode.name == "STACK_GLOBAL":
            found.add(texts[-2] if len(texts) > 1 else "")
        elif isinstance(argument, str):
            texts.append(argument)
    return found


def recognize_folder(folder: Path) -> FileKind | None:
    """Return the kind of a folder that holds one model of TensorFlow or Paddle."""
    for pattern, kind in _FOLDERS:
        if os.path.isdir(folder) and (found := sorted(folder.glob(pattern))):  # noqa: PTH112
            return _fill_advice(kind, folder, found[0].name)
    return None


def _fill_advice(kind: FileKind, folder: Path, file: str) -> FileKind:
    """Return the advice with the names of this file and folder in it, quoted for a shell."""
    names = {"FILE": str(folder / file), "FOLDER": str(folder)}
    return kind._replace(
        advice=re.sub(r"\b(FILE|FOLDER)\b", lambda m: system.quote(names[m[0]]), kind.advice)
    )
