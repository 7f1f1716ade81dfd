"""The end of a failing region is known; where does it start? Lengths 1, 2, 4, … until one fails, then binary search.

Insight: faults are short. Galloping (Bentley and Yao 1976) finds a length L in about 2·log2 L queries, whatever the
size of the model; halving needs log2 N.
"""

from __future__ import annotations

from collections.abc import Callable

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.predicate import Meaning
from subgraph.search.state import Search, SearchState

LONGEST = 32  # fault looked for where no length is known to fail


def back(state: SearchState, scope: Items, end: int, start: int | None) -> Search[int | None]:
    """The largest s such that scope[s:end] fails. `start`: scope[start:end] is known to fail; None if nothing is
    known, and then the result is None where no length up to `LONGEST` fails.
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


def _shortest(state: SearchState, piece: Callable[[int], Items], longest: int, fails: bool) -> Search[int | None]:
    """The shortest failing length up to `longest`; `fails`: the longest is known to fail. `workers` lengths at once."""
    lengths = [1 << k for k in range(longest.bit_length()) if 1 << k < longest] + ([] if fails else [longest])
    passed, failed = 0, longest if fails else None
    while lengths and (failed is None or lengths[0] < failed):
        batch, lengths = lengths[: state.workers], lengths[state.workers :]
        statuses = yield from state.regions(Purpose.GALLOP, [piece(k) for k in batch])
        failing = [k for k, status in zip(batch, statuses, strict=True) if status is Meaning.FAIL]
        failed = failing[0] if failing else failed
        passed = max([passed, *(k for k in batch if failed is None or k < failed)])
        state.left, state.more = (failed or longest) - passed, len(lengths) + 2
        if failing:
            break
    if failed is None:
        return None
    return (yield from _between(state, piece, passed, failed))


def _between(state: SearchState, piece: Callable[[int], Items], passed: int, failed: int) -> Search[int]:
    """Binary search: length `passed` did not fail, `failed` did. If a length cannot be run, longer ones follow."""
    while failed - passed > 1:
        parts = min(state.workers, failed - passed - 1) + 1
        cuts = sorted({passed + (failed - passed) * k // parts for k in range(1, parts)} - {passed, failed})
        statuses = yield from state.regions(Purpose.GALLOP, [piece(k) for k in cuts])
        if all(status is Meaning.UNRESOLVED for status in statuses):
            passed = cuts[-1]  # not a pass: shrinking tries the items of this length again
            continue
        failing = [k for k, status in zip(cuts, statuses, strict=True) if status is Meaning.FAIL]
        failed = failing[0] if failing else failed
        passed = max([passed, *(k for k in cuts if k < failed)])
        state.left, state.more = failed - passed, (failed - passed).bit_length()
    return failed
