"""Everything asked so far: the one door through which a search asks and an answer is accepted.

Concepts:
- *places*: the items renumbered in cut order, 0 … n−1. All of the search works on ascending tuples of places; only the
  door translates.
- *memo*: nothing is asked twice. A search that starts over (it learned that the candidate is flaky) runs through its
  old answers for nothing.
- *repetitions*: a flaky candidate's pass counts after so many of them.

Insight: all state of a search is here, so each strategy is a plain generator that yields Steps and returns its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from subgraph.search.cost import CostModel
from subgraph.search.findings import Counts, Observation, Purpose, Step
from subgraph.search.oracle import Answer, Items, Oracle, Query, QueryKind
from subgraph.search.predicate import SILENT, outcome, pointless
from subgraph.verdict import Signature, Status

T = TypeVar("T")
Search: TypeAlias = Generator[Step, None, T]

NO_RUN = frozenset({QueryKind.CLAIMED})
STILL = 1000  # repetitions of the whole from here on ask whether it is still the same
MUTE = 4  # regions in a row that gave no values, before the whole is asked whether it still does; then twice as many
_KNOWN_PLACES = 2_000_000  # places of agreeing regions kept for doubts; beyond, old answers are not looked through


class SearchStopped(Exception):
    """It cannot go on: a budget is used up, or the candidate is no longer what it was; says which."""


class SearchRestart(Exception):
    """What the search believed no longer holds; it starts over, through the answers it has."""


@dataclass
class SearchState:
    """Attributes:
    order: item at each place. parents: of each place, as places.
    prior: how likely each place is guilty. weights: the same, and what was learned since.
    signature: how the whole fails, once that is known.
    first: the repetition that counts as the first; fresh: every ask wants a new process.
    repeats: how often a region must pass to pass.
    left, more: what the next steps say of what is left.
    suspect: the smallest region of the current hunt that failed.
    notes: what a reader of the result should know, and the items that it is about.
    mute: so many regions in a row gave no values, though the whole does. patience: at so many the whole is asked again.
    """

    question: Oracle
    order: Items
    parents: Sequence[Sequence[int]]
    prior: Sequence[float]
    workers: int = 1
    max_trials: int | None = None
    deadline: float | None = None
    clock: Callable[[], float] = lambda: 0.0
    signature: Signature | None = None
    first: int = 0
    fresh: bool = False
    repeats: int = 1
    left: int = 0
    more: int = 0
    suspect: Items = ()
    weights: list[float] = field(default_factory=list)
    notes: list[tuple[str, Items]] = field(default_factory=list)
    cost: CostModel = field(default_factory=CostModel)
    memo: dict[tuple[QueryKind, Items | tuple[Items, ...], int], Answer] = field(default_factory=dict)
    explained: set[tuple[Items, int]] = field(default_factory=set)
    agreed: list[Items] = field(default_factory=list)
    aside: dict[Items, Observation] = field(default_factory=dict)
    noted: dict[Items, Observation] = field(default_factory=dict)
    runs: Counter[Purpose] = field(default_factory=Counter)
    compiled: Counter[Purpose] = field(default_factory=Counter)
    rounds: int = 0
    mute: int = 0
    patience: int = MUTE
    _queue: list[Step] = field(default_factory=list)
    _steps: int = 0

    @property
    def n(self) -> int:
        """How many items there are."""
        return len(self.order)

    @property
    def silent(self) -> bool:
        """Does the whole give no values at all?"""
        return self.signature in SILENT

    @property
    def counts(self) -> Counts:
        """What it cost up to here."""
        return Counts(dict(self.runs), dict(self.compiled), self.rounds)

    def items(self, places: Iterable[int]) -> Items:
        """Places -> items, ascending."""
        return tuple(sorted(self.order[k] for k in places))

    # ------------------------------------------------------------------------------------------------ asking

    def flush(self) -> Search[None]:
        """Hand out the steps that wait: what they changed is known by now."""
        for step in self._queue:
            yield Step(step.number, step.purpose, step.ask, step.answer, step.outcome, self.left, self.more)
        self._queue.clear()

    def ask(self, purpose: Purpose, asks: Sequence[Query]) -> Search[list[Answer]]:
        """Answers to asks whose items are places. What is known already is not asked.

        Raises: Spent: a budget is used up, or the candidate has changed; nothing was asked.
        """
        yield from self.flush()
        if self.mute >= self.patience:
            yield from self._still()
        new = [a for a in dict.fromkeys(asks) if not self._known(a)]
        if new:
            if self.max_trials is not None and self.runs.total() + self._to_run(new) > self.max_trials:
                raise SearchStopped(f"{self.max_trials} trials are used up")
            if self.deadline is not None and self.clock() >= self.deadline:
                raise SearchStopped("the time is used up")
            self.rounds += self._to_run(new) > 0
            worded = [self._worded(a) for a in new]
            for ask, word, answer in zip(new, worded, self.question.ask(worded), strict=True):
                self._accept(purpose, ask, word, answer)
        return [self.memo[_key(a)] for a in asks]

    def _still(self) -> Search[None]:
        """Does the whole still give values?"""
        self.mute, self.patience = 0, 2 * self.patience
        (answer,) = yield from self.ask(Purpose.AGAIN, [Query(QueryKind.WHOLE, (), STILL + self.patience, True)])
        if answer.signature in SILENT:
            raise SearchStopped(f"the candidate is no longer what it was: {answer.why or answer.signature}")

    def _to_run(self, asks: Sequence[Query]) -> int:
        return sum(a.kind not in NO_RUN and _key(a) not in self.memo for a in asks)

    def _known(self, ask: Query) -> bool:
        answer = self.memo.get(_key(ask))
        if answer is None:
            return False
        return not ask.explain or answer.share is not None or (ask.items, ask.repetition) in self.explained

    def _worded(self, ask: Query) -> Query:
        pieces = tuple(self.items(p) for p in ask.pieces)
        return Query(ask.kind, self.items(ask.items), ask.repetition, ask.fresh, ask.explain, pieces)

    def _accept(self, purpose: Purpose, ask: Query, word: Query, answer: Answer) -> None:
        size = len(ask.items) or self.n
        if _key(ask) not in self.memo and ask.kind not in NO_RUN:
            self.runs[purpose] += 1
            self.compiled[purpose] += size
            self.cost.add(size, answer.seconds)
        if ask.explain:
            self.explained.add((ask.items, ask.repetition))
        self.memo[_key(ask)] = answer
        means = answer.status
        if ask.kind is QueryKind.ISOLATED:
            means = outcome(answer, self.signature)
            self.mute = self.mute + 1 if answer.signature in SILENT and not self.silent else 0
            self._note(ask, answer, means)
        self._steps += 1
        self._queue.append(Step(self._steps, purpose, word, answer, means, self.left, self.more))

    def _note(self, ask: Query, answer: Answer, means: Status) -> None:
        items = ask.items
        if means is Status.AGREE and ask.repetition == self.first:
            self.agreed.append(items)
        if pointless(answer) and answer.signature is self.signature:
            why = answer.why or "fails alone, explains nothing"
            self.aside[items] = Observation(self.items(items), answer.signature, why, answer.share)
        elif means is Status.UNRESOLVED:
            self.noted[items] = Observation(self.items(items), answer.signature, answer.why, answer.share)

    # ------------------------------------------------------------------------------------------------ regions

    def regions(self, purpose: Purpose, sets: Sequence[Items], *, explain: bool = False) -> Search[list[Status]]:
        """FAIL(R) for each region. A pass counts after `repeats` of them; one failure is enough."""
        found: dict[Items, Status] = {}
        for repetition in range(self.first, self.first + self.repeats):
            open_ = [s for s in dict.fromkeys(sets) if found.get(s, Status.AGREE) is Status.AGREE]
            if not open_:
                break
            fresh = self.fresh or repetition > self.first
            asks = [Query(QueryKind.ISOLATED, s, repetition, fresh, explain) for s in open_]
            for s, answer in zip(open_, (yield from self.ask(purpose, asks)), strict=True):
                found[s] = outcome(answer, self.signature)
        for s, means in found.items():
            if means is Status.FAIL and (not self.suspect or len(s) < len(self.suspect)):
                self.suspect = s
        return [found[s] for s in sets]

    def region(self, purpose: Purpose, places: Items, *, explain: bool = False) -> Search[Status]:
        """FAIL(R) for one region."""
        return (yield from self.regions(purpose, [places], explain=explain))[0]

    def again(self, purpose: Purpose, sets: Sequence[Items], times: Sequence[int]) -> Search[list[Status]]:
        """FAIL(R) of each region, asked anew in fresh processes; `times`: 1, 2, … after the first."""
        asks = [Query(QueryKind.ISOLATED, s, self.first + t, True) for s in sets for t in times]
        found: list[Status] = []
        for at in range(0, len(asks), self.workers):
            found += [outcome(a, self.signature) for a in (yield from self.ask(purpose, asks[at : at + self.workers]))]
        return found

    def known(self, places: Items) -> Answer:
        """The telling answer about a region that was asked: a failing one, else the first."""
        answers = [self.memo.get((QueryKind.ISOLATED, places, self.first + k)) for k in range(self.repeats)]
        some = [a for a in answers if a is not None]
        return next((a for a in some if outcome(a, self.signature) is Status.FAIL), some[0])

    def larger_that_agreed(self, places: Items) -> list[Items]:
        """Regions around this one that agreed, smallest first: masked, or flaky? O(their size)."""
        wanted, budget, found = set(places), _KNOWN_PLACES, []
        for s in self.agreed:
            budget -= len(s)
            if budget < 0:
                break
            if len(s) > len(places) and wanted.issubset(s):
                found.append(s)
        return sorted(dict.fromkeys(found), key=len)


def _key(ask: Query) -> tuple[QueryKind, Items | tuple[Items, ...], int]:
    return ask.kind, ask.pieces or ask.items, ask.repetition
