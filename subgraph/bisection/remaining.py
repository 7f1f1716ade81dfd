"""Steps of a search -> how many nodes may still be guilty, and how many runs are still to come.

An estimate is a range: the lower end holds where one node is wrong, the upper end where several
are.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from subgraph.search import Purpose, QueryKind, Step
from subgraph.search.predicate import RegionOutcome
from subgraph.text import count

# Times the search's own estimate, which is that of one guilty node. Of 220 simulated searches
# (several culprits, accumulated errors, flaky candidates among them) 88 % ended within the upper
# end of the first estimate.
MAX_TIMES = 7


@dataclass
class Remaining:
    """What the steps so far have shown.

    Attributes:
        size: number of nodes in question.
        left: how many of them the failing regions found so far hold; all while no region has
            failed.
        steps: number of steps. least, most: runs still to come.
        seconds, runs: what the runs so far took on the wall clock; stored ones what they took when
            they ran.
    """

    size: int
    left: int = 0
    steps: int = 0
    least: int = 0
    most: int = 0
    seconds: float = 0.0
    runs: int = 0
    _failing: list[frozenset[Hashable]] = field(default_factory=list)
    _total: int = 0
    _begin: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.size

    def add(self, step: Step, nodes: Collection[Hashable]) -> None:
        """Take a step into account; `nodes`: those that it is about, none for the whole model.

        Complexity: linear in the nodes of the failing regions.
        """
        now = time.monotonic()
        if step.answer.verdict is None or not step.answer.verdict.stored:
            self._took(now - self._begin)
        elif step.answer.seconds:
            self._took(step.answer.seconds)
        self._begin = now
        self.steps += 1
        if (
            step.query.kind in (QueryKind.ISOLATED, QueryKind.REST)
            and step.outcome is RegionOutcome.FAIL
        ):
            self._narrow(frozenset(nodes))
        self.least = self.most = step.estimated_runs
        if step.only_repeats:
            return
        self._total = self._total or self.steps + MAX_TIMES * step.estimated_runs
        self.most = (
            max(self._total - self.steps, MAX_TIMES * step.estimated_runs)
            if step.estimated_runs
            else 0
        )

    def _took(self, seconds: float) -> None:
        self.seconds, self.runs = self.seconds + seconds, self.runs + 1

    def _narrow(self, region: frozenset[Hashable]) -> None:
        """Keep the smallest failing regions."""
        if region and not any(known <= region for known in self._failing):
            self._failing = [known for known in self._failing if not region < known] + [region]
            self.left = len(frozenset().union(*self._failing))

    def learned(self, step: Step) -> str:
        """`2 of 27 nodes left`: what is known after the step that was added last."""
        if step.query.kind in (QueryKind.WHOLE, QueryKind.CLAIMED):
            return "whole model"
        if step.purpose is Purpose.GROWTH:
            return "growth of the error"
        if step.purpose is Purpose.EVERYWHERE:
            return "nodes of all kinds"
        return f"{self.left} of {self.size} nodes left"

    @property
    def estimate(self) -> str:
        """`about 9 to 63 more runs (0.5 s to 3 s)`; `at most 5 more runs of the whole (2 s)` while
        it agrees; "" where nothing can be said."""
        if not self.most:
            return ""
        low, high = (self.seconds / max(self.runs, 1) * n for n in (self.least, self.most))
        if self.least == self.most:
            return f"at most {count(self.most, 'more run')} of the whole ({_seconds(high)})"
        return f"about {self.least} to {self.most} more runs ({_seconds(low)} to {_seconds(high)})"


def _seconds(value: float) -> str:
    return (
        f"{value / 60:.0f} min"
        if value >= 120
        else f"{value:.2g} s"
        if value < 10
        else f"{value:.0f} s"
    )
