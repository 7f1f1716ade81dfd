"""The complete search, from "does the full model fail?" to 1-minimal regions.

baseline → profile → gallop back from the first wrong item → shrink and certify → confirm in fresh
processes → do the remaining items agree? If the profile shows nothing, overlapped halving replaces
it. See the modules of `passes`.

Insight: a search is a pure function of its answers. It may be stopped at any time and run again
over the stored answers; it takes the same path. It changes its mind in the same way: it starts
over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from subgraph.iterables import flatten
from subgraph.search.culprits import Progress, Rest, acquit, find_culprits
from subgraph.search.driver import (
    BudgetSpent,
    Driver,
    Search,
    SearchRestart,
    SearchStopped,
    Settings,
    Steps,
)
from subgraph.search.lookahead import Lookahead
from subgraph.search.oracle import (
    Answer,
    Finding,
    FindingKind,
    Findings,
    Items,
    Observation,
    Oracle,
    Outcome,
    Purpose,
    Query,
    QueryKind,
    RegionOutcome,
)
from subgraph.search.passes import accumulated
from subgraph.search.passes.alike import find_cause, find_off_alone, merge_alike
from subgraph.search.passes.confirm import MIN_RATE, confirm_region, measure_rate, run_baseline
from subgraph.search.passes.profile import MAX_HINTS, follow, read
from subgraph.search.passes.shrink import shrink
from subgraph.search.state import SearchState

MAX_STARTS = 6  # a search that starts over more often ends unresolved
_KINDS = list(FindingKind)


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
        oracle: The oracle.
        settings: The limits; None for none.
        weights: Function that returns the probability of each item to be guilty, in any unit. It is
            called once the full model disagrees. None for equal ones.
        labels: The kind of each item; a guilty item makes others of its kind likelier. None if the
            kinds are unknown.

    Yields a Step per answer, returns the Findings. The same answers give the same path.

    Complexity: O((n + edges) · log n), and O(n) per query, without the oracle's time.

    Raises:
        ValueError: an item reads one that does not come earlier.
    """
    for item, row in enumerate(parents):
        if any(p >= item for p in row):
            raise ValueError(
                f"item {item} reads item {max(row)}: items must come in topological order"
            )
    n = len(parents)
    settings = settings or Settings()
    prior = weights or (lambda: [1.0] * n)

    def begin(settings: Settings) -> tuple[SearchState, Search[Findings]]:
        driver = Driver(oracle, n, settings, (n.bit_length() + 4, False))
        state = SearchState(driver, parents, prior, labels)
        return state, _narrow(state)

    state, narrowing = begin(settings)
    if settings.expect:
        unlimited = replace(settings, max_trials=None, max_time=None)
        settings.expect(Lookahead(partial(begin, unlimited), state.driver.answers_sent).iter_wanted)
    return state.driver.run(narrowing)


def _narrow(state: SearchState) -> Search[Findings]:
    """Search, and search again if an assumption did not hold; what was found before a budget
    ended is kept."""
    settings = state.driver.settings
    within = range(state.n) if settings.within is None else set(settings.within)
    scope = tuple(k for k in range(state.n) if k in within)
    progress = Progress(state, scope, scope)
    stopped: SearchStopped | None = None
    try:
        yield from run_baseline(state)
        whole = state.whole
        looks_inside = settings.inside and whole.agrees
        if whole.signature is None and settings.within is None and not looks_inside:
            progress.rest = Rest.AGREES
            return _make_findings(progress, None)
        if settings.only_whole:
            return _make_findings(progress, None)
        if 0 < whole.failed < whole.runs or whole.is_contradicted:
            yield from measure_rate(state)
        for _ in range(MAX_STARTS):
            whole = state.whole
            if state.aim.flaky and whole.rate < MIN_RATE:
                raise SearchStopped(
                    f"the full model failed in {whole.failed} of {whole.runs} runs: too rarely to"
                    " narrow it down, or the candidate changed"
                )
            state.look_for((), whole.signature)
            state.weights = list(state.prior())
            progress = Progress(state, scope, scope)
            try:
                yield from _search_scope(progress)
                return _make_findings(progress, None)
            except SearchRestart as restart:
                state.notes.append((str(restart), ()))
        raise SearchStopped("the candidate keeps contradicting itself")
    except SearchStopped as e:
        stopped = e
    return _make_findings(progress, stopped)


def _search_scope(progress: Progress) -> Search[None]:
    """Narrow a scope that is known to fail; look into one that agrees, if that is wanted."""
    state = progress.state
    scope = progress.scope
    state.seen.suspect = scope
    outcome = yield from _probe_scope(progress)
    if outcome is RegionOutcome.AGREE and state.driver.settings.inside:
        yield from look_inside(progress)
    if outcome not in (RegionOutcome.FAIL, RegionOutcome.MINOR):
        return
    yield from find_culprits(progress)
    yield from acquit(progress)
    if any(f.everywhere for f in progress.findings):
        return
    if progress.rest is Rest.FAILS or (
        progress.rest is Rest.UNKNOWN and len(progress.findings) == 1
    ):
        progress.findings = accumulated.find_scattered(state, scope, progress.findings)


