"""The document of a bisection, from which all reports are made (`reports/bisect.schema.json`): plain data.

Errors are relative to the scale of the reference; `index` and `indices` are positions of nodes in the model file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from subgraph.bisection.costs import OtherModel
from subgraph.bisection.inside import InsideDocument
from subgraph.documents import absent
from subgraph.graph.region import Surroundings
from subgraph.origins.source import Source
from subgraph.trials.compare import ComparedModel, RuntimeDocument

SCHEMA = "subcut.bisect/1"


@dataclass(frozen=True)
class RunEnvironment:
    subcut: str
    python: str
    machine: str
    threads: object
    packages: Mapping[str, str]


@dataclass(frozen=True)
class LookedAt:
    """What an agreement rests on.

    Attributes:
        outputs: how many of the model. runs: of the whole model, in which they were compared.
        inner: tensors read in place; None where none was.
        within: the region that was asked about alone; "" where there was none.
    """

    outputs: int
    runs: int
    inner: int | None
    within: str


@dataclass(frozen=True)
class ProfileRow:
    """A tensor of the profile; of several samples the one with the largest error."""

    index: int
    node: str
    op: str
    tensor: str
    error: float | None
    status: str


@dataclass(frozen=True)
class StepDocument:
    number: int
    kind: str
    purpose: str
    first: str
    last: str
    count: int
    indices: Sequence[int]
    status: str
    signature: str | None
    error: float | None
    explains: float | None
    seconds: float
    changed: str
    form: str


@dataclass(frozen=True)
class BoundaryTensor:
    tensor: str
    dtype: str
    shape: Sequence[int]


@dataclass(frozen=True)
class WorstElement:
    """The element that is furthest off; `error` is that of its tensor."""

    index: Sequence[int]
    reference: float | int | bool | str
    candidate: float | int | bool | str
    tensor: str
    error: float | None


@dataclass(frozen=True)
class Nearest:
    """The nearest neighbour of a finding that agrees: the same region without some nodes."""

    without: Sequence[str]
    nodes: Sequence[str]
    indices: Sequence[int]
    error: float | None


@dataclass(frozen=True)
class Histogram:
    """Differences of an output's elements over its scale: `count` elements in [10^decade, 10^(decade + 1))."""

    equal: int
    bins: Sequence[Mapping[str, int]]
    not_finite: int


@dataclass(frozen=True)
class Contributor:
    node: str
    op: str
    index: int
    explains: float


@dataclass(frozen=True, kw_only=True)
class FindingDocument:
    kind: str
    signature: str | None
    nodes: Sequence[str]
    indices: Sequence[int]
    ops: Sequence[str]
    sources: Sequence[Source | None] | None = absent()
    certified: bool
    explains: float | None
    reproduces: float
    case: str | None = None
    edge: Mapping[str, Sequence[BoundaryTensor]] | None
    worst: WorstElement | None
    neighbours: Surroundings | None
    nearest: Nearest | None
    verdict: object
    why: str
    off: Mapping[str, int] | None
    histogram: Histogram | None
    growth: Sequence[Mapping[str, float]] | None = absent()
    contributors: Sequence[Contributor] | None = absent()
    rate: float | None = absent()
    runs: Mapping[str, int] | None = absent()
    reason: str | None = absent()
    alike: Sequence[str] | None = absent()
    inside: InsideDocument | None = absent()
    blame: Sequence[str] | None = absent()
    evidence: Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Irrelevant:
    """A region that fails alone and explains little."""

    signature: str | None
    nodes: Sequence[str]
    indices: Sequence[int]
    ops: Sequence[str]
    explains: float | None
    error: None = None


@dataclass(frozen=True, kw_only=True)
class BisectDocument:
    """Everything about one bisection; `report` is the path of the HTML page."""

    schema: str = SCHEMA
    exit_code: int
    agree: bool
    outcome: str
    trials: int
    compiled_nodes: int
    runs: Mapping[str, int]
    seconds: float
    command: str
    model: ComparedModel
    candidate: RuntimeDocument
    reference: RuntimeDocument
    criterion: str
    samples: Sequence[str]
    whole: object
    looked_at: LookedAt
    forms: Sequence[Mapping[str, object]]
    profile: Sequence[ProfileRow] | None
    steps: Sequence[StepDocument]
    findings: Sequence[FindingDocument]
    alone: Sequence[Irrelevant]
    notes: Sequence[str]
    report: str | None = None
    environment: RunEnvironment
    body: str | None = absent()  # of a node of the user's model, which is what was searched
    other_model: OtherModel | None = absent()
