"""`subgraph.torch.record`: a module and an ONNX model exported from it -> the module's values under
ONNX's names.

The values come from the exported program. For models of the older exporter (`dynamo=False`), which
writes the modules around a node into its name, and for modules that `torch.export` refuses, the
module runs as it is. The result of a module is the tensor that leaves its nodes. A call of a
function belongs to the nodes of its operator within the module that calls it, if there are as many
of both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

from subgraph import system
from subgraph.documents import to_json
from subgraph.errors import ArgumentTypeError, InputError, ResultExists, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.value_types import find_declared_types, read_type
from subgraph.graph.walks import find_operator
from subgraph.iterables import group_values, invert
from subgraph.origins.source import SCOPE_NAMES, parse_texts, read_node_metadata
from subgraph.origins.torch import program as programs
from subgraph.storage import tensors
from subgraph.storage.folders import make_safe_names, write_aside
from subgraph.storage.tensors import has_dims
from subgraph.text import clean, count
from subgraph.types import Fields, JsonObject, frozen

SCHEMA = "subcut.torch/1"
MANIFEST = "manifest.json"


@frozen
class TorchRecording:
    """The result of `record`.

    Attributes:
        model: The model of `subcut compare MODEL --recorded FOLDER`.
        folder: The folder of that command.
        tensors: Names of the ONNX tensors whose values were written, the model's inputs first.
        of: The number of tensors that the model's nodes compute.
        way: "exported program"; "hooks" if names or `torch.export` allow no more.
        notes: The reasons why it is incomplete.
    """

    model: Path
    folder: Path
    tensors: Sequence[str]
    of: int
    way: str
    notes: Sequence[str] = ()
    schema: str = field(default=SCHEMA, kw_only=True)

    def __str__(self) -> str:
        """Show the number of recorded tensors, and the next command."""
        lines = [
            f"{self.folder}: {count(self.tensors, 'tensor')} by the {self.way}",
            *self.notes,
        ]
        command = system.join(
            ["subcut", "compare", str(self.model), "--recorded", str(self.folder)]
        )
        return "\n".join(map(clean, [*lines, f"next: {command}"]))


def record(
    module: Any,
    args: Sequence[Any],
    model: str | Path,
    folder: str | Path,
    *,
    kwargs: Fields | None = None,
    **export: Any,
) -> TorchRecording:
    """Run a module and write the values of the ONNX model's tensors that it computes.

    Then `subcut compare MODEL --recorded FOLDER` compares the export with the module. A recording
    in the folder is replaced when the new one is complete.

    Args:
        module: A `torch.nn.Module` in evaluation mode, on any device.
        args: Its arguments.
        model: The model that was exported from it, by either of PyTorch's exporters.
        folder: The folder of the recording.
        kwargs: Its arguments by name.
        export: Options that the export needed, as for `torch.onnx.export` (`dynamic_shapes`,
            `custom_translation_table`).

    >>> import subgraph.torch
    >>> done = subgraph.torch.record(network, (image,), "model.onnx", "dump")  # doctest: +SKIP
    >>> len(done.tensors), done.way  # doctest: +SKIP
    (50, 'exported program')

    Raises:
        BackendError: PyTorch is not installed.
        UsageError: The module is in training mode, or not a module.
        InputError: A value has no form in ONNX, or nothing could be recorded.
        ModelError: The model cannot be read.
        ResultExists: The folder holds something else.
        OutputError: It cannot be written.
    """
    torch = programs.import_torch()
    place = Path(folder)
    kwargs = dict(kwargs or {})
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError.from_value(
            module, "record takes a torch.nn.Module", "record(module, args, model, folder)"
        )
    if module.training:
        raise UsageError(
            "the module is in training mode, in which values change from run to run",
            "call module.eval()",
            code="torch.training-mode",
        )
    args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    graph = load(Path(model))
    try:
        ours = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if place.exists() and not ours and not (place.is_dir() and not any(place.iterdir())):
        raise ResultExists(
            f"{place} exists and is not a recording of this kind",
            "name another folder, or remove it",
            code="output.exists",
        )
    with write_aside(place) as work:
        values = _Values(graph, work)
        way, notes = _run(module, args, kwargs, graph, values, export)
        done = TorchRecording(
            graph.path, place, tuple(values.files), len(graph.maker), way, tuple(notes)
        )
        if not values.files.keys() - graph.inputs.keys():
            raise InputError(
                f"no tensor of {graph.path.name} was found in the module",
                "; ".join(notes),
                code="torch.nothing-recorded",
            )
        manifest = to_json(done) | {"files": values.files, "torch": str(torch.__version__)}
        (work / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return done


class _Values:
    """The values on disk; each is written as soon as it is known."""

    def __init__(self, graph: Graph, folder: Path) -> None:
        self._graph = graph
        self._folder = folder
        self._stems = make_safe_names([*graph.inputs, *graph.maker])
        self.files: dict[str, str] = {}

    def add(self, name: str, value: Any) -> None:
        """Write one tensor of the model, unless it is written already."""
        if name not in self.files and name in self._stems:
            array = programs.to_numpy(value)
            saved = tensors.save(
                name, array, tensors.find_type(array), self._folder, self._stems[name]
            )
            self.files[name] = saved.files[0]

    def add_ends(self, args: Any, results: Any) -> Iterator[str]:
        """Write the model's inputs and outputs, by position; yield a note if numbers differ."""
        for kind, names, ends in (
            ("inputs", list(self._graph.inputs), programs.list_tensors(args)),
            ("outputs", self._graph.outputs, programs.list_tensors(results)),
        ):
            if len(names) == len(ends):
                for name, value in zip(names, ends, strict=True):
                    self.add(name, value)
            else:
                yield f"the model has {len(names)} {kind}, the module {len(ends)}: not recorded"


