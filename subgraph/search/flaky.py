"""How often must something pass before we believe that it passes?

A fault that shows with probability p hides n times in a row with (1−p)^n; so ln(α)/ln(1−p) passes are needed to err at
most α. p is not known; it is estimated from runs that should have failed, one standard deviation on the careful side.
"""

from __future__ import annotations

import math

ERROR = 0.005  # accepted error per answer that a flaky search rests on
LEAST = 0.25  # below this rate no search of bearable length finds anything
WILSON_Z = 1.96
KEPT = 0.8  # of the whole's rate, that a region must reach to stand for it


def careful_rate(failed: int, asked: int) -> float:
    """Mean of the posterior (uniform prior) less one standard deviation, at least `LEAST`."""
    a, b = failed + 1, asked - failed + 1
    mean = a / (a + b)
    spread = math.sqrt(mean * (1 - mean) / (a + b + 1))
    return max(LEAST, mean - spread)


def passes_needed(rate: float, error: float = ERROR) -> int:
    """How many passes in a row say that it does not fail; 1 where it always fails.

    >>> passes_needed(0.5, 0.01), passes_needed(0.9, 0.01), passes_needed(1.0)
    (7, 2, 1)
    """
    return 1 if rate >= 1 else max(1, math.ceil(math.log(error) / math.log(1 - rate) - 1e-9))


def wilson(failed: int, asked: int, z: float = WILSON_Z) -> tuple[float, float]:
    """Interval for a rate (Wilson 1927): lower and upper bound."""
    if not asked:
        return 0.0, 1.0
    rate, z2 = failed / asked, z * z
    middle = rate + z2 / (2 * asked)
    half = z * math.sqrt(rate * (1 - rate) / asked + z2 / (4 * asked * asked))
    return max(0.0, (middle - half) / (1 + z2 / asked)), min(1.0, (middle + half) / (1 + z2 / asked))


def reproduces(failed: int, asked: int, whole_failed: int, whole_asked: int) -> bool:
    """Can this region's rate still be `KEPT` of the whole's? Never of one that hardly ever failed."""
    return failed >= LEAST * asked and wilson(failed, asked)[1] >= KEPT * wilson(whole_failed, whole_asked)[0]
