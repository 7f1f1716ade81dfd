"""What a search asks, and what it is told: the one seam between the search and the world.

Insight: every question is one value (`Query`) and every answer another (`Answer`). So asking many at once, keeping
answers in a store and going on from there, and simulating a candidate need one method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias

from subgraph.verdict import Signature, Status, Verdict

Items: TypeAlias = tuple[int, ...]


class QueryKind(StrEnum):
    """What is asked about the items of an `Query`."""

    WHOLE = "whole"  # the candidate runs the whole model on the model's inputs
    CLAIMED = "claimed"  # the whole, judged again at the precision that the candidate claims: no run
    PROFILE = "profile"  # run these items with every inner tensor made an output: which of them are wrong?
    ISOLATED = "isolated"  # run these items alone, on captured reference values
    POOL = "pool"  # many disjoint pieces as one model; that one agrees is no proof
    PREFIX = "prefix"  # the first items on the model's inputs: how far has the error grown?


@dataclass(frozen=True)
class Query:
    """One question.

    Attributes:
        items: ascending; empty for WHOLE and CLAIMED, all items of all pieces for POOL.
        repetition: 0, 1, …: asks once more, whatever was stored for lower ones.
        fresh: in a process that has run nothing before.
        explain: the share is wanted even where the region agrees.
        pieces: POOL only.
    """

    kind: QueryKind
    items: Items = ()
    repetition: int = 0
    fresh: bool = False
    explain: bool = False
    pieces: tuple[Items, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        status: as the criterion has it. A candidate that does not run: FAIL with `refused`, `crash` or `timeout` (or
            UNRESOLVED with it; both are read alike).
        why: one line for people.
        share: the part of the whole's final error that these items account for; None where unknown.
        culprit: do they explain the whole? None where that cannot be told. Read for ISOLATED that fail, and for pieces.
        claimed: WHOLE and CLAIMED: it agrees only as well as rounding at the claimed precision lets it.
        items: PROFILE: the status of each item that could be seen.
        pieces: POOL: one answer per piece.
        error: PREFIX: size of the error relative to that of the whole.
        seconds: what it took; 0 where it came from a store.
        verdict: what the one who asked keeps beside it; the search hands it on.
    """

    status: Status
    signature: Signature | None = None
    why: str = ""
    share: float | None = None
    culprit: bool | None = None
    claimed: bool = False
    items: Mapping[int, Status] = field(default_factory=dict)
    pieces: tuple[Answer, ...] = ()
    error: float | None = None
    seconds: float = 0.0
    verdict: Verdict | None = None


class Oracle(Protocol):
    """The world behind a search. Given the same asks it may be asked in any order, and several at once."""

    @property
    def pools(self) -> bool:
        """Does it take several disconnected pieces in one run?"""

    def ask(self, asks: Sequence[Query]) -> Sequence[Answer]:
        """One answer per ask. They may run side by side. What it cannot do is UNRESOLVED, never an exception."""
