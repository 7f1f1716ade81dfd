"""A smallest region becomes a finding only after it failed alone in a fresh process, and
contradictions were repeated.

Insight: a flaky candidate (or a worker that went wrong) shows in contradictions: the region does
not fail again, one of its neighbors does, or a region around it agreed. Only these are worth
repeating. A single item that fails needs one more run; for several items, any of the passes on
which they rest may have been luck.
"""

from __future__ import annotations

from dataclasses import replace

from subgraph.search.driver import Search, SearchRestart
from subgraph.search.findings import Finding, FindingKind, Purpose
from subgraph.search.oracle import Items, RegionOutcome
from subgraph.search.passes import baseline
from subgraph.search.passes.baseline import careful_rate, passes_needed, reproduces
from subgraph.search.passes.shrink import Smallest
from subgraph.search.state import SearchState
from subgraph.verdict import Status

# A region comes out one item too large when a fault of rate p failed k times in a row and then
# passed r times: p^k (1−p)^r, at most 0.13 % for k = 6, r = 4, 0.03 % for k = 9, r = 4 and 0.7 %
# for k = 8, r = 2, whatever p. Rows: (items of the region at most, further runs of it, of each
# neighbor); two runs of the whole, one of the region and of each neighbor precede, and up to
# `MAX_EXCHANGED` items each neighbor is run once more with a stranger.
FURTHER_RUNS = ((1, 1, 0), (3, 3, 2), (4, 6, 3), (1 << 62, 5, 1))
STEADY_RUNS = (1, 0)  # where the candidate always gives the same
MAX_NEIGHBORS = 16  # whose passes are repeated
MAX_SUPERSETS = 2  # that agreed and are repeated
FRESH_RUNS = 7  # without a failure: the first failure was the used worker's fault
FLAKY_RUNS, MORE_FLAKY_RUNS = (
    8,
    30,
)  # of a region; the latter if it seems to fail less often than the whole
CHANGED_RUNS = (
    16  # of the whole; a fault of rate 1/4 that failed twice hides in the others once in 56 times
)
MAX_EXCHANGED = 3  # items of a region each of which is exchanged for a stranger
_VOID = 1000  # added to repetitions, so that no earlier answer counts


def confirm_region(state: SearchState, smallest: Smallest) -> Search[Finding]:
    """The finding for a smallest region.

    Raises:
        SearchRestart: the candidate is flaky, or a used worker gave a failure that a fresh one does
            not give.
    """
    state.expect(2)
    if state.aim.flaky:
        return (yield from _flaky_finding(state, smallest))
    own, others = next(
        (own, others) for most, own, others in FURTHER_RUNS if len(smallest.items) <= most
    )
    own, others = STEADY_RUNS if state.driver.settings.steady else (own, others)
    statuses = yield from state.repeat([smallest.items], own)
    if RegionOutcome.AGREE in statuses:
        yield from resolve_contradiction(state, smallest.items)
    supersets = state.seen.agreeing_supersets(smallest.items)[:MAX_SUPERSETS]
    for regions, times in ((_neighbors(state, smallest), others), (supersets, 1)):
        if RegionOutcome.FAIL in (yield from state.repeat(regions, times)):
            yield from _restart_as_flaky(state)
    finding = _finding(state, smallest, FindingKind.CULPRIT, (1, 1))
    if RegionOutcome.FAIL not in statuses:
        return replace(
            finding, certified=False, why="perhaps not the smallest: no fresh process ran it"
        )
    return (yield from _needs_all(state, smallest, finding))


def _needs_all(state: SearchState, smallest: Smallest, finding: Finding) -> Search[Finding]:
    """The finding, unless an item of it can be exchanged for a stranger: then the others fail in
    any company, though not alone, and the candidate contradicts itself."""
    if not 1 < len(smallest.items) <= MAX_EXCHANGED or state.driver.settings.steady:
        return finding
    needed = []
    for item in smallest.items:
        rest = tuple(k for k in smallest.items if k != item)
        stranger = _stranger(state, smallest.items)
        if (
            stranger is None
            or (yield from _fails_with(state, rest, stranger)) is not RegionOutcome.FAIL
        ):
            needed.append(item)
    if len(needed) == len(smallest.items):
        return finding
    why = (
        "the candidate contradicts itself: this fails together with any other nodes, and not alone"
    )
    items = tuple(needed) or smallest.items
    return replace(
        finding, kind=FindingKind.UNRESOLVED, items=items, certified=False, neighbor=None, why=why
    )


def _stranger(state: SearchState, region: Items) -> int | None:
    """An item far from a region, that neither feeds nor reads it, and did not fail alone; not
    behind it, if there is one. Complexity: O(items + edges)."""
    behind = set(region)
    near = {p for k in region for p in state.parents[k]}
    for k in range(region[0], state.n):
        if not behind.isdisjoint(state.parents[k]):
            near |= {k} if not set(region).isdisjoint(state.parents[k]) else set()
            behind.add(k)
    others = [k for k in state.aim.target or range(state.n) if k not in near and k not in region]
    others = [
        k for k in others if (k,) not in state.seen.irrelevant and (k,) not in state.seen.unresolved
    ]
    return max(
        others, key=lambda k: (k not in behind, min(abs(k - i) for i in region)), default=None
    )