def _probe_scope(progress: Progress) -> Search[RegionOutcome]:
    """Return the outcome of the scope; unresolved if it is empty.

    If a part of the model fails and explains little of the error of the full model, the error of
    the part is the target from now on.
    """
    state = progress.state
    scope = progress.scope
    if not scope:
        return RegionOutcome.UNRESOLVED
    if state.driver.settings.within is None:
        if state.aim.signature is None:
            return RegionOutcome.AGREE
        return RegionOutcome.FAIL
    outcome = yield from state.probe(Purpose.TAIL, scope)
    if outcome is RegionOutcome.AGREE:
        progress.rest = Rest.AGREES
        progress.instead = Outcome.ELSEWHERE
    if outcome is RegionOutcome.MINOR:
        tail = yield from state.tail(Purpose.TAIL, scope)
        state.look_for(scope if tail.signature else (), tail.signature)
    return outcome


def _make_findings(progress: Progress, ended: SearchStopped | None) -> Findings:
    state = progress.state
    whole = state.whole
    stopped = str(ended or "")
    complete = progress.rest is Rest.AGREES
    findings = list(progress.findings)
    suspects = state.seen.suspect or tuple(range(state.n))
    unresolved = _select_smallest(state.seen.unresolved)
    ends = partial(
        Findings,
        counts=state.driver.counts,
        stopped=stopped,
        budget_spent=isinstance(ended, BudgetSpent),
        notes=tuple(state.notes),
    )
    if whole.signature is None and not findings:
        if whole.agrees and complete and not stopped:
            return ends(Outcome.CLAIMED if whole.claimed else Outcome.AGREE)
        unread = "the outputs agree, but intermediate tensors could not be read"
        why = stopped or (unread if whole.agrees else whole.why)
        nothing = Finding(FindingKind.UNRESOLVED, suspects, None, why=why)
        return ends(Outcome.UNRESOLVED, findings=(nothing,), unresolved=unresolved)
    if progress.instead and not (findings or stopped):
        return ends(progress.instead, signature=whole.signature)
    if stopped or not findings:
        why = stopped or "no region fails in the way the whole model does"
        signature = state.aim.signature
        findings.append(Finding(FindingKind.UNRESOLVED, suspects, signature, why=why))
    findings = merge_alike(state, sorted(findings, key=_rank))
    blamed = [f.regions for f in findings if not f.is_unresolved]
    named = set(flatten(flatten(blamed)))
    return ends(
        Outcome.DISAGREE,
        signature=whole.signature,
        findings=tuple(findings),
        irrelevant=(
            ()
            if any(f.everywhere for f in findings)
            else _select_smallest(state.seen.irrelevant, named)
        ),
        unresolved=_select_smallest(state.seen.unresolved, named) if complete else unresolved,
        probe_sensitive=progress.probe_sensitive and not state.aim.flaky,
        complete=complete and (len(named) < state.n or all(f.certified for f in findings)),
    )


def _rank(finding: Finding) -> tuple[int, float, Items]:
    blames = finding.kind in (FindingKind.CULPRIT, FindingKind.FLAKY)
    return (
        0 if blames else _KINDS.index(finding.kind),
        -(finding.share_of_model or 0.0),
        finding.items,
    )


def _select_smallest(
    answers: Mapping[Items, Answer], named: Collection[int] = ()
) -> tuple[Observation, ...]:
    """Select the regions that contain no other one, and no item that is part of a finding."""
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


# ------------------------------------------------------------ intermediate tensors
# If the outputs agree, the intermediate tensors are searched: each in place, then each deviating
# item alone.
#
# Insight: the nodes between a fault and the outputs may hide it on the inputs at hand: a ReLU,
# a maximum, a sum of much larger terms. Reading intermediate tensors disturbs the candidate, so
# only an item that fails alone as well counts.

MAX_CONFIRMED = 2  # culprits of a kind, before further ones that fail alike are not confirmed


def look_inside(progress: Progress) -> Search[None]:
    """Fill `progress.findings`; `progress.rest`: AGREES if intermediate tensors could be read, and
    all that is wrong there was run alone.

    Raises:
        SearchStopped: a budget is used up. SearchRestart: answers differ from run to run.
    """
    state = progress.state
    scope = progress.scope
    (answer,) = yield from state.ask(
        Purpose.PROFILE, [Query(QueryKind.PROFILE, scope, state.aim.first, True)]
    )
    if not answer.items.statuses:
        why = answer.why or answer.signature or "none came back"
        state.notes.append((f"intermediate tensors could not be read: {why}", ()))
        return
    seen = read(state, scope, answer)
    wrong: list[Items] = [(k,) for k in seen.wrong]
    off = (yield from find_off_alone(state, scope)) if wrong else ()
    if off:
        finding = yield from confirm_region(state, (yield from shrink(state, off[:1])))
        progress.findings.append(replace(finding, alike=off[1:]))
        progress.rest = Rest.FAILS
        return
    statuses = []
    for at, region in enumerate(wrong):
        state.expect(len(wrong) - at)
        statuses.append((yield from state.probe(Purpose.TAIL, region)))
    failing = [
        region
        for region, status in zip(wrong, statuses, strict=True)
        if status is RegionOutcome.FAIL
    ]
    if wrong and not failing:  # several items may be wrong together only
        for last in seen.hints[:MAX_HINTS]:
            above = yield from follow(state, scope, last)
            if above:
                failing.append(above)
    for region in failing:
        signature = state.answer_to(region).signature
        finding = Finding(FindingKind.CULPRIT, region, signature, certified=True)
        causes = [find_cause(state, known) for known in progress.findings]
        if causes.count(find_cause(state, finding)) < MAX_CONFIRMED:
            finding = yield from confirm_region(state, (yield from shrink(state, region)))
        progress.findings.append(finding)
    progress.rest = Rest.UNKNOWN if RegionOutcome.UNRESOLVED in statuses else Rest.AGREES
    if wrong and not failing:
        state.notes.append(("wrong in place, but not alone: ", seen.wrong))
