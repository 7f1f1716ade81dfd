"""`subcut export`: the tensors of a case or folder -> the device's form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from subgraph import plugins
from subgraph.cases.case import ResultPlace
from subgraph.commands import Result, options
from subgraph.recordings.dumps import DumpHints
from subgraph.storage.convert import TensorFormat, formats
from subgraph.storage.tensors import shape_text
from subgraph.text import clean, count


def complete_formats(word: str) -> list[str]:
    """Names of dump formats, for TAB."""
    return [name for name in plugins.names("dumps") if name.startswith(word)]


def export(
    source: Annotated[
        str,
        typer.Argument(metavar="CASE|DIR", help="A case, a dump of ours or of another tool, a folder of .npy files."),
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Folder for the files.")],
    formats_: options.Format = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    dump_format: Annotated[
        str | None,
        typer.Option(
            "--dump-format",
            metavar="NAME",
            help="What DIR is a dump of: ascend, tnn, rknn, qnn, raw … Found out if not given.",
            autocompletion=complete_formats,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="Types and shapes of a dump's headerless files are this model's."
        ),
    ] = None,
    dump_layout: Annotated[
        str | None,
        typer.Option("--dump-layout", metavar="NHWC", help="Layout of a dump's headerless files, if not the model's."),
    ] = None,
    force: options.Force = False,
) -> Result:
    """Write tensors in a device's form; count what is lost."""
    from subgraph.recordings import export as job

    form = TensorFormat(dtype or "", (layout or "").upper())
    place = Path(output)
    done = job.export(
        Path(source),
        ResultPlace(place.parent, place.name, force),
        formats(formats_ or "bin"),
        form,
        dump_format or "",
        _known(model, dump_layout),
    )
    m = done.manifest
    rows = [(f["file"], f["dtype"], shape_text(tuple(f["shape"])), f["layout"], f["loss"]) for f in m["exported"]]
    widths = [max((len(clean(str(row[i]))) for row in rows), default=0) for i in range(4)]
    lines = [
        "  ".join(f"{clean(str(cell)):<{w}}" for cell, w in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in rows
    ]
    lines += [f"left out: {clean(word)}" for word in m["left_out"]]
    text = "\n".join([*lines, f"{count(len(rows), 'file')} in {clean(str(done.path))}/"])
    document = {"schema": "subcut.export/1", "exit_code": 0, "path": str(done.path)}
    return Result(document | {k: v for k, v in m.items() if k != "schema"}, text)


def _known(model: str | None, layout: str | None) -> DumpHints:
    """What a dump's headerless files are, as far as the command line says it."""
    from subgraph.errors import UsageError
    from subgraph.graph.graph import load
    from subgraph.recordings import recording
    from subgraph.storage import layouts

    word = layouts.named(layout or "")
    if word and word not in layouts.KNOWN:
        raise UsageError(f"no layout '{clean(word)}'", f"known: {', '.join(layouts.KNOWN)}")
    return recording.known_of(load(model), word) if model else DumpHints(layout=word)
