"""Cost model of runs: seconds = a·runs + b·items, fitted to the timings seen so far.

Insight: the cheapest way to search depends on a / b alone. Where starting costs more than compiling a quarter of the
model (`SLOW_START`), fewer and larger runs win.
"""

from __future__ import annotations

from dataclasses import dataclass

SLOW_START = 0.25  # of the items: a > b · n · SLOW_START


@dataclass
class CostModel:
    """Least squares over (items, seconds), kept as sums: O(1) per run and per fit."""

    runs: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, items: int, seconds: float) -> None:
        """Add one run; a stored answer (0 seconds) is left out."""
        if seconds <= 0:
            return
        self.runs += 1
        self.x += items
        self.y += seconds
        self.xx += items * items
        self.xy += items * seconds

    def fit(self) -> tuple[float, float] | None:
        """(a, b), both at least 0; None before runs of two sizes."""
        spread = self.runs * self.xx - self.x * self.x
        if self.runs < 2 or spread <= 1e-9 * self.xx:
            return None
        b = max(0.0, (self.runs * self.xy - self.x * self.y) / spread)
        return max(0.0, (self.y - b * self.x) / self.runs), b

    def slow_start(self, n: int) -> bool:
        """Does starting cost more than compiling a quarter of n items?"""
        fit = self.fit()
        return fit is not None and fit[0] > fit[1] * n * SLOW_START
