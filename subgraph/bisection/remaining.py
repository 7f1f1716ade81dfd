"""Steps of a search -> how many nodes may still be guilty, and how many runs are still to come."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from subgraph.search import Purpose, QueryKind, Step
from subgraph.search.oracle import RegionOutcome
from subgraph.text import count

# Times the search's own estimate, which is that of one guilty node: half of 84 simulated searches
# (several culprits, accumulated errors among them) took 4.6 times as many runs, and those with one
# culprit 0.8 times.
TIMES = 2


@dataclass
class Remaining:
    """The results of the steps so far.

    Attributes:
        size: number of nodes in question.
        left: how many of them the failing regions found so far hold; all while no region has
            failed.
        runs_left: number of runs still to come, as far as that can be estimated.
        only_repeats: they are of the full model, which agreed so far.
        seconds, runs: what the runs so far took on the wall clock; stored ones what they took when
            they ran.
    """

    size: int
    left: int = 0
    runs_left: int = 0
    only_repeats: bool = False
    seconds: float = 0.0
    runs: int = 0
    _failing: list[frozenset[Hashable]] = field(default_factory=list)
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
        if (
            step.query.kind in (QueryKind.ISOLATED, QueryKind.REST)
            and step.outcome is RegionOutcome.FAIL
        ):
            self._narrow(frozenset(nodes))
        self.only_repeats = step.only_repeats
        self.runs_left = step.estimated_runs * (1 if step.only_repeats else TIMES)

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
        """`about 18 more runs, 1.5 s`; `at most 5 more runs of the whole, 2 s` while it agrees; ""
        if nothing is known."""
        if not self.runs_left:
            return ""
        seconds = _seconds(self.seconds / max(self.runs, 1) * self.runs_left)
        runs = count(self.runs_left, "more run")
        if self.only_repeats:
            return f"at most {runs} of the whole, {seconds}"
        return f"about {runs}, {seconds}"


def _seconds(value: float) -> str:
    if value >= 120:
        return f"{value / 60:.0f} min"
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
