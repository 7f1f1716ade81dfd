"""The parts of a manual session's state: request, values fed, tasks and answers, as JSON and
back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from subgraph.documents import keyed
from subgraph.precision import Precision
from subgraph.runtime.capture import Captured
from subgraph.runtime.inputs import ImageOptions, InputOrigin, OriginKind
from subgraph.storage.tensors import Record

MAX_BATCH = 64  # tasks at once
MAX_REPEAT = 16  # runs of each
OWN_FILE = re.compile(r"(inputs|drawn|recorded)/\d+/\w+[\d#]*\.npy")


@dataclass(frozen=True)
class FedWords:
    """The part of a `Feeding` that the user's options say."""

    inputs: tuple[str, ...]
    shapes: Mapping[str, Sequence[int]]
    seed: int
    picture: ImageOptions


@dataclass(frozen=True)
class ManualRequest:
    """The options of `subcut manual start`; `export` as `TaskFormat.parse` reads it; `repeat`: runs
    of each task."""

    name: str
    export: str
    batch: int
    within: str
    criterion: str
    precision: Precision | None
    freeze: bool
    reference: str
    custom_ops: str
    feeding: FedWords
    command: str
    notes: Sequence[str]
    force: bool
    repeat: int = 1


@dataclass(frozen=True)
class ModelIdentity:
    """The model's absolute path, and the digest of its structure and weights."""

    path: str
    digest: str


@dataclass(frozen=True)
class FedSample:
    """The values of one sample when the session began: `fed` by the user, without files; `tensors`
    kept in the folder.

    `origins`: where the values came from, for people; `kinds`: the kind of source, missing in older
    states.
    """

    label: str
    fed: Sequence[Record]
    origins: Mapping[str, str]
    tensors: Sequence[Record]
    kinds: Mapping[str, OriginKind] = field(default_factory=dict)

    @property
    def captured(self) -> Captured:
        """As a capture gives it; files are below the session's folder."""
        tensors, fed = ({r.name: r for r in records} for records in (self.tensors, self.fed))
        origins = {
            name: InputOrigin(self.kinds.get(name, OriginKind.FILE), text)
            for name, text in self.origins.items()
        }
        return Captured(self.label, tensors, fed, origins)


@dataclass(frozen=True)
class RecordedEvidence:
    """What a recording of the device tells before anything runs: where to look. It is not a result
    of any piece.

    Attributes:
        name: of the recording.
        lines: what it tells, for people.
        wrong: of each recorded tensor, is it wrong in place?
        own_errors: of tensors at which an error of their own appears, its relative size; 0.0 if
            unknown.
        places: the nodes in doubt at each of these, by their indices.
        outputs: per sample, the model's outputs, with files in the session's folder; empty if one
            was not recorded.
    """

    name: str
    lines: Sequence[str]
    wrong: Mapping[str, bool]
    own_errors: Mapping[str, float]
    places: Sequence[Sequence[int]] = ()
    outputs: Sequence[Sequence[Record]] = ()


@dataclass(frozen=True)
class LoggedTask:
    """A task that was handed out.

    Attributes:
        what: for people. round: number of the round in which it was handed out.
        needed: the search waits for it; otherwise it is only likely to be asked next.
    """

    number: int
    key: str
    what: str
    round: int = keyed("trip")
    needed: bool = True


@dataclass(frozen=True)
class LoggedAnswer:
    """The answer to a task: a key of `WORDS`, or `TAKEN`.

    `command`: number of the command that recorded it; `undo` reverts all answers of one command.
    """

    number: int
    word: str
    when: str
    command: int = keyed("step")
