"""The first question of a search: whether the full model fails, how, and how often.

Two runs in fresh processes, four if they differ. If both agree, more while they cost little: no
later query would notice a mistake here, and two runs overlook a fault that shows every second time
with probability 1/4, seven 1/128. The fifth and later ones are in a process that has run the full
model before: a service loads more than one model, too.

A region of a flaky candidate has to pass several times before it counts as passing. A fault that
shows with probability p hides n times in a row with probability (1−p)^n, so ln(α)/ln(1−p) passes
keep the error below α. p is unknown; it is estimated from runs that should have failed, less one
standard deviation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from subgraph.search.driver import Search
from subgraph.search.findings import Purpose
from subgraph.search.oracle import Answer, Query, QueryKind
from subgraph.search.state import Baseline, SearchState
from subgraph.verdict import Status

RUNS = 2
DIFFERING_RUNS = FRESH_RUNS = 4
MAX_RUNS = 7  # of a whole that agrees
REPEATS_SECONDS = (
    10.0  # that all repeats of a whole that agrees may take together, beyond the first of them
)
FLAKY_RUNS = 8  # once the whole is known to be flaky
ERROR = 0.005  # accepted error per answer of a flaky search
MIN_RATE = 0.25  # below this rate no search of reasonable length finds anything
WILSON_Z = 1.96
KEPT_RATE = 0.8  # of the whole's rate, that a region must reach to account for it


def baseline(state: SearchState) -> Search[None]:
    """Run the whole model until it is known how it fails, or that it agrees: `state.whole`."""
    answers: list[Answer] = []
    repeat = RUNS if state.driver.settings.steady else state.driver.settings.repeat
    of_search, _ = state.driver.estimate
    looks_further = state.driver.settings.inside or state.driver.settings.within is not None
    while len(answers) < _runs_needed(answers, repeat):
        purpose = Purpose.AGAIN if answers else Purpose.BASELINE
        answers += yield from state.ask(purpose, [_run_of_whole(len(answers))])
        state.whole = sum_up(answers)
        state.look_for((), state.whole.signature)
        only_repeats = state.whole.agrees and not looks_further
        runs = _repeats_left(answers, repeat) if only_repeats else of_search
        state.expect(runs, only_repeats=only_repeats)


def _repeats_left(answers: Sequence[Answer], repeat: int | None) -> int:
    """Return the largest number of further runs of the full model, if it agrees each time and takes
    as long as the last time."""
    runs = list(answers)
    while len(runs) < _runs_needed(runs, repeat):
        runs.append(answers[-1])
    return len(runs) - len(answers)


def _runs_needed(answers: Sequence[Answer], repeat: int | None) -> int:
    """Return the number of runs of the full model, as far as its answers so far tell; `repeat`:
    runs that must agree before the full model does, None: as many as cost little."""
    fails = [_fails(a) for a in answers]
    if len(answers) < RUNS:
        return 1 if not answers or (repeat == 1 and not any(fails)) else RUNS
    first = answers[:RUNS]
    is_alike = len({(a.status, a.signature) for a in first}) == 1
    is_steady = is_alike and not any(a.is_contradicted for a in first)
    least = RUNS if is_steady else DIFFERING_RUNS
    if any(fails[:least]):
        return least
    return FLAKY_RUNS if any(fails) else max(least, len(answers) + _once_more(answers, repeat))


def _once_more(answers: Sequence[Answer], repeat: int | None) -> bool:
    """Return whether to run the full model, which agreed so far, again. Seconds are those of the
    first run of a stored answer, so that a search that is resumed decides the same."""
    if repeat is not None:
        return len(answers) < repeat
    seconds = [a.seconds for a in answers[1:]]
    return len(answers) < MAX_RUNS and sum(seconds) + max(seconds) < REPEATS_SECONDS


def run_whole(state: SearchState, runs: int) -> Search[list[Answer]]:
    """Answers of so many runs of the whole; earlier runs count."""
    return (yield from state.one_by_one(Purpose.AGAIN, list(map(_run_of_whole, range(runs)))))


def _run_of_whole(repetition: int) -> Query:
    return Query(QueryKind.WHOLE, (), repetition, fresh=repetition < FRESH_RUNS)


def sum_up(answers: Sequence[Answer]) -> Baseline:
    """Several runs of the whole -> the most frequent signature, of equally frequent ones the
    first."""
    failures = Counter(a.signature for a in answers if _fails(a))
    signature = failures.most_common(1)[0][0] if failures else None
    decisive = next((a for a in answers if a.signature is signature and _fails(a)), answers[0])
    agrees = all(a.status is Status.AGREE for a in answers)
    claimed = agrees and any(a.agrees_only_as_claimed for a in answers)
    return Baseline(
        signature,
        failures[signature] if failures else 0,
        len(answers),
        agrees,
        claimed,
        decisive.why,
        any(a.is_contradicted for a in answers),
    )


def _fails(answer: Answer) -> bool:
    return answer.signature is not None and answer.status is not Status.AGREE


def careful_rate(failed: int, runs: int) -> float:
    """Mean of the posterior (uniform prior) less one standard deviation, at least `MIN_RATE`."""
    a = failed + 1
    b = runs - failed + 1
    mean = a / (a + b)
    deviation = math.sqrt(mean * (1 - mean) / (a + b + 1))
    return max(MIN_RATE, mean - deviation)


def passes_needed(rate: float, error: float = ERROR) -> int:
    """Return the number of passes in a row that show that a region does not fail; 1 for a rate of
    1.

    >>> passes_needed(0.5, 0.01), passes_needed(0.9, 0.01), passes_needed(1.0)
    (7, 2, 1)
    """
    return 1 if rate >= 1 else max(1, math.ceil(math.log(error) / math.log(1 - rate) - 1e-9))


def wilson(failed: int, runs: int) -> tuple[float, float]:
    """Confidence interval of a rate (Wilson 1927): lower and upper bound."""
    if not runs:
        return 0.0, 1.0
    rate = failed / runs
    z2 = WILSON_Z * WILSON_Z
    middle = rate + z2 / (2 * runs)
    half = WILSON_Z * math.sqrt(rate * (1 - rate) / runs + z2 / (4 * runs * runs))
    return max(0.0, (middle - half) / (1 + z2 / runs)), min(1.0, (middle + half) / (1 + z2 / runs))


def reproduces(failed: int, runs: int, whole_failed: int, whole_runs: int) -> bool:
    """Return whether this region's rate can be `KEPT_RATE` of the full model's; never if it hardly
    ever failed."""
    return (
        failed >= MIN_RATE * runs
        and wilson(failed, runs)[1] >= KEPT_RATE * wilson(whole_failed, whole_runs)[0]
    )
