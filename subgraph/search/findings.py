"""What a search says: a Step for each answer as it comes, and the Findings at its end. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from subgraph.search.oracle import Answer, Items, Query
from subgraph.verdict import Signature, Status


class Purpose(StrEnum):
    """What a run was for."""

    BASELINE = "baseline"
    AGAIN = "again"  # the whole model once more, in another process
    PROFILE = "profile"
    GALLOP = "gallop"
    HALVE = "halve"
    SHRINK = "shrink"  # dropping items, and the certificate that none can be
    POOL = "pool"
    TAIL = "tail"  # does the rest agree?
    CONFIRM = "confirm"  # fresh processes, repetitions, doubts
    GROWTH = "growth"  # prefixes, and shares of pieces


CERTAINTY = (Purpose.AGAIN, Purpose.CONFIRM)  # runs that only make sure


@dataclass(frozen=True)
class Step:
    """One answer, and what it changed.

    Attributes:
        outcome: for this search: FAIL only with the baseline's signature and where it explains the whole.
        left: how many items are still suspects. more: about so many runs to come.
    """

    number: int
    purpose: Purpose
    ask: Query
    answer: Answer
    outcome: Status
    left: int
    more: int

    @property
    def items(self) -> Items:
        """What it was about; empty: everything."""
        return self.ask.items


class FindingKind(StrEnum):
    """What a search concluded about some items."""

    CULPRIT = "culprit"
    ACCUMULATED = "accumulated"
    FLAKY = "flaky"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True)
class Finding:
    """One conclusion.

    Attributes:
        items: the region; for `unresolved` the smallest that is still in doubt.
        certified: it failed alone in a fresh process, and without any single one of its items it agreed.
        explains: share of the final error; None where that has no meaning or is not known.
        runs: (how often it failed, of so many times that it was asked in fresh processes).
        neighbour: the largest part of it that agrees alone, with one item less; None for a single item.
        doubtful: items of it without which it could not be asked; then it is not certified.
        growth: `accumulated`: (items of the prefix, error relative to the whole's), ascending.
        contributors: `accumulated`: pieces with their shares, largest first.
    """

    kind: FindingKind
    items: Items
    signature: Signature | None
    certified: bool = False
    explains: float | None = None
    runs: tuple[int, int] = (1, 1)
    neighbour: Items | None = None
    doubtful: Items = ()
    why: str = ""
    growth: tuple[tuple[int, float], ...] = ()
    contributors: tuple[tuple[Items, float], ...] = ()

    @property
    def reproduces(self) -> float:
        """Share of its runs that failed."""
        return self.runs[0] / self.runs[1]


@dataclass(frozen=True)
class Observation:
    """Something that was seen on the way and is no answer: it fails alone but explains nothing, or fails otherwise."""

    items: Items
    signature: Signature | None
    why: str
    share: float | None = None


class Outcome(StrEnum):
    """The answer in one word."""

    AGREE = "agree"
    CLAIMED = "claimed"  # agrees within the precision that the candidate claims
    DISAGREE = "disagree"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True)
class Counts:
    """What it cost. Answers that came from an earlier ask of the same search are not counted.

    Attributes:
        runs: by purpose. compiled: items sent to the candidate, by purpose.
        rounds: how often the question was asked; below the number of runs where several are asked at once.
    """

    runs: Mapping[Purpose, int]
    compiled: Mapping[Purpose, int]
    rounds: int

    def total(self, *without: Purpose) -> int:
        """Runs for all purposes but these."""
        return sum(n for purpose, n in self.runs.items() if purpose not in without)

    def items(self, *without: Purpose) -> int:
        """Compiled items for all purposes but these."""
        return sum(n for purpose, n in self.compiled.items() if purpose not in without)


@dataclass(frozen=True)
class Findings:
    """Where a search ended.

    Attributes:
        findings: culprits by share, largest first; then the others.
        aside: pieces that fail alone and explain nothing.
        noted: pieces with another signature, or that could not be asked.
        rate: how often the whole model failed, of the times it was asked.
        probe_sensitive: reading inner tensors made the fault vanish.
        complete: everything else was asked about and agrees.
        spent: which budget ended it, or "".
        notes: what else a reader should know: a text, and the items that it ends with.
    """

    outcome: Outcome
    counts: Counts
    signature: Signature | None = None
    findings: tuple[Finding, ...] = ()
    aside: tuple[Observation, ...] = ()
    noted: tuple[Observation, ...] = ()
    rate: float = 0.0
    probe_sensitive: bool = False
    complete: bool = False
    spent: str = ""
    notes: tuple[tuple[str, Items], ...] = ()
