"""Results of commands as text, tables as CSV files, and the commands that follow from a result, for
the documents that do not name any themselves."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from subgraph.commands import Result, load_module, options
from subgraph.documents import to_json
from subgraph.errors import OutputError
from subgraph.results.common import NextCommand
from subgraph.text import masked
from subgraph.types import Fields, JsonObject

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
    """Return a command's result; write the table, with `--csv -` instead of the text.

    Raises:
        OutputError: The file cannot be written.
    """
    if csv_file == "-":
        text = csv_text.rstrip("\n")
    elif csv_file:
        write(Path(csv_file), csv_text, "choose another --csv FILE")
    return Result(document, text, document["exit_code"])


def render_comparison(
    document: ComparedDocument, csv_file: str | None, *, every_row: bool = False
) -> Result:
    """Return the result of a comparison, or of recordings.

    Args:
        document: The comparison, which the terminal shows as the report's text.
        csv_file: Where `--csv` writes the table; None for nowhere.
        every_row: Show the table whole, not only what does not agree.
    """
    from subgraph.reports import csv as csv_form
    from subgraph.reports import text

    rows = csv_form.render_compared(document) if csv_file else ""
    shown = text.render_compared(document, every=every_row).rstrip("\n")
    return result(to_json(document), shown, rows, csv_file)


OF_OUTPUT = ("--json", "--brief", "-q", "--quiet")  # options that a next command does not repeat


def convert_words(typed: str, command: str, left_out: Collection[str] = ()) -> list[str]:
    """Return the typed command line as one of another command, with the options that both have.

    Args:
        typed: The command that was typed.
        command: The other command.
        left_out: Flags that are omitted as well.
    """
    takes_value, others = (
        options.flags_of(getattr(load_module(name), name)) for name in (typed, command)
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
            line += map(masked, given)
    return line


def iter_next(document: Fields) -> Iterator[NextCommand]:
    """Yield the commands that follow from a document.

    Args:
        document: Plain JSON data.
    """
    kind = document["schema"].removeprefix("subcut.").partition("/")[0]
    if kind in NEXT:
        yield from NEXT[kind](document)
    elif "path" in document and kind in NEXT_ON_FILE:
        why, command = NEXT_ON_FILE[kind]
        yield _make_next(why, command, document["path"])


def _make_next(why: str, *words: str) -> NextCommand:
    return NextCommand(why, ["subcut", *words])


def _follow_demo(document: Fields) -> Iterator[NextCommand]:
    yield from (NextCommand("try it", shlex.split(line)) for line in document["commands"])


def _follow_cut(document: Fields) -> Iterator[NextCommand]:
    for written in document.get("results", ()):
        yield _make_next("run it", "replay", written["path"])


def _follow_inspect(document: Fields) -> Iterator[NextCommand]:
    path = document["model"]["path"]
    yield _make_next("look for known troubles with targets", "lint", path)


def _follow_doctor(_document: Fields) -> Iterator[NextCommand]:
    yield _make_next("try it on a model with a fault", "demo")


def _follow_manual(document: Fields) -> Iterator[NextCommand]:
    if document["open"]:
        yield _make_next("when the device's outputs lie there", "manual", "take")


def _follow_replay(document: Fields) -> Iterator[NextCommand]:
    if document["exit_code"] == 1:
        yield _make_next("what it depends on", "blame", document["case"])
        yield _make_next("for a bug report", "bundle", document["case"])


def _follow_sweep(document: Fields) -> Iterator[NextCommand]:
    for row in document["rows"]:
        for candidate, found in zip(document["candidates"], row["results"], strict=True):
            if found["status"] == "wrong":
                path = f"{candidate['folder']}/{row['test']}"
                yield _make_next("run it again", "replay", path)


def _follow_lint(document: Fields) -> Iterator[NextCommand]:
    if any(one["exponent"] is not None for one in document["findings"]):
        words = convert_words("lint", "plan", ("--precision", "-c", "--candidate"))
        words += ["--to", document["precision"], "--rescale"]
        yield NextCommand("bring these tensors into range, and prove it", words)


def _follow_plan(document: Fields) -> Iterator[NextCommand]:
    if any("--rescale" in note for note in document["notes"]):
        words = [*convert_words("plan", "plan"), "--rescale"]
        yield NextCommand("scale what overflows instead", words)
    if document["exit_code"] == 1 and "--candidate-model" in sys.argv:
        yield NextCommand("find where it differs", convert_words("plan", "bisect"))


# Kind of document → reason and command of the next step on the written file.
NEXT_ON_FILE = {
    "bundle": ("run it again", "replay"),
    **dict.fromkeys(("convert", "merge", "remove", "replace"), ("check the model", "inspect")),
}
NEXT: Mapping[str, Callable[[Fields], Iterator[NextCommand]]] = {
    "cut": _follow_cut,
    "demo": _follow_demo,
    "doctor": _follow_doctor,
    "inspect": _follow_inspect,
    "lint": _follow_lint,
    "manual": _follow_manual,
    "plan": _follow_plan,
    "replay": _follow_replay,
    "sweep": _follow_sweep,
}
