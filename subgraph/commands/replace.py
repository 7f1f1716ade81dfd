"""`subcut replace`: a model, two nodes and an edited piece -> the model with the piece in their place."""

from __future__ import annotations

import contextlib
from typing import Annotated

from subgraph.commands import Result, edited, options
from subgraph.commands.edited import FileOptions, TensorMap
from subgraph.commands.options import Text, option
from subgraph.commands.resolve import Asked
from subgraph.errors import UsageError
from subgraph.graph.graph import load
from subgraph.text import clean, count


@options.with_option_groups("precision", "timeout", "memory_limit")
def replace(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    start: options.Start = None,
    end: options.End = None,
    by: Annotated[Text, option("--by", "PIECE", "What comes in their place: a model, or the folder of a cut.")] = None,
    tensor_map: TensorMap = None,
    file: FileOptions,
    inputs: options.InputOptions,
    runtime: options.RuntimeOptions,
    trust: options.Trust = False,
) -> Result:
    """Put an edited piece in the place of the nodes between two nodes.

    The piece's inputs and outputs are joined by name, or by --map. The reference runs the model before and after, and
    says what changed at the outputs.

    Examples:
      subcut replace -s stem/pad -e stem/pool --by subcut_out/stem_pad__stem_pool
    """
    from subgraph.editing.effect import frozen_as_before
    from subgraph.editing.replace import replace as replaced
    from subgraph.graph.region import between

    if not by:
        raise UsageError("replace by what? name a model", "subcut replace MODEL --start A --end B --by piece.onnx")
    if not start and not end:
        raise UsageError("replace what? name a first and a last node", "--start pool1 --end res2a_relu")
    asked = Asked(
        model=model, weights=weights, inputs=inputs, runtime=runtime, result=options.ResultOptions(trust=trust)
    )
    path, piece_path = asked.model_path, Asked(asked.settings, by).model_path
    new = edited.free_path(file, path, [path, piece_path])
    feeding, names = asked.feeding, edited.read_maps(tensor_map)
    with contextlib.nullcontext() if file.no_run else asked.reference() as reference:
        graph, piece = load(path), load(piece_path)
        region = between(graph, tuple(start or ()), tuple(end or ()))
        computed = frozen_as_before(graph, region, piece, feeding, reference) if reference else ()
        draft = replaced(graph, region, piece, names, computed)
        draft.save(new)
        lines, rows = edited.compared(graph, new, feeding, reference)
    nodes = f"{count(len(region.nodes), 'node')} → {count(len(piece.nodes), 'node')} of {clean(str(piece_path))}"
    return edited.result("replace", new, draft, [f"replaced {nodes}", *lines], rows)
