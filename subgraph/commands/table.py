"""A table as a file: where it may go, written whole or not at all, no cell of it a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from subgraph.commands import Result
from subgraph.errors import OutputError
from subgraph.text import clean

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would take for one


def check(file: str | None) -> None:
    """A slip in the file's name is told before anything runs.

    Raises:
        OutputError: there can be no such file.
    """
    if not file or file == "-":
        return
    path = Path(file)
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"no folder {path.parent}"
        raise OutputError(f"cannot write {path}: {what}", "choose another --csv FILE")


def render(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Lines of CSV; texts are cleaned, and none starts a formula."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(head)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return "" if value is None else value
    text = clean(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def write(file: str, table: str) -> None:
    """The file whole or not at all; what is no file (/dev/stdout, a pipe) is written to as it is.

    Raises:
        OutputError: it cannot be written.
    """
    path = Path(file)
    if path.exists() and not path.is_file():
        path.write_text(table, encoding="utf-8", newline="")
        return
    aside = path.with_name(f".{path.name}.subcut-new")
    try:
        aside.write_text(table, encoding="utf-8", newline="")
        aside.replace(path)
    except OSError as e:
        aside.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {e.strerror or e}", "choose another --csv FILE") from e


def result(document: dict[str, Any], text: str, csv_text: str, csv_file: str | None) -> Result:
    """A command's result; with `--csv -` the table in the place of the text, with `--csv FILE` written as well.

    Raises:
        OutputError: the file cannot be written.
    """
    if csv_file == "-":
        text = csv_text.rstrip("\n")
    elif csv_file:
        write(csv_file, csv_text)
    return Result(document, text, document["exit_code"])


def runtime(name: str, backend: str, version: str) -> str:
    """A candidate's backend and version; without the backend if the candidate is called after it."""
    backend = Path(backend).name
    return " ".join(filter(None, ("" if Path(name).name == backend else backend, version)))


def aligned(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines whose columns stand below each other, two spaces apart; the columns `right` end at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ends = frozenset(right)
    return [
        "  ".join(
            c.rjust(w) if k in ends else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
