"""How often must a region of a flaky candidate pass, before it counts as passing?

A fault that shows with probability p hides n times in a row with probability (1−p)^n, so
ln(α)/ln(1−p) passes keep the error below α. p is unknown; it is estimated from runs that should
have failed, less one standard deviation.
"""

from __future__ import annotations

import math

ERROR = 0.005  # accepted error per answer of a flaky search
MIN_RATE = 0.25  # below this rate no search of reasonable length finds anything
WILSON_Z = 1.96
KEPT_RATE = 0.8  # of the whole's rate, that a region must reach to account for it


def careful_rate(failed: int, runs: int) -> float:
    """Mean of the posterior (uniform prior) less one standard deviation, at least `MIN_RATE`."""
    a = failed + 1
    b = runs - failed + 1
    mean = a / (a + b)
    deviation = math.sqrt(mean * (1 - mean) / (a + b + 1))
    return max(MIN_RATE, mean - deviation)


def passes_needed(rate: float, error: float = ERROR) -> int:
    """How many passes in a row show that a region does not fail; 1 for a rate of 1.

    >>> passes_needed(0.5, 0.01), passes_needed(0.9, 0.01), passes_needed(1.0)
    (7, 2, 1)
    """
    return 1 if rate >= 1 else max(1, math.ceil(math.log(error) / math.log(1 - rate) - 1e-9))


def wilson(failed: int, runs: int, z: float = WILSON_Z) -> tuple[float, float]:
    """Confidence interval of a rate (Wilson 1927): lower and upper bound."""
    if not runs:
        return 0.0, 1.0
    rate = failed / runs
    z2 = z * z
    middle = rate + z2 / (2 * runs)
    half = z * math.sqrt(rate * (1 - rate) / runs + z2 / (4 * runs * runs))
    return max(0.0, (middle - half) / (1 + z2 / runs)), min(1.0, (middle + half) / (1 + z2 / runs))


def reproduces(failed: int, runs: int, whole_failed: int, whole_runs: int) -> bool:
    """Can this region's rate be `KEPT_RATE` of the whole's? Never if it hardly ever failed."""
    return (
        failed >= MIN_RATE * runs
        and wilson(failed, runs)[1] >= KEPT_RATE * wilson(whole_failed, whole_runs)[0]
    )
