"""The end of a failing region is known; where does it start? Lengths 1, 2, 4, … until one fails,
then binary search.

Insight: faults are short. Galloping (Bentley and Yao 1976) finds a length L in about 2·log2 L
queries, whatever the size of the model; halving needs log2 N.
"""

from __future__ import annotations

from collections.abc import Callable

from subgraph.search.driver import Search
from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.state import SearchState

LONGEST = 32  # fault looked for where no length is known to fail


def back(state: SearchState, scope: Items, end: int, start: int | None) -> Search[int | None]:
    """The largest s such that scope[s:end] fails. `start`: scope[start:end] is known to fail; None
    if nothing is known, and then the result is None where no length up to `LONGEST` fails.
    """
    length = yield from _shortest(
        state,
        lambda k: tuple(sorted(scope[end - k : end])),
        min(LONGEST, end) if start is None else end - start,
        start is not None,
    )
    return None if length is None else end - length


def forth(state: SearchState, region: Items) -> Search[Items]:
    """The shortest beginning of a failing region that fails."""
    length = yield from _shortest(state, lambda k: region[:k], len(region), True)
    return region[:length]


def _shortest(
    state: SearchState, piece: Callable[[int], Items], longest: int, fails: bool
) -> Search[int | None]:
    """The shortest failing length up to `longest`; `fails`: the longest is known to fail."""
    lengths = [1 << k for k in range(longest.bit_length()) if 1 << k < longest] + (
        [] if fails else [longest]
    )
    passed = 0
    for left, length in zip(reversed(range(len(lengths))), lengths, strict=True):
        failed = yield from state.fails(Purpose.GALLOP, piece(length))
        state.expect(left + 2)
        if failed:
            return (yield from _between(state, piece, passed, length))
        passed = length
    return (yield from _between(state, piece, passed, longest)) if fails else None


def _between(
    state: SearchState, piece: Callable[[int], Items], passed: int, failed: int
) -> Search[int]:
    """Binary search: length `passed` did not fail, `failed` did. If a length cannot be run, longer
    ones follow."""
    while failed - passed > 1:
        length = passed + (failed - passed) // 2
        # an unresolved one is not a pass: shrinking tries the items of this length again
        if (yield from state.fails(Purpose.GALLOP, piece(length))):
            failed = length
        else:
            passed = length
        state.expect((failed - passed).bit_length())
    return failed
