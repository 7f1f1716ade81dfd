"""Query, answer, and the oracle that answers: all that a search knows of the outside.

Insight: each query and each answer is one immutable value. Batches, stored answers, interrupted searches and simulated
candidates therefore need no more than one method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, TypeAlias

from subgraph.verdict import Signature, Status, Verdict

Items: TypeAlias = tuple[int, ...]


class QueryKind(StrEnum):
    """What is asked about the items of a `Query`."""

    WHOLE = "whole"  # run the whole model on the model's inputs
    CLAIMED = "claimed"  # judge the whole again, at the precision that the candidate claims: no run
    PROFILE = "profile"  # run these items with every intermediate tensor as an output: which items are wrong?
    ISOLATED = "isolated"  # run only these items, on captured reference values
    REST = "rest"  # the same run, judged at the model's outputs when all other items are right
    PREFIX = "prefix"  # run the first items on the model's inputs: how large is the error there?


@dataclass(frozen=True)
class Query:
    """One question about a candidate.

    Attributes:
        items: ascending; empty for WHOLE and CLAIMED.
        repetition: 0, 1, …: a higher number asks for another run, whatever is stored for lower ones.
        fresh: run in a process that has run nothing before; no part of what is asked.
        explain: determine the share even where the region agrees.
        target: ISOLATED and REST: the items whose error is to be explained; () for the whole model's.
    """

    kind: QueryKind
    items: Items = ()
    repetition: int = 0
    fresh: bool = field(default=False, compare=False)
    explain: bool = False
    target: Items = ()

    @property
    def run(self) -> Query:
        """The query for the run alone: what is judged, and how, is left out."""
        kind = QueryKind.ISOLATED if self.kind is QueryKind.REST else self.kind
        return replace(self, kind=kind, explain=False, target=())

    @property
    def once(self) -> Query:
        """The query that this one repeats, or itself."""
        return replace(self, repetition=0, fresh=False)


@dataclass(frozen=True)
class Answer:
    """What an oracle says to one query.

    Attributes:
        status: by the criterion. A candidate that does not run: FAIL with `refused`, `crash` or `timeout`, or
            UNRESOLVED with one of them; both mean the same.
        why: one line for people.
        share_of_target: part of the target's error that the items account for; None if unknown.
        made_of_target: part of it that they make alone, where that is known apart from what is healed without them.
        share_of_model: the same part of the whole model's error.
        culprit: do the items explain the target's failure? None if unknown. Read of failing ISOLATED queries. REST: is
            what disappeared from the target's error what the items left out give alone?
        claimed: WHOLE and CLAIMED: the candidate agrees, but only within rounding at the precision that it claims.
        items: PROFILE: status by item, of the items that could be compared.
        local: PROFILE: items whose outputs are not what the reference makes of the values that they read there, with
            the relative error; None if unknown.
        error: PREFIX: error relative to that of the whole. ISOLATED: the largest relative error of an output.
        seconds: duration of the run; for a stored answer, of the run that was stored.
        verdict: passed on to whoever reads the steps; the search does not look into it.
    """

    status: Status
    signature: Signature | None = None
    why: str = ""
    share_of_target: float | None = None
    made_of_target: float | None = None
    share_of_model: float | None = None
    culprit: bool | None = None
    claimed: bool = False
    items: Mapping[int, Status] = field(default_factory=dict)
    local: Mapping[int, float] | None = None
    error: float | None = None
    seconds: float = 0.0
    verdict: Verdict | None = None


class Ahead(Protocol):
    """Tells which runs a search may still need."""

    def __call__(self, seen: Mapping[Query, Status], known: Mapping[Query, Answer]) -> Iterator[Query]:
        """The runs, most likely first: those that the search waits for, then those that it would ask for next.

        `seen`: how runs ended that nobody has asked about yet. `known`: answers that the search was not yet told, by
        the query without its repetition.
        """


class Oracle(Protocol):
    """Answers the queries of a search, in any order and several at once."""

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """One answer per query, in their order. A query that cannot be answered is UNRESOLVED, never an exception."""
