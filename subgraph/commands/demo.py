"""`subcut demo`: a folder with a small model and a candidate that has a planted fault, and what to
type there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from subgraph import system
from subgraph.commands import Result
from subgraph.documents import to_json
from subgraph.errors import OutputError, ResultExists, UsageError
from subgraph.results.commands import DemoResult
from subgraph.text import clean
from subgraph.types import StringMap

DEFAULT_FOLDER = "subcut-demo"
ABOUT = {
    "model.onnx": "an image classifier of 28 nodes",
    "input.npy": "what it is fed",
    "wrong.py": "the candidate: runs the model, with a planted fault",
    "subcut.toml": "settings: input.npy is the input",
}
BISECT = "subcut bisect model.onnx -c wrong.py"
REPORT = "subcut_out/bisect-wrong.py/report.html"
NEXT = {
    "subcut compare model.onnx -c wrong.py": "every tensor",
    "subcut --start stem/pad --end stem/pool": "cut the two nodes out",
    "subcut bundle subcut_out/bisect-wrong.py": "pack the finding into one zip",
}


def demo(
    *,
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help=f"The new folder; {DEFAULT_FOLDER} if not given.",
            show_default=False,
        ),
    ] = DEFAULT_FOLDER,
) -> Result:
    """Write a small model with a planted fault, to try subcut on.

    In the folder are a model, an input, and a candidate in Python that computes two of the nodes
    wrong; the text says what to type next. The same command again restores files that are missing;
    a file that was changed stays.

    Examples:
      subcut demo d && cd d && subcut bisect model.onnx -c wrong.py
    """
    from subgraph.demo.files import files

    place = Path(folder)
    _write(place, files())
    document = to_json(DemoResult(folder=str(place), files=list(ABOUT), commands=[BISECT, *NEXT]))
    lines = [
        f"{clean(folder.rstrip('/'))}/ holds",
        *_table(ABOUT),
        "find the wrong nodes (some seconds):",
        f"  cd {clean(system.quote(folder))}",
        f"  {BISECT}",
        f"look at the report in a browser: {REPORT}",
        "and then:",
        *_table(NEXT),
    ]
    return Result(document, "\n".join(lines))


def _table(rows: StringMap) -> Iterable[str]:
    width = max(map(len, rows))
    return (f"  {word:<{width}}  {about}" for word, about in rows.items())


def _write(place: Path, contents: Mapping[str, bytes]) -> None:
    """Write the files that are missing.

    Raises:
        UsageError: a file is in the way. ResultExists: a folder that holds anything else, or
            changed files of the demo.
        OutputError: the folder cannot be written.
    """
    shown = place
    hint = "name a folder that does not exist yet: subcut demo DIR"
    try:
        if place.exists() and not place.is_dir():
            raise UsageError(
                f"the demo needs a folder, and {shown} is a file", hint, code="output.not-folder"
            )
        present = [name for name in contents if (place / name).exists()]
        if changed := [name for name in present if (place / name).read_bytes() != contents[name]]:
            raise ResultExists(
                f"{shown}/{changed[0]} is not the demo's, or was changed; nothing was written",
                hint,
                code="output.not-ours",
            )
        if not present and place.is_dir() and any(place.iterdir()):
            raise ResultExists(
                f"the folder {shown} is not empty; nothing was written",
                hint,
                code="output.not-empty",
            )
        place.mkdir(parents=True, exist_ok=True)
        for name in contents.keys() - set(present):
            unfinished = place / f".{name}.{os.getpid()}"
            unfinished.write_bytes(contents[name])
            unfinished.rename(place / name)
    except OSError as e:
        raise OutputError(
            f"cannot write the demo to {shown}: {e.strerror or e}", hint, code="output.unwritable"
        ) from e
