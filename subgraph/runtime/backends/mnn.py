"""MNN on the CPU: converted by its own converter, without the report of its entry point."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from subgraph.errors import ModelError, Refused
from subgraph.graph import protobuf
from subgraph.lazy import np
from subgraph.runtime.backends import Run, Switches, _foreign
from subgraph.storage.tensors import Tensors, Values, find_dtype
from subgraph.system import flush_c
from subgraph.types import Fields

MULTI = True
RELEASES = "mnn", "0"
MODES = {"normal": "Normal", "high": "High", "low": "Low"}
OPTIONS = {"precision": ("normal", "high", "low"), "threads": (), "shape_mutable": ("0", "1")}
X86 = ("x86_64", "AMD64")
# The type that MNN holds each element type in: numpy's name, MNN's name.
HELD_TYPES = {
    "float16": ("float32", "float"),
    "float32": ("float32", "float"),
    "float64": ("float32", "float"),
    "uint8": ("uint8", "uint8"),
}
HELD_INTEGER = ("int32", "int")  # all other integers, and booleans
# Its Python takes no int8, and returns the int8 codes of a QuantizeLinear shifted by 128.
TYPES = _foreign.TYPES - {"int8"}
# The converter's reasons: `[01:40:10] :220: These Op Not Support: ONNX::Blur`, `[ERROR] Model file
# is …`.
_REASON = re.compile(r"^(?:\[[\d:]+\] [^ :]*:\d+: |\[ERROR\] )(.*\S)", re.MULTILINE)
_CHATTER = ("ONNX Model ir version", "ONNX Model opset version", "Convert error, please check")


def version() -> str:
    """Return the runtime's version."""
    return str(_foreign.package("MNN", "mnn").version())


def warm() -> None:
    """Import the runtime and the converter ahead of the first model."""
    _foreign.package("MNN.nn", "mnn")
    _foreign.package("_tools", "mnn")


def precision(options: Fields) -> str:
    """Return fp32; `precision=low` is fp16 on processors with float16 vectors, which x86 lacks."""
    _foreign.check_options("mnn", options, OPTIONS)
    if options.get("precision") == "low" and platform.machine() not in X86:
        return "fp16"
    return "fp32"


def switches(options: Fields) -> Switches:
    """Return the options for its highest precision, and for fixed shapes."""
    return {
        "lower precision": {**options, "precision": "high"},
        "shapes that may change": {**options, "shape_mutable": "0"},
    }


def load(model: Path, options: Fields) -> Run:
    """Convert, and build from the converted file.

    `options`: `precision` (normal, high, low), `threads` (1), `shape_mutable` (1 as in MNN's
    Python; its C++ has 0, and computes otherwise).

    Raises:
        BackendError: MNN is not installed, or an option means nothing to it. Refused: it does not
            accept this model.
    """
    _foreign.check_options("mnn", options, OPTIONS)
    nn: Any = _foreign.package("MNN.nn", "mnn")
    expr: Any = _foreign.package("MNN.expr", "mnn")
    number = max(_foreign.threads("mnn", options), 1)
    mode = getattr(expr.PrecisionMode, MODES[str(options.get("precision", "normal"))])
    inputs, outputs = _foreign.ports("mnn", model, TYPES)
    codes = {
        node.input[0]
        for node in protobuf.read(model).model.graph.node
        if node.op_type == "DequantizeLinear"
    }
    for port in inputs:
        if port.name in codes:
            raise Refused(
                f"mnn misreads codes that it is given: '{port.name}'",
                "cut between floats",
                code="backend.unsupported-type",
            )
    load_module = partial(
        nn.load_module_from_file,
        precision_mode=mode,
        thread_num=number,
        shape_mutable=str(options.get("shape_mutable", 1)) == "1",
    )
    return _Module(model, expr, load_module, inputs, outputs)


