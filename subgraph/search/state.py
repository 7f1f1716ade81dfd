"""State of a search: what it looks for, and what the answers so far have shown.

Concepts:
- *aim*: what counts as failing, and how often that is asked. It is immutable; whoever learns
  something that changes it puts another one in its place.
- *repetitions*: a region of a flaky candidate passes only after several passes. The first run of a
  region may share a process with others, any further one gets its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from subgraph.search.driver import Driver, Search, SearchStopped
from subgraph.search.oracle import (
    NOT_HERE,
    Answer,
    Items,
    Purpose,
    Query,
    QueryKind,
    RegionOutcome,
    outcome_of,
)
from subgraph.types import frozen
from subgraph.verdict import NO_OUTPUT, Signature, Status

STILL_REPETITION = (
    1000  # from this repetition on, the whole is run only to see whether it still gives output
)
MAX_WITHOUT_OUTPUT = (
    4  # regions in a row without output, before the whole is run again; doubled each time
)
_AGREED_ITEMS = 2_000_000  # of agreeing regions looked through for contradictions


@frozen
class Baseline:
    """The runs of the whole model, summed up.

    Attributes:
        signature: the most frequent one; None where no run failed.
        failed, runs: how many runs failed with it, of how many.
        agrees: every run agreed. claimed: but some only within the claimed precision.
        why: of the first run with that signature.
        is_contradicted: runs on the same values contradict each other.
    """

    signature: Signature | None = None
    failed: int = 0
    runs: int = 0
    agrees: bool = False
    claimed: bool = False
    why: str = ""
    is_contradicted: bool = False

    @property
    def rate(self) -> float:
        """Share of the runs that failed."""
        return self.failed / self.runs if self.runs else 1.0


@frozen
class Aim:
    """The target of a search, and the form of its queries.

    Attributes:
        target: the items whose error is looked for: () for the whole model, later what the known
            culprits leave.
        signature: how the target fails; None if it does not.
        proven: regions that are culprits whatever share they have, and why.
        any_failure: a region that fails at all counts as failing, whatever it explains.
        first: the repetition that counts as the first. repeats: how often a region must pass to
            count as passed.
        wavers: whether the full model fails in some runs of one process and not in others, so that
            repetitions take no fresh processes.
    """

    target: Items = ()
    signature: Signature | None = None
    proven: Mapping[Items, str] = field(default_factory=dict)
    any_failure: bool = False
    first: int = 0
    repeats: int = 1
    wavers: bool = False

    @property
    def flaky(self) -> bool:
        """Whether the full model, or a region that failed once, does not always fail."""
        return self.repeats > 1

    @property
    def no_output(self) -> bool:
        """Whether the target returns no output at all."""
        return self.signature in NO_OUTPUT

    @property
    def passes(self) -> range:
        """The repetitions that all have to pass."""
        return range(self.first, self.first + self.repeats)

    def isolated(self, region: Items, repetition: int, *, explain: bool = False) -> Query:
        """The query about a region on captured values."""
        return Query(
            QueryKind.ISOLATED,
            region,
            repetition,
            self.takes_fresh(repetition),
            explain,
            target=self.target,
        )

    def in_place(self, kind: QueryKind, items: Items) -> Query:
        """The query about what items give inside the model."""
        return Query(kind, items, self.first, self.takes_fresh(self.first))

    def takes_fresh(self, repetition: int) -> bool:
        """Return whether a repetition takes a process that has run nothing before."""
        return repetition > 0 and not self.wavers

    def outcome(self, region: Items, answer: Answer) -> RegionOutcome:
        """Return the meaning of an answer about a region."""
        outcome = outcome_of(answer, self.signature)
        guilty = self.any_failure or region in self.proven
        return RegionOutcome.FAIL if guilty and outcome is RegionOutcome.MINOR else outcome


@dataclass
class Seen:
    """The results of the answers about regions.

    Attributes:
        suspect: the smallest region that failed since the last culprit.
        agreed: regions that agreed. irrelevant, unresolved: the answer about each region that is
            one.
        without_output: regions in a row without output.
    """

    suspect: Items = ()
    agreed: list[Items] = field(default_factory=list)
    irrelevant: dict[Items, Answer] = field(default_factory=dict)
    unresolved: dict[Items, Answer] = field(default_factory=dict)
    without_output: int = 0

    def note(self, aim: Aim, query: Query, answer: Answer) -> RegionOutcome:
        """Take note of an answer; return what it means."""
        if query.kind is not QueryKind.ISOLATED:
            return RegionOutcome(answer.status)
        outcome = aim.outcome(query.items, answer)
        dead = answer.signature in NO_OUTPUT and not aim.no_output
        self.without_output = self.without_output + 1 if dead else 0
        if outcome is RegionOutcome.AGREE and query.repetition == aim.first:
            self.agreed.append(query.items)
        elif outcome is RegionOutcome.MINOR:
            self.irrelevant[query.items] = answer
        elif outcome is RegionOutcome.UNRESOLVED:
            self.unresolved[query.items] = answer
        return outcome

    def agreeing_supersets(self, region: Items) -> list[Items]:
        """Larger regions that contain this one and agreed, smallest first: is it masked, or flaky?
        O(their size)."""
        inside = set(region)
        budget = _AGREED_ITEMS
        supersets = []
        for agreed in self.agreed:
            budget -= len(agreed)
            if budget < 0:
                break
            if len(agreed) > len(region) and inside.issubset(agreed):
                supersets.append(agreed)
        return sorted(dict.fromkeys(supersets), key=len)


@dataclass
class SearchState:
    """All that is known during a search.

    Attributes:
        parents: the items that each item reads.
        prior: how likely each item is guilty. weights: the same, with what was learned since.
        labels: kind of each item; None if unknown.
        whole: how the whole fails, and how often.
        notes: as in `Findings`.
        max_without_output: at this many regions in a row without output, the whole is run again.
    """

    driver: Driver
    parents: Sequence[Sequence[int]]
    prior: Callable[[], Sequence[float]]
    labels: Sequence[Hashable] | None = None
    whole: Baseline = field(default_factory=Baseline)
    aim: Aim = field(default_factory=Aim)
    seen: Seen = field(default_factory=Seen)
    weights: list[float] = field(default_factory=list)
    notes: list[tuple[str, Items]] = field(default_factory=list)
    max_without_output: int = MAX_WITHOUT_OUTPUT

    @property
    def n(self) -> int:
        """Number of items."""
        return len(self.parents)

    def expect(self, runs: int, *, only_repeats: bool = False) -> None:
        """Say how many runs are to come, and whether they only repeat the whole."""
        self.driver.estimate = (runs, only_repeats)

    def look_for(self, target: Items, signature: Signature | None) -> None:
        """Take the error of these items as the target from now on."""
        self.aim = replace(self.aim, target=target, signature=signature)

    def prove(self, region: Items, why: str) -> None:
        """Note that a region is a culprit, whatever share it has."""
        self.aim = replace(self.aim, proven={**self.aim.proven, region: why})

    @contextmanager
    def counting_any_failure(self) -> Iterator[None]:
        """Count a region that fails at all as failing, whatever it explains, in this block."""
        aim = self.aim
        self.aim = replace(aim, any_failure=True)
        try:
            yield
        finally:
            self.aim = aim

    # ------------------------------------------------------------ asking

    def ask(self, purpose: Purpose, queries: Sequence[Query]) -> Search[list[Answer]]:
        """Answers to queries; those answered before are not asked again.

        Raises:
            SearchStopped: a budget is used up, or the candidate has changed; nothing was asked.
        """
        if self.seen.without_output >= self.max_without_output:
            self.seen.without_output = 0
            self.max_without_output = 2 * self.max_without_output
            query = Query(QueryKind.WHOLE, (), STILL_REPETITION + self.max_without_output, True)
            (answer,) = yield from self.ask(Purpose.AGAIN, [query])
            if answer.signature in NO_OUTPUT:
                raise SearchStopped(
                    f"the candidate has stopped working: {answer.why or answer.signature}"
                )
        return (yield from self.driver.ask(purpose, queries, partial(self.seen.note, self.aim)))

    def one_by_one(self, purpose: Purpose, queries: Iterable[Query]) -> Search[list[Answer]]:
        """As `ask`, so that a budget that ends leaves the answers before it."""
        answers = []
        for query in queries:
            answers += yield from self.ask(purpose, [query])
        return answers

    # ------------------------------------------------------------ regions

    def probe_all(
        self, purpose: Purpose, regions: Sequence[Items], *, explain: bool
    ) -> Search[list[RegionOutcome]]:
        """Outcome of each region: one failure is enough, a pass takes `repeats` passes."""
        outcomes = dict.fromkeys(regions, RegionOutcome.AGREE)
        for repetition in self.aim.passes:
            undecided = [region for region, seen in outcomes.items() if seen in NOT_HERE]
            queries = [self.aim.isolated(r, repetition, explain=explain) for r in undecided]
            answers = (yield from self.ask(purpose, queries)) if queries else []
            for region, answer in zip(undecided, answers, strict=True):
                outcome = self.aim.outcome(region, answer)
                if outcome is not RegionOutcome.AGREE:  # a failure that explains little stays one
                    outcomes[region] = outcome
        for region, outcome in outcomes.items():
            suspect = self.seen.suspect
            if outcome is RegionOutcome.FAIL and (not suspect or len(region) < len(suspect)):
                self.seen.suspect = region
        return [outcomes[r] for r in regions]

    def probe(
        self, purpose: Purpose, region: Items, *, explain: bool = False
    ) -> Search[RegionOutcome]:
        """Outcome of one region."""
        return (yield from self.probe_all(purpose, [region], explain=explain))[0]

    def fails(self, purpose: Purpose, region: Items) -> Search[bool]:
        """Whether a region fails as what is looked for does, and explains it."""
        return (yield from self.probe(purpose, region)) is RegionOutcome.FAIL

    def repeat(self, regions: Sequence[Items], times: int) -> Search[list[RegionOutcome]]:
        """Outcome of each region, this many times more, to confirm it."""
        first = self.aim.first + 1
        again = range(first, first + times)
        queries = [self.aim.isolated(r, repetition) for r, repetition in product(regions, again)]
        answers = yield from self.one_by_one(Purpose.CONFIRM, queries)
        return [
            self.aim.outcome(query.items, answer)
            for query, answer in zip(queries, answers, strict=True)
        ]

    def tail(self, purpose: Purpose, rest: Items) -> Search[Answer]:
        """The answer about what is left without some items: the first that does not agree; if all
        do, the last. Where the model's outputs agree anyway, its own outputs are judged."""
        if self.aim.signature is None and rest:
            yield from self.probe(purpose, rest)
            return self.answer_to(rest)
        answer = Answer(Status.AGREE)
        for repetition in self.aim.passes if rest else ():
            is_fresh = self.aim.takes_fresh(repetition)
            query = Query(QueryKind.REST, rest, repetition, is_fresh, target=self.aim.target)
            (answer,) = yield from self.ask(purpose, [query])
            if not answer.agrees:
                break
        return answer

    def answer_to(self, region: Items) -> Answer:
        """The decisive answer about a region that was asked about: a failing one, else the
        first."""
        known = list(filter(None, (self.known(region, k) for k in self.aim.passes)))
        return next(
            (a for a in known if self.aim.outcome(region, a) is RegionOutcome.FAIL), known[0]
        )

    def known(self, region: Items, repetition: int) -> Answer | None:
        """The answer about a region, if it was asked about; with the share of the present
        target."""
        return self.driver.known(self.aim.isolated(region, repetition))