def _fails_with(state: SearchState, rest: Items, stranger: int) -> Search[RegionOutcome]:
    """Return the outcome of the rest with a stranger; not failing if the stranger fails alone."""
    status = yield from state.probe(Purpose.CONFIRM, tuple(sorted((*rest, stranger))))
    if (
        status is RegionOutcome.FAIL
        and (yield from state.probe(Purpose.CONFIRM, (stranger,))) is not RegionOutcome.AGREE
    ):
        return RegionOutcome.UNRESOLVED
    return status


def _neighbors(state: SearchState, smallest: Smallest) -> list[Items]:
    """Regions with one item less that were asked about."""
    items = smallest.items if len(smallest.items) > 1 else ()
    neighbours = [tuple(k for k in items if k != dropped) for dropped in items]
    return [r for r in neighbours if state.known(r, state.aim.first) is not None][-MAX_NEIGHBORS:]


def resolve_contradiction(state: SearchState, region: Items) -> Search[None]:
    """A region failed and then agreed, or the whole fails and the region of all items does not: is
    the candidate flaky, or was it the worker? Returns only in the second case, if neither is the
    reason.

    Raises:
        SearchRestart: one of them is.
    """
    if RegionOutcome.FAIL in (yield from state.repeat([region], FRESH_RUNS)):
        yield from _restart_as_flaky(state)
    if not (yield from state.fails(Purpose.CONFIRM, region)):
        return
    state.aim = replace(state.aim, first=state.aim.first + _VOID)
    state.seen.agreed.clear()
    raise SearchRestart(
        "a failure was seen in a used process only: every trial now gets a fresh one"
    )


def _restart_as_flaky(state: SearchState) -> Search[None]:
    yield from measure_rate(state)
    raise SearchRestart("results differ from run to run: agreeing runs are repeated")


def measure_rate(state: SearchState) -> Search[None]:
    """The candidate is flaky: how often does the whole fail, and so how often must a region pass?

    If none of the latest runs failed, more runs tell a rare fault from a candidate that changed
    meanwhile.
    """
    before = state.whole.runs
    answers = yield from baseline.run_whole(state, baseline.FLAKY_RUNS)
    if answers[before:] and baseline.sum_up(answers[before:]).agrees:
        answers = yield from baseline.run_whole(state, CHANGED_RUNS)
    runs = baseline.sum_up(answers)
    state.whole = replace(state.whole, failed=runs.failed, runs=runs.runs)
    passes = passes_needed(careful_rate(runs.failed, runs.runs))
    outcomes = {answer.status for answer in answers[baseline.FRESH_RUNS :]}  # of one process
    wavers = outcomes >= {Status.AGREE, Status.FAIL}
    state.aim = replace(state.aim, repeats=max(2, passes), wavers=wavers)
    state.seen.agreed.clear()


def _flaky_finding(state: SearchState, smallest: Smallest) -> Search[Finding]:
    """The finding for a region of a flaky candidate.

    Raises:
        SearchRestart: a region with one item less, that counted as passing, failed after all.
    """
    passes = state.aim.repeats
    if RegionOutcome.FAIL in (yield from state.repeat(_neighbors(state, smallest), 2 * passes - 1)):
        state.aim = replace(state.aim, repeats=2 * passes)
        raise SearchRestart(
            f"a region failed that had passed {passes} times: passes are repeated more often"
        )
    for runs in (FLAKY_RUNS, MORE_FLAKY_RUNS):
        failed = (yield from state.repeat([smallest.items], runs)).count(RegionOutcome.FAIL)
        is_reproduced = reproduces(failed, runs, state.whole.failed, state.whole.runs)
        if is_reproduced:
            break
    finding = _finding(state, smallest, FindingKind.FLAKY, (failed, runs))
    if is_reproduced:
        return finding
    why = f"fails alone in {failed} of {runs} runs, the whole in {state.whole.rate:.0%} of its runs"
    return replace(finding, kind=FindingKind.UNRESOLVED, certified=False, why=why)


def _finding(
    state: SearchState, smallest: Smallest, kind: FindingKind, runs: tuple[int, int]
) -> Finding:
    answer = state.answer_to(smallest.items)
    only_whole = "fails only as a whole: no part of it was seen to fail"
    return Finding(
        kind,
        smallest.items,
        answer.signature or state.aim.signature,  # alone the region may fail in another way
        smallest.certified,
        None if state.aim.no_output else answer.share.of_model,
        runs,
        neighbor=next(reversed(smallest.neighbours(RegionOutcome.AGREE)), None),
        doubtful=smallest.dropped(RegionOutcome.UNRESOLVED),
        minor=smallest.dropped(RegionOutcome.MINOR),
        why=only_whole if smallest.whole else state.aim.proven.get(smallest.items, ""),
    )
