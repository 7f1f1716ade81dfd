"""Does the whole model fail, how, and how often? This is asked before anything else.

Two runs in fresh processes, four if they differ. If both agree, more: no later query would notice a mistake here, and
two runs overlook a fault that shows every second time with probability 1/4.
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


def baseline(state: SearchState, agreeing: int) -> Search[Baseline]:
    """Run the whole model; `agreeing`: runs that must agree before the whole counts as agreeing."""
    answers = yield from run_whole(state, RUNS)
    if len({(a.status, a.signature) for a in answers}) > 1:
        answers = yield from run_whole(state, DIFFERING_RUNS)
    if not any(map(_fails, answers)):
        while len(answers) < agreeing and not any(map(_fails, answers)):
            answers = yield from run_whole(state, len(answers) + 1)
        if any(map(_fails, answers)):
            answers = yield from run_whole(state, FLAKY_RUNS)
    return summed(answers)


def run_whole(state: SearchState, runs: int) -> Search[list[Answer]]:
    """Answers of so many runs of the whole; earlier runs count."""
    queries = [Query(QueryKind.WHOLE, (), repetition, True) for repetition in range(runs)]
    answers = yield from state.ask(Purpose.BASELINE, queries[:1])
    return answers + (yield from state.in_batches(Purpose.AGAIN, queries[1:]))


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
