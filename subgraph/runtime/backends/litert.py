"""LiteRT (TensorFlow Lite) on the CPU: runs pieces of a .tflite."""

from __future__ import annotations

from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from subgraph.errors import BackendError
from subgraph.graph import protobuf
from subgraph.graph.quantization import TFLITE
from subgraph.iterables import flatten
from subgraph.runtime.backends import Run, Switches, _foreign
from subgraph.storage.tensors import Tensors, Values
from subgraph.types import Fields, JsonObject

RELEASES = "ai-edge-litert", "", "flatbuffers", "onnx", "typing_extensions"
TFLITE_OPERATORS = True
TYPES = _foreign.TYPES | {"complex64"}
# AUTO has XNNPACK, LiteRT's default.
KERNELS = {
    "auto": "AUTO",
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "reference": "BUILTIN_REF",
}
OPTIONS = {"kernels": ("auto", "builtin", "reference"), "threads": ()}


def version() -> str:
    """Return the runtime's version."""
    _foreign.package("ai_edge_litert", "tflite")
    return package_version("ai-edge-litert")


def warm() -> None:
    """Import the runtime ahead of the first model."""
    _foreign.package("ai_edge_litert.interpreter", "tflite")


def exact(options: Fields) -> JsonObject | None:
    """Return the options for its reference kernels."""
    if options.get("kernels") == "reference":
        return None
    return {**options, "kernels": "reference"}


def switches(options: Fields) -> Switches:
    """Return the options that turn off XNNPACK, and its own optimized kernels."""
    return {
        "XNNPACK": {**options, "kernels": "builtin"},
        "optimized kernels": {**options, "kernels": "reference"},
    }


def load(model: Path, options: Fields) -> Run:
    """Build an interpreter of a model of TensorFlow Lite's operators.

    `options`: `kernels` (auto, builtin without XNNPACK, reference), `threads` (1).

    Raises:
        BackendError: ai-edge-litert is not installed, or an option means nothing to it, or the
            model is ONNX.
    """
    from subgraph.origins.tflite import operators

    _foreign.check_options("litert", options, OPTIONS)
    runtime: Any = _foreign.package("ai_edge_litert.interpreter", "tflite")
    proto = protobuf.read(model).model
    own = list(flatten(node.output for node in proto.graph.node if node.domain == TFLITE))
    inputs, outputs = _foreign.ports("litert", model, TYPES, own)
    if proto.graph.node and not own:
        raise BackendError(
            "litert runs .tflite files, and the model is ONNX",
            "docs/candidates/litert.md is a recipe that converts each model with onnx2tf",
            code="candidate.other-format",
        )
    kernels = getattr(runtime.OpResolverType, KERNELS[str(options.get("kernels", "auto"))])
    threads = _foreign.threads("litert", options) or None
    content = operators.to_tflite(proto)
    interpreter = runtime.Interpreter(
        model_content=content, experimental_op_resolver_type=kernels, num_threads=threads
    )
    return _LiteRTModel(interpreter, inputs, outputs)


error_text = _foreign.message


class _LiteRTModel:
    """An interpreter, and which of its tensors are the model's inputs and outputs."""

    def __init__(self, interpreter: Any, inputs: _foreign.Ports, outputs: _foreign.Ports) -> None:
        """Hold the interpreter, and its `inputs` and `outputs` as the ONNX model declares them."""
        self._interpreter = interpreter
        self._inputs = inputs
        self._outputs = outputs
        self._into = _pair_tensors(inputs, interpreter.get_input_details())
        self._from = _pair_tensors(outputs, interpreter.get_output_details())

    def __call__(self, feeds: Tensors) -> Values:
        """Run once."""
        arrays = _foreign.input_arrays(feeds, self._inputs)
        interpreter = self._interpreter
        for array, detail in zip(arrays, self._into, strict=True):
            if list(detail["shape"]) != list(array.shape):
                interpreter.resize_tensor_input(detail["index"], array.shape, strict=False)
        interpreter.allocate_tensors()
        interpreter.reset_all_variables()
        for array, detail in zip(arrays, self._into, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        results = [interpreter.get_tensor(detail["index"]) for detail in self._from]
        return {
            p.name: _foreign.as_declared(r, p) if p.dtype else r
            for p, r in zip(self._outputs, results, strict=True)
        }


def _pair_tensors(ports: _foreign.Ports, details: list[JsonObject]) -> list[JsonObject]:
    """Return the interpreter's tensor of each port: by name, else by position."""
    named = {str(d["name"]): d for d in details}
    if all(port.name in named for port in ports):
        return [named[port.name] for port in ports]
    _foreign.require_ports("litert", (len(details), 0), ports, [])
    return details
