"""Results of commands as text, and tables as CSV files."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph.commands import Result
from subgraph.documents import to_json
from subgraph.errors import OutputError
from subgraph.types import JsonObject

if TYPE_CHECKING:
    from subgraph.reports import ComparedDocument


def check(file: str | None) -> None:
    """Check the file name before anything runs.

    Raises:
        OutputError: no file can have that name.
    """
    if not file or file == "-":
        return
    path = Path(file)
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"no folder {path.parent}"
        raise OutputError(
            f"cannot write {path}: {what}", "choose another --csv FILE", code="output.unwritable"
        )


def write(path: Path, text: str, hint: str) -> None:
    """Replace the file at once, so that it is never half written; write into a device or pipe
    directly.

    Raises:
        OutputError: it cannot be written.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_text(text, encoding="utf-8", newline="")
        return
    aside = path.with_name(f".{path.name}.subcut-new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8", newline="")
        aside.replace(path)
    except OSError as e:
        with contextlib.suppress(OSError):  # its folder may be a file
            aside.unlink()
        raise OutputError(
            f"cannot write {path}: {e.strerror or e}", hint, code="output.unwritable"
        ) from e


def result(document: JsonObject, text: str, csv_text: str, csv_file: str | None) -> Result:
    """A command's result; with `--csv -` the table in the place of the text, with `--csv FILE`
    written as well.

    Raises:
        OutputError: the file cannot be written.
    """
    if csv_file == "-":
        text = csv_text.rstrip("\n")
    elif csv_file:
        write(Path(csv_file), csv_text, "choose another --csv FILE")
    return Result(document, text, document["exit_code"])


def compared(
    document: ComparedDocument, csv_file: str | None, *, every_row: bool = False
) -> Result:
    """Return the result of a comparison, or of recordings.

    Args:
        document: What is shown on the terminal, as the report's text.
        csv_file: Where `--csv` writes the table; None for nowhere.
        every_row: Show the table whole, not only what does not agree.
    """
    from subgraph.reports import csv as csv_form
    from subgraph.reports import text

    rows = csv_form.render_compared(document) if csv_file else ""
    shown = text.render_compared(document, every=every_row).rstrip("\n")
    return result(to_json(document), shown, rows, csv_file)
