"""The documents of a comparison: every tensor in place and alone, or a row per recorded tensor and
run; the place at which a recording becomes wrong, and the tensors around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from subgraph.documents import File, Name, Version, Word, absent, json_key, part
from subgraph.graph.region import Surroundings
from subgraph.origins.source import Source
from subgraph.results.common import (
    ComparedModel,
    ComparedOutputs,
    FormDocument,
    PowerDocument,
    PreciseSetting,
    Reported,
    RuntimeDocument,
    ScoreDocument,
    WholeDocument,
)
from subgraph.types import Fields, frozen, frozen_keywords
from subgraph.verdict import Judgement, RunOutcome, Signature, Status
from subgraph.version import list_versions


@frozen
class FirstBadDocument:
    """The first bad tensor; `looks_like`: the changes that would make it equal."""

    index: int
    node: Name
    op: Name
    tensor: Name
    looks_like: Sequence[str]


@frozen
class MissingJudgement:
    """The reason why a tensor alone has no judgement: its node was refused, crashed …"""

    status: Status
    signature: Signature | None
    why: str
    process: Fields


@frozen
class RowDocument:
    """A `ComparisonRow` in a document.

    Attributes:
        alone: The judgement of the tensor alone, or the reason why it has no judgement.
        computed_by: The provider of the runtime that computes the node.
    """

    index: int
    node: Name
    op: Name
    tensor: Name
    in_place: Judgement | None
    alone: Judgement | MissingJudgement | None
    source: Source | None = absent()
    computed_by: str | None = absent()


@frozen
class ComparedTensors:
    """The tensors that a comparison rests on: numbers of the model's outputs and of intermediate
    tensors, in place or alone.

    Attributes:
        others: The number of other tensors that carry values.
        disturbance: The change of the outputs through reading these tensors, relative to their
            largest value; None if they did not change.
    """

    outputs: int
    inner: int
    others: int = 0
    disturbance: float | None = absent()


@frozen_keywords
class ComparisonSetup:
    """The candidate, and how it is compared."""

    candidate: RuntimeDocument
    criterion: str
    samples: Sequence[Name]
    outputs: ComparedOutputs = part()


@frozen_keywords
class WholeComparison:
    """The result of the full model.

    Attributes:
        verdict: The verdict on its outputs.
        in_place: The run with intermediate tensors as outputs.
        looked_at: The tensors that the comparison rests on; None in documents of earlier releases.
        score: The score of the task, if it judges the outputs. The criterion judges the rows.
        flaky_tensors: Outputs that differ from run to run on the same values; None if no output
            does.
        precise: The setting with which the outputs agree; None if none is known or it fails as
            well.
        power: The planted faults that this comparison would show; left out if it was not measured.
    """

    verdict: WholeDocument = json_key("whole")
    in_place: RunOutcome | None = absent()
    looked_at: ComparedTensors | None = None
    forms: Sequence[FormDocument] = ()
    score: ScoreDocument | None = absent()
    flaky_tensors: Sequence[Name] | None = absent()
    precise: PreciseSetting | None = absent()
    power: PowerDocument | None = absent()


@frozen_keywords
class TensorComparison:
    """The tensors that were compared.

    Attributes:
        stopped: Whether the comparison ended before the last tensor.
    """

    first_bad: FirstBadDocument | None
    stopped: bool = False
    rows: Sequence[RowDocument]


@dataclass(frozen=True, kw_only=True, repr=False)
class ComparisonDocument(Reported):
    """A comparison, for `--json` and every report."""

    schema: Literal["subcut.compare/1"] = "subcut.compare/1"
    notes: Sequence[str]
    model: ComparedModel
    setup: ComparisonSetup = part()
    whole: WholeComparison = part()
    tensors: TensorComparison = part()
    versions: Mapping[str, Version] = field(default_factory=list_versions)


@frozen_keywords
class SideBySideResult:
    """The comparisons of several candidates."""

    schema: Literal["subcut.side-by-side/1"] = "subcut.side-by-side/1"
    exit_code: int
    comparisons: Sequence[ComparisonDocument]


INTERVAL_SCHEMA: Final = "subcut.interval/1"


@frozen
class Departure:
    """The place at which a recording departs from another one.

    Attributes:
        run: The recording.
        before: The earlier recording from which it departs, or the reference.
        tensor: The first tensor that differs.
        node: The node that computes this tensor.
        op: The operator of the node.
        skipped: The recordings between the two, which do not hold the tensor.
    """

    run: str
    before: str
    tensor: Name
    node: Name
    op: Name
    skipped: Sequence[str] = ()


@frozen
class UnmatchedEntry:
    """An entry of a recording that is not compared, and why."""

    name: Name
    file: File
    why: str


@frozen
class LeftOutReason:
    """Entries, or files, that are not compared for one reason; `names` has the first few."""

    why: str
    count: int
    names: Sequence[str]


@frozen_keywords
class RecordedFiles:
    """The files of a recording.

    Attributes:
        matched: The number of entries that are tensors of the model, in words.
        lost: All entries that are not compared.
        left_out: The same by reason, with files of other kinds.
        unread: The number of entries that may hold tensors of the model and could not be read.
    """

    folder: str | None
    format: Word | None
    missing: str | None
    matched: str
    lost: Sequence[UnmatchedEntry]
    left_out: Sequence[LeftOutReason] = ()
    unread: int = 0


@frozen_keywords
class RunTensors:
    """The tensors of a recording.

    Attributes:
        first_bad: The end of the first interval; None if not all tensors were compared.
        last_good: The start of that interval; None if not all tensors were compared.
        source: The place in the user's code of `first_bad`.
    """

    wrong: int
    compared: int
    first_bad: Name | None
    last_good: Sequence[Name] | None
    source: Source | None = absent()


@frozen_keywords
class RunSummary:
    """One recording.

    Attributes:
        precision: The precision at which it is judged.
        status: The status of the full recording.
        why: The reason why it is unresolved; "" if it is not.
        mistake: The way in which the device received other input values than the reference; "" if
            it received the same.
    """

    name: Name
    precision: Word
    status: Status
    why: str
    mistake: str
    notes: Sequence[str]
    inputs: Mapping[str, Judgement] = field(default_factory=dict)
    files: RecordedFiles = part()
    tensors: RunTensors = part()


@frozen
class RecordedTensor:
    """A tensor in one run.

    Attributes:
        matched_by: "name" or "value".
        note: The permutation, padding or dequantization that the match needed.
        alone: The judgement in isolation.
        before: The nearest earlier recording of the tensor.
        beside: The judgement against the values of that recording.
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


