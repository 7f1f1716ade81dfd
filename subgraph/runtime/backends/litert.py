"""LiteRT (TensorFlow Lite) on the CPU: runs pieces of a .tflite; of ONNX, what a converter of yours makes of it."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from subgraph.errors import BackendError, Refused
from subgraph.graph.quantization import TFLITE
from subgraph.runtime.backends import _foreign
from subgraph.storage.layouts import axis_orders
from subgraph.storage.tensors import Value

TFLITE_OPERATORS = True
COMMANDS = ("convert",)
TYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64".split())
# AUTO has XNNPACK, as people deploy it.
KERNELS = {"auto": "AUTO", "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "reference": "BUILTIN_REF"}
OPTIONS = {"kernels": tuple(KERNELS), "threads": (), "convert": ()}


def version() -> str:
    """The runtime's version."""
    _foreign.package("ai_edge_litert", "tflite")
    return package_version("ai-edge-litert")


def warm() -> None:
    """Import the runtime ahead of the first model."""
    _foreign.package("ai_edge_litert.interpreter", "tflite")


def exact(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Its reference kernels."""
    return None if options.get("kernels") == "reference" else {**options, "kernels": "reference"}


def switches(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """XNNPACK, and its own optimised kernels."""
    return {
        "XNNPACK": {**options, "kernels": "builtin"},
        "optimised kernels": {**options, "kernels": "reference"},
    }


def load(model: Path, options: Mapping[str, Any]) -> Callable[[Mapping[str, Value]], dict[str, Value]]:
    """Build an interpreter of the .tflite that the model is, or is converted to.

    `options`: `kernels` (auto, builtin without XNNPACK, reference), `threads` (1), `convert`: a command, to which the
    .onnx and the .tflite to write are appended unless it has {model} and {converted}.

    Raises:
        BackendError: ai-edge-litert is not installed, or an option means nothing to it. Refused: it does not take the
            model, or it is ONNX and nothing converts it.
    """
    import onnx

    _foreign.check_options("litert", options, OPTIONS)
    runtime: Any = _foreign.package("ai_edge_litert.interpreter", "tflite")
    proto = onnx.load(model)
    own = [n for node in proto.graph.node if node.domain == TFLITE for n in node.output]
    inputs, outputs = _foreign.ports("litert", model, TYPES, own)
    content = _assembled(proto) if own or not proto.graph.node else _converted(model, str(options.get("convert") or ""))
    kernels = getattr(runtime.OpResolverType, KERNELS[str(options.get("kernels", "auto"))])
    threads = _foreign.threads("litert", options) or None
    interpreter = runtime.Interpreter(model_content=content, experimental_op_resolver_type=kernels, num_threads=threads)
    return _LiteRTModel(interpreter, inputs, outputs)


def _assembled(model: Any) -> bytes:
    """The .tflite of a model of TensorFlow Lite's operators."""
    from subgraph.origins.tflite import operators

    return operators.to_tflite(model)


def _converted(model: Path, command: str) -> bytes:
    """What the user's command makes of the model; no shell sees a name."""
    if not command:
        raise Refused("litert takes no ONNX: litert:convert=COMMAND names what makes a .tflite of it")
    words = shlex.split(command)
    if not any(place in word for word in words for place in ("{model}", "{converted}")):
        words += ["{model}", "{converted}"]
    with tempfile.TemporaryDirectory(prefix="subcut-litert-") as folder:
        target = Path(folder) / "converted.tflite"
        words = [w.replace("{model}", str(model.resolve())).replace("{converted}", str(target)) for w in words]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, check=False)
        except OSError as e:
            raise BackendError(f"litert: cannot run {words[0]}: {e.strerror or e}", "name a command that exists") from e
        if done.returncode or not target.is_file():
            raise Refused(f"the convert command {words[0]} ended with code {done.returncode}, without a .tflite")
        return target.read_bytes()


error_text = _foreign.message


class _LiteRTModel:
    """An interpreter, and which of its tensors are the model's inputs and outputs."""

    def __init__(self, interpreter: Any, inputs: list[_foreign.Port], outputs: list[_foreign.Port]) -> None:
        """`inputs`, `outputs`: as the ONNX model declares them."""
        self._interpreter, self._inputs, self._outputs = interpreter, inputs, outputs
        self._into = _paired(inputs, interpreter.get_input_details())
        self._from = _paired(outputs, interpreter.get_output_details())

    def __call__(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        """One run; values are transposed where the converter has changed the order of axes.

        Raises:
            ModelError: it failed.
        """
        import numpy as np

        arrays = _foreign.input_arrays(feeds, self._inputs)
        interpreter = self._interpreter
        for k, (array, detail) in enumerate(zip(arrays, self._into, strict=True)):
            wanted = [int(d) for d in detail["shape_signature"]]
            arrays[k] = np.ascontiguousarray(array.transpose(_order(array.shape, wanted)))
            if list(detail["shape"]) != list(arrays[k].shape):
                interpreter.resize_tensor_input(detail["index"], arrays[k].shape, strict=False)
        interpreter.allocate_tensors()
        interpreter.reset_all_variables()
        for array, detail in zip(arrays, self._into, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        results = [interpreter.get_tensor(detail["index"]) for detail in self._from]
        return {p.name: _turned(r, p) for p, r in zip(self._outputs, results, strict=True)}


def _paired(ports: list[_foreign.Port], details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The interpreter's tensor of each port: by name, else by position."""
    named = {str(d["name"]): d for d in details}
    if all(port.name in named for port in ports):
        return [named[port.name] for port in ports]
    _foreign.require_ports("litert", (len(details), 0), ports, [])
    return details


def _order(shape: tuple[int, ...], wanted: list[int]) -> tuple[int, ...]:
    """The order of axes that gives the wanted sizes; the present one where it fits, NHWC where several do."""
    same = tuple(range(len(shape)))
    if len(wanted) != len(shape) or all(w in (-1, s) for s, w in zip(shape, wanted, strict=True)):
        return same
    orders = list(axis_orders(shape, wanted))
    nhwc = (0, *same[2:], 1)
    return nhwc if nhwc in orders else orders[0] if orders else same


def _turned(array: Any, port: _foreign.Port) -> Any:
    """An output in the declared order of axes."""
    dims = port.dims
    if dims is not None and None not in dims and len(dims) == array.ndim and array.shape != dims:
        orders = list(axis_orders(array.shape, dims))
        back = (0, array.ndim - 1, *range(1, array.ndim - 1))
        array = array.transpose(back if back in orders else orders[0]) if orders else array
    return _foreign.as_declared(array, port) if port.dtype else array
