"""Overlapped halving: what is the first place where a failing region ends?

Insight: plain halving loses a failing region that crosses the cut, and fused operators are such regions. Each query
therefore starts `SPAN` places before the part still in doubt: more compiled items, but not one more run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.predicate import PASSES, Meaning
from subgraph.search.state import Search, SearchState

SPAN = 16  # places: the longest fusion expected
LEAST_WEIGHT = 1e-3  # of the mean: items with an impossible prior are still reached


def halve(state: SearchState, scope: Items, clean: int = 0) -> Search[tuple[int, int]]:
    """(s, e): scope[s:e] fails, and no shorter end was seen to fail. The whole scope is known to fail; no region that
    ends at `clean` or before is expected to.

    Where an answer misleads (a fault longer than `SPAN`, a masked one), e is too late: scope[s:e] still fails.
    """
    start, low, high = 0, clean, len(scope)
    mass = list(accumulate(_weights(state, scope), initial=0.0))
    while high - low > 1:
        begin = max(0, low - SPAN)
        cut = median(mass, low, high)
        status = yield from state.region(Purpose.HALVE, scope[begin:cut])
        if status is Meaning.UNRESOLVED:
            nearby = yield from _nearby(state, scope, begin, low, high, cut)
            if nearby is None:
                break
            begin, cut, status = nearby
        if status is Meaning.FAIL:
            start, high = begin, cut
        elif status in PASSES:
            low = cut
        state.left, state.more = high - low, (high - low - 1).bit_length() + 1
    return start, high


def _nearby(
    state: SearchState, scope: Items, begin: int, low: int, high: int, middle: int
) -> Search[tuple[int, int, Meaning] | None]:
    """The nearest other cut that can be run, else the same cut with another start; None if there is neither."""
    tries = [(begin, k) for d in (1, 2, 3, 5, 8) for k in (middle - d, middle + d)]
    tries += [(max(0, begin - d), middle) for d in (1, 2, 4)] + [(0, middle)]
    for start, cut in dict.fromkeys(tries):
        if low < cut < high:
            status = yield from state.region(Purpose.HALVE, scope[start:cut])
            if status is not Meaning.UNRESOLVED:
                return start, cut, status
    return None


def median(mass: Sequence[float], low: int, high: int) -> int:
    """The cut strictly between low and high with about equal weight on both sides; `mass[k]` is the weight of all
    places before k."""
    goal = mass[low] + (mass[high] - mass[low]) / 2
    m = bisect_left(mass, goal, low + 1, high - 1)
    return m - 1 if m - 1 > low and goal - mass[m - 1] <= mass[m] - goal else m


def _weights(state: SearchState, scope: Items) -> list[float]:
    weights = [max(0.0, state.weights[k]) for k in scope]
    least = LEAST_WEIGHT * (sum(weights) / len(weights) if weights else 0.0) or 1.0
    return [max(w, least) for w in weights]
