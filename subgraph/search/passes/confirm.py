"""A smallest region becomes a finding only after it failed alone in a fresh process, and
contradictions were repeated.

Insight: a flaky candidate (or a worker that went wrong) shows in contradictions: the region does
not fail again, one of its neighbors does, or a region around it agreed. Only these are worth
repeating. A single item that fails needs one more run; for several items, any of the passes on
which they rest may have been luck.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from subgraph.search.driver import Search, SearchRestart
from subgraph.search.oracle import (
    Answer,
    Finding,
    FindingKind,
    Items,
    Purpose,
    Query,
    QueryKind,
    RegionOutcome,
    UndecidedItems,
    exclude,
)
from subgraph.search.passes.shrink import Smallest
from subgraph.search.state import Baseline, SearchState
from subgraph.verdict import Status

# A region comes out one item too large when a fault of rate p failed k times in a row and then
# passed r times: p^k (1−p)^r, at most 0.13 % for k = 6, r = 4, 0.03 % for k = 9, r = 4 and 0.7 %
# for k = 8, r = 2, whatever p. Rows: (items of the region at most, further runs of it, of each
# neighbor); two runs of the full model, one of the region and of each neighbor precede, and up to
# `MAX_EXCHANGED` items each neighbor is also run with a stranger. The first row also applies if the
# candidate always returns the same values.
FURTHER_RUNS = ((1, 1, 0), (3, 3, 2), (4, 6, 3), (1 << 62, 5, 1))
# Fresh processes among the further runs of the region. The other runs load in the process in which
# the region failed: a fault that depends on the process is present there, so that a pass of a
# neighbor counts.
OWN_FRESH_RUNS = 1
MAX_NEIGHBORS = 16  # whose passes are repeated
MAX_SUPERSETS = 2  # that agreed and are repeated
FRESH_RUNS = 7  # without a failure: the first failure was the used worker's fault
# Runs of a region; the latter if it seems to fail less often than the full model.
FLAKY_RUNS = 8
MORE_FLAKY_RUNS = 30
# Runs of the full model. A fault of rate 1/4 that failed twice hides in them once in 56 times.
CHANGED_RUNS = 16
MAX_EXCHANGED = 3  # items of a region each of which is exchanged for a stranger
_VOID = 1000  # added to repetitions, so that no earlier answer counts


def confirm_region(state: SearchState, smallest: Smallest) -> Search[Finding]:
    """Return the finding for a smallest region.

    Raises:
        SearchRestart: The candidate is flaky, or a used worker failed and a fresh one does not.
    """
    state.expect(2)
    if state.aim.flaky:
        return (yield from _make_flaky_finding(state, smallest))
    size = 1 if state.driver.settings.steady else len(smallest.items)
    own, others = next((own, others) for most, own, others in FURTHER_RUNS if size <= most)
    statuses = yield from state.repeat([smallest.items], own, OWN_FRESH_RUNS)
    if RegionOutcome.AGREE in statuses:
        yield from resolve_contradiction(state, smallest.items)
    supersets = state.seen.find_agreeing_supersets(smallest.items)[:MAX_SUPERSETS]
    for regions, times in ((_list_neighbors(state, smallest), others), (supersets, 1)):
        if RegionOutcome.FAIL in (yield from state.repeat(regions, times, max_fresh=0)):
            yield from _restart_as_flaky(state)
    finding = _make_finding(state, smallest, FindingKind.CULPRIT, (1, 1))
    if RegionOutcome.FAIL not in statuses:
        return replace(
            finding, certified=False, why="perhaps not the smallest: no fresh process ran it"
        )
    return (yield from _needs_all(state, smallest, finding))


def _needs_all(state: SearchState, smallest: Smallest, finding: Finding) -> Search[Finding]:
    """Return the finding, unless an item of it can be exchanged for a stranger: then the others
    fail in any company, though not alone, and the candidate contradicts itself."""
    if not 1 < len(smallest.items) <= MAX_EXCHANGED or state.driver.settings.steady:
        return finding
    needed = []
    for item in smallest.items:
        rest = exclude(smallest.items, (item,))
        stranger = _find_stranger(state, smallest.items)
        if stranger is None or not (
            yield from state.fails(Purpose.CONFIRM, tuple(sorted((*rest, stranger))))
        ):
            needed.append(item)
            continue
        # If the stranger fails alone, its failure with the others shows nothing.
        alone = yield from state.probe(Purpose.CONFIRM, (stranger,))
        if alone is not RegionOutcome.AGREE:
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


def _find_stranger(state: SearchState, region: Items) -> int | None:
    """Return an item far from a region that neither feeds nor reads it, and did not fail alone.

    An item that is not downstream of the region is preferred.

    Complexity: O(items + edges).
    """
    behind = set(region)
    near = behind.union(*(state.parents[k] for k in region))
    for k in range(region[0], state.n):
        if not behind.isdisjoint(state.parents[k]):
            behind.add(k)
            if not set(region).isdisjoint(state.parents[k]):
                near.add(k)
    items = state.aim.target or range(state.n)
    judged = {*state.seen.irrelevant, *state.seen.unresolved}
    others = [k for k in items if k not in near and (k,) not in judged]
    return max(
        others, key=lambda k: (k not in behind, min(abs(k - i) for i in region)), default=None
    )


def _list_neighbors(state: SearchState, smallest: Smallest) -> list[Items]:
    """Return regions with one item less that were run."""
    items = smallest.items if len(smallest.items) > 1 else ()
    neighbors = [exclude(items, (dropped,)) for dropped in items]
    return [r for r in neighbors if state.get_answer(r, state.aim.first) is not None][
        -MAX_NEIGHBORS:
    ]


def resolve_contradiction(state: SearchState, region: Items) -> Search[None]:
    """Find the reason of a contradiction: the candidate is flaky, or the worker failed.

    A region failed and then agreed, or the full model fails and the region of all items does not.
    The function returns only in the second case, if neither is the reason.

    Raises:
        SearchRestart: One of them is the reason.
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
    """Measure how often the full model fails with a flaky candidate, and set the needed passes.

    If none of the latest runs failed, more runs distinguish a rare fault from a candidate that
    changed meanwhile.
    """
    before = state.whole.runs
    answers = yield from run_whole(state, FLAKY_WHOLE_RUNS)
    if answers[before:] and sum_up(answers[before:]).agrees:
        answers = yield from run_whole(state, CHANGED_RUNS)
    runs = sum_up(answers)
    state.whole = replace(state.whole, failed=runs.failed, runs=runs.runs)
    passes = count_needed_passes(compute_careful_rate(runs.failed, runs.runs))
    outcomes = {answer.status for answer in answers[FRESH_WHOLE_RUNS:]}  # of one process
    wavers = outcomes >= {Status.AGREE, Status.FAIL}
    state.aim = replace(state.aim, repeats=max(2, passes), wavers=wavers)
    state.seen.agreed.clear()


