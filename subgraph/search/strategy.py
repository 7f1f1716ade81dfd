"""The whole search, from "does it fail?" to certified regions.

baseline → profile → gallop back from the first wrong item → shrink and certify → confirm in fresh processes → does the
rest agree? Where the profile shows nothing, overlapped halving takes its place. See the modules for each step.

Insight: a search is a pure function of its answers. It may be ended at any time and run again over the answers kept; it
takes the same path. That is also how it changes its mind: it starts over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from subgraph.search import order
from subgraph.search.culprits import hunt
from subgraph.search.findings import Finding, FindingKind, Findings, Observation, Outcome, Purpose
from subgraph.search.flaky import LEAST
from subgraph.search.hunt import Progress
from subgraph.search.oracle import Items, Oracle, QueryKind
from subgraph.search.passes import accumulated
from subgraph.search.passes.baseline import RUNS, Baseline, baseline, summed
from subgraph.search.passes.confirm import Belief, measure
from subgraph.search.state import Search, SearchRestart, SearchState, SearchStopped
from subgraph.verdict import Signature, Status

AGREEING = 7  # runs before a whole that never failed agrees: a fault that shows every second time hides in 1 of 128
STARTS = 6  # how often a search may change its mind


@dataclass(frozen=True)
class Settings:
    """What bounds a search.

    Attributes:
        max_trials, max_time: budgets, in runs and in seconds of `clock`.
        workers: so many questions are asked at once.
        within: only these items are suspects.
        agreeing: so many runs must agree before the whole does.
        steady: the candidate gives the same each time: two runs of the whole and one confirmation are enough.
        clock: seconds, rising.
    """

    max_trials: int | None = None
    max_time: float | None = None
    workers: int = 1
    within: Collection[int] | None = None
    agreeing: int = AGREEING
    steady: bool = False
    clock: Callable[[], float] = time.monotonic


def search(
    parents: Sequence[Sequence[int]],
    question: Oracle,
    settings: Settings | None = None,
    *,
    weights: Sequence[float] | None = None,
    labels: Sequence[Hashable] | None = None,
) -> Search[Findings]:
    """Narrow "the whole disagrees" to certified smallest regions of a DAG.

    Args:
        parents: what each item 0 … n−1 reads.
        weights: how likely each item is guilty, in any unit; equal where nothing is known.
        labels: of what kind each item is; a guilty item makes its kind more likely.

    Yields: a Step per answer. Returns: the Findings. The same answers give the same path.

    Our own time is O((n + edges) · log n) and O(n) for each question. Raises: ValueError: the items have a cycle.
    """
    limits = settings or Settings()
    book = _book(parents, question, limits, weights)
    base = Baseline(None, 0, 0, False, False, "")
    state = None
    spent = ""
    try:
        base = yield from baseline(book, RUNS if limits.steady else limits.agreeing)
        book.signature = base.signature
        if base.signature is not None:
            belief = Belief(base.failed, base.asked, steady=limits.steady)
            if base.failed < base.asked:
                yield from measure(book, belief)
            for _ in range(STARTS):
                if belief.flaky and belief.rate < LEAST:
                    spent = (
                        f"the whole failed in {belief.failed} of {belief.asked} runs, too rarely to be narrowed down"
                    )
                    break
                state = _start(book, belief, base.signature, limits.within, labels)
                try:
                    yield from _hunted(state, limits.within is not None)
                    break
                except SearchRestart as news:
                    book.notes.append((str(news), ()))
            else:
                spent = "its answers go on contradicting each other"
    except SearchStopped as budget:
        spent = str(budget)
        seen = [a for (kind, *_), a in book.memo.items() if kind is QueryKind.WHOLE]
        if not base.asked and seen:  # it ended before it was sure; what was seen was seen
            base = summed(seen)
            book.signature = base.signature
    yield from book.flush()
    return _findings(book, base, state, spent)


def _book(
    parents: Sequence[Sequence[int]], question: Oracle, limits: Settings, weights: Sequence[float] | None
) -> SearchState:
    places = order.cut_order(parents)
    at = {item: k for k, item in enumerate(places)}
    rows = [[at[p] for p in parents[item]] for item in places]
    prior = [float(weights[item]) for item in places] if weights is not None else [1.0] * len(places)
    deadline = None if limits.max_time is None else limits.clock() + limits.max_time
    book = SearchState(question, places, rows, prior, max(1, limits.workers), limits.max_trials, deadline, limits.clock)
    book.left, book.more = len(places), len(places).bit_length() + 4
    return book


def _start(
    book: SearchState,
    belief: Belief,
    signature: Signature,
    within: Collection[int] | None,
    labels: Sequence[Hashable] | None,
) -> Progress:
    book.signature = signature
    book.weights = list(book.prior)
    wanted = None if within is None else set(within)
    scope = tuple(k for k, item in enumerate(book.order) if wanted is None or item in wanted)
    kinds = None if labels is None else tuple(labels[item] for item in book.order)
    return Progress(book, belief, scope, kinds)


def _hunted(state: Progress, within: bool) -> Search[None]:
    book = state.book
    book.suspect = state.scope
    if not state.scope:
        return
    if within:
        status = yield from book.region(Purpose.TAIL, state.scope)
        if status is not Status.FAIL:
            state.complete = status is Status.AGREE
            return
    everything = state.scope
    yield from hunt(state)
    state.findings = accumulated.scattered(book, everything, state.findings)


def _findings(book: SearchState, base: Baseline, state: Progress | None, spent: str) -> Findings:
    counts = book.counts
    if base.signature is None:
        if spent or not base.agrees:
            why = spent or base.why
            lost = Finding(FindingKind.UNRESOLVED, tuple(range(book.n)), None, why=why)
            return Findings(Outcome.UNRESOLVED, counts, findings=(lost,), spent=spent)
        return Findings(Outcome.CLAIMED if base.claimed else Outcome.AGREE, counts)
    if state and state.claimed:
        return Findings(Outcome.CLAIMED, counts, book.signature, rate=base.rate)
    found = list(state.findings) if state else []
    if spent or not found:
        why = spent or "no region of it fails as the whole does"
        doubted = book.items(book.suspect or range(book.n))
        found.append(Finding(FindingKind.UNRESOLVED, doubted, book.signature, why=why))
    ranked = tuple(sorted(found, key=_rank))
    named = {k for f in ranked if f.kind is not FindingKind.UNRESOLVED for k in f.items}
    return Findings(
        Outcome.DISAGREE,
        counts,
        base.signature,
        ranked,
        _smallest(book.aside, named),
        _smallest(book.noted, set()),
        state.belief.rate if state else base.rate,
        bool(state and state.probe_sensitive and not state.belief.flaky),
        bool(state and state.complete and (len(named) < book.n or all(f.certified for f in ranked))),
        spent,
        tuple(book.notes),
    )


_KINDS = list(FindingKind)


def _rank(finding: Finding) -> tuple[int, float, Items]:
    known = finding.kind in (FindingKind.CULPRIT, FindingKind.FLAKY)
    return 0 if known else _KINDS.index(finding.kind), -(finding.explains or 0.0), finding.items


def _smallest(seen: dict[Items, Observation], named: set[int]) -> tuple[Observation, ...]:
    """Those that hold no other one, and nothing that is a finding."""
    kept: list[Observation] = []
    for noted in sorted(seen.values(), key=lambda n: (len(n.items), n.items)):
        inside = set(noted.items)
        if not inside & named and not any(inside.issuperset(k.items) for k in kept):
            kept.append(noted)
    return tuple(kept)
