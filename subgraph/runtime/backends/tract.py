"""tract, an inference engine in Rust for small devices: one thread, float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from subgraph.runtime.backends import Run, _foreign
from subgraph.storage.tensors import Tensors, Values
from subgraph.types import Fields, JsonObject

MULTI = True
RELEASES = "tract", "0"
OPTIONS: JsonObject = {}
TRACE = "Stack backtrace:"  # follows the message in its errors


def version() -> str:
    """Return the native library's version."""
    return str(_foreign.package("tract", "tract").version())


def warm() -> None:
    """Import the runtime ahead of the first model."""
    _foreign.package("tract", "tract")


def load(model: Path, options: Fields) -> Run:
    """Read, type and optimize the model. It has no options.

    Raises:
        BackendError: tract is not installed, or an option is given. Refused: it does not accept
            this model.
    """
    _foreign.check_options("tract", options, OPTIONS)
    tract: Any = _foreign.package("tract", "tract")
    inputs, outputs = _foreign.ports("tract", model, _foreign.TYPES)
    reader = tract.onnx()
    if hasattr(reader, "load"):
        built = reader.load(str(model)).into_model().into_runnable()
    else:  # before 0.23
        built = reader.model_for_path(str(model)).into_optimized().into_runnable()
    _foreign.require_ports("tract", (built.input_count(), built.output_count()), inputs, outputs)

    def run(feeds: Tensors) -> Values:
        arrays = _foreign.input_arrays(feeds, inputs)
        values = {}
        for port, tensor in zip(outputs, built.run(arrays), strict=True):
            # Since 0.23, tract has another type for int64 values of shapes.
            if port.dtype == "int64" and hasattr(tensor, "convert_to"):
                tensor = tensor.convert_to(tract.DatumType.I64)
            values[port.name] = tensor.to_numpy()
        return values

    return run


def error_text(error: Exception) -> str:
    """Return tract's error text without its trace."""
    return _foreign.message(error, drop=TRACE)