class _Module:
    """A converted model; its file lives as long as this."""

    def __init__(
        self,
        model: Path,
        expr: Any,
        load_module: Callable[..., Any],
        inputs: _foreign.Ports,
        outputs: _foreign.Ports,
    ) -> None:
        """`expr`: MNN's module; `load_module`: its function, with all settings."""
        self._expr = expr
        self._inputs = inputs
        self._outputs = outputs
        converted = _convert(model, _foreign.make_folder(self, "mnn") / "converted.mnn")
        names = [[port.name for port in ports] for ports in (inputs, outputs)]
        try:
            self._module = load_module(str(converted), *names)
        except Exception as e:
            why = _foreign.message(e)
            for port in outputs:
                try:
                    load_module(str(converted), [], [port.name])
                except Exception:  # noqa: BLE001
                    why = f"its optimizer has removed the output '{port.name}'"
                    break
            raise Refused(f"mnn refuses the model: {why}", code="backend.refused-model") from e

    def __call__(self, feeds: Tensors) -> Values:
        """Run once.

        Raises:
            Refused: a number needs more than MNN's 32 bits. ModelError: it failed.
        """
        variables = []
        arrays = _foreign.input_arrays(feeds, self._inputs)
        for array, port in zip(arrays, self._inputs, strict=True):
            held, name = HELD_TYPES.get(port.dtype, HELD_INTEGER)
            with np.errstate(over="ignore"):
                cast = np.ascontiguousarray(array, find_dtype(held)).reshape(array.shape)
            if held == "int32" and not np.array_equal(cast.astype(array.dtype), array):
                raise Refused(
                    f"mnn holds {port.dtype} in 32 bits: '{port.name}' has larger numbers",
                    code="backend.unsupported-type",
                )
            dtype = getattr(self._expr, name)
            variables.append(self._expr.const(cast, list(cast.shape), self._expr.NCHW, dtype))
        results = self._module.onForward(variables)
        if len(results) != len(self._outputs):  # MNN only prints its error
            raise ModelError(
                f"mnn failed while running: {len(results)} of {len(self._outputs)} outputs came",
                code="backend.run-failed",
            )
        values: Values = {}
        # `read` returns the memory of the variables: it is copied while they live.
        for port, value in zip(self._outputs, results, strict=True):
            shape = list(value.shape)
            if 0 in shape:  # `read` raises an error
                values[port.name] = np.zeros(shape, find_dtype(port.dtype))
            else:
                array = np.asarray(value.read()).reshape(shape)
                values[port.name] = _foreign.as_declared(array, port)
        return values


def error_text(error: Exception) -> str:
    """Return MNN's error text, or that of its cause if there is one."""
    return _foreign.message(error.__cause__ or error)


def _convert(model: Path, path: Path) -> Path:
    """Convert the model to MNN's format.

    The converter's extension module is called directly: `MNN.tools.mnnconvert`, its command line,
    would install a logging package and report the conversion to a server.

    Raises:
        Refused: the converter wrote nothing; with its reasons.
    """
    tools: Any = _foreign.package("_tools", "mnn")
    words = "mnnconvert -f ONNX --bizCode subcut --modelFile".split()
    words += [str(model), "--MNNModel", str(path)]
    tools.mnnconvert(words)
    if not path.is_file():
        # The second call captures the output. If the first one did, a crash would lose the output.
        printed = _capture_print(lambda: tools.mnnconvert(words), path.parent)
        reasons = [text for text in _REASON.findall(printed) if not text.startswith(_CHATTER)]
        raise Refused(
            f"mnn refuses the model: {'; '.join(reasons)[:400] or 'its converter made nothing'}",
            code="backend.refused-model",
        )
    return path


def _capture_print(act: Callable[[], Any], folder: Path) -> str:
    """Return the text that C code prints to standard output during `act`."""
    sys.stdout.flush()
    with tempfile.TemporaryFile(dir=folder) as file:
        before = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            act()
            flush_c()
        finally:
            os.dup2(before, 1)
            os.close(before)
        file.seek(0)
        return file.read().decode(errors="replace")
