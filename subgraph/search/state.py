"""State of a search: its target, and the facts that the answers have shown.

Concepts:
- *aim*: the meaning of failing, and the number of repetitions. It is immutable; an answer that
  changes it replaces it by another one.
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
    find_outcome,
)
from subgraph.types import frozen
from subgraph.verdict import NO_OUTPUT, Signature, Status

# From this repetition on, the full model is run only to see whether it still returns outputs.
STILL_REPETITION = 1000
# Regions in a row without output, before the full model is run again; doubled each time.
MAX_WITHOUT_OUTPUT = 4
_AGREED_ITEMS = 2_000_000  # of agreeing regions looked through for contradictions


@frozen
class Baseline:
    """The summary of the runs of the full model.

    Attributes:
        signature: The most frequent signature; None if no run failed.
        failed: Number of runs that failed with it.
        runs: Number of all runs.
        agrees: Whether every run agreed.
        claimed: Whether every run agreed, but some only within the claimed precision.
        why: The reason of the first run with that signature.
        is_contradicted: Whether runs on the same values contradict each other.
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
        target: The items whose error is explained: () for the full model, later the remaining
            items without the known culprits.
        signature: How the target fails; None if it does not.
        proven: Regions that are culprits whatever share they have, and why.
        any_failure: Whether a region that fails at all counts as failing, whatever it explains.
        first: The repetition that counts as the first.
        repeats: Number of passes after which a region counts as passed.
        wavers: Whether the full model fails in some runs of one process and not in others, so that
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

    def make_isolated_query(
        self, region: Items, repetition: int, *, explain: bool = False, fresh: bool = True
    ) -> Query:
        """Return the query about a region on captured values."""
        return Query(
            QueryKind.ISOLATED,
            region,
            repetition,
            fresh and self.takes_fresh(repetition),
            explain,
            target=self.target,
        )

    def make_in_place_query(self, kind: QueryKind, items: Items) -> Query:
        """Return the query about the outputs of items inside the model."""
        return Query(kind, items, self.first, self.takes_fresh(self.first))

    def takes_fresh(self, repetition: int) -> bool:
        """Return whether a repetition takes a process that has run nothing before."""
        return repetition > 0 and not self.wavers

    def outcome(self, region: Items, answer: Answer) -> RegionOutcome:
        """Return the meaning of an answer about a region."""
        outcome = find_outcome(answer, self.signature)
        guilty = self.any_failure or region in self.proven
        if guilty and outcome is RegionOutcome.MINOR:
            return RegionOutcome.FAIL
        return outcome


@dataclass
class Seen:
    """The results of the answers about regions.

    Attributes:
        suspect: The smallest region that failed since the last culprit.
        agreed: Regions that agreed.
        irrelevant: Regions that fail and explain little, with the answer.
        unresolved: Regions that could not be run or compared, with the answer.
        without_output: Number of regions in a row without output.
    """

    suspect: Items = ()
    agreed: list[Items] = field(default_factory=list)
    irrelevant: dict[Items, Answer] = field(default_factory=dict)
    unresolved: dict[Items, Answer] = field(default_factory=dict)
    without_output: int = 0

    def note(self, aim: Aim, query: Query, answer: Answer) -> RegionOutcome:
        """Note an answer; return its outcome."""
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

    def find_agreeing_supersets(self, region: Items) -> list[Items]:
        """Return the larger regions that contain this one and agreed, smallest first.

        They show that it is masked, or flaky. O(their size).
        """
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
        driver: The driver.
        parents: The items that each item reads.
        prior: Function that returns the probability of each item to be guilty, in any unit.
        labels: The kind of each item; None if unknown.
        whole: How the full model fails, and how often.
        aim: The target.
        seen: The results of the answers about regions.
        weights: The values of `prior`, changed by later answers.
        notes: The notes of `Findings`.
        max_without_output: Number of regions in a row without output after which the full model is
            run again.
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
        """Set the estimate of the runs to come, and whether they only repeat the full model."""
        self.driver.estimate = (runs, only_repeats)

    def look_for(self, target: Items, signature: Signature | None) -> None:
        """Take the error of these items as the target from now on."""
        self.aim = replace(self.aim, target=target, signature=signature)

    def prove(self, region: Items, why: str) -> None:
        """Note that a region is a culprit, whatever share it has."""
        self.aim = replace(self.aim, proven={**self.aim.proven, region: why})

    @contextmanager
    def count_any_failure(self) -> Iterator[None]:
        """Count a region that fails at all as failing, whatever it explains, in this block."""
        aim = self.aim
        self.aim = replace(aim, any_failure=True)
        try:
            yield
        finally:
            self.aim = aim

    # ------------------------------------------------------------ queries

    def ask(self, purpose: Purpose, queries: Sequence[Query]) -> Search[list[Answer]]:
        """Return the answers to queries; queries with a known answer are not sent again.

        Raises:
            SearchStopped: A budget is used up, or the candidate has changed; no query was sent.
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

    def ask_singly(self, purpose: Purpose, queries: Iterable[Query]) -> Search[list[Answer]]:
        """Return the answers to queries that are sent singly.

        If a budget ends, the answers before it remain.
        """
        answers = []
        for query in queries:
            answers += yield from self.ask(purpose, [query])
        return answers

    # ------------------------------------------------------------ regions

    def probe_all(
        self, purpose: Purpose, regions: Sequence[Items], *, explain: bool
    ) -> Search[list[RegionOutcome]]:
        """Return the outcome of each region: a failure is enough, a pass takes `repeats` passes."""
        outcomes = dict.fromkeys(regions, RegionOutcome.AGREE)
        for repetition in self.aim.passes:
            undecided = [region for region, seen in outcomes.items() if seen in NOT_HERE]
            queries = [
                self.aim.make_isolated_query(r, repetition, explain=explain) for r in undecided
            ]
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
        """Return the outcome of one region."""
        return (yield from self.probe_all(purpose, [region], explain=explain))[0]

    def fails(self, purpose: Purpose, region: Items) -> Search[bool]:
        """Return whether a region fails as the target does, and explains it."""
        return (yield from self.probe(purpose, region)) is RegionOutcome.FAIL

    def repeat(
        self, regions: Sequence[Items], times: int, max_fresh: int = 1 << 62
    ) -> Search[list[RegionOutcome]]:
        """Return the outcome of each region, this many times more, to confirm it.

        Only the first `max_fresh` runs of a region take fresh processes.
        """
        first = self.aim.first + 1
        again = range(first, first + times)
        fresh = again[:max_fresh]
        queries = [
            self.aim.make_isolated_query(region, repetition, fresh=repetition in fresh)
            for region, repetition in product(regions, again)
        ]
        answers = yield from self.ask_singly(Purpose.CONFIRM, queries)
        return [
            self.aim.outcome(query.items, answer)
            for query, answer in zip(queries, answers, strict=True)
        ]

    def tail(self, purpose: Purpose, rest: Items) -> Search[Answer]:
        """Return the first answer about the remaining items that does not agree, or the last one.

        If the outputs of the model agree anyway, the outputs of the remaining items are judged.
        """
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
        """Return the decisive answer about a region with answers: a failing one, or the first."""
        known = list(filter(None, (self.get_answer(region, k) for k in self.aim.passes)))
        return next(
            (a for a in known if self.aim.outcome(region, a) is RegionOutcome.FAIL), known[0]
        )

    def get_answer(self, region: Items, repetition: int) -> Answer | None:
        """Return the known answer about a region, with the share of the present target.

        Returns:
            None without such an answer.
        """
        return self.driver.get_answer(self.aim.make_isolated_query(region, repetition))
