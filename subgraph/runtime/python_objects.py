"""An object that runs one model -> a function `load(path)` that takes that model only.

The object is a session of onnxruntime, a `torch.nn.Module`, a compiled model of OpenVINO, or a
function `run(feeds)`. It cannot run a cut, so that its answer is about the full model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from subgraph.errors import Refused
from subgraph.graph.graph import Graph
from subgraph.lazy import onnx
from subgraph.types import Array, Arrays, Fields

Run: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
FULL_MODEL_ONLY = (
    "it runs the full model only; a function load(path) that returns run(feeds) runs cuts"
)
FEEDS = ("feeds", "inputs")  # the first parameter of a function that runs the model


@dataclass
class ObjectLoad:
    """The function `load(path)` of an object that runs one model.

    Attributes:
        run: Runs the object.
        graph: The model that the object runs.
    """

    run: Run
    graph: Graph

    def __call__(self, path: Path) -> Run:
        """Return the function that runs the object.

        Raises:
            Refused: The file holds another model: a cut, or the model with further outputs.
        """
        graph = onnx.load(path, load_external_data=False).graph
        outputs = [value.name for value in graph.output]
        nodes = [tuple(node.output) for node in graph.node]
        own = self.graph.model.graph
        if outputs != self.graph.outputs or nodes != [tuple(node.output) for node in own.node]:
            raise Refused(FULL_MODEL_ONLY, code="candidate.full-model-only")
        return self._run_checked

    def _run_checked(self, feeds: Fields) -> Mapping[str, Any]:
        result = self.run(feeds)
        missing = [name for name in self.graph.outputs if name not in result]
        if missing:
            names = ", ".join(map(str, result)) or "nothing"
            raise ValueError(f"the outputs {', '.join(missing)} are missing; it returned {names}")
        return result


def find_run(candidate: object, outputs: Sequence[str]) -> Run | None:
    """Return the function that runs an object with named arrays; None if it is another object.

    Args:
        candidate: The object.
        outputs: The names of the model's outputs, for objects that return them in order.
    """
    makers = [
        _SESSIONS.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
        for kind in type(candidate).__mro__
    ]
    for make in filter(None, makers):
        return make(candidate, outputs)
    if not callable(candidate):
        return None
    with suppress(ValueError):  # a builtin without a signature
        names = list(inspect.signature(candidate).parameters)
        if names and names[0] in FEEDS:
            return candidate
    return None


def _run_session(session: Any, _: Sequence[str]) -> Run:
    """Run a session of onnxruntime."""
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Fields) -> Arrays:
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    return run


def _run_module(module: Any, outputs: Sequence[str]) -> Run:
    """Run a module of PyTorch, on the device of its parameters; it takes the inputs in order."""
    import torch

    parameter = next(iter(module.parameters()), None)
    device = None if parameter is None else parameter.device

    def run(feeds: Fields) -> Arrays:
        arguments = [torch.as_tensor(value, device=device) for value in feeds.values()]
        with torch.no_grad():
            result = module(*arguments)
        values = result if isinstance(result, (tuple, list)) else (result,)
        arrays = [value.detach().cpu().numpy() for value in values]
        return dict(zip(outputs, arrays, strict=True))

    return run


def _run_compiled(compiled: Any, outputs: Sequence[str]) -> Run:
    """Run a compiled model of OpenVINO."""

    def run(feeds: Fields) -> Arrays:
        result = compiled(dict(feeds))
        arrays: dict[str, Array] = {}
        for port in compiled.outputs:
            names = [name for name in outputs if name in port.names]
            arrays |= dict.fromkeys(names, result[port])
        return arrays

    return run


# By package and class.
_SESSIONS: Mapping[str, Callable[[Any, Sequence[str]], Run]] = {
    "onnxruntime.InferenceSession": _run_session,
    "torch.Module": _run_module,
    "openvino.CompiledModel": _run_compiled,
}
