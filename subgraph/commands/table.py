"""Results of commands as text, tables as CSV files, and the commands that follow from a result."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph.commands import Result, load_module, options
from subgraph.errors import OutputError, explain_os_error
from subgraph.results.answer import NextCommand
from subgraph.text import mask_logins

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
    with explain_os_error(OutputError, f"cannot write {path}", hint, code="output.unwritable"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            aside.write_text(text, encoding="utf-8", newline="")
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


def make_result(document: object, text: str, csv_text: str, csv_file: str | None) -> Result:
    """Return a command's result; write the table, with `--csv -` instead of the text.

    Raises:
        OutputError: The file cannot be written.
    """
    if csv_file == "-":
        text = csv_text.rstrip("\n")
    elif csv_file:
        write(Path(csv_file), csv_text, "choose another --csv FILE")
    return Result(document, text)


def render_comparison(
    document: ComparedDocument, csv_file: str | None, *, every_row: bool = False
) -> Result:
    """Return the result of a comparison, or of recordings.

    Args:
        document: The comparison, which the terminal shows as the report's text.
        csv_file: Where `--csv` writes the table; None for nowhere.
        every_row: Show the table whole, not only what does not agree.
    """
    from subgraph.reports import csv as csv_form, text

    rows = csv_form.render_compared(document) if csv_file else ""
    shown = text.render_compared(document, every=every_row).rstrip("\n")
    return make_result(document, shown, rows, csv_file)


OF_OUTPUT = ("--json", "--brief", "-q", "--quiet")  # options that a next command does not repeat


def convert_words(typed: str, command: str, left_out: Collection[str] = ()) -> list[str]:
    """Return the typed command line as one of another command, with the options that both have.

    Args:
        typed: The command that was typed.
        command: The other command.
        left_out: Flags that are omitted as well.
    """
    takes_value, others = (
        options.list_flags(getattr(load_module(name), name)) for name in (typed, command)
    )
    gone = (takes_value.keys() - others.keys()) | {*OF_OUTPUT, *left_out}
    words = iter(sys.argv[sys.argv.index(typed) + 1 :] if typed in sys.argv else [])
    line = ["subcut", command]
    for word in words:
        is_flag = word.startswith("-")
        flag = word.partition("=")[0] if word.startswith("--") else word[:2]
        given = [word]
        if is_flag and word == flag and takes_value.get(flag):
            given.append(next(words, ""))
        if not is_flag or flag not in gone:
            line += map(mask_logins, given)
    return line


def make_next(why: str, *words: str) -> NextCommand:
    """Return a command of subcut that follows from a result, with the reason."""
    return NextCommand(why, ["subcut", *words])
