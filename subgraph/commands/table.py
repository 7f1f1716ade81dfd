"""Tables: CSV files, in which no cell starts a formula, and aligned text."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from subgraph.commands import Result
from subgraph.errors import OutputError
from subgraph.text import cell


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
        raise OutputError(f"cannot write {path}: {what}", "choose another --csv FILE")


def render(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV; texts lose control characters, and none starts a formula."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(head)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    return cell(value) if isinstance(value, str) else "" if value is None else value


def write(path: Path, text: str, hint: str) -> None:
    """Replace the file at once, so that it is never half written; write into a device or pipe directly.

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
        raise OutputError(f"cannot write {path}: {e.strerror or e}", hint) from e


def result(document: dict[str, Any], text: str, csv_text: str, csv_file: str | None) -> Result:
    """A command's result; with `--csv -` the table in the place of the text, with `--csv FILE` written as well.

    Raises:
        OutputError: the file cannot be written.
    """
    if csv_file == "-":
        text = csv_text.rstrip("\n")
    elif csv_file:
        write(Path(csv_file), csv_text, "choose another --csv FILE")
    return Result(document, text, document["exit_code"])


def runtime(name: str, backend: str, version: str) -> str:
    """A candidate's backend and version; without the backend if the candidate is called after it."""
    backend = Path(backend).name
    return " ".join(filter(None, ("" if Path(name).name == backend else backend, version)))


def aligned(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines with aligned columns, two spaces apart; the columns `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ends = frozenset(right)
    return [
        "  ".join(
            c.rjust(w) if k in ends else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
