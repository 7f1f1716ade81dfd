"""The results of commands that only list, write or draw, for `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

from subgraph.documents import absent, json_key
from subgraph.results.answer import CommandResult
from subgraph.types import Fields, StringMap, frozen, frozen_keywords


@frozen_keywords
class RulesResult(CommandResult):
    """The rules of `lint`: their names and help."""

    schema: Literal["subcut.lint-rules/1"] = "subcut.lint-rules/1"
    rules: Sequence[StringMap]


@frozen_keywords
class ReplayResult:
    """A case that was run again: the verdict of each sample."""

    schema: Literal["subcut.replay/1"] = "subcut.replay/1"
    exit_code: int
    case: str
    candidate: str
    samples: Sequence[Fields]


@frozen_keywords
class ReportResult(CommandResult):
    """The files of a report, or its text."""

    schema: Literal["subcut.report/1"] = "subcut.report/1"
    files: Sequence[str] = ()
    report: str | None = absent()


@frozen_keywords
class DemoResult(CommandResult):
    """The folder of `demo`, its files, and the commands to try."""

    schema: Literal["subcut.demo/1"] = "subcut.demo/1"
    folder: str
    files: Sequence[str]
    commands: Sequence[str]


@frozen
class BackendRow:
    """A backend, a device, another processor, or a candidate of the project file.

    Attributes:
        state: "ok", or the part of it that works.
        says: Its version and caveat, or the missing part.
    """

    name: str
    usable: bool
    version: str
    says: str
    state: str = "ok"


@frozen_keywords
class DoctorResult:
    """The versions here, and the state of each backend."""

    schema: Literal["subcut.doctor/1"] = "subcut.doctor/1"
    exit_code: int
    versions: StringMap
    backends: Sequence[BackendRow]


@frozen_keywords
class PackedResult(CommandResult):
    """A bundle: its files, and what was left out of it."""

    schema: Literal["subcut.bundle/1"] = "subcut.bundle/1"
    path: str
    bytes: int
    source: str
    files: object
    warnings: Sequence[str]
    unchanged: Sequence[str]
    left_out_texts: Sequence[str]
    left_out: Sequence[str]


@frozen_keywords
class ViewResult(CommandResult):
    """The end of a page."""

    schema: Literal["subcut.view/1"] = "subcut.view/1"


@frozen_keywords
class ConvertResult:
    """A converted model that was not compared with the original.

    A compared model has the fields of a comparison of recordings in addition.
    """

    schema: Literal["subcut.convert/1"] = "subcut.convert/1"
    exit_code: int
    path: str
    checked: bool = False
    why: str


@frozen_keywords
class KnownResult(CommandResult):
    """The known wrong results of runtimes."""

    schema: Literal["subcut.known/1"] = "subcut.known/1"
    entries: Sequence[Fields]


@frozen
class BackendEntry:
    """A backend, its help and options. `origin`: the project file that names it."""

    name: str
    help: str
    origin: str = json_key("from")
    options: Mapping[str, Sequence[str] | None] = field(default_factory=dict)


@frozen_keywords
class BackendsResult(CommandResult):
    """The backends, and the candidates of the project file."""

    schema: Literal["subcut.backends/1"] = "subcut.backends/1"
    backends: Sequence[BackendEntry]


@frozen_keywords
class EditResult(CommandResult):
    """An edited model: its outputs, and remarks."""

    path: str
    nodes: int
    outputs: Sequence[Fields]
    remarks: Sequence[str]


@frozen_keywords
class RemoveResult(EditResult):
    """A model without some nodes; `tail` is the file of the removed part."""

    tail: str | None


@frozen_keywords
class DrawnModel(CommandResult):
    """A drawing of a model; `svg` if it has no file."""

    schema: Literal["subcut.draw/1"] = "subcut.draw/1"
    file: str | None = None
    nodes: int
    region: Mapping[str, Sequence[str]] | None
    layout: Fields
    svg: str | None = absent()


@frozen
class GivenAnswer:
    """An answer of a search that is run by hand."""

    number: int
    what: str
    said: str
    when: str
    command: int


@frozen_keywords
class ManualLog(CommandResult):
    """The answers that were given."""

    schema: Literal["subcut.manual/1"] = "subcut.manual/1"
    folder: str
    log: Sequence[GivenAnswer]


@frozen_keywords
class ManualProgress:
    """A search that is run by hand: its open tasks, or its result."""

    schema: Literal["subcut.manual/1"] = "subcut.manual/1"
    exit_code: int
    folder: str
    ended: bool
    answers: int
    trips: int
    open: Sequence[object]
    result: Fields | None


@frozen_keywords
class ManualReset(CommandResult):
    """A search that was removed; `left`: files of others."""

    schema: Literal["subcut.manual/1"] = "subcut.manual/1"
    folder: str
    left: Sequence[str]
