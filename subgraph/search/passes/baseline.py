"""Does the whole model fail, how, and how often? This is asked before anything else.

Two runs in fresh processes, four if they differ. If both agree, more while they cost little: no later query would
notice a mistake here, and two runs overlook a fault that shows every second time with probability 1/4, seven 1/128.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Answer, Query, QueryKind
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Signature, Status

RUNS = 2
DIFFERING_RUNS = 4
MOST_RUNS = 7  # of a whole that agrees
REPEATS_SECONDS = 10.0  # that all repeats of a whole that agrees may take together, beyond the first of them
FLAKY_RUNS = 8  # once the whole is known to be flaky


@dataclass(frozen=True)
class Baseline:
    """The runs of the whole model, summed up.

    Attributes:
        signature: the most frequent one; None where no run failed.
        failed, runs: how many runs failed with it, of how many.
        agrees: every run agreed. claimed: but some only within the claimed precision.
        why: of the first run with that signature.
    """

    signature: Signature | None
    failed: int
    runs: int
    agrees: bool
    claimed: bool
    why: str


def baseline(state: SearchState, repeat: int | None) -> Search[Baseline]:
    """Run the whole model; `repeat`: runs that must agree before the whole does, None: as many as cost little."""
    answers = yield from run_whole(state, 1)
    if repeat == 1 and not _fails(answers[0]):
        return summed(answers)
    answers = yield from run_whole(state, RUNS)
    if len({(a.status, a.signature) for a in answers}) > 1:
        answers = yield from run_whole(state, DIFFERING_RUNS)
    if not any(map(_fails, answers)):
        while not any(map(_fails, answers)) and _once_more(answers, repeat):
            answers = yield from run_whole(state, len(answers) + 1)
        if any(map(_fails, answers)):
            answers = yield from run_whole(state, FLAKY_RUNS)
    return summed(answers)


def _once_more(answers: Sequence[Answer], repeat: int | None) -> bool:
    """Is the whole, which agreed so far, to be run again? Seconds are those of the first run of a stored answer, so
    that a search that is resumed decides the same."""
    if repeat is not None:
        return len(answers) < repeat
    seconds = [a.seconds for a in answers[1:]]
    return len(answers) < MOST_RUNS and sum(seconds) + max(seconds) < REPEATS_SECONDS


def run_whole(state: SearchState, runs: int) -> Search[list[Answer]]:
    """Answers of so many runs of the whole; earlier runs count."""
    queries = [Query(QueryKind.WHOLE, (), repetition, True) for repetition in range(runs)]
    answers = yield from state.ask(Purpose.BASELINE, queries[:1])
    return answers + (yield from state.one_by_one(Purpose.AGAIN, queries[1:]))


def summed(answers: Sequence[Answer]) -> Baseline:
    """Several runs of the whole -> the most frequent signature, of equally frequent ones the first."""
    failures = Counter(a.signature for a in answers if _fails(a))
    signature = failures.most_common(1)[0][0] if failures else None
    decisive = next((a for a in answers if a.signature is signature and _fails(a)), answers[0])
    agrees = all(a.status is Status.AGREE for a in answers)
    claimed = agrees and any(a.claimed for a in answers)
    return Baseline(signature, failures[signature] if failures else 0, len(answers), agrees, claimed, decisive.why)


def _fails(answer: Answer) -> bool:
    return answer.signature is not None and answer.status is not Status.AGREE
