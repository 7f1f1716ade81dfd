"""OpenCV's dnn module on the CPU, its new engine first, the classic one for what that cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from subgraph.errors import UsageError
from subgraph.runtime.backends import Run, Switches, _foreign
from subgraph.storage.tensors import Tensors, Values
from subgraph.types import Fields

MULTI = True
RELEASES = "opencv-python-headless", "4.10.0.84"
ENGINES = {"auto": "ENGINE_AUTO", "new": "ENGINE_NEW", "classic": "ENGINE_CLASSIC"}
OPTIONS = {
    "engine": ("auto", "new", "classic"),
    "threads": (),
    "winograd": ("0", "1"),
    "fusion": ("0", "1"),
}


def version() -> str:
    """Return the runtime's version."""
    return str(_foreign.package("cv2", "opencv").__version__)


def warm() -> None:
    """Import the runtime ahead of the first model."""
    _foreign.package("cv2.dnn", "opencv")


def precision(options: Fields) -> str:
    """Return float32, also for float16 models."""
    _foreign.check_options("opencv", options, OPTIONS)
    return "fp32"


def switches(options: Fields) -> Switches:
    """Winograd's convolutions, fused layers, and the new engine."""
    classic = {"engine": "classic"}
    changes = {
        "winograd": {"winograd": "0"},
        "fusion": {"fusion": "0", **classic},
        "its new engine": classic,
    }
    return {name: {**options, **changed} for name, changed in changes.items()}


def load(model: Path, options: Fields) -> Run:
    """Read the model.

    `options`: `engine` (auto, new, classic; releases before 5 have one), `winograd` and `fusion` (0
    turns it off; the new engine loses its inputs then), `threads` (1; 0 leaves it to OpenCV).

    Raises:
        BackendError: OpenCV is not installed. UsageError: an option means nothing to it.
        Refused: it does not accept this model.
    """
    _foreign.check_options("opencv", options, OPTIONS)
    cv2: Any = _foreign.package("cv2", "opencv")
    number = _foreign.threads("opencv", options)
    cv2.setNumThreads(number or cv2.getNumberOfCPUs())
    inputs, outputs = _foreign.ports("opencv", model, _foreign.TYPES)
    engine = getattr(cv2.dnn, ENGINES[str(options.get("engine", "auto"))], None)
    if engine is not None and "fusion" in options and options.get("engine") != "classic":
        raise UsageError(
            "only OpenCV's classic engine can do without fusion",
            "add engine=classic",
            code="backend.wrong-option",
        )
    net = cv2.dnn.readNetFromONNX(str(model), *[engine] * (engine is not None))
    for option, method in (("winograd", "enableWinograd"), ("fusion", "enableFusion")):
        if option in options:
            getattr(net, method)(str(options[option]) == "1")
    names = [port.name for port in outputs]

    def run(feeds: Tensors) -> Values:
        arrays = _foreign.input_arrays(feeds, inputs)
        for port, array in zip(inputs, arrays, strict=True):
            net.setInput(array, port.name)
        results = net.forward(names)
        return {
            port.name: (  # OpenCV returns None for an array without elements
                _foreign.empty_array(port) if value is None else _foreign.as_declared(value, port)
            )
            for port, value in zip(outputs, results, strict=True)
        }

    return run


def error_text(error: Exception) -> str:
    """Return OpenCV's error text without its version and the place in its sources."""
    text = _foreign.message(error)
    return text.partition(" error: ")[2] or text