def _make_flaky_finding(state: SearchState, smallest: Smallest) -> Search[Finding]:
    """Return the finding for a region of a flaky candidate.

    Raises:
        SearchRestart: a region with one item less, that counted as passing, failed after all.
    """
    passes = state.aim.repeats
    if RegionOutcome.FAIL in (
        yield from state.repeat(_list_neighbors(state, smallest), 2 * passes - 1)
    ):
        state.aim = replace(state.aim, repeats=2 * passes)
        raise SearchRestart(
            f"a region failed that had passed {passes} times: passes are repeated more often"
        )
    for runs in (FLAKY_RUNS, MORE_FLAKY_RUNS):
        failed = (yield from state.repeat([smallest.items], runs)).count(RegionOutcome.FAIL)
        is_reproduced = reproduces(failed, runs, state.whole.failed, state.whole.runs)
        if is_reproduced:
            break
    finding = _make_finding(state, smallest, FindingKind.FLAKY, (failed, runs))
    if is_reproduced:
        return finding
    why = (
        f"fails alone in {failed} of {runs} runs, the full model in {state.whole.rate:.0%} of its"
        " runs"
    )
    return replace(finding, kind=FindingKind.UNRESOLVED, certified=False, why=why)


def _make_finding(
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
        neighbor=next(reversed(smallest.list_neighbors(RegionOutcome.AGREE)), None),
        undecided=UndecidedItems(
            refused=smallest.list_dropped(RegionOutcome.UNRESOLVED),
            minor=smallest.list_dropped(RegionOutcome.MINOR),
        ),
        why=only_whole if smallest.whole else state.aim.proven.get(smallest.items, ""),
    )


# ------------------------------------------------------------ the full model
# The first step of a search: whether the full model fails, how, and how often.
#
# Two runs in fresh processes, four if they differ. If both agree, more while they cost little: no
# later query would notice a mistake here, and two runs overlook a fault that shows every second
# time with probability 1/4, seven 1/128. The fifth and later ones are in a process that has run
# the full model before: a service loads more than one model, too.
#
# A region of a flaky candidate has to pass several times before it counts as passing. A fault
# that shows with probability p hides n times in a row with probability (1−p)^n, so ln(α)/ln(1−p)
# passes keep the error below α. p is unknown; it is estimated from runs that should have failed,
# less one standard deviation.

WHOLE_RUNS = 2
DIFFERING_WHOLE_RUNS = FRESH_WHOLE_RUNS = 4
MAX_WHOLE_RUNS = 7  # of a full model that agrees
# Duration of all repeats of a full model that agrees, beyond the first of them.
REPEATS_SECONDS = 1.0
FLAKY_WHOLE_RUNS = 8  # once the full model is known to be flaky
MAX_ANSWER_ERROR = 0.005  # accepted error per answer of a flaky search
MIN_RATE = 0.25  # below this rate no search of reasonable length finds anything
WILSON_Z = 1.96
MIN_RATE_SHARE = 0.8  # of the full model's rate, that a region must reach to account for it


