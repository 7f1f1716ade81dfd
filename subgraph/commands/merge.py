"""`subcut merge`: two models -> one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from subgraph import project
from subgraph.commands import Result, edited, options
from subgraph.commands.edited import FileOptions, TensorMap
from subgraph.commands.resolve import Asked
from subgraph.graph.graph import load
from subgraph.text import clean, count


@options.with_option_groups("precision", "timeout", "memory_limit")
def merge(
    *,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The first model, or the folder of a cut.")
    ],
    other: Annotated[
        str, typer.Argument(metavar="MODEL2", help="The model behind the first one, or beside it.")
    ],
    tensor_map: TensorMap = None,
    file: FileOptions,
    inputs: options.InputOptions,
    runtime: options.RuntimeOptions,
    trust: options.Trust = False,
) -> Result:
    """Join two models, end to end or side by side.

    An input of MODEL2 is fed by the output of MODEL of the same name, or that --map names. Other
    inputs and outputs stay; inputs of the same name and type are one.

    Examples:
      subcut merge head.onnx tail.onnx -o whole.onnx
    """
    from subgraph.editing.merge import merge as merged

    settings = project.Project()  # what a project says of its model does not fit another
    asked = Asked(
        settings, model, inputs=inputs, runtime=runtime, result=options.ResultOptions(trust=trust)
    )
    path = asked.model_path
    other_path = Asked(settings, other).model_path
    new = edited.free_path(file, path, [path, other_path])
    one = load(path)
    two = load(other_path)
    draft = merged(one, two, edited.read_maps(tensor_map))
    with draft.write(new) as aside:
        checks = [] if file.no_run else [_check(aside, asked)]
    lines = [f"merged   {count(len(one.nodes), 'node')} and {count(len(two.nodes), 'node')}"]
    graph = draft.model.graph
    weights = {t.name for t in graph.initializer}
    for word, values in (
        ("in", [v for v in graph.input if v.name not in weights]),
        ("out", graph.output),
    ):
        lines += [f"  {word:<3}    {clean(v.name)}" for v in values]
    lines += checks
    return edited.result("merge", new, draft, lines, [{"name": v.name} for v in graph.output])


def _check(model: Path, asked: Asked) -> str:
    """Run the new model on the reference; return the line that says so."""
    from subgraph.editing.effect import require_runs

    with asked.reference() as reference:
        maps = require_runs(model, asked.feeding, reference)
    left = f"; what makes maps was not run: {', '.join(map(clean, maps))}" if maps else ""
    return f"check    the reference runs it{left}"