@frozen
class DocumentRow:
    """A tensor of the model.

    Attributes:
        runs: The tensor in each run; None if it was not recorded.
        odd_one_out: The run that is the outlier; None if no run is.
    """

    index: int
    node: Name
    op: Name
    tensor: Name
    runs: Sequence[RecordedTensor | None]
    odd_one_out: str | None
    source: Source | None = absent()


@frozen_keywords
class RecordedSetup:
    """The way in which recordings are compared."""

    precision: Word
    criterion: str
    samples: Sequence[Name]


@frozen_keywords
class ComparedRecordings:
    """The tensors of all recordings; `odd_one_out` is the outlier in the first row that has one."""

    odd_one_out: str | None
    departures: Sequence[Departure]
    rows: Sequence[DocumentRow]


@dataclass(frozen=True, kw_only=True, repr=False)
class RecordedDocument(Reported):
    """All runs of a comparison with recordings."""

    schema: Literal["subcut.recorded/1", "subcut.interval/1"] = "subcut.recorded/1"
    model: ComparedModel
    setup: RecordedSetup = part()
    recordings: Sequence[RunSummary]
    tensors: ComparedRecordings = part()
    versions: Mapping[str, Version] = field(default_factory=list_versions)


@frozen
class Suspect:
    """A node of an interval; `why` is its known trouble, or empty."""

    index: int
    node: Name
    op: Name
    weight: float
    why: str
    source: Source | None = absent()


@frozen_keywords
class IntervalEnds:
    """The tensors at the ends of an interval."""

    first: bool
    first_bad: Sequence[Name]
    last_good: Sequence[Name]
    wrong_before: Sequence[str]
    not_seen: Sequence[str]
    adds_an_error: bool | None
    in_place: Judgement | None = None


@frozen_keywords
class IntervalPlace:
    """The nodes of an interval, and those around them."""

    suspects: Sequence[Suspect]
    neighbours: Surroundings | None


@frozen_keywords
class IntervalFinding:
    """An interval, laid out as the findings of a bisection are."""

    kind: Word = "interval"
    signature: Signature | None = None
    nodes: Sequence[Name]
    indices: Sequence[int]
    certified: bool = False
    ends: IntervalEnds = part()
    place: IntervalPlace = part()
    case: File | None


@dataclass(frozen=True, kw_only=True, repr=False)
class IntervalDocument(RecordedDocument):
    """The comparison of runs, and the intervals of the one that is `narrowed`. No trials were
    possible."""

    schema: Literal["subcut.interval/1"] = INTERVAL_SCHEMA
    trials: int = 0
    compiled_nodes: int = 0
    narrowed: str
    findings: Sequence[IntervalFinding]
