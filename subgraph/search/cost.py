"""Seconds per run and per compiled item, fitted as the timings come: cost = a·runs + b·items.

Insight: what is cheapest depends on a / b alone. Where starting costs more than compiling a quarter of the model, fewer
and larger runs win (`SLOW`).
"""

from __future__ import annotations

from dataclasses import dataclass

SLOW = 0.25  # a > b · N · SLOW: a slow starter


@dataclass
class CostModel:
    """Least squares over (items, seconds), in sums: O(1) per run and per question."""

    runs: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, items: int, seconds: float) -> None:
        """One run."""
        if seconds <= 0:
            return  # from a store
        self.runs += 1
        self.x += items
        self.y += seconds
        self.xx += items * items
        self.xy += items * seconds

    def fit(self) -> tuple[float, float] | None:
        """(a, b), neither below 0; None before runs of two sizes."""
        spread = self.runs * self.xx - self.x * self.x
        if self.runs < 2 or spread <= 1e-9 * self.xx:
            return None
        b = (self.runs * self.xy - self.x * self.y) / spread
        b = max(0.0, b)
        return max(0.0, (self.y - b * self.x) / self.runs), b

    def slow_start(self, n: int) -> bool:
        """Does starting cost more than compiling a quarter of n items?"""
        fit = self.fit()
        return fit is not None and fit[0] > fit[1] * n * SLOW
