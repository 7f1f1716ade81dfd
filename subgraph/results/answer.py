"""The parts that the JSON document of each command has, and the document of an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from subgraph.documents import CommandLine, absent
from subgraph.types import Fields, frozen, frozen_keywords


@frozen
class NextCommand:
    """A command that follows from an answer.

    Attributes:
        why: The purpose of the command.
        argv: Its words.
    """

    why: str
    argv: Sequence[CommandLine]


@frozen_keywords
class CommandAnswer:
    """The part that the JSON document of every command has.

    Attributes:
        says: The headline, one sentence.
        next: The commands that follow.
    """

    says: str
    next: Sequence[NextCommand] = ()


@frozen_keywords
class CommandResult:
    """The head of the result of a command that lists, writes or draws."""

    schema: str
    exit_code: int = 0


@frozen_keywords
class TasksResult(CommandResult):
    """The tasks of the start page, by title."""

    schema: Literal["subcut.tasks/1"] = "subcut.tasks/1"
    tasks: object


@frozen
class ErrorEntry:
    """An error.

    Attributes:
        kind: The class of the error.
        code: The stable name of the problem.
        what: The fact.
        hint: The next step; "" for none.
        signature: The way in which the process of a model ended.
        process: The exit code, signal and last lines of that process.
        nearest: The known names that are similar to an unknown one.
    """

    kind: str
    code: str
    what: str
    hint: str = ""
    signature: str | None = absent()
    process: Fields | None = absent()
    nearest: Sequence[str] | None = absent()


@frozen_keywords
class ErrorResult:
    """An error in place of a result. `next`: the same command with the nearest name."""

    schema: Literal["subcut.error/1"] = "subcut.error/1"
    exit_code: int
    error: ErrorEntry
    next: Sequence[NextCommand] = ()
