"""Query, answer, the oracle that answers, and the results of a search.

A search has no other connection to the outside.

Insight: each query and each answer is one immutable value. Batches, stored answers, interrupted
searches and simulated candidates therefore need no more than one method.

An answer about a region becomes an outcome of the search: a region fails (FAIL) if it fails as the
target does and explains the target's error. One that fails and explains little (MINOR) steers the
search past it, but never counts as agreeing. Anything else is unresolved, and never a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import Protocol, TypeAlias

from subgraph.types import Strings, frozen
from subgraph.verdict import NO_OUTPUT, Graded, Signature, Status, Verdict

Items: TypeAlias = tuple[int, ...]
# The outputs have no difference to the outputs of the reference: there is no error to explain.
NO_ERROR = frozenset({Signature.SHAPE, Signature.MISSING})


def exclude(items: Items, removed: Collection[int]) -> Items:
    """Return the items without some of them."""
    return tuple(k for k in items if k not in removed)


class QueryKind(StrEnum):
    """The kind of a `Query` about items."""

    WHOLE = "whole"  # run the whole model on the model's inputs
    CLAIMED = "claimed"  # judge the whole again, at the precision that the candidate claims: no run
    # Run these items with every intermediate tensor as an output, to find the wrong ones.
    PROFILE = "profile"
    # Run the full model, in which all items but these are rewritten, instead of ISOLATED or REST.
    REWRITTEN = "rewritten"
    ISOLATED = "isolated"  # run only these items, on captured reference values
    REST = "rest"  # the same run, judged at the model's outputs when all other items are right
    PREFIX = "prefix"  # run the first items on the model's inputs: how large is the error there?


@frozen
class Query:
    """One query about a candidate.

    Attributes:
        kind: The kind of the query.
        items: The items, ascending; empty for WHOLE and CLAIMED.
        repetition: 0, 1, …: a higher number requires another run, whatever is stored for lower
            ones.
        fresh: Whether the run takes a process that has run nothing before; two queries that differ
            only in it are equal.
        explain: Whether the share is determined even if the region agrees.
        target: ISOLATED and REST: the items whose error is to be explained; () for the error of the
            full model.
        pool: ISOLATED: regions with the same number, which is not 0, run side by side in one model;
            no share is determined for a region that fails there.
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
        """The query for the run alone, without the choice of outputs and the way to judge them."""
        kind = QueryKind.ISOLATED if self.kind is QueryKind.REST else self.kind
        items = () if self.pool else self.items
        return replace(self, kind=kind, items=items, explain=False, target=())

    @property
    def is_whole(self) -> bool:
        """Whether it is about the full model, and not about items of it."""
        return self.kind in (QueryKind.WHOLE, QueryKind.CLAIMED)

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
        made_of_target: share of it that the items cause alone; None if it is not known separately
            from the share that disappears without them.
        of_model: share of the full model's error; None if unknown.
        is_culprit: whether the items explain the target's failure; None if unknown. For REST:
            whether the error that disappeared is the one that the removed items cause alone.
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
        if isinstance(self.detail, ErrorShare):
            return self.detail
        return UNKNOWN_SHARE

    @property
    def items(self) -> ItemStatuses:
        """The items that are wrong; without statuses if no item could be compared."""
        if isinstance(self.detail, ItemStatuses):
            return self.detail
        return NO_ITEMS

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
        if isinstance(self.detail, PrefixError):
            return self.detail.relative
        return None


class Ahead(Protocol):
    """Function that names the runs that a search may still need."""

    def __call__(
        self, seen: Mapping[Query, Status], known: Mapping[Query, Answer]
    ) -> Iterator[Query]:
        """Yield the runs, most likely first: those that the search waits for, then the next ones.

        Args:
            seen: The status of each run that ended and that no query has required yet.
            known: Answers that the search has not received yet, by the query without its
                repetition.
        """


