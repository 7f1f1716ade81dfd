"""A model file of any origin that we read -> `Graph`, or the ONNX file that it was converted to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subgraph.errors import ArgumentTypeError, UsageError
from subgraph.graph import graph
from subgraph.graph.graph import Graph
from subgraph.lazy import onnx
from subgraph.storage import folders
from subgraph.storage.file_kinds import Family, find_family, is_of_tflite
from subgraph.text import split_signature

# The names that onnx.load has for the formats of text.
FORMATS = {
    Family.ONNX_JSON: "json",
    Family.ONNX_TEXT: "onnxtxt",
    Family.ONNX_TEXTPROTO: "textproto",
}
MAX_PROTOBUF_BYTES = (1 << 31) - 1  # bytes of a file of protobuf


def load(
    path: str | Path | Any,
    weights: str | None = None,
    *,
    args: Sequence[Any] | None = None,
    trust: bool = False,
) -> Graph:
    """Index a model file; large weights stay on disk.

    Args:
        path: ONNX, also as text, Caffe's prototxt, TensorFlow Lite (`model.tflite:SIGNATURE` of one
            that has several), or PyTorch's `.pt2`; or the file's bytes, an `onnx.ModelProto`, or a
            `torch.nn.Module`.
        weights: The caffemodel of a prototxt, or `random:SEED`; None for the one in its folder.
        args: The arguments that a module is exported with.
        trust: Whether a `.pt2` may run the code that is in it.

    >>> graph = load("resnet50.onnx")
    >>> len(graph.nodes), graph.outputs
    (229, ['prob'])

    Raises:
        ModelError: The file cannot be read, is of another kind, or its local functions cannot be
            inlined.
        UsageError: A prototxt without a caffemodel, a module without `args`, a `.pt2` without
            trust.
        BackendError: PyTorch is needed and not installed.
    """
    if isinstance(path, bytes) or type(path).__name__ == "ModelProto":
        return graph.load(_write_model(path))
    if any(kind.__module__.startswith("torch.") for kind in type(path).__mro__):
        from subgraph.origins.torch.program import export_module

        return graph.load(export_module(path, args))
    if not isinstance(path, (str, Path)):
        raise ArgumentTypeError.from_value(
            path,
            "a model is a file, its bytes, an onnx.ModelProto or a torch.nn.Module",
            'subgraph.load("model.onnx")',
        )
    return graph.load(find_onnx_file(Path(path), weights, trust))


def _write_model(model: Any) -> Path:
    """Write a model in memory into a file that exists until the process ends."""
    file = folders.make_lasting("subcut-model") / "model.onnx"
    if isinstance(model, bytes):
        file.write_bytes(model)
        return file
    is_large = model.ByteSize() > MAX_PROTOBUF_BYTES
    onnx.save_model(model, file, save_as_external_data=is_large, location="model.onnx.data")
    return file


def find_onnx_file(path: Path, weights: str | None, trust: bool = False) -> Path:
    """Return the ONNX file to work on: the file itself, or the result of its conversion.

    Raises:
        UsageError, ModelError, OutputError: as of the functions that convert in
            `origins.caffe.conversion`, `origins.torch.program` and `origins.tflite.conversion`.
    """
    family = find_family(path)
    if weights and family is not Family.CAFFE:
        raise UsageError(
            f"--weights belongs to a .prototxt; {path.name} is none",
            "leave it out",
            code="option.conflict",
        )
    if family is Family.CAFFE:
        from subgraph.origins.caffe.conversion import to_onnx

        return to_onnx(path, weights)
    if family is Family.TORCH_PROGRAM:
        from subgraph.origins.torch.program import convert_program

        return convert_program(path, trust)
    if family is Family.TFLITE:
        from subgraph.origins.tflite import conversion

        return conversion.to_onnx(*split_signature(path))
    if family in FORMATS:
        from subgraph.origins import converted

        return converted.convert_text(path, FORMATS[family])
    return path


def write_own_format(cut: Path, folder: Path) -> None:
    """Write a cut of a TensorFlow Lite model as `model.tflite` as well; no other model.

    Raises:
        UsageError, ModelError, OutputError: as of `origins.tflite.conversion.to_tflite`.
    """
    if is_of_tflite(cut):
        from subgraph.origins.tflite.conversion import to_tflite

        to_tflite(cut, folder / "model.tflite", cut.name)
