"""`subcut dump`: reference values of any choice of tensors -> a folder."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from subgraph import project
from subgraph.cases.case import Case, ResultPlace
from subgraph.commands import Result, log, options
from subgraph.errors import UsageError
from subgraph.graph.graph import Graph, load
from subgraph.storage.convert import TensorFormat, formats
from subgraph.text import clean, count


def dump(
    model: options.ModelArgument = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Tensors or nodes; globs are matched with all.", autocompletion=options.complete_nodes
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every tensor of the model.")] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for the files; subcut_out/dump if not given."),
    ] = None,
    inputs: options.Inputs = None,
    seed: options.Seed = None,
    shape: options.Shapes = None,
    mean: options.Mean = None,
    scale: options.Scale = None,
    bgr: options.Bgr = False,
    formats_: options.Format = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    reference: options.ReferenceSpec = None,
    custom_ops: options.CustomOps = None,
    trust: options.Trust = False,
    force: options.Force = False,
) -> Result:
    """Write reference values of chosen tensors."""
    from subgraph.cases import dump as job

    settings = project.load()
    words = list(names or [])
    if model and not os.path.exists(model) and not model.endswith(".onnx"):  # noqa: PTH110 - a name may be long
        words, model = [model, *words], None
    path = options.model_of(model, settings)
    with options.reference(settings, reference, custom_ops, trust) as running:
        graph = load(path)
        request = job.DumpRequest(
            tensors=tuple(choose(graph, words, everything)),
            **options.feeding(settings, inputs, seed, shape, mean, scale, bgr).options,
            formats=formats(settings.get("format", formats_, "npy")),
            form=TensorFormat(settings.get("dtype", dtype, ""), settings.get("layout", layout, "").upper()),
        )
        where = Path(output) if output else Path(settings.get("output", None, "subcut_out")) / "dump"
        found = job.dump(graph, request, ResultPlace(where.parent, where.name, force), running)
    return _result(found)


def choose(graph: Graph, words: list[str], everything: bool) -> list[str]:
    """The tensors meant: all, or by name (of a tensor or its node), or by glob.

    Raises:
        UsageError: nothing is asked for. UnknownName: a name or glob that fits nothing.
    """
    known = [*graph.inputs, *graph.maker]
    if everything:
        return known
    if not words:
        raise UsageError("which tensors? name some, or use --all", "subcut dump model.onnx conv1 'res2a*'")
    chosen: list[str] = []
    for word in words:
        if any(c in word for c in "*?[") and word not in graph.maker:
            hits = [n for n in known if fnmatch.fnmatchcase(n, word)]
            hits += [n for node, i in graph.names.items() if fnmatch.fnmatchcase(node, word) for n in graph.makes[i]]
            chosen += hits or [graph.tensor(word)]
        else:
            chosen.append(graph.tensor(word))
    return list(dict.fromkeys(chosen))


def _result(found: Case) -> Result:
    m = found.manifest
    document: dict[str, Any] = {"schema": "subcut.dump/1", "exit_code": 0, "path": str(found.path)}
    document |= {k: v for k, v in m.items() if k != "schema"}
    for loss in m["losses"]:
        log.warning("loss: %s", clean(loss))
    samples = f" · {count(len(m['samples']), 'sample')}" if len(m["samples"]) > 1 else ""
    text = f"{count(len(m['tensors']), 'tensor')}{samples}\n{clean(str(found.path))}/"
    return Result(document, text)
