"""The document of a comparison: every tensor in place and alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from subgraph.documents import CommandLine, File, Name, Version, absent
from subgraph.origins.source import Source
from subgraph.results.common import (
    ComparedModel,
    ComparedOutputs,
    FormDocument,
    NextCommand,
    PowerDocument,
    PreciseSetting,
    RuntimeDocument,
    ScoreDocument,
    WholeDocument,
)
from subgraph.verdict import Judgement, Signature, Status
from subgraph.version import versions

SCHEMA: Final = "subcut.compare/1"


@dataclass(frozen=True)
class FirstBadDocument:
    """The first bad tensor; `looks_like`: what would make it equal."""

    index: int
    node: Name
    op: Name
    tensor: Name
    looks_like: Sequence[str]


@dataclass(frozen=True)
class NotJudged:
    """The reason why a tensor alone has no judgement: its node was refused, crashed …"""

    status: Status
    signature: Signature | None
    why: str
    process: Mapping[str, object]


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of the run of the full model with intermediate tensors as outputs.

    The fields are those of a `VerdictDocument` without its outputs.
    """

    status: Status
    signature: Signature | None
    label: str
    why: str
    process: Mapping[str, object]
    build_seconds: float
    run_seconds: float
    stored: bool
    pooled: bool
    from_run: int | None = absent()


@dataclass(frozen=True)
class RowDocument:
    """A `ComparisonRow` in a document; `alone`: without a judgement, why there is none.

    `computed_by`: which of the runtime's providers computes the node.
    """

    index: int
    node: Name
    op: Name
    tensor: Name
    in_place: Judgement | None
    alone: Judgement | NotJudged | None
    source: Source | None = absent()
    computed_by: str | None = absent()


@dataclass(frozen=True)
class ComparedTensors:
    """The tensors that a comparison rests on: numbers of the model's outputs and of intermediate
    tensors, in place or alone.

    Attributes:
        others: tensors that carry values and were not asked about.
        disturbance: how far reading these tensors moved the outputs, relative to their largest
            value; None if it did not.
    """

    outputs: int
    inner: int
    others: int = 0
    disturbance: float | None = absent()


@dataclass(frozen=True, kw_only=True)
class ComparisonDocument(ComparedOutputs):
    """A comparison, for `--json` and every report.

    Attributes:
        says: the outcome in a line. report: path of the HTML page, once it is written.
        score: where a score of the task judges the whole; the rows are judged by the criterion.
        next: The command that bisects the same, if something disagrees.
        flaky_tensors: Outputs that differ from run to run on the same values; None if no output
            does.
        precise: The setting with which the outputs agree; None if none is known or it fails as
            well.
        power: The planted faults that this comparison would show; left out if it was not measured.
    """

    schema: Literal["subcut.compare/1"] = SCHEMA
    exit_code: int
    agree: bool
    says: str
    command: CommandLine
    model: ComparedModel
    candidate: RuntimeDocument
    criterion: str
    samples: Sequence[Name]
    whole: WholeDocument
    in_place: RunOutcome | None = absent()
    looked_at: ComparedTensors | None = None
    forms: Sequence[FormDocument] = ()
    first_bad: FirstBadDocument | None
    stopped: bool = False
    rows: Sequence[RowDocument]
    notes: Sequence[str]
    versions: Mapping[str, Version] = field(default_factory=versions)
    report: File | None = None
    score: ScoreDocument | None = absent()
    next: Sequence[NextCommand | CommandLine] = ()  # a text in documents of before
    flaky_tensors: Sequence[Name] | None = absent()
    precise: PreciseSetting | None = absent()
    power: PowerDocument | None = absent()


@dataclass(frozen=True, kw_only=True)
class SideBySideResult:
    """The comparisons of several candidates."""

    schema: Literal["subcut.side-by-side/1"] = "subcut.side-by-side/1"
    exit_code: int
    comparisons: Sequence[ComparisonDocument]
