"""`subcut remove`: a model and nodes -> the model without them."""

from __future__ import annotations

import contextlib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph.commands import Result, edited, options
from subgraph.commands.edited import FileOptions
from subgraph.commands.options import Text, Texts, option
from subgraph.commands.resolve import Asked
from subgraph.errors import ResultExists, UsageError
from subgraph.graph.graph import Graph, load
from subgraph.storage import folders
from subgraph.text import clean, count
from subgraph.types import Strings

if TYPE_CHECKING:
    from subgraph.editing.draft import Draft


@options.with_option_groups("precision", "timeout", "memory_limit")
def remove(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NODE",
            help="Nodes of one input and one output.",
            autocompletion=options.complete_nodes,
        ),
    ] = None,
    first: Texts = option(
        "--from", "NODE", "Drop this node and all below it. Repeatable.", options.complete_nodes
    ),
    tail: Text = option(
        "--tail",
        "FILE",
        "Where to keep what --from drops; default: -tail beside the new model.",
    ),
    file: FileOptions,
    inputs: options.InputOptions,
    runtime: options.RuntimeOptions,
    trust: options.Trust = False,
) -> Result:
    """Take nodes out of a model: bypass some, or drop a tail.

    A bypassed node's readers read its input: a Cast, an Identity, a quantize-dequantize pair. A
    tail that is dropped, such as NMS, is kept as a model; `subcut merge` puts it back. Nodes may
    lie in a body: loop1/body/cast.

    Examples:
      subcut remove model.onnx stem/relu -o without.onnx
      subcut remove model.onnx --from head/softmax -o head.onnx --tail tail.onnx
    """
    from subgraph.editing import body_edit
    from subgraph.editing.effect import edge_values
    from subgraph.editing.remove import bypass, remove_tail

    if bool(nodes) == bool(first):
        raise UsageError(
            "name nodes to bypass, or --from NODE to drop a tail",
            "subcut remove MODEL NODE …",
            code="argument.missing",
        )
    if tail and not first:
        raise UsageError(
            "--tail keeps what --from drops",
            "subcut remove MODEL --from NODE --tail tail.onnx",
            code="option.requires",
        )
    asked = Asked(
        model=model,
        weights=weights,
        inputs=inputs,
        runtime=runtime,
        result=options.ResultOptions(trust=trust),
    )
    path = asked.model_path
    new = edited.free_path(file, path, [path])
    feeding = asked.feeding
    with contextlib.nullcontext() if file.no_run else asked.reference() as reference:
        graph = load(path)
        if nodes:
            labels: dict[str, None] = {}

            def edit(there: Graph, names: Strings) -> Draft:
                chosen = list(chain.from_iterable(there.select(word).nodes for word in names))
                labels.update((there.label(i), None) for i in chosen)
                return bypass(there, chosen)

            with folders.temporary() as temporary:
                draft = body_edit.edit_inside(graph, nodes, edit, temporary)
            head = f"removed  {count(len(labels), 'node')}: {', '.join(map(clean, [*labels][:8]))}"
            kept = None
        else:
            kept = Path(tail or new.with_name(f"{new.stem}-tail.onnx"))
            if kept.exists() and not file.force:
                raise ResultExists(
                    f"{kept} exists",
                    "choose another --tail FILE, or --force to replace it",
                    code="output.exists",
                )
            with edge_values(graph, first or (), feeding, reference) as (captured, folder):
                draft, cut = remove_tail(graph, first or (), captured, folder)
            cut.save(kept)
            head = (
                f"removed  {count(len(cut.region.nodes), 'node')} from"
                f" {', '.join(map(clean, first or ()))} on"
            )
        with draft.write(new) as aside:
            lines, rows = edited.compared(graph, aside, feeding, reference)
    if kept:
        lines.append(
            f"{clean(str(kept))}   the tail; back: subcut merge {clean(str(new))}"
            f" {clean(str(kept))}"
        )
    return edited.result(
        "remove", new, draft, [head, *lines], rows, tail=str(kept) if kept else None
    )
