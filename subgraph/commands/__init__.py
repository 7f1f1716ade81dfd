"""One file per sub-command, or per few that belong together: the command line -> calls of the
packages below -> a Result.

A command prints nothing. Progress and warnings go to `log`, which `cli` shows on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from itertools import accumulate, pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from subgraph import system
from subgraph.documents import to_json
from subgraph.errors import ModelError, UsageError
from subgraph.text import clean, count, mask_logins
from subgraph.types import JsonObject, Strings, frozen

if TYPE_CHECKING:
    from subgraph.graph.graph import Graph
    from subgraph.results.answer import NextCommand
    from subgraph.runtime.inputs import Feeding
    from subgraph.runtime.reference import Reference

# By sub-command, its module if that has another name.
MODULES = {
    "backends": "manage",
    "demo": "manage",
    "doctor": "manage",
    "dump": "tensors",
    "export": "tensors",
    "known": "lint",
    "merge": "edit",
    "remove": "edit",
    "replace": "edit",
    "replay": "bundle",
}


@frozen
class Result:
    """The result of a command.

    Attributes:
        answer: The document for `--json`, typed or as plain JSON data.
        text: The same as text.
        next: The commands that follow, if the document has none.
    """

    answer: object
    text: str
    next: Sequence[NextCommand] = ()

    @cached_property
    def document(self) -> JsonObject:
        """The answer as plain JSON data."""
        return dict(to_json(self.answer))

    @property
    def exit_code(self) -> int:
        """The exit code, which every document has."""
        return int(self.document["exit_code"])


def load_module(command: str) -> ModuleType:
    """Return the module of a sub-command, which has a function of the command's name."""
    return import_module(f"subgraph.commands.{MODULES.get(command, command)}")


def make_command_line() -> str:
    """Return the command line that the user typed, for a document."""
    return mask_logins(system.join(["subcut", *sys.argv[1:]]))


def can_ask() -> bool:
    """Return whether somebody at a terminal can answer a question."""
    return bool(sys.stdin and sys.stdin.isatty() and sys.stderr.isatty())


@contextmanager
def require_utf8(model: Path) -> Iterator[None]:
    """Run a block that reads the names in a model.

    Raises:
        ModelError: A name is not UTF-8.
    """
    try:
        yield
    except UnicodeDecodeError as e:
        raise ModelError(
            f"{model} is damaged: a name in it is not UTF-8",
            "compare its checksum",
            code="model.not-utf8",
        ) from e


# Words for what a step of a search means; others are shown as they are.
OUTCOMES = {"fail": "FAIL", "minor": "FAIL, accounts for little"}


# ------------------------------------------------------------ names of nodes in bodies


@contextmanager
def open_body(
    graph: Graph,
    names: Sequence[str],
    feeding: Feeding,
    reference: Reference | None,
    output: Path,
    score: object = None,
) -> Iterator[tuple[Graph, Feeding, Strings]]:
    """Open the graph that the names are in, for this block: a body, or the model itself.

    Yields graph, feeding and names, which are those of the body.

    Raises: as `bodies.descend.descend`; UsageError: there is a body, and a `score`, which judges
    the model's outputs.
    """
    if not any("/" in name for name in names):
        yield graph, feeding, tuple(names)
        return
    from subgraph.bodies.descend import descend
    from subgraph.storage import folders

    with folders.make_scratch(output) as scratch:
        inside = descend(graph, names, feeding, reference, scratch)
        if inside is None:
            yield graph, feeding, tuple(names)
        elif score:
            raise UsageError(
                "a score judges the model's outputs, and these nodes are inside a body",
                "without --score",
                code="body.score",
            )
        else:
            yield inside.graph, inside.feeding or feeding, inside.names


def list_bodies(graph: Graph) -> list[str]:
    """List each body of the graph's nodes by its name, with its size."""
    from subgraph.bodies.model import has_bodies, index_bodies

    named = []
    for i in range(len(graph.nodes)):
        if has_bodies(graph, i):
            named += [
                f"{clean(graph.label(i))}/{clean(name)} ({count(body.node, 'node')})"
                for name, body in index_bodies(graph, i).items()
            ]
    return named


def split_names(names: Strings, *counts: int) -> list[Strings]:
    """Return the names of `open_body` in parts of these sizes, without empty names.

    Args:
        names: The names.
        counts: The number of names in each part; the last part has all further names.
    """
    ends = [0, *accumulate(counts), len(names)]
    return [tuple(filter(None, names[begin:end])) for begin, end in pairwise(ends)]
