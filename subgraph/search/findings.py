"""The results of a search: a Step for each answer, and the Findings at its end. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from subgraph.search.oracle import Answer, Items, Query, RegionOutcome
from subgraph.types import Strings
from subgraph.verdict import Signature


class Purpose(StrEnum):
    """The purpose of a query."""

    BASELINE = "baseline"
    AGAIN = "again"  # the whole model once more, in another process
    PROFILE = "profile"
    GALLOP = "gallop"
    HALVE = "halve"
    SHRINK = "shrink"  # dropping items, and certifying that none can be dropped
    # does the rest, or a region, fail at all? asked before a search in it and after a culprit
    TAIL = "tail"
    CONFIRM = "confirm"  # fresh processes, repetitions, contradictions
    GROWTH = "growth"  # prefixes, and shares of pieces
    EVERYWHERE = "everywhere"  # single items of all kinds, where none was right so far
    ALIKE = "alike"  # regions of the kind of two culprits: do they fail as well?


@dataclass(frozen=True)
class Step:
    """One answer and its effect.

    Attributes:
        outcome: meaning for this search: FAIL only if the region fails as what is looked for does and explains it; one
            that fails and explains little is MINOR.
        estimated_runs: number of runs to come. only_repeats: they are of the whole, which agreed so far.

    >>> import subgraph
    >>> step, *others = subgraph.bisect(subgraph.load("resnet50.onnx"))
    >>> step.number, step.purpose.value, step.outcome.value
    (1, 'baseline', 'agree')
    """  # noqa: E501

    number: int
    purpose: Purpose
    query: Query
    answer: Answer
    outcome: RegionOutcome
    estimated_runs: int
    only_repeats: bool = False

    def __repr__(self) -> str:
        items = f"{len(self.items)} items" if self.items else "all"
        return f"Step({self.number}, {self.purpose.value}, {items}, {self.outcome.value})"

    @property
    def items(self) -> Items:
        """Items of the query; empty: all."""
        return self.query.items


class FindingKind(StrEnum):
    """The conclusion of a search about some items."""

    CULPRIT = "culprit"
    ACCUMULATED = "accumulated"
    FLAKY = "flaky"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True)
class Finding:
    """One conclusion.

    Attributes:
        items: the region; for `unresolved` the smallest one still in doubt.
        certified: 1-minimal: the region failed alone in a fresh process, and agreed without any
            single item.
        share_of_model: of the whole model's error; None if unknown or meaningless.
        runs: (failed runs, all runs) of the region, in fresh processes unless one process wavers.
        neighbor: the region without one item, where that agrees; None for a single item.
        doubtful: items without which the region could not be run, so that it is not certified.
        minor: items without which the region still fails, though it explains little, so that it is
            not certified.
        alike: items of all kinds, each of which is off alone.
        repeats: regions of the same kind that fail in the same way; of a kind that is refused, only
            one of them was asked about.
        growth: `accumulated`: (items of the prefix, error relative to the whole's), ascending.
        contributors: `accumulated`: pieces with their shares, largest first.
    """

    kind: FindingKind
    items: Items
    signature: Signature | None
    certified: bool = False
    share_of_model: float | None = None
    runs: tuple[int, int] = (1, 1)
    neighbor: Items | None = None
    doubtful: Items = ()
    minor: Items = ()
    alike: Items = ()
    repeats: tuple[Items, ...] = ()
    why: str = ""
    growth: tuple[tuple[int, float], ...] = ()
    contributors: tuple[tuple[Items, float], ...] = ()

    @property
    def everywhere(self) -> bool:
        """Whether it represents nearly all items, whatever they compute."""
        return bool(self.alike)

    @property
    def regions(self) -> tuple[Items, ...]:
        """The region, and those that it stands for."""
        return (self.items, *self.repeats)

    @property
    def reproduces(self) -> float:
        """Share of its runs that failed."""
        return self.runs[0] / self.runs[1]


@dataclass(frozen=True)
class Observation:
    """A region that fails without being a finding: it explains little, or could not be run."""

    items: Items
    signature: Signature | None
    why: str
    share_of_model: float | None = None


class Outcome(StrEnum):
    """The result of a search in one word."""

    AGREE = "agree"
    CLAIMED = "claimed"  # agrees within the precision that the candidate claims
    DISAGREE = "disagree"
    ELSEWHERE = "elsewhere"  # the whole disagrees, the region that was asked about agrees alone
    UNRESOLVED = "unresolved"


@dataclass(frozen=True)
class Counts:
    """Cost of a search. A query that was asked before in the same search costs nothing.

    Attributes:
        runs: by purpose. compiled: items sent to the candidate, by purpose.
    """

    runs: Mapping[Purpose, int] = field(default_factory=dict)
    compiled: Mapping[Purpose, int] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        """Of both, one after the other."""
        runs = Counter(self.runs) + Counter(other.runs)
        return Counts(runs, Counter(self.compiled) + Counter(other.compiled))

    def without(self, *purposes: Purpose) -> Counts:
        """For all purposes but these."""
        kept = (
            {p: n for p, n in counted.items() if p not in purposes}
            for counted in (self.runs, self.compiled)
        )
        return Counts(*kept)

    def total(self, *without: Purpose) -> int:
        """Runs for all purposes but these."""
        return sum(self.without(*without).runs.values())

    def items(self, *without: Purpose) -> int:
        """Compiled items for all purposes but these."""
        return sum(self.without(*without).compiled.values())


@dataclass(frozen=True)
class Findings:
    """Result of a search.

    Attributes:
        signature: how the whole fails; None where it agrees, whatever a piece of it does.
        findings: culprits by share, largest first; then the others.
        irrelevant: regions that fail alone and explain little.
        unresolved: regions that could not be run or compared.
        probe_sensitive: reading intermediate tensors made the fault vanish.
        complete: the model agrees with the culprits on the reference: seen in one run of all other items.
        stopped: why the search ended early, or "". budget_spent: because the runs or the time were used up.
        notes: for the reader of a report: a text, and the items that it ends with.
        names: per item, what stands for it, for people; empty where nobody named them.

    >>> import subgraph
    >>> bisection = subgraph.bisect(subgraph.load("resnet50.onnx"))
    >>> steps = list(bisection)
    >>> bisection.findings.outcome.value, bisection.findings.findings
    ('agree', ())
    """  # noqa: E501

    outcome: Outcome
    counts: Counts
    signature: Signature | None = None
    findings: tuple[Finding, ...] = ()
    irrelevant: tuple[Observation, ...] = ()
    unresolved: tuple[Observation, ...] = ()
    probe_sensitive: bool = False
    complete: bool = False
    stopped: str = ""
    budget_spent: bool = False
    notes: tuple[tuple[str, Items], ...] = ()
    names: Sequence[Strings] = ()