def _run(
    module: Any, args: Sequence[Any], kwargs: Fields, graph: Graph, values: _Values, export: Any
) -> tuple[str, list[str]]:
    """Record all values; return the way, and notes."""
    torch = programs.import_torch()
    with torch.no_grad():
        results = module(*args, **kwargs)
    notes = list(values.add_ends((args, kwargs), results))
    if any(programs.read_statement(graph, i) for i in range(len(graph.nodes))):
        try:
            program, mismatch = programs.find_nearest(
                graph, programs.iter_programs(module, args, kwargs, **export)
            )
        except InputError as e:
            notes.append(f"{e.what}; what its modules return was recorded instead")
        else:
            notes += [f"{mismatch}: not recorded"] if mismatch else []
            tensors_of = group_values(
                (node, (tensor, position))
                for tensor, (node, position) in programs.find_places(graph, program).items()
            )

            def listen(node: Any, value: Any) -> None:
                for tensor, position in tensors_of.get(node.name, ()):
                    element = programs.get_element(value, position)
                    if isinstance(element, torch.Tensor):
                        values.add(tensor, element)

            outputs = programs.list_tensors(programs.run(program, args, kwargs, listen))
            notes += programs.iter_departures(programs.list_tensors(results), outputs)
            return "exported program", notes
    recorder = _Recorder(module, ScopedTensors(graph), values.add)
    with recorder.hooks(), recorder.functions(), torch.no_grad():
        module(*args, **kwargs)
    recorder.report_values()
    return "hooks", notes


Seen = Callable[[str, Any], None]  # takes an ONNX tensor's name and the value


# ------------------------------------------------------------ modules that run as they are

# Operators into whose weights the exporter folds a later normalization.
FOLDED = ("Conv", "ConvTranspose", "Gemm")
# Functions and methods of torch → the operators that the older exporter makes of each; the last one
# has the result.
RECIPES = {
    "add __add__ __radd__ __iadd__ add_": "Add",
    "sub __sub__ subtract": "Sub",
    "mul __mul__ __rmul__ __imul__ mul_ multiply": "Mul",
    "div __truediv__ __itruediv__ div_ true_divide": "Div",
    "matmul __matmul__ bmm": "MatMul",
    "gelu": "Div Erf Add Mul Mul",
    "silu silu_": "Sigmoid Mul",
    "view reshape unflatten": "Reshape",
    "transpose permute t swapaxes": "Transpose",
    "cat concat": "Concat",
    "conv1d conv2d conv3d": "Conv",
    "relu relu_": "Relu",
    "adaptive_avg_pool2d": "GlobalAveragePool",
    "max_pool2d": "MaxPool",
    "avg_pool2d": "AveragePool",
    "mean": "ReduceMean",
    "layer_norm": "LayerNormalization",
    **{
        op.lower(): op
        for op in "Softmax LogSoftmax Sigmoid Tanh Erf Exp Log Sqrt Abs Neg Flatten".split()
    },
}
_RECIPE_OF = invert((ops.split(), calls.split()) for calls, ops in RECIPES.items())


class ScopedTensors:
    """The tensors of an ONNX model, by the call of a module whose nodes compute them.

    A scope is written as the exporter does: `layer1/layer1.0/relu_1`, by metadata `layer1.0.relu`.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        kinds = find_kinds(graph, graph.maker)
        self._types = find_declared_types(graph)
        self._inside: dict[str, list[int]] = {}  # scope → nodes directly in it that carry values
        self._below: dict[str, set[int]] = {}  # scope → nodes in it or in scopes inside it
        for i in graph.order:
            if any(kinds[name] == VALUE for name in graph.makes[i]):
                scopes = _read_scopes(graph, i)
                self._inside.setdefault(scopes[-1], []).append(i)
                for scope in scopes:
                    self._below.setdefault(scope, set()).add(i)

    def has(self, scope: str) -> bool:
        """Return whether the scope has a node that carries values."""
        return scope in self._below

    def result(self, scope: str) -> str:
        """Return the one tensor that leaves the scope; "" if none or several do."""
        nodes = self._below.get(scope, set())
        graph = self._graph
        leaving = [
            name
            for name in graph.iter_outputs(nodes)
            if name in graph.outputs or any(j not in nodes for j in graph.readers.get(name, ()))
        ]
        return leaving[0] if len(leaving) == 1 else ""

    def iter_calls(self, scope: str, op: str, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Yield the tensors of an operator's nodes directly in the scope, with their values; None
        is one that is not known.

        Nothing at all if there are not as many nodes as values, or if a declared shape is another.
        """
        nodes = [i for i in self._inside.get(scope, ()) if self._graph.ops[i] == op]
        pairs = []
        for i, value in zip(nodes, values, strict=False):
            if value is not None:
                name = self._graph.makes[i][0]
                declared = self._types.get(name)
                dims = read_type(declared)[2] if declared is not None else None
                if dims is not None and not has_dims(tuple(value.shape), dims):
                    return
                pairs.append((name, value))
        if len(nodes) == len(values):
            yield from pairs

    def is_foldable(self, tensor: str) -> bool:
        """Return whether the node of a tensor may hold a normalization as well."""
        return find_operator(self._graph, tensor) in FOLDED


