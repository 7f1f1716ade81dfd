"""Does the whole model fail at all, how, and how often? Nothing else is asked before.

Two runs in fresh processes; four where they differ. Where both agree, more: then these few runs are all there is, and
a fault that shows every second time would be denied by two of them once in four.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Answer, Query, QueryKind
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Signature, Status

RUNS = 2
DIFFERING = 4
MEASURED = 8  # runs of the whole, once it is known to be flaky


@dataclass(frozen=True)
class Baseline:
    """Attributes:
    signature: the most frequent one; None where no run failed.
    failed, asked: how many runs of the whole failed so, of how many.
    agrees: every run did. claimed: but only as well as the claimed precision lets it.
    why: of the first run that decided.
    """

    signature: Signature | None
    failed: int
    asked: int
    agrees: bool
    claimed: bool
    why: str

    @property
    def rate(self) -> float:
        """How often the whole fails."""
        return self.failed / self.asked if self.asked else 0.0


def baseline(book: SearchState, agreeing: int) -> Search[Baseline]:
    """`agreeing`: so many runs must agree before the whole does."""
    answers = yield from whole(book, RUNS)
    if len({_mark(a) for a in answers}) > 1:
        answers = yield from whole(book, DIFFERING)
    if not any(_fails(a) for a in answers):
        asked = 0
        while len(answers) < agreeing and asked < len(answers) and not any(_fails(a) for a in answers):
            asked = len(answers)
            answers = yield from whole(book, asked + 1)
        if any(_fails(a) for a in answers):
            answers = yield from whole(book, MEASURED)
    return summed(answers)


def whole(book: SearchState, runs: int) -> Search[list[Answer]]:
    """So many runs of the whole; those made before are not made again."""
    found = yield from book.ask(Purpose.BASELINE, [Query(QueryKind.WHOLE, (), 0, True)])
    asks = [Query(QueryKind.WHOLE, (), repetition, True) for repetition in range(1, runs)]
    for at in range(0, len(asks), book.workers):
        found += yield from book.ask(Purpose.AGAIN, asks[at : at + book.workers])
    return found


def summed(answers: list[Answer]) -> Baseline:
    """What several runs say together: the first of the most frequent signatures."""
    seen = Counter(a.signature for a in answers if _fails(a))
    signature = seen.most_common(1)[0][0] if seen else None
    telling = next((a for a in answers if a.signature is signature and _fails(a)), answers[0])
    agrees = all(a.status is Status.AGREE for a in answers)
    claimed = agrees and any(a.claimed for a in answers)
    return Baseline(signature, seen[signature] if seen else 0, len(answers), agrees, claimed, telling.why)


def _fails(answer: Answer) -> bool:
    return answer.signature is not None and answer.status is not Status.AGREE


def _mark(answer: Answer) -> tuple[Status, Signature | None]:
    return answer.status, answer.signature
