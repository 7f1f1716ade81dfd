"""The first item at which a failing region ends, and the item where it starts.

Plain halving loses a failing region that crosses the cut, and fused operators are such regions.
Each query of `halve` therefore starts `MAX_FUSION` items before the part still in doubt: more
compiled items, but not one more run.

From a known end, lengths 1, 2, 4, … are tried until one fails, then binary search. Faults are
short: galloping (Bentley and Yao 1976) finds a length L in about 2·log2 L queries, whatever the
size of the model; halving needs log2 N.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

from subgraph.search.driver import Search
from subgraph.search.oracle import Items, Purpose, RegionOutcome
from subgraph.search.state import SearchState

MAX_FUSION = 16  # items: the longest fusion expected
MIN_WEIGHT = 1e-3  # of the mean: items with an impossible prior are still reached
MAX_FIRST_LENGTH = 32  # fault looked for if no length is known to fail


def halve(state: SearchState, scope: Items, clean: int = 0) -> Search[tuple[int, int]]:
    """Return (s, e) such that scope[s:e] fails, and no shorter end was seen to fail.

    The full scope is known to fail. No region that ends at `clean` or before is expected to fail.

    If an answer misleads (a fault longer than `MAX_FUSION`, a masked one) or a region cannot be
    run, e is too late: scope[s:e] still fails.
    """
    start = 0
    low = clean
    high = len(scope)
    weights = [max(0.0, state.weights[k]) for k in scope]
    least = MIN_WEIGHT * (sum(weights) / len(weights) if weights else 0.0) or 1.0
    mass = list(accumulate([max(w, least) for w in weights], initial=0.0))
    while high - low > 1:
        begin = max(0, low - MAX_FUSION)
        cut = find_median(mass, low, high)
        outcome = yield from state.probe(Purpose.HALVE, scope[begin:cut])
        if outcome is RegionOutcome.UNRESOLVED:
            break
        if outcome is RegionOutcome.FAIL:
            start = begin
            high = cut
        else:
            low = cut
        state.expect((high - low - 1).bit_length() + 1)
    return start, high


def find_median(mass: Sequence[float], low: int, high: int) -> int:
    """Return the cut strictly between low and high with about equal weight on both sides; `mass[k]`
    is the weight of all items before k."""
    goal = mass[low] + (mass[high] - mass[low]) / 2
    m = bisect_left(mass, goal, low + 1, high - 1)
    if m - 1 > low and goal - mass[m - 1] <= mass[m] - goal:
        return m - 1
    return m


def gallop_back(
    state: SearchState, scope: Items, end: int, start: int | None
) -> Search[int | None]:
    """Return the largest s such that scope[s:end] fails. `start`: scope[start:end] is known to
    fail; None if nothing is known, and then the result is None if no length up to
    `MAX_FIRST_LENGTH` fails.
    """
    length = yield from _find_shortest(
        state,
        lambda k: tuple(sorted(scope[end - k : end])),
        min(MAX_FIRST_LENGTH, end) if start is None else end - start,
        start is not None,
    )
    return None if length is None else end - length


def gallop_forth(state: SearchState, region: Items) -> Search[Items]:
    """Return the shortest beginning of a failing region that fails."""
    length = yield from _find_shortest(state, lambda k: region[:k], len(region), True)
    return region[:length]


def _find_shortest(
    state: SearchState, piece: Callable[[int], Items], longest: int, fails: bool
) -> Search[int | None]:
    """Return the shortest failing length up to `longest`; `fails`: the longest is known to fail."""
    lengths = [1 << k for k in range(longest.bit_length()) if 1 << k < longest] + (
        [] if fails else [longest]
    )
    passed = 0
    for left, length in zip(reversed(range(len(lengths))), lengths, strict=True):
        failed = yield from state.fails(Purpose.GALLOP, piece(length))
        state.expect(left + 2)
        if failed:
            return (yield from _search_between(state, piece, passed, length))
        passed = length
    return (yield from _search_between(state, piece, passed, longest)) if fails else None


def _search_between(
    state: SearchState, piece: Callable[[int], Items], passed: int, failed: int
) -> Search[int]:
    """Search the shortest failing length: `passed` did not fail, `failed` did.

    If a length cannot be run, longer ones follow.
    """
    while failed - passed > 1:
        length = passed + (failed - passed) // 2
        # An unresolved piece does not pass: shrinking tries the items of this length again.
        if (yield from state.fails(Purpose.GALLOP, piece(length))):
            failed = length
        else:
            passed = length
        state.expect((failed - passed).bit_length())
    return failed
