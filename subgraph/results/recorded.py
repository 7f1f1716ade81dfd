"""Documents of recordings: a row per tensor and run; where one goes wrong, and between which
tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from subgraph.documents import CommandLine, File, Name, Version, Word, absent
from subgraph.graph.region import Surroundings
from subgraph.origins.source import Source
from subgraph.results.common import ComparedModel, NextCommand
from subgraph.verdict import Judgement, Signature, Status
from subgraph.version import versions

SCHEMA: Final = "subcut.recorded/1"
INTERVAL_SCHEMA: Final = "subcut.interval/1"


@dataclass(frozen=True)
class Departure:
    """The place at which a recording goes wrong by itself.

    Attributes:
        run: the recording. before: what it departs from: an earlier recording, or the reference.
        tensor, node, op: the first tensor at which it does.
        skipped: recordings between the two, which tell nothing about the tensor.
    """

    run: str
    before: str
    tensor: Name
    node: Name
    op: Name
    skipped: Sequence[str] = ()


@dataclass(frozen=True)
class UnmatchedEntry:
    """An entry of a recording that is not compared, and why."""

    name: Name
    file: File
    why: str


@dataclass(frozen=True)
class LeftOutReason:
    """Entries, or files, that are not compared for one reason. `names`: the first few."""

    why: str
    count: int
    names: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One recording.

    Attributes:
        mistake: how the device was fed other values than the reference; "" where it was not.
        lost: all that is not compared; left_out: the same by reason, with files of other kinds.
        unread: entries that may hold tensors of the model and could not be read.
        precision: that it is judged at.
        status, why: of the recording as a whole; `why`: it is unresolved.
        first_bad, last_good: the ends of the first interval, if all tensors were compared. source:
            of `first_bad`.
    """

    name: Name
    precision: Word
    status: Status
    why: str
    folder: str | None
    format: Word | None
    missing: str | None
    mistake: str
    matched: str
    notes: Sequence[str]
    inputs: Mapping[str, Judgement] = field(default_factory=dict)
    lost: Sequence[UnmatchedEntry]
    left_out: Sequence[LeftOutReason] = ()
    wrong: int
    unread: int = 0
    compared: int
    first_bad: Name | None
    last_good: Sequence[Name] | None
    source: Source | None = absent()


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor in one run.

    Attributes:
        matched_by: "name" or "value". note: permutation, padding, dequantization that the match
            needed.
        alone: judged in isolation. before: the nearest earlier recording of it; beside: against
            what that holds.
    """

    file: File
    recorded_as: str
    matched_by: Word
    note: str
    in_place: Judgement | None
    alone: Judgement | None
    before: str
    beside: Judgement | None
    why: str


@dataclass(frozen=True)
class DocumentRow:
    """A tensor of the model, by run; None in `runs` where it was not recorded. `odd_one_out`: the
    outlier."""

    index: int
    node: Name
    op: Name
    tensor: Name
    runs: Sequence[RecordedTensor | None]
    odd_one_out: str | None
    source: Source | None = absent()


@dataclass(frozen=True, kw_only=True)
class RecordedDocument:
    """All runs. `odd_one_out`: the outlier in the first row that has one. `says`: the outcome in a
    line. `next`: what to type to go on."""

    schema: Literal["subcut.recorded/1", "subcut.interval/1"] = SCHEMA
    exit_code: int
    agree: bool
    precision: Word
    criterion: str
    samples: Sequence[Name]
    recordings: Sequence[RunSummary]
    command: CommandLine
    model: ComparedModel
    odd_one_out: str | None
    says: str
    departures: Sequence[Departure]
    rows: Sequence[DocumentRow]
    versions: Mapping[str, Version] = field(default_factory=versions)
    report: File | None = None
    next: Sequence[NextCommand | CommandLine] = ()  # a text in documents of before


@dataclass(frozen=True)
class Suspect:
    """A node of an interval. `why`: its known trouble, if any."""

    index: int
    node: Name
    op: Name
    weight: float
    why: str
    source: Source | None = absent()


@dataclass(frozen=True, kw_only=True)
class IntervalFinding:
    """An interval, laid out as the findings of a bisection are."""

    kind: Word = "interval"
    signature: Signature | None = None
    nodes: Sequence[Name]
    indices: Sequence[int]
    certified: bool = False
    first: bool
    first_bad: Sequence[Name]
    last_good: Sequence[Name]
    wrong_before: Sequence[str]
    not_seen: Sequence[str]
    adds_an_error: bool | None
    in_place: Judgement | None = None
    suspects: Sequence[Suspect]
    neighbours: Surroundings | None
    case: File | None


@dataclass(frozen=True, kw_only=True)
class IntervalDocument(RecordedDocument):
    """The comparison of runs, and the intervals of the one that is `narrowed`. No trials were
    possible."""

    schema: Literal["subcut.interval/1"] = INTERVAL_SCHEMA
    trials: int = 0
    compiled_nodes: int = 0
    narrowed: str
    findings: Sequence[IntervalFinding]
