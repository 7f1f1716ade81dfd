"""The whole search, from "does the whole fail?" to 1-minimal regions.

baseline → profile → gallop back from the first wrong item → shrink and certify → confirm in fresh processes → does the
rest agree? If the profile shows nothing, overlapped halving takes its place. See the modules of `passes`.

Insight: a search is a pure function of its answers. It may be stopped at any time and run again over the stored
answers; it takes the same path. It changes its mind in the same way: it starts over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from subgraph.search import order
from subgraph.search.culprits import Progress, find_culprits
from subgraph.search.findings import Finding, FindingKind, Findings, Observation, Outcome, Purpose
from subgraph.search.flaky import LEAST_RATE
from subgraph.search.lookahead import Lookahead
from subgraph.search.oracle import Ahead, Items, Oracle, QueryKind
from subgraph.search.passes import accumulated
from subgraph.search.passes.baseline import RUNS, Baseline, baseline, summed
from subgraph.search.passes.confirm import measure_rate
from subgraph.search.passes.inside import look_inside
from subgraph.search.predicate import Meaning
from subgraph.search.state import Search, SearchRestart, SearchState, SearchStopped, Steps

MOST_STARTS = 6  # a search that starts over more often ends unresolved


@dataclass(frozen=True)
class Settings:
    """What bounds a search.

    Attributes:
        max_trials, max_time: budgets, in runs and in seconds of `clock`.
        workers: runs at once.
        expect: called before the first query with what tells which runs are likely to be needed: an oracle with several
            workers may run them before they are asked.
        within: only these items are suspects; they are asked whatever the whole says.
        inside: if the whole agrees, its items are asked as well.
        repeat: runs of the whole that must agree before the whole does; None: as many as cost little, two at least.
        steady: the candidate always gives the same: two runs of the whole and one confirmation are enough.
        clock: seconds, rising.
    """

    max_trials: int | None = None
    max_time: float | None = None
    workers: int = 1
    within: Collection[int] | None = None
    inside: bool = False
    repeat: int | None = None
    steady: bool = False
    clock: Callable[[], float] = time.monotonic
    expect: Callable[[Ahead], None] | None = None


def search(
    parents: Sequence[Sequence[int]],
    oracle: Oracle,
    settings: Settings | None = None,
    *,
    weights: Sequence[float] | None = None,
    labels: Sequence[Hashable] | None = None,
) -> Steps[Findings]:
    """Narrow "the whole disagrees" to 1-minimal regions of a DAG.

    Args:
        parents: the items that each item 0 … n−1 reads.
        weights: how likely each item is guilty, in any unit; None: all equally.
        labels: the kind of each item; a guilty item makes others of its kind likelier.

    Yields a Step per answer, returns the Findings. The same answers give the same path.

    Complexity: O((n + edges) · log n), and O(n) per query, without the oracle's time.

    Raises:
        ValueError: the items have a cycle.
    """
    settings = settings or Settings()
    places = order.cut_order(parents)
    at = {item: k for k, item in enumerate(places)}
    rows = [[at[p] for p in parents[item]] for item in places]
    prior = [float(weights[item]) for item in places] if weights is not None else [1.0] * len(places)
    deadline = None if settings.max_time is None else settings.clock() + settings.max_time
    kinds = None if labels is None else tuple(labels[item] for item in places)

    def begin() -> tuple[SearchState, Search[Findings]]:
        more = len(places).bit_length() + 4
        state = SearchState(oracle, places, rows, prior, steady=settings.steady, left=len(places), more=more)
        return state, _narrow(state, settings, kinds)

    state, narrowing = begin()
    state.max_trials, state.deadline, state.clock = settings.max_trials, deadline, settings.clock
    if settings.expect:
        settings.expect(Lookahead(begin, state.told).wanted)
    return state.run(narrowing)


def _narrow(state: SearchState, settings: Settings, labels: tuple[Hashable, ...] | None) -> Search[Findings]:
    base = Baseline(None, 0, 0, False, False, "")
    progress, stopped = None, ""
    within = None if settings.within is None else set(settings.within)
    scope = tuple(k for k, item in enumerate(state.order) if within is None or item in within)
    try:
        base = yield from baseline(state, RUNS if settings.steady else settings.repeat)
        state.signature, state.whole_failed, state.whole_runs = base.signature, base.failed, base.runs
        if base.signature is not None or within is not None or (settings.inside and base.agrees):
            if 0 < base.failed < base.runs:
                yield from measure_rate(state)
            for _ in range(MOST_STARTS):
                if state.flaky and state.rate < LEAST_RATE:
                    often = f"{state.whole_failed} of {state.whole_runs} runs"
                    stopped = f"the whole failed in {often}: too rarely to narrow it down, or the candidate changed"
                    break
                state.target, state.signature, state.weights = (), base.signature, list(state.prior)
                progress = Progress(state, scope, scope, labels)
                try:
                    yield from _search_scope(progress, settings)
                    break
                except SearchRestart as restart:
                    state.notes.append((str(restart), ()))
            else:
                stopped = "the candidate keeps contradicting itself"
    except SearchStopped as e:
        stopped = str(e)
        answers = [a for (kind, *_), a in state.memo.items() if kind is QueryKind.WHOLE]
        if not base.runs and answers:  # stopped during the baseline: the runs so far count
            base = summed(answers)
            state.signature, state.whole_failed, state.whole_runs = base.signature, base.failed, base.runs
    return _findings(state, base, progress, stopped)


def _search_scope(progress: Progress, settings: Settings) -> Search[None]:
    """A scope that is known to fail is narrowed down; one that agrees is looked into, if that is wanted."""
    state, scope = progress.state, progress.scope
    state.suspect = scope
    if not scope:
        return
    fails = state.signature is not None
    if settings.within is not None:
        status = yield from state.region(Purpose.TAIL, scope)
        fails = status in (Meaning.FAIL, Meaning.MINOR)
        progress.complete = progress.elsewhere = status is Meaning.AGREE
        if status is Meaning.UNRESOLVED:
            return
        if status is Meaning.MINOR:  # it fails, and explains little of the whole: its own error is looked for
            tail = yield from state.tail(Purpose.TAIL, scope)
            state.target, state.signature = (scope, tail.signature) if tail.signature else ((), None)
    if fails:
        yield from find_culprits(progress)
        if not progress.complete and (progress.fails or len(progress.findings) == 1):
            progress.findings = accumulated.scattered(state, scope, progress.findings)
    elif settings.inside:
        yield from look_inside(progress)


def _findings(state: SearchState, base: Baseline, progress: Progress | None, stopped: str) -> Findings:
    counts, complete = state.counts, bool(progress and progress.complete)
    findings = list(progress.findings) if progress else []
    if base.signature is None and not findings:
        if stopped or not base.agrees or not (progress is None or complete):
            why = stopped or (base.why if not base.agrees else "the outputs agree, but inner tensors could not be read")
            unresolved = Finding(FindingKind.UNRESOLVED, state.items(state.suspect or range(state.n)), None, why=why)
            others, notes = _smallest(state.unresolved, set()), tuple(state.notes)
            return Findings(Outcome.UNRESOLVED, counts, None, (unresolved,), (), others, stopped=stopped, notes=notes)
        return Findings(Outcome.CLAIMED if base.claimed else Outcome.AGREE, counts, notes=tuple(state.notes))
    if progress and progress.claimed and not findings:
        return Findings(Outcome.CLAIMED, counts, state.signature, rate=state.rate)
    if progress and progress.elsewhere and not (findings or stopped):
        return Findings(Outcome.ELSEWHERE, counts, base.signature, rate=state.rate, notes=tuple(state.notes))
    if stopped or not findings:
        why = stopped or "no region fails in the way the whole model does"
        suspects = state.items(state.suspect or range(state.n))
        findings.append(Finding(FindingKind.UNRESOLVED, suspects, state.signature, why=why))
    findings.sort(key=_rank)
    named = {k for f in findings if f.kind is not FindingKind.UNRESOLVED for k in f.items}
    return Findings(
        Outcome.DISAGREE,
        counts,
        base.signature,
        tuple(findings),
        _smallest(state.irrelevant, named),
        _smallest(state.unresolved, set()),
        state.rate,
        bool(progress and progress.probe_sensitive and not state.flaky),
        complete and (len(named) < state.n or all(f.certified for f in findings)),
        stopped,
        tuple(state.notes),
    )


_KINDS = list(FindingKind)


def _rank(finding: Finding) -> tuple[int, float, Items]:
    blames = finding.kind in (FindingKind.CULPRIT, FindingKind.FLAKY)
    return 0 if blames else _KINDS.index(finding.kind), -(finding.explains or 0.0), finding.items


def _smallest(observations: dict[Items, Observation], named: set[int]) -> tuple[Observation, ...]:
    """Observations that contain no other one, and no item that is part of a finding."""
    kept: list[Observation] = []
    for observation in sorted(observations.values(), key=lambda o: (len(o.items), o.items)):
        inside = set(observation.items)
        if not inside & named and not any(inside.issuperset(k.items) for k in kept):
            kept.append(observation)
    return tuple(kept)