def run_baseline(state: SearchState) -> Search[None]:
    """Run the full model until it is known how it fails, or that it agrees: `state.whole`."""
    answers: list[Answer] = []
    settings = state.driver.settings
    repeat = WHOLE_RUNS if settings.steady else settings.repeat
    of_search, _ = state.driver.estimate
    looks_further = settings.inside or settings.within is not None
    while len(answers) < _count_runs_needed(answers, repeat):
        purpose = Purpose.AGAIN if answers else Purpose.BASELINE
        answers += yield from state.ask(purpose, [_run_of_whole(len(answers))])
        state.whole = sum_up(answers)
        state.look_for((), state.whole.signature)
        only_repeats = state.whole.agrees and not looks_further
        runs = of_search
        if only_repeats:  # if it agrees each time, and takes as long as the last time
            alike = list(answers)
            while len(alike) < _count_runs_needed(alike, repeat):
                alike.append(answers[-1])
            runs = len(alike) - len(answers)
        state.expect(runs, only_repeats=only_repeats)


def _count_runs_needed(answers: Sequence[Answer], repeat: int | None) -> int:
    """Return the number of runs of the full model that its known answers require.

    Args:
        answers: The known answers.
        repeat: Number of runs that must agree before the full model counts as agreeing. None for as
            many as cost little.
    """
    fails = [_fails(a) for a in answers]
    if len(answers) < WHOLE_RUNS:
        if not answers or (repeat == 1 and not any(fails)):
            return 1
        return WHOLE_RUNS
    first = answers[:WHOLE_RUNS]
    is_alike = len({(a.status, a.signature) for a in first}) == 1
    is_steady = is_alike and not any(a.is_contradicted for a in first)
    least = WHOLE_RUNS if is_steady else DIFFERING_WHOLE_RUNS
    if any(fails[:least]):
        return least
    if any(fails):
        return FLAKY_WHOLE_RUNS
    if repeat is not None:
        return max(least, len(answers) + (len(answers) < repeat))
    # A stored answer has the seconds of its first run, so a resumed search decides the same.
    seconds = [a.seconds for a in answers[1:]]
    is_cheap = sum(seconds) + max(seconds) < REPEATS_SECONDS
    return max(least, len(answers) + (is_cheap and len(answers) < MAX_WHOLE_RUNS))


def run_whole(state: SearchState, runs: int) -> Search[list[Answer]]:
    """Return the answers of this number of runs of the full model; earlier runs count."""
    return (yield from state.ask_singly(Purpose.AGAIN, list(map(_run_of_whole, range(runs)))))


def _run_of_whole(repetition: int) -> Query:
    return Query(QueryKind.WHOLE, (), repetition, fresh=repetition < FRESH_WHOLE_RUNS)


def sum_up(answers: Sequence[Answer]) -> Baseline:
    """Return the summary of several runs of the full model, with the most frequent signature.

    Of equally frequent signatures, it is the first one.
    """
    failures = Counter(a.signature for a in answers if _fails(a))
    signature = failures.most_common(1)[0][0] if failures else None
    decisive = next((a for a in answers if a.signature is signature and _fails(a)), answers[0])
    agrees = all(a.agrees for a in answers)
    claimed = agrees and any(a.agrees_only_as_claimed for a in answers)
    return Baseline(
        signature,
        failures[signature],
        len(answers),
        agrees,
        claimed,
        decisive.why,
        any(a.is_contradicted for a in answers),
    )


def _fails(answer: Answer) -> bool:
    return answer.signature is not None and not answer.agrees


def compute_careful_rate(failed: int, runs: int) -> float:
    """Return the mean of the posterior (uniform prior) less one standard
    deviation, >= `MIN_RATE`."""
    a = failed + 1
    b = runs - failed + 1
    mean = a / (a + b)
    deviation = math.sqrt(mean * (1 - mean) / (a + b + 1))
    return max(MIN_RATE, mean - deviation)


def count_needed_passes(rate: float, error: float = MAX_ANSWER_ERROR) -> int:
    """Return the number of passes in a row that show that a region does not fail; 1 for a rate of
    1.

    >>> count_needed_passes(0.5, 0.01), count_needed_passes(0.9, 0.01), count_needed_passes(1.0)
    (7, 2, 1)
    """
    if rate >= 1:
        return 1
    return max(1, math.ceil(math.log(error) / math.log(1 - rate) - 1e-9))


def compute_wilson_interval(failed: int, runs: int) -> tuple[float, float]:
    """Return lower and upper bound of the confidence interval of a rate (Wilson 1927)."""
    if not runs:
        return 0.0, 1.0
    rate = failed / runs
    z2 = WILSON_Z * WILSON_Z
    middle = rate + z2 / (2 * runs)
    half = WILSON_Z * math.sqrt(rate * (1 - rate) / runs + z2 / (4 * runs * runs))
    return max(0.0, (middle - half) / (1 + z2 / runs)), min(1.0, (middle + half) / (1 + z2 / runs))


def reproduces(failed: int, runs: int, whole_failed: int, whole_runs: int) -> bool:
    """Return whether this region's rate can be `MIN_RATE_SHARE` of the full model's; never if it
    hardly ever failed."""
    return (
        failed >= MIN_RATE * runs
        and compute_wilson_interval(failed, runs)[1]
        >= MIN_RATE_SHARE * compute_wilson_interval(whole_failed, whole_runs)[0]
    )
