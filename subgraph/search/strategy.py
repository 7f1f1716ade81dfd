"""The whole search, from "does the whole fail?" to 1-minimal regions.

baseline → profile → gallop back from the first wrong item → shrink and certify → confirm in fresh processes → does the
rest agree? If the profile shows nothing, overlapped halving takes its place. See the modules of `passes`.

Insight: a search is a pure function of its answers. It may be stopped at any time and run again over the stored
answers; it takes the same path. It changes its mind in the same way: it starts over.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from subgraph.search import order
from subgraph.search.culprits import Progress, find_culprits
from subgraph.search.findings import Finding, FindingKind, Findings, Observation, Outcome, Purpose
from subgraph.search.flaky import LEAST_RATE
from subgraph.search.lookahead import Lookahead
from subgraph.search.oracle import Answer, Items, Oracle
from subgraph.search.passes import accumulated
from subgraph.search.passes.baseline import baseline
from subgraph.search.passes.confirm import measure_rate
from subgraph.search.passes.inside import look_inside
from subgraph.search.predicate import Meaning
from subgraph.search.state import Search, SearchRestart, SearchState, SearchStopped, Settings, Steps

MOST_STARTS = 6  # a search that starts over more often ends unresolved


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
    kinds = None if labels is None else [labels[item] for item in places]

    def begin(settings: Settings) -> tuple[SearchState, Search[Findings]]:
        more = len(places).bit_length() + 4
        state = SearchState(oracle, places, rows, prior, settings, kinds, left=len(places), more=more)
        return state, _narrow(state)

    state, narrowing = begin(settings)
    if settings.expect:
        unlimited = replace(settings, max_trials=None, max_time=None)
        settings.expect(Lookahead(partial(begin, unlimited), state.told).wanted)
    return state.run(narrowing)


def _narrow(state: SearchState) -> Search[Findings]:
    settings, progress, stopped = state.settings, None, ""
    within = None if settings.within is None else set(settings.within)
    scope = tuple(k for k, item in enumerate(state.order) if within is None or item in within)
    try:
        yield from baseline(state)
        whole = state.whole
        if whole.signature is not None or within is not None or (settings.inside and whole.agrees):
            if 0 < whole.failed < whole.runs:
                yield from measure_rate(state)
            for _ in range(MOST_STARTS):
                if state.flaky and state.whole.rate < LEAST_RATE:
                    often = f"{state.whole.failed} of {state.whole.runs} runs"
                    stopped = f"the whole failed in {often}: too rarely to narrow it down, or the candidate changed"
                    break
                state.target, state.signature, state.weights = (), whole.signature, list(state.prior)
                progress = Progress(state, scope, scope)
                try:
                    yield from _search_scope(progress)
                    break
                except SearchRestart as restart:
                    state.notes.append((str(restart), ()))
            else:
                stopped = "the candidate keeps contradicting itself"
    except SearchStopped as e:
        stopped = str(e)
    return _findings(state, progress, stopped)


def _search_scope(progress: Progress) -> Search[None]:
    """A scope that is known to fail is narrowed down; one that agrees is looked into, if that is wanted."""
    state, scope = progress.state, progress.scope
    settings, state.suspect = state.settings, scope
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


def _findings(state: SearchState, progress: Progress | None, stopped: str) -> Findings:
    whole, complete = state.whole, bool(progress and progress.complete)
    findings = list(progress.findings) if progress else []
    ends = partial(
        Findings, counts=state.counts, stopped=stopped, notes=tuple((text, state.items(k)) for text, k in state.notes)
    )
    suspects, unresolved = state.suspect or tuple(range(state.n)), _smallest(state, state.unresolved)
    if whole.signature is None and not findings:
        if stopped or not whole.agrees or not (progress is None or complete):
            why = stopped or (
                whole.why if not whole.agrees else "the outputs agree, but inner tensors could not be read"
            )
            nothing = Finding(FindingKind.UNRESOLVED, state.items(suspects), None, why=why)
            return ends(Outcome.UNRESOLVED, findings=(nothing,), unresolved=unresolved)
        return ends(Outcome.CLAIMED if whole.claimed else Outcome.AGREE)
    if progress and progress.claimed and not findings:
        return Findings(Outcome.CLAIMED, state.counts, state.signature, rate=whole.rate)
    if progress and progress.elsewhere and not (findings or stopped):
        return ends(Outcome.ELSEWHERE, signature=whole.signature, rate=whole.rate)
    if stopped or not findings:
        why = stopped or "no region fails in the way the whole model does"
        findings.append(Finding(FindingKind.UNRESOLVED, suspects, state.signature, why=why))
    named = {k for f in findings if f.kind is not FindingKind.UNRESOLVED for k in f.items}
    return ends(
        Outcome.DISAGREE,
        signature=whole.signature,
        findings=tuple(sorted(map(state.of_items, findings), key=_rank)),
        irrelevant=_smallest(state, state.irrelevant, named),
        unresolved=unresolved,
        rate=whole.rate,
        probe_sensitive=bool(progress and progress.probe_sensitive and not state.flaky),
        complete=complete and (len(named) < state.n or all(f.certified for f in findings)),
    )


_KINDS = list(FindingKind)


def _rank(finding: Finding) -> tuple[int, float, Items]:
    blames = finding.kind in (FindingKind.CULPRIT, FindingKind.FLAKY)
    return 0 if blames else _KINDS.index(finding.kind), -(finding.explains or 0.0), finding.items


def _smallest(
    state: SearchState, answers: Mapping[Items, Answer], named: Collection[int] = ()
) -> tuple[Observation, ...]:
    """Regions that contain no other one, and no place that is part of a finding."""
    observations = [
        Observation(state.items(places), answer.signature, answer.why, answer.explains)
        for places, answer in answers.items()
        if not set(places).intersection(named)
    ]
    kept: list[Observation] = []
    for observation in sorted(observations, key=lambda o: (len(o.items), o.items)):
        if not any(set(observation.items).issuperset(k.items) for k in kept):
            kept.append(observation)
    return tuple(kept)
