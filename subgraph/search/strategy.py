"""The whole search, from "does the whole fail?" to 1-minimal regions.

baseline → profile → gallop back from the first wrong item → shrink and certify → confirm in fresh
processes → does the rest agree? If the profile shows nothing, overlapped halving takes its place.
See the modules of `passes`.

Insight: a search is a pure function of its answers. It may be stopped at any time and run again
over the stored answers; it takes the same path. It changes its mind in the same way: it starts
over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from subgraph.search import order
from subgraph.search.culprits import Progress, Rest, acquit, find_culprits
from subgraph.search.findings import Finding, FindingKind, Findings, Observation, Outcome, Purpose
from subgraph.search.flaky import MIN_RATE
from subgraph.search.lookahead import Lookahead
from subgraph.search.oracle import Answer, Items, Oracle
from subgraph.search.passes import accumulated
from subgraph.search.passes.baseline import baseline
from subgraph.search.passes.confirm import measure_rate
from subgraph.search.passes.inside import look_inside
from subgraph.search.predicate import RegionOutcome
from subgraph.search.state import (
    BudgetSpent,
    Search,
    SearchRestart,
    SearchState,
    SearchStopped,
    Settings,
    Steps,
)

MAX_STARTS = 6  # a search that starts over more often ends unresolved


def search(
    parents: Sequence[Sequence[int]],
    oracle: Oracle,
    settings: Settings | None = None,
    *,
    weights: Callable[[], Sequence[float]] | None = None,
    labels: Sequence[Hashable] | None = None,
) -> Steps[Findings]:
    """Narrow "the whole disagrees" to 1-minimal regions of a DAG.

    Args:
        parents: the items that each item 0 … n−1 reads; all of them come earlier.
        weights: how likely each item is guilty, in any unit; asked once the whole disagrees. None:
            all equally.
        labels: the kind of each item; a guilty item makes others of its kind likelier.

    Yields a Step per answer, returns the Findings. The same answers give the same path.

    Complexity: O((n + edges) · log n), and O(n) per query, without the oracle's time.

    Raises:
        ValueError: an item reads one that does not come earlier.
    """
    order.require_topological(parents)
    settings, n = settings or Settings(), len(parents)
    prior = weights or partial(_alike, n)

    def begin(settings: Settings) -> tuple[SearchState, Search[Findings]]:
        state = SearchState(
            oracle, parents, prior, settings, labels, estimated_runs=n.bit_length() + 4
        )
        return state, _narrow(state)

    state, narrowing = begin(settings)
    if settings.expect:
        unlimited = replace(settings, max_trials=None, max_time=None)
        settings.expect(Lookahead(partial(begin, unlimited), state.answers_sent).wanted)
    return state.run(narrowing)


def _alike(n: int) -> list[float]:
    return [1.0] * n


def _narrow(state: SearchState) -> Search[Findings]:
    settings = state.settings
    progress = None
    stopped = ""
    budget_spent = False
    within = None if settings.within is None else set(settings.within)
    scope = tuple(k for k in range(state.n) if within is None or k in within)
    try:
        yield from baseline(state)
        whole = state.whole
        if whole.signature is not None or within is not None or (settings.inside and whole.agrees):
            if 0 < whole.failed < whole.runs:
                yield from measure_rate(state)
            for _ in range(MAX_STARTS):
                if state.flaky and state.whole.rate < MIN_RATE:
                    often = f"{state.whole.failed} of {state.whole.runs} runs"
                    stopped = (
                        f"the whole failed in {often}: too rarely to narrow it down, or the"
                        " candidate changed"
                    )
                    break
                state.target, state.signature, state.weights = (
                    (),
                    whole.signature,
                    list(state.prior()),
                )
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
        budget_spent = isinstance(e, BudgetSpent)
    return replace(_findings(state, progress, stopped), budget_spent=budget_spent)


def _search_scope(progress: Progress) -> Search[None]:
    """A scope that is known to fail is narrowed down; one that agrees is looked into, if that is
    wanted."""
    state = progress.state
    scope = progress.scope
    settings = state.settings
    state.suspect = scope
    if not scope:
        return
    fails = state.signature is not None
    if settings.within is not None:
        outcome = yield from state.region(Purpose.TAIL, scope)
        fails = outcome in (RegionOutcome.FAIL, RegionOutcome.MINOR)
        if outcome is RegionOutcome.UNRESOLVED:
            return
        if outcome is RegionOutcome.AGREE:
            progress.rest = Rest.AGREES
            progress.elsewhere = True
        if (
            outcome is RegionOutcome.MINOR
        ):  # it fails, and explains little of the whole: its own error is looked for
            tail = yield from state.tail(Purpose.TAIL, scope)
            state.target, state.signature = (
                (scope, tail.signature) if tail.signature else ((), None)
            )
    if fails:
        yield from find_culprits(progress)
        yield from acquit(progress)
        if any(f.everywhere for f in progress.findings):
            return
        if progress.rest is Rest.FAILS or (
            progress.rest is Rest.UNKNOWN and len(progress.findings) == 1
        ):
            progress.findings = accumulated.scattered(state, scope, progress.findings)
    elif settings.inside:
        yield from look_inside(progress)


def _findings(state: SearchState, progress: Progress | None, stopped: str) -> Findings:
    whole = state.whole
    complete = progress is not None and progress.rest is Rest.AGREES
    findings = list(progress.findings) if progress else []
    ends = partial(Findings, counts=state.counts, stopped=stopped, notes=tuple(state.notes))
    suspects = state.suspect or tuple(range(state.n))
    unresolved = _smallest(state.unresolved)
    if whole.signature is None and not findings:
        if stopped or not whole.agrees or not (progress is None or complete):
            why = stopped or (
                whole.why
                if not whole.agrees
                else "the outputs agree, but intermediate tensors could not be read"
            )
            nothing = Finding(FindingKind.UNRESOLVED, suspects, None, why=why)
            return ends(Outcome.UNRESOLVED, findings=(nothing,), unresolved=unresolved)
        return ends(Outcome.CLAIMED if whole.claimed else Outcome.AGREE)
    if progress and progress.claimed and not findings:
        return Findings(Outcome.CLAIMED, state.counts, state.signature)
    if progress and progress.elsewhere and not (findings or stopped):
        return ends(Outcome.ELSEWHERE, signature=whole.signature)
    if stopped or not findings:
        why = stopped or "no region fails in the way the whole model does"
        findings.append(Finding(FindingKind.UNRESOLVED, suspects, state.signature, why=why))
    named = {k for f in findings if f.kind is not FindingKind.UNRESOLVED for k in f.items}
    return ends(
        Outcome.DISAGREE,
        signature=whole.signature,
        findings=tuple(sorted(findings, key=_rank)),
        irrelevant=(
            () if any(f.everywhere for f in findings) else _smallest(state.irrelevant, named)
        ),
        unresolved=unresolved,
        probe_sensitive=bool(progress and progress.probe_sensitive and not state.flaky),
        complete=complete and (len(named) < state.n or all(f.certified for f in findings)),
    )


_KINDS = list(FindingKind)


def _rank(finding: Finding) -> tuple[int, float, Items]:
    blames = finding.kind in (FindingKind.CULPRIT, FindingKind.FLAKY)
    return (
        0 if blames else _KINDS.index(finding.kind),
        -(finding.share_of_model or 0.0),
        finding.items,
    )


def _smallest(
    answers: Mapping[Items, Answer], named: Collection[int] = ()
) -> tuple[Observation, ...]:
    """Regions that contain no other one, and no item that is part of a finding."""
    observations = [
        Observation(items, answer.signature, answer.why, answer.share.of_model)
        for items, answer in answers.items()
        if not set(items).intersection(named)
    ]
    kept: list[Observation] = []
    for observation in sorted(observations, key=lambda o: (len(o.items), o.items)):
        if not any(set(observation.items).issuperset(k.items) for k in kept):
            kept.append(observation)
    return tuple(kept)
