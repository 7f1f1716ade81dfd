"""One file per sub-command: the command line -> calls of the packages below -> a Result.

A command prints nothing. Progress and warnings go to `log`, which `cli` shows on standard error.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from subgraph import system
from subgraph.text import masked
from subgraph.types import JsonObject


@dataclass(frozen=True)
class Result:
    """The result of a command: the document for `--json` (plain JSON data), the same as text, and
    the exit code."""

    document: JsonObject
    text: str
    exit_code: int = 0


def command_line() -> str:
    """Return the command line that the user typed, for a document."""
    return masked(system.join(["subcut", *sys.argv[1:]]))


# Words for what a step of a search means; others are shown as they are.
OUTCOMES = {"fail": "FAIL", "minor": "FAIL, accounts for little"}
