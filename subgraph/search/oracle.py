"""Query, answer, and the oracle that answers: all that a search knows of the outside; and the
results of a search.

Insight: each query and each answer is one immutable value. Batches, stored answers, interrupted
searches and simulated candidates therefore need no more than one method.

An answer about a region becomes an outcome of the search: a region fails (FAIL) if it fails as the
target does and explains the target's error. One that fails and explains little (MINOR) steers the
search past it, but never counts as agreeing. Anything else is unresolved, and never a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import Protocol, TypeAlias

from subgraph.types import Strings, frozen
from subgraph.verdict import NO_OUTPUT, Graded, Signature, Status, Verdict

Items: TypeAlias = tuple[int, ...]
# It gives outputs that have no difference to the reference's: there is no error to explain.
NO_ERROR = frozenset({Signature.SHAPE, Signature.MISSING})


class QueryKind(StrEnum):
    """The kind of question about the items of a `Query`."""

    WHOLE = "whole"  # run the whole model on the model's inputs
    CLAIMED = "claimed"  # judge the whole again, at the precision that the candidate claims: no run
    # run these items with every intermediate tensor as an output: which items are wrong?
    PROFILE = "profile"
    # run the whole model, in which all items but these are rewritten: what ISOLATED or REST became
    REWRITTEN = "rewritten"
    ISOLATED = "isolated"  # run only these items, on captured reference values
    REST = "rest"  # the same run, judged at the model's outputs when all other items are right
    PREFIX = "prefix"  # run the first items on the model's inputs: how large is the error there?


@frozen
class Query:
    """One question about a candidate.

    Attributes:
        items: ascending; empty for WHOLE and CLAIMED.
        repetition: 0, 1, …: a higher number asks for another run, whatever is stored for lower
            ones.
        fresh: run in a process that has run nothing before; no part of what is asked.
        pool: ISOLATED: regions with the same number, which is not 0, run side by side in one model;
            of what fails there, no share is determined.
        explain: determine the share even where the region agrees.
        target: ISOLATED and REST: the items whose error is to be explained; () for the whole
            model's.
    """

    kind: QueryKind
    items: Items = ()
    repetition: int = 0
    fresh: bool = field(default=False, compare=False)
    explain: bool = False
    target: Items = ()
    pool: int = 0

    @property
    def run(self) -> Query:
        """The query for the run alone: what is judged, and how, is left out."""
        kind = QueryKind.ISOLATED if self.kind is QueryKind.REST else self.kind
        items = () if self.pool else self.items
        return replace(self, kind=kind, items=items, explain=False, target=())

    @property
    def runs_alone(self) -> bool:
        """Whether the answer takes a run that no other query of its batch shares."""
        return self.kind is not QueryKind.CLAIMED and not self.pool

    @property
    def once(self) -> Query:
        """The query that this one repeats, or itself."""
        return replace(self, repetition=0, fresh=False)


@frozen
class ErrorShare:
    """The share of an error for which some items account: detail of an answer to ISOLATED or REST.

    Attributes:
        of_target: share of the target's error; None if unknown.
        made_of_target: share of it that the items make alone, if that is known apart from what is
            healed without them.
        of_model: share of the full model's error; None if unknown.
        is_culprit: whether the items explain the target's failure; None if unknown. For REST:
            whether the error that disappeared is the one that the removed items make alone.
        largest_error: the largest relative error of an output; None if unknown.
    """

    of_target: float | None = None
    made_of_target: float | None = None
    of_model: float | None = None
    is_culprit: bool | None = None
    largest_error: float | None = None


@frozen
class ClaimedAgreement:
    """The candidate agrees, but only at the precision that it claims: detail of an answer to WHOLE
    or CLAIMED."""


@frozen
class ContradictoryRuns:
    """The candidate fails, and its runs on the same values contradict each other: detail of an
    answer to WHOLE."""


@frozen
class ItemStatuses:
    """The items that are wrong inside the model: detail of an answer to PROFILE.

    Attributes:
        statuses: status of each item that could be compared.
        local_errors: relative error of each item whose outputs are not what the reference computes
            from the values that it is fed there; None if unknown.
    """

    statuses: Mapping[int, Status] = field(default_factory=dict)
    local_errors: Mapping[int, float] | None = None


@frozen
class PrefixError:
    """The error of the first items: detail of an answer to PREFIX.

    Attributes:
        relative: error relative to that of the full model.
    """

    relative: float


Detail: TypeAlias = ErrorShare | ClaimedAgreement | ContradictoryRuns | ItemStatuses | PrefixError
UNKNOWN_SHARE = ErrorShare()
NO_ITEMS = ItemStatuses()


@frozen
class Answer(Graded):
    """Answer of an oracle to one query.

    Attributes:
        status: by the criterion. A candidate that does not run: FAIL with `refused`, `crash` or
            `timeout`, or UNRESOLVED with one of them; both mean the same.
        signature: how the candidate fails.
        why: one line for people.
        seconds: duration of the run; for a stored answer, of the run that was stored.
        verdict: passed on to whoever reads the steps; the search does not look into it.
        detail: what only this kind of query reveals; None if nothing is known beyond the status.
    """

    status: Status
    signature: Signature | None = None
    why: str = ""
    seconds: float = 0.0
    verdict: Verdict | None = None
    detail: Detail | None = None

    @property
    def share(self) -> ErrorShare:
        """The share of the error for which the items account; all fields are None if that is
        unknown."""
        return self.detail if isinstance(self.detail, ErrorShare) else UNKNOWN_SHARE

    @property
    def items(self) -> ItemStatuses:
        """The items that are wrong; without statuses if no item could be compared."""
        return self.detail if isinstance(self.detail, ItemStatuses) else NO_ITEMS

    @property
    def agrees_only_as_claimed(self) -> bool:
        """Whether the candidate agrees only at the precision that it claims."""
        return isinstance(self.detail, ClaimedAgreement)

    @property
    def is_contradicted(self) -> bool:
        """Whether runs on the same values contradict each other."""
        return isinstance(self.detail, ContradictoryRuns)

    @property
    def prefix_error(self) -> float | None:
        """Error of a prefix, relative to that of the full model."""
        return self.detail.relative if isinstance(self.detail, PrefixError) else None


class Ahead(Protocol):
    """Tells which runs a search may still need."""

    def __call__(
        self, seen: Mapping[Query, Status], known: Mapping[Query, Answer]
    ) -> Iterator[Query]:
        """The runs, most likely first: those that the search waits for, then those that it would
        ask for next.

        `seen`: how runs ended that nobody has asked about yet. `known`: answers that the search was
        not yet told, by the query without its repetition.
        """


class Oracle(Protocol):
    """Answers the queries of a search, in any order and several at once."""

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """One answer per query, in their order. A query that cannot be answered is UNRESOLVED,
        never an exception."""


class RegionOutcome(StrEnum):
    """The meaning of an answer about a region for a search."""

    FAIL = "fail"  # it fails, and explains what is looked for
    MINOR = "minor"  # it fails, and explains little
    AGREE = "agree"
    UNRESOLVED = "unresolved"


NOT_HERE = (RegionOutcome.AGREE, RegionOutcome.MINOR)  # what is looked for lies elsewhere


def outcome_of(answer: Answer, signature: Signature | None) -> RegionOutcome:
    """The outcome of an answer about a region, when the target fails with `signature`.

    None: the whole does not fail. Then a region that fails has nothing to explain; one that is
    refused alone does run in the whole, and nothing is known about it.
    """
    if answer.agrees:
        return RegionOutcome.AGREE
    if signature is None:
        return (
            RegionOutcome.UNRESOLVED
            if answer.signature is Signature.REFUSED
            else RegionOutcome(answer.status)
        )
    if answer.signature in NO_OUTPUT:
        explains = answer.signature is signature or answer.share.is_culprit is True
        return RegionOutcome.FAIL if explains else RegionOutcome.UNRESOLVED
    if answer.signature is None or answer.is_unresolved:
        return RegionOutcome.UNRESOLVED
    if answer.signature is Signature.PRECISION is signature:
        return RegionOutcome.MINOR  # rounding everywhere: no piece is to blame
    explains = answer.share.is_culprit is True or (
        answer.signature is signature and signature in NO_ERROR
    )
    return RegionOutcome.FAIL if explains else RegionOutcome.MINOR


# ------------------------------------------------------------ results
# The results of a search: a Step for each answer, and the Findings at its end. Plain data.


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


@frozen
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


@frozen
class Accumulation:
    """The pieces of an error that is made in many places.

    Attributes:
        growth: (items of the prefix, error relative to the whole's), ascending.
        contributors: pieces with their shares, largest first.
    """

    growth: tuple[tuple[int, float], ...] = ()
    contributors: tuple[tuple[Items, float], ...] = ()


@frozen
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
        accumulation: `accumulated`: the way in which the error comes together.
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
    accumulation: Accumulation = Accumulation()

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


@frozen
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


@frozen
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


@frozen
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
