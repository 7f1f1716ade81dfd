"""The commands that follow from a result, for the documents that do not name any themselves."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Iterator
from importlib import import_module

from subgraph.commands import options
from subgraph.results.common import NextCommand
from subgraph.text import masked
from subgraph.types import Fields

OF_OUTPUT = ("--json", "--brief", "-q", "--quiet")  # options that a next command does not repeat
# By document: the command that takes the path that it names, and what it is for.
TAKES_PATH = {
    "bundle": ("replay", "run it again"),
    "convert": ("inspect", "check the model"),
    "merge": ("inspect", "check the model"),
    "remove": ("inspect", "check the model"),
    "replace": ("inspect", "check the model"),
}


def convert_words(typed: str, command: str, left_out: Collection[str] = ()) -> list[str]:
    """Return the typed command line as one of another command, with the options that both have.

    Args:
        typed: The command that was typed.
        command: The other command.
        left_out: Flags that are omitted as well.
    """
    takes_value, others = (
        options.flags_of(getattr(import_module(f"subgraph.commands.{name}"), name))
        for name in (typed, command)
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
    if kind in TAKES_PATH and "path" in document:
        command, why = TAKES_PATH[kind]
        yield NextCommand(why, ["subcut", command, document["path"]])
    elif kind == "demo":
        yield from (NextCommand("try it", shlex.split(line)) for line in document["commands"])
    elif kind == "cut":
        paths = [made["path"] for made in document.get("results", ())]
        yield from (NextCommand("run it", ["subcut", "replay", path]) for path in paths)
    cured = kind == "lint" and any(one["exponent"] is not None for one in document["findings"])
    if cured:
        words = convert_words("lint", "plan", ("--precision", "-c", "--candidate"))
        words += ["--to", document["precision"], "--rescale"]
        yield NextCommand("bring these tensors into range, and prove it", words)
    if kind == "plan" and any("--rescale" in note for note in document["notes"]):
        words = convert_words("plan", "plan")
        yield NextCommand("scale what overflows instead", [*words, "--rescale"])
