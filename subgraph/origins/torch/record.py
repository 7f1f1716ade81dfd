"""`subgraph.torch.record`: a module and an ONNX model exported from it -> the module's values under
ONNX's names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from subgraph import system
from subgraph.documents import to_json
from subgraph.errors import InputError, ResultExists, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.origins.torch import program as programs
from subgraph.origins.torch import scopes
from subgraph.storage import tensors
from subgraph.storage.folders import aside, safe_names
from subgraph.text import clean, count
from subgraph.types import Fields

SCHEMA = "subcut.torch/1"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class TorchRecording:
    """What `record` wrote.

    Attributes:
        model, folder: of `subcut compare MODEL --recorded FOLDER`.
        tensors: names of the ONNX tensors whose values were written, the model's inputs first.
        of: how many tensors the model's nodes make.
        way: "exported program", or "hooks" where names, or `torch.export`, allow no more.
        notes: what makes it less than it could be.
    """

    model: Path
    folder: Path
    tensors: Sequence[str]
    of: int
    way: str
    notes: Sequence[str] = ()
    schema: str = field(default=SCHEMA, kw_only=True)

    def __str__(self) -> str:
        """What was recorded, and what to type next."""
        lines = [
            f"{self.folder}: {count(len(self.tensors), 'tensor')} by the {self.way}",
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

    `module`: a `torch.nn.Module` in evaluation mode, on any device. `args`, `kwargs`: what it is called with. `model`:
    what was exported from it, by either of PyTorch's exporters. `export`: options that the export needed, as for
    `torch.onnx.export` (`dynamic_shapes`, `custom_translation_table`). Then `subcut compare MODEL --recorded FOLDER`
    says whether the export is right. A recording that stands in `folder` is replaced when the new one is complete.

    >>> import subgraph.torch
    >>> done = subgraph.torch.record(network, (image,), "model.onnx", "dump")  # doctest: +SKIP
    >>> len(done.tensors), done.way  # doctest: +SKIP
    (50, 'exported program')

    Raises:
        BackendError: PyTorch is not installed. UsageError: the module is in training mode, or is none.
        InputError: a value has no form in ONNX, or nothing could be recorded. ModelError: the model cannot be read.
        ResultExists: `folder` holds something else. OutputError: it cannot be written.
    """  # noqa: E501
    torch, place, kwargs = programs.import_torch(), Path(folder), dict(kwargs or {})
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"record takes a torch.nn.Module, not {type(module).__name__}", code="api.wrong-type"
        )
    if module.training:
        raise UsageError(
            "the module is in training mode, in which values change from run to run",
            "call module.eval()",
            code="torch.training-mode",
        )
    args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    graph = load(Path(model))
    _require_free(place)
    with aside(place) as work:
        values = _Values(graph, work)
        way, notes = _run(module, args, kwargs, graph, values, export)
        done = TorchRecording(
            graph.path, place, tuple(values.files), len(graph.maker), way, tuple(notes)
        )
        if not values.files.keys() - graph.inputs.keys():
            raise InputError(
                f"no tensor of {graph.path.name} could be told in the module",
                "; ".join(notes),
                code="torch.nothing-recorded",
            )
        manifest = to_json(done) | {"files": values.files, "torch": str(torch.__version__)}
        (work / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return done


class _Values:
    """The values on disk, each written as soon as it is known."""

    def __init__(self, graph: Graph, folder: Path) -> None:
        self._graph = graph
        self._folder = folder
        self._stems = safe_names([*graph.inputs, *graph.maker])
        self.files: dict[str, str] = {}

    def add(self, name: str, value: Any) -> None:
        """Write one tensor of the model, unless it has been."""
        if name not in self.files and name in self._stems:
            array = programs.to_numpy(value)
            saved = tensors.save(
                name, array, tensors.type_of(array), self._folder, self._stems[name]
            )
            self.files[name] = saved.files[0]

    def ends(self, args: Any, results: Any) -> Iterator[str]:
        """Write the model's inputs and outputs, by position; yields what does not fit."""
        for what, names, found in (
            ("inputs", list(self._graph.inputs), programs.list_tensors(args)),
            ("outputs", self._graph.outputs, programs.list_tensors(results)),
        ):
            if len(names) == len(found):
                for name, value in zip(names, found, strict=True):
                    self.add(name, value)
            else:
                yield f"the model has {len(names)} {what}, the module {len(found)}: not recorded"


def _run(
    module: Any,
    args: Sequence[Any],
    kwargs: Fields,
    graph: Graph,
    values: _Values,
    export: Any,
) -> tuple[str, list[str]]:
    """Record all values; how, and notes."""
    with programs.import_torch().no_grad():
        results = module(*args, **kwargs)
    notes = list(values.ends((args, kwargs), results))
    known = any(programs.read_statement(graph, i) for i in range(len(graph.nodes)))
    if known:
        try:
            program, said = programs.find_nearest(
                graph, programs.iter_programs(module, args, kwargs, **export)
            )
        except InputError as e:
            notes.append(f"{e.what}; what its modules return was recorded instead")
        else:
            notes += [f"{said}: not recorded"] if said else []
            told = _make_listener(graph, program, values.add)
            outputs = programs.list_tensors(programs.run(program, args, kwargs, told))
            notes += programs.iter_departures(programs.list_tensors(results), outputs)
            return "exported program", notes
    scopes.run(module, args, kwargs, graph, values.add)
    return "hooks", notes


def _make_listener(
    graph: Graph, program: Any, add: Callable[[str, Any], None]
) -> Callable[[Any, Any], None]:
    """What is to be called with each node of the program and its value: it adds the tensors that
    the node makes."""
    meant: dict[
        str, list[tuple[str, int | None]]
    ] = {}  # node → tensors, each with its position in the value
    for tensor, (node, position) in programs.find_places(graph, program).items():
        meant.setdefault(node, []).append((tensor, position))

    def told(node: Any, value: Any) -> None:
        for tensor, position in meant.get(node.name, ()):
            one = programs.get_element(value, position)
            if isinstance(one, programs.import_torch().Tensor):
                add(tensor, one)

    return told


def _require_free(place: Path) -> None:
    """
    Raises:
        ResultExists: something stands there that `record` did not write.
    """
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
