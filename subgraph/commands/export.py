"""`subcut export`: the tensors of a case or folder -> the device's form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from subgraph.case import Place
from subgraph.commands import Result
from subgraph.commands import options as o
from subgraph.form import Form, formats
from subgraph.tensors import shape_text
from subgraph.text import clean, count


def export(
    source: Annotated[
        str, typer.Argument(metavar="CASE|DIR", help="A case folder, a dump, or a folder of .npy files.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Folder for the files.")],
    formats_: o.Format = None,
    dtype: o.Dtype = None,
    layout: o.Layout = None,
    force: o.Force = False,
) -> Result:
    """Write tensors in a device's form; count what is lost."""
    from subgraph import export as job

    form = Form(dtype or "", (layout or "").upper())
    place = Path(output)
    done = job.export(Path(source), Place(place.parent, place.name, force), formats(formats_ or "bin"), form)
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
