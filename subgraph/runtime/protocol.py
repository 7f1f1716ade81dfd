"""Requests to a worker's process and its replies, as dataclasses; on the pipe they are JSON lines.

A reply is one of three kinds: the result; an error that the process reports (`ErrorReply`); or an
error of subcut's own code in the process (`InternalReply`), which is no result of a candidate.

A backend's code runs in the worker's process and can write into every descriptor of it. So each
reply begins with a random word, which went through the pipe before the backend was imported, and
its number. A line without them is rejected: a forged line and a repeated one. This protects from
faults and from code that writes blindly. Code that searches the process's memory for
the word can still forge a reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import ClassVar, Literal

from subgraph.iterables import index_by_name
from subgraph.precision import Precision
from subgraph.runtime.inputs import InputOrigin, Sample
from subgraph.storage.tensors import Record, RecordTuple
from subgraph.types import Fields, StringMap, Strings, frozen

WORD_BYTES = 16
# Variable in a worker's environment: a folder for its temporary files, removed when it ends.
SCRATCH = "SUBCUT_SCRATCH"
# Exit code of a worker whose pipe to subcut was closed by the backend's code: EX_PROTOCOL.
CHANNEL_LOST = 76


def seal(word: bytes, number: int) -> bytes:
    """Return the first bytes of the line of a process's `number`th reply."""
    return b"%s %d " % (word, number)


def describe_process_end(
    lines: Sequence[str], signal: str | None = None, code: int | None = None
) -> dict[str, object]:
    """Return `process` of `WorkerDied` and of a verdict: always these three keys.

    `memory` is a fourth one if that limit was exceeded.

    Args:
        lines: The last lines of standard error.
        signal: The name of the signal that ended the process, if any.
        code: Its exit code, if any.
    """
    return {"signal": signal, "exit_code": code, "stderr": list(lines)}


# ------------------------------------------------------------ requests


@frozen
class AboutRequest:
    """A request for the properties of the backend, with some options. The reply: `BackendInfo`."""

    task: ClassVar[str] = "describe the backend"
    options: Fields
    do: Literal["about"] = "about"


@frozen
class LoadRequest:
    """A request to build a model under the name `key`. The reply: `Loaded`."""

    task: ClassVar[str] = "load the model"
    key: str
    model: Path
    options: Fields
    do: Literal["load"] = "load"


@frozen
class NamesRequest:
    """A request for the names that a function of the backend returns for a model. The reply:
    `Names`."""

    task: ClassVar[str] = "describe the model"
    function: str
    model: Path
    options: Fields
    do: Literal["names"] = "names"


@frozen
class RunRequest:
    """A request to run a model once. The reply: `ModelRun`.

    Attributes:
        key: The name of the model.
        into: The folder for the outputs.
        outputs: The file stem of each wanted output, by name.
        feeds: The inputs, whose files are relative to `into`; or a sample that is planned only.
        earlier: The outputs of an earlier run of the same inputs.
    """

    task: ClassVar[str] = "run the model"
    key: str
    into: Path
    outputs: StringMap
    feeds: RecordTuple | Sample
    earlier: RecordTuple = ()
    do: Literal["run"] = "run"


@frozen
class SourcesRequest:
    """A request for the Python files that the backend's file has imported. The reply: `Sources`."""

    task: ClassVar[str] = "list its imports"
    do: Literal["sources"] = "sources"


@frozen
class DropRequest:
    """A request to forget a model. The reply: `Done`."""

    task: ClassVar[str] = "drop a model"
    key: str
    do: Literal["drop"] = "drop"


Request = AboutRequest | LoadRequest | NamesRequest | RunRequest | SourcesRequest | DropRequest


# ------------------------------------------------------------ replies


@frozen
class ErrorReply:
    """An error that the process reports, as `SubcutError.to_json` returns it."""

    error: Fields


@frozen
class InternalReply:
    """An error of subcut's own code in the process, in words."""

    failure: str


@frozen
class Done:
    """The reply of a process that has started, and to a request without a result."""


@frozen
class Loaded:
    """The reply to a `LoadRequest`.

    Attributes:
        seconds: The time to convert and build the model.
    """

    seconds: float


@frozen
class Names:
    """The reply to a `NamesRequest`."""

    names: Strings


@frozen
class Sources:
    """The reply to a `SourcesRequest`: the digest of each file."""

    sources: StringMap


@frozen
class BackendInfo:
    """The properties of a backend, for some options.

    Attributes:
        version: The version of the runtime.
        precision: The precision of the arithmetic.
        multi: Whether it takes several disconnected pieces in one model.
        caveat: A fact that a user must know before anything runs; "" for none.
        exact: The options for full precision, or without optimizations; empty if these are.
        switches: The options without each source of differences, by its name.
        passes: The option that turns passes of its optimizer off, `A+B`; "" without one.
    """

    version: str = ""
    precision: Precision = Precision.FP32
    multi: bool = False
    caveat: str = ""
    exact: StringMap = field(default_factory=dict)
    switches: Mapping[str, StringMap] = field(default_factory=dict)
    passes: str = ""


def list_switches(switches: Mapping[str, Fields], options: Fields) -> dict[str, StringMap]:
    """Return the switches that change the options."""
    named = {str(name): to_texts(changed) for name, changed in switches.items()}
    return {name: changed for name, changed in named.items() if changed != to_texts(options)}


def to_texts(options: Fields) -> StringMap:
    """Return options with their values as texts."""
    return {str(k): str(v) for k, v in options.items()}


@frozen
class ModelRun:
    """One run of a loaded model.

    Attributes:
        tensors: The requested outputs, with files relative to the folder that was written into.
        fed: The inputs, without files.
        origins: The source of each input's value, if a sample was fed.
        others: Names of outputs that nobody requested.
        seconds: The duration of the run, without reading the inputs and writing the outputs.
    """

    tensors: RecordTuple
    fed: RecordTuple
    origins: Mapping[str, InputOrigin]
    others: Strings
    seconds: float

    @property
    def by_name(self) -> dict[str, Record]:
        """`tensors`, by name."""
        return index_by_name(self.tensors)
