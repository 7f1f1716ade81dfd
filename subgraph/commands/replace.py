"""`subcut replace`: a model, two nodes and an edited piece -> the model with the piece in their
place."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from subgraph.commands import Result, edited, options
from subgraph.commands.edited import FileOptions, TensorMap
from subgraph.commands.options import Text, option
from subgraph.commands.resolve import Asked
from subgraph.errors import UsageError
from subgraph.graph.graph import Graph, load
from subgraph.storage import folders
from subgraph.text import clean, count
from subgraph.types import StringMap, Strings

if TYPE_CHECKING:
    from subgraph.editing.draft import Draft
    from subgraph.runtime.inputs import Feeding
    from subgraph.runtime.reference import Reference


@options.with_option_groups("precision", "timeout", "memory_limit")
def replace(
    *,
    model: options.ModelArgument = None,
    weights: options.Weights = None,
    start: options.Start = None,
    end: options.End = None,
    by: Text = option(
        "--by", "PIECE", "What comes in their place: a model, or the folder of a cut."
    ),
    tensor_map: TensorMap = None,
    file: FileOptions,
    inputs: options.InputOptions,
    runtime: options.RuntimeOptions,
    trust: options.Trust = False,
) -> Result:
    """Put an edited piece in the place of the nodes between two nodes.

    The piece's inputs and outputs are joined by name, or by --map. The reference runs the model
    before and after, and says what changed at the outputs. A piece may also lie in a body: --start
    loop1/body/conv.

    Examples:
      subcut replace -s stem/pad -e stem/pool --by subcut_out/stem_pad__stem_pool
    """
    from subgraph.editing import body_edit

    if not by:
        raise UsageError(
            "replace by what? name a model",
            "subcut replace MODEL --start A --end B --by piece.onnx",
            code="argument.missing",
        )
    if not start and not end:
        raise UsageError(
            "replace what? name a first and a last node",
            "--start pool1 --end res2a_relu",
            code="region.ends-missing",
        )
    asked = Asked(
        model=model,
        weights=weights,
        inputs=inputs,
        runtime=runtime,
        result=options.ResultOptions(trust=trust),
    )
    path = asked.model_path
    piece_path = Asked(asked.settings, by).model_path
    new = edited.free_path(file, path, [path, piece_path])
    feeding = asked.feeding
    names = edited.read_maps(tensor_map)
    with (
        contextlib.nullcontext() if file.no_run else asked.reference() as reference,
        folders.temporary() as temporary,
    ):
        graph = load(path)
        piece = load(piece_path)
        ends = [*(start or ()), *(end or ())]
        edit = _Replacing(graph, len(start or ()), piece, names, feeding, reference)
        draft = body_edit.edit_inside(graph, ends, edit, temporary / "inside")
        with draft.write(new) as aside:
            lines, rows = edited.compared(graph, aside, feeding, reference)
    nodes = (
        f"{count(edit.nodes, 'node')} → {count(len(piece.nodes), 'node')} of"
        f" {clean(str(piece_path))}"
    )
    return edited.result("replace", new, draft, [f"replaced {nodes}", *lines], rows)


@dataclass
class _Replacing:
    """Puts the piece between the first `starts` selectors and the others; `nodes`: how many it
    replaced."""

    whole: Graph
    starts: int
    piece: Graph
    names: StringMap
    feeding: Feeding
    reference: Reference | None
    nodes: int = 0

    def __call__(self, graph: Graph, ends: Strings) -> Draft:
        from subgraph.editing.effect import frozen_as_before
        from subgraph.editing.replace import replace as replaced
        from subgraph.graph.region import find_region

        first, last = (
            tuple(filter(None, part)) for part in (ends[: self.starts], ends[self.starts :])
        )
        region = find_region(graph, first, last)
        self.nodes = len(region.nodes)
        run = (
            self.reference if graph is self.whole else None
        )  # what a body computes is not known here
        computed = frozen_as_before(graph, region, self.piece, self.feeding, run) if run else ()
        return replaced(graph, region, self.piece, self.names, computed)
