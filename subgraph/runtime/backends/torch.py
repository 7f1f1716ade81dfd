"""PyTorch: the module that was exported; torch:module.py:build names its function."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from subgraph import plugins
from subgraph.errors import BackendError, InputError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph, load as load_graph
from subgraph.graph.region import prepare_graph
from subgraph.graph.value_types import read_type
from subgraph.lazy import np
from subgraph.origins.torch import program as programs
from subgraph.origins.torch.piece import ExportedModel
from subgraph.runtime.backends import Run, _foreign
from subgraph.storage.tensors import Tensors, Values, find_dtype
from subgraph.types import Fields, JsonObject

SCRIPT = "file"
OPTIONS = {"file": None, "build": None, "model": None}
WANTED = "it returns (module, args): the module in evaluation mode, and what it was exported with"


def version() -> str:
    """Return PyTorch's version."""
    return str(programs.import_torch().__version__)


def warm() -> None:
    """Import PyTorch ahead of the first model."""
    programs.import_torch()


def tensors(model: Path, options: Fields) -> list[str]:
    """Return the tensors of the whole model that are values of the module.

    Raises:
        BackendError: the module cannot be made, run or exported.
    """
    return list(_export(*_split_module(options), str(model), True).places)


def load(model: Path, options: Fields) -> Run:
    """Find the part of the module between the model's inputs and outputs.

    `options`: `file` and `build`, a function there; `model`, all that was exported, if `model`
    here is a cut of it.

    Raises:
        BackendError: the module cannot be made, run or exported. Refused: it has no such part.
    """
    _foreign.check_options("torch", options, OPTIONS)
    whole = options.get("model")
    exported = _export(*_split_module(options), str(whole or model), bool(whole))
    graph = protobuf.read(model).model.graph
    inside = {tensor.name for tensor in graph.initializer}
    piece = exported.piece(
        [v.name for v in graph.input if v.name not in inside], [v.name for v in graph.output]
    )

    def run(feeds: Tensors) -> Values:
        return exported.run(piece, feeds)

    return run


def _split_module(options: Fields) -> tuple[str, str]:
    """Return the file and the function of the module.

    Raises:
        BackendError: they are not named.
    """
    if not ("file" in options and "build" in options):
        raise BackendError(
            "torch runs the module of a Python file",
            "torch:module.py:build",
            code="torch.no-function",
        )
    return str(options["file"]), str(options["build"])


@cache
def _export(file: str, build: str, model: str, whole: bool) -> ExportedModel:
    """Return the exported program of the module; once per process.

    Raises:
        BackendError: it cannot be made, run or exported, or is another one than the model was
            exported from.
    """
    torch = programs.import_torch()
    graph = prepare_graph(load_graph(Path(model)))
    module, args, options = _call_function(file, build, graph)
    kwargs = options.pop("kwargs", None) or {}
    try:
        program, _ = programs.find_nearest(
            graph, programs.iter_programs(module, args, kwargs, **options)
        )
        with torch.no_grad():
            expected = programs.list_tensors(module(*args, **kwargs))
        given = programs.list_tensors(programs.run(program, args, kwargs, lambda node, value: None))
    except InputError as e:
        raise BackendError(e.what, e.hint, code=e.code) from e
    same, of = programs.count_same_nodes(graph, program)
    if of and not same:
        raise BackendError(
            f"{Path(model).name} was exported from another module",
            WANTED,
            code="torch.other-module",
        )
    if wrong := list(programs.iter_departures(expected, given)):
        raise BackendError(
            wrong[0], "the fault is not in the ONNX model", code="torch.module-differs"
        )
    return ExportedModel(program, graph, whole=whole)


def _call_function(file: str, build: str, graph: Graph) -> tuple[Any, tuple[Any, ...], JsonObject]:
    """Call the user's function; return the module, the arguments and the options of its export.

    Raises:
        BackendError: there is no such function, it fails, or returns something else.
    """
    torch = programs.import_torch()
    where = f"{build} in {Path(file).name}"
    function = getattr(plugins.load("backends", file), build, None)
    if not callable(function):
        raise BackendError(f"there is no function {where}", WANTED, code="torch.no-function")
    try:
        result = function()
    except Exception as e:
        raise BackendError(
            f"{where} failed: {type(e).__name__}: {e}",
            "correct the file",
            code="torch.function-failed",
        ) from e
    parts = list(result) if isinstance(result, (tuple, list)) else [result, _make_zeros(graph)]
    module, args, options = (*parts, {}, {})[:3]
    if (
        not isinstance(module, torch.nn.Module)
        or not 2 <= len(parts) <= 3
        or not isinstance(options, Mapping)
    ):
        raise BackendError(
            f"{where} returns something else than a module and its arguments",
            WANTED,
            code="torch.wrong-return",
        )
    if module.training:
        raise BackendError(
            f"{where} returns a module in training mode",
            "call module.eval()",
            code="torch.training-mode",
        )
    return module, (args,) if isinstance(args, torch.Tensor) else tuple(args), dict(options)


def _make_zeros(graph: Graph) -> tuple[Any, ...]:
    """Return an argument per input of the model.

    Raises:
        BackendError: a size is open.
    """
    arguments = []
    for name, info in graph.inputs.items():
        _, dtype, dims = read_type(info.type)
        if dims is None or not all(isinstance(size, int) for size in dims):
            raise BackendError(
                f"the size of the input '{name}' is open, so that the module needs arguments",
                WANTED,
                code="torch.open-size",
            )
        arguments.append(programs.to_tensor(np.zeros(dims, find_dtype(dtype))))
    return tuple(arguments)
