"""`subcut export`: tensors of a case, dump or folder -> files in the device's format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from subgraph import plugins
from subgraph.cases.case import Case, ResultPlace
from subgraph.commands import Result, options
from subgraph.commands.options import Text, option
from subgraph.commands.recorded import known_layout
from subgraph.storage.convert import TensorFormat, formats
from subgraph.storage.tensors import shape_text
from subgraph.text import clean, count

if TYPE_CHECKING:
    from subgraph.recordings.dumps import DumpHints


def complete_formats(word: str) -> list[str]:
    """Names of dump formats, for TAB."""
    return [name for name in plugins.names("dumps") if name.startswith(word)]


@options.with_option_groups("output", "fresh", "trust")
def export(
    *,
    source: Annotated[
        str,
        typer.Argument(metavar="CASE|DIR", help="A case, a dump of subcut or another tool, or a folder of .npy files."),
    ],
    output: Annotated[str, option("--output -o", "DIR", "Folder for the files.")],
    form: options.FormatOptions,
    dump_format: Annotated[
        Text,
        option(
            "--dump-format",
            "NAME",
            "Format of DIR: ascend, tnn, rknn, qnn, raw …; detected if not given.",
            complete_formats,
        ),
    ] = None,
    model: Annotated[
        Text, option("--model", "MODEL", "Model that gives the types and shapes of files without a header.")
    ] = None,
    dump_layout: Annotated[
        Text, option("--dump-layout", "NHWC", "Layout of files without a header, if not the model's.")
    ] = None,
    result: options.ResultOptions,
) -> Result:
    """Convert tensor files: element type, layout, file format.

    Reads a case, dumps of subcut and of other tools, and folders of .npy files. What the conversion loses is counted.

    Examples:
      subcut export dumps -o fp16 --format bin --dtype float16
      subcut export dumps -o nhwc --layout NHWC --model model.onnx
    """
    from subgraph.recordings.export import export as write_tensors

    tensor_format = TensorFormat(form.dtype or "", (form.layout or "").upper())
    folder = Path(output)
    place = ResultPlace(folder.parent, folder.name, result.force)
    hints = _dump_hints(model, dump_layout)
    written = write_tensors(
        Path(source), place, formats(form.formats or "bin"), tensor_format, dump_format or "", hints
    )
    return _result(written)


def _result(written: Case) -> Result:
    m = written.manifest
    rows = [(f["file"], f["dtype"], shape_text(tuple(f["shape"])), f["layout"], f["loss"]) for f in m["exported"]]
    widths = [max((len(clean(str(row[i]))) for row in rows), default=0) for i in range(4)]
    lines = [
        "  ".join(f"{clean(str(cell)):<{w}}" for cell, w in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in rows
    ]
    lines += [f"left out: {clean(word)}" for word in m["left_out"]]
    text = "\n".join([*lines, f"{count(len(rows), 'file')} in {clean(str(written.path))}/"])
    document = {"schema": "subcut.export/1", "exit_code": 0, "path": str(written.path)}
    return Result(document | {k: v for k, v in m.items() if k != "schema"}, text)


def _dump_hints(model: str | None, layout: str | None) -> DumpHints:
    """Types, shapes and layout of a dump's headerless files, as far as the command line tells them."""
    from subgraph.graph.graph import load
    from subgraph.recordings import recording
    from subgraph.recordings.dumps import DumpHints

    word = known_layout(layout)
    return recording.hints_of(load(model), word) if model else DumpHints(layout=word)