class Oracle(Protocol):
    """Answers the queries of a search, in any order and several at once."""

    def ask(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """Return one answer per query, in their order.

        A query that cannot be answered is UNRESOLVED, never an exception.
        """


class RegionOutcome(StrEnum):
    """The meaning of an answer about a region for a search."""

    FAIL = "fail"  # it fails, and explains what is looked for
    MINOR = "minor"  # it fails, and explains little
    AGREE = "agree"
    UNRESOLVED = "unresolved"


NOT_HERE = (RegionOutcome.AGREE, RegionOutcome.MINOR)  # the target's error has its cause elsewhere


def find_outcome(answer: Answer, signature: Signature | None) -> RegionOutcome:
    """Return the outcome of an answer about a region.

    Args:
        answer: The answer.
        signature: How the target fails. None if the full model does not fail. Then a region that
            fails has nothing to explain; one that is refused alone does run in the full model, and
            nothing is known about it.
    """
    if answer.agrees:
        return RegionOutcome.AGREE
    if signature is None:
        if answer.signature is Signature.REFUSED:
            return RegionOutcome.UNRESOLVED
        return RegionOutcome(answer.status)
    if answer.signature in NO_OUTPUT:
        explains = answer.signature is signature or answer.share.is_culprit is True
        if explains:
            return RegionOutcome.FAIL
        return RegionOutcome.UNRESOLVED
    if answer.signature is None or answer.is_unresolved:
        return RegionOutcome.UNRESOLVED
    if answer.signature is Signature.PRECISION is signature:
        return RegionOutcome.MINOR  # rounding everywhere: no piece is to blame
    explains = answer.share.is_culprit is True or (
        answer.signature is signature and signature in NO_ERROR
    )
    if explains:
        return RegionOutcome.FAIL
    return RegionOutcome.MINOR


# ------------------------------------------------------------ results
# The results of a search: a Step for each answer, and the Findings at its end. Plain data.


class Purpose(StrEnum):
    """The purpose of a query."""

    BASELINE = "baseline"
    AGAIN = "again"  # the full model again, in another process
    PROFILE = "profile"
    GALLOP = "gallop"
    HALVE = "halve"
    SHRINK = "shrink"  # dropping items, and certifying that none can be dropped
    # Whether the remaining items or a region fail at all, before a search there or after a culprit.
    TAIL = "tail"
    CONFIRM = "confirm"  # fresh processes, repetitions, contradictions
    GROWTH = "growth"  # prefixes, and shares of pieces
    EVERYWHERE = "everywhere"  # single items of all kinds, if none has agreed
    ALIKE = "alike"  # regions of the kind of two culprits: do they fail as well?


@frozen
class Step:
    """One answer and its effect.

    Attributes:
        number: Number of the step, from 1.
        purpose: The purpose of the query.
        query: The query.
        answer: The answer.
        outcome: The outcome for this search: FAIL only if the region fails as the target does and
            explains it; a region that fails and explains little is MINOR.
        estimated_runs: Number of runs to come.
        only_repeats: Whether these are only runs of the full model, which has agreed in each run.

    >>> import subgraph
    >>> step, *others = subgraph.bisect(subgraph.load("resnet50.onnx"))
    >>> step.number, step.purpose.value, step.outcome.value
    (1, 'baseline', 'agree')
    """

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
    """The pieces of an error that accumulates over many items.

    Attributes:
        growth: (items of the prefix, error relative to that of the full model), ascending.
        contributors: pieces with their shares, largest first.
    """

    growth: tuple[tuple[int, float], ...] = ()
    contributors: tuple[tuple[Items, float], ...] = ()


@frozen
class UndecidedItems:
    """Items of which it is not known whether a region needs them.

    Attributes:
        refused: the region could not be run without them.
        minor: the region still fails without them, though it explains little.
    """

    refused: Items = ()
    minor: Items = ()


@frozen
class Finding:
    """One conclusion.

    Attributes:
        items: the region; for `unresolved` the smallest one still in doubt.
        certified: 1-minimal: the region failed alone in a fresh process, and agreed without any
            single item.
        share_of_model: of the whole model's error; None if unknown or meaningless.
        runs: (failed runs, all runs) of the region, in fresh processes unless one process wavers.
        neighbor: the region without one item, if that agrees; None for a single item.
        undecided: items without which the region could not be run, or explains little, so that it
            is not certified.
        alike: items of all kinds, each of which deviates alone.
        repeats: regions of the same kind that fail in the same way; of a kind that is refused, only
            one of them was run.
        accumulation: `accumulated`: the way in which the error comes together.
    """

    kind: FindingKind
    items: Items
    signature: Signature | None
    certified: bool = False
    share_of_model: float | None = None
    runs: tuple[int, int] = (1, 1)
    neighbor: Items | None = None
    undecided: UndecidedItems = UndecidedItems()
    alike: Items = ()
    repeats: tuple[Items, ...] = ()
    why: str = ""
    accumulation: Accumulation = Accumulation()

    @property
    def is_culprit(self) -> bool:
        """Whether the region is a culprit."""
        return self.kind is FindingKind.CULPRIT

    @property
    def is_unresolved(self) -> bool:
        """Whether it is not known what is wrong in the region."""
        return self.kind is FindingKind.UNRESOLVED

    @property
    def everywhere(self) -> bool:
        """Whether it represents nearly all items, whatever they compute."""
        return bool(self.alike)

    @property
    def regions(self) -> tuple[Items, ...]:
        """The region, and those that it represents."""
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
    ELSEWHERE = "elsewhere"  # the full model disagrees, the region that the user named agrees alone
    UNRESOLVED = "unresolved"


@frozen
class Counts:
    """Cost of a search. A query that is repeated in the same search costs nothing.

    Attributes:
        runs: Number of runs, by purpose.
        compiled: Number of items sent to the candidate, by purpose.
    """

    runs: Mapping[Purpose, int] = field(default_factory=dict)
    compiled: Mapping[Purpose, int] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        """Return the cost of both searches."""
        runs = Counter(self.runs) + Counter(other.runs)
        return Counts(runs, Counter(self.compiled) + Counter(other.compiled))

    def exclude(self, *purposes: Purpose) -> Counts:
        """Return the cost for all purposes but these."""
        kept = (
            {p: n for p, n in counted.items() if p not in purposes}
            for counted in (self.runs, self.compiled)
        )
        return Counts(*kept)

    def total(self, *without: Purpose) -> int:
        """Return the runs for all purposes but these."""
        return sum(self.exclude(*without).runs.values())

    def items(self, *without: Purpose) -> int:
        """Return the compiled items for all purposes but these."""
        return sum(self.exclude(*without).compiled.values())


@frozen
class Findings:
    """Result of a search.

    Attributes:
        outcome: The result in one word.
        counts: The cost of the search.
        signature: How the full model fails; None if it agrees, whatever a region of it does.
        findings: Culprits by share, largest first; then the others.
        irrelevant: Regions that fail alone and explain little.
        unresolved: Regions that could not be run or compared.
        probe_sensitive: Whether the error vanished when intermediate tensors were read.
        complete: Whether the model agrees if the culprits run on the reference: the result of one
            run of all other items.
        stopped: Why the search ended early; "" if it did not.
        budget_spent: Whether it ended early because the runs or the time were used up.
        notes: Notes for the reader of a report: a text, and the items that it ends with.
        names: The names of each item for people; empty if the items have no names.

    >>> import subgraph
    >>> bisection = subgraph.bisect(subgraph.load("resnet50.onnx"))
    >>> steps = list(bisection)
    >>> bisection.findings.outcome.value, bisection.findings.findings
    ('agree', ())
    """

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

    @property
    def agrees(self) -> bool:
        """Whether the candidate agrees, perhaps only within the precision that it claims."""
        return self.outcome in (Outcome.AGREE, Outcome.CLAIMED)