def _read_scopes(graph: Graph, index: int) -> list[str]:
    """Return the scopes around a node, from the model itself, "", inwards."""
    written = parse_texts(read_node_metadata(graph, index).get(SCOPE_NAMES, ""))
    if written:
        return ["", *filter(None, written[:-1])]
    name = graph.node_names[index]
    pieces = name.split("/")[1:-1] if name.startswith("/") else []
    return ["/".join(pieces[:k]) for k in range(len(pieces) + 1)]


class _Recorder:
    def __init__(self, module: Any, tensors: ScopedTensors, seen: Seen) -> None:
        self._module = module
        self._tensors = tensors
        self._seen = seen
        self._paths = {
            id(part): path for path, part in module.named_modules(remove_duplicate=False) if path
        }
        # Around the running code: scope by names, by metadata.
        self._stack: list[tuple[str, str]] = []
        self._times: dict[str, int] = {}  # scope by names → how often it was called
        # Id of a value → the value, kept alive, and its ONNX tensor.
        self._results: dict[int, tuple[Any, str]] = {}
        # Scope and operator → values, None for inner ones.
        self._calls: dict[tuple[str, str], list[Any]] = {}
        self._values: JsonObject = {}

    # ------------------------------------------------------------ modules

    @contextmanager
    def hooks(self) -> Iterator[None]:
        handles = []
        for part in self._module.modules():
            handles.append(part.register_forward_pre_hook(self._enter))
            handles.append(part.register_forward_hook(self._leave_module, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, part: Any, args: Any) -> None:
        path = self._paths.get(id(part), "")
        outer = self._stack[-1][0] if self._stack else ""
        scope = "/".join(filter(None, (outer, _name_module(path))))
        times = self._times[scope] = self._times.get(scope, -1) + 1
        self._stack.append((f"{scope}_{times}" if times else scope, path))

    def _leave_module(self, part: Any, args: Any, result: Any) -> None:
        scope, path = self._stack.pop()
        if not path or not isinstance(result, programs.import_torch().Tensor):
            return
        names = [name for name in (scope, path) if self._tensors.has(name)]
        tensor = self._tensors.result(names[0]) if names else ""
        if not names and type(part).__name__.startswith("BatchNorm") and len(args) == 1:
            folded = self._results.get(id(args[0]), (None, ""))[1]
            tensor = folded if self._tensors.is_foldable(folded) else ""
        if tensor:
            self._results[id(result)] = (result, tensor)
            self._values[tensor] = result.detach().clone()

    # ------------------------------------------------------------ functions

    @contextmanager
    def functions(self) -> Iterator[None]:
        recorder = self

        def call(_: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            recorder._keep_call(getattr(function, "__name__", ""), result)
            return result

        mode = type(
            "_Calls",
            (programs.import_torch().overrides.TorchFunctionMode,),
            {"__torch_function__": call},
        )
        with mode():
            yield

    def _keep_call(self, function: str, result: Any) -> None:
        if (
            self._stack
            and isinstance(result, programs.import_torch().Tensor)
            and result.is_floating_point()
        ):
            scope, path = self._stack[-1]
            where = scope if self._tensors.has(scope) else path
            *inner, last = _RECIPE_OF.get(function, [""])
            for op in inner:
                self._calls.setdefault((where, op), []).append(None)
            self._calls.setdefault((where, last), []).append(result.detach().clone())

    def report_values(self) -> None:
        """Report results of modules, and of calls if an operator has as many calls as nodes."""
        for (scope, op), values in self._calls.items():
            for name, value in self._tensors.iter_calls(scope, op, values):
                self._values.setdefault(name, value)
        for name, value in self._values.items():
            self._seen(name, value)


def _name_module(path: str) -> str:
    """Return the exporter's name of a module within the module that calls it.

    >>> _name_module("encoder.layers.0.attn"), _name_module("encoder.layers.0")
    ('attn', 'layers.0')
    """
    name = re.search(r"[^.]+(?:\.\d+)*$", path)
    return name[0] if name else path
