"""`subcut dump`: reference values of chosen tensors -> a folder."""

from __future__ import annotations

import fnmatch
import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph.commands import Result, command_line, open_body, options
from subgraph.commands.options import Text, option
from subgraph.commands.resolve import Asked
from subgraph.errors import UsageError
from subgraph.graph.graph import Graph, load
from subgraph.log import log
from subgraph.text import clean, count, split_signature

if TYPE_CHECKING:
    pass


@options.with_option_groups("precision", "timeout", "memory_limit", "output", "fresh")
def dump(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Tensors or nodes; a glob means all that match.",
            autocompletion=options.complete_nodes,
        ),
    ] = None,
    everything: bool = option("--all", None, "Every tensor of the model."),
    output: Text = option("--output -o", "DIR", "Folder for the files; default subcut_out/dump."),
    inputs: options.InputOptions,
    form: options.FormatOptions,
    runtime: options.RuntimeOptions,
    result: options.ResultOptions,
) -> Result:
    """Write tensors of a model, computed by the reference.

    Examples:
      subcut dump model.onnx --all -o dumps
      subcut dump model.onnx stem/pad 'block1/*'
    """
    from subgraph.cases.case import ResultPlace
    from subgraph.cases.evidence import DumpRequest
    from subgraph.cases.evidence import dump as write_dump

    words = list(names or [])
    if (
        model
        and not model.endswith(".onnx")
        and not os.path.exists(split_signature(Path(model))[0])  # noqa: PTH110
    ):
        words = [model, *words]
        model = None
    asked = Asked(model=model, weights=weights, inputs=inputs, runtime=runtime, result=result)
    with asked.reference() as reference:
        graph = load(asked.model_path)
        formats, tensor_format = asked.formats(form, "npy")
        folder = Path(output) if output else asked.output / "dump"
        with open_body(graph, words, asked.feeding, reference, folder.parent) as (
            graph,
            feeding,
            names_there,
        ):
            request = DumpRequest(
                tensors=tuple(
                    choose(
                        graph,
                        [name for name in names_there if name],
                        everything or "" in names_there,
                    )
                ),
                **feeding.options,
                formats=formats,
                tensor_format=tensor_format,
            )
            place = ResultPlace(folder.parent, folder.name, result.force)
            written = write_dump(graph, request, place, reference, feeding, command_line())
    manifest = written.manifest
    for loss in manifest.losses:
        log.warning("loss: %s", clean(loss))
    number = len(manifest.samples)
    samples = f" · {count(number, 'sample')}" if number > 1 else ""
    text = f"{count(len(manifest.tensors), 'tensor')}{samples}\n{clean(str(written.path))}/"
    return Result({"exit_code": 0, **written.document()}, text)


def choose(graph: Graph, words: list[str], everything: bool) -> list[str]:
    """The tensors to write: all, or by name (of a tensor or its node), or by glob.

    Raises:
        UsageError: no words. UnknownName: a name or glob that matches nothing.
    """
    tensors = [*graph.inputs, *graph.maker]
    if everything:
        return tensors
    if not words:
        raise UsageError(
            "which tensors? name some, or use --all",
            "subcut dump model.onnx conv1 'res2a*'",
            code="argument.missing",
        )
    chosen: list[str] = []
    for word in words:
        if any(c in word for c in "*?[") and word not in graph.maker:
            hits = [n for n in tensors if fnmatch.fnmatchcase(n, word)]
            hits += list(
                chain.from_iterable(
                    graph.makes[i]
                    for node, i in graph.names.items()
                    if fnmatch.fnmatchcase(node, word)
                )
            )
            chosen += hits or [graph.tensor(word)]
        else:
            chosen.append(graph.tensor(word))
    return list(dict.fromkeys(chosen))
