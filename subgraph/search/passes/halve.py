"""Overlapped halving: which is the first place where a failing piece ends?

Insight: a piece that crosses the cut is lost by plain halving, and fused operators are such pieces. So each question
starts W places before what is still in doubt: it costs W more compiled items and not one more run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Status

SPAN = 16  # W: the longest fusion expected
LEAST_WEIGHT = 1e-3  # of the mean: what a prior holds for impossible gets its turn


def halve(book: SearchState, scope: Items, clean: int = 0) -> Search[tuple[int, int]]:
    """(s, e): scope[s:e] fails, and no shorter end was seen to fail. The whole scope is known to fail; nothing that
    ends at `clean` or before is expected to.

    Where an answer misleads (a fault longer than W, one that hides), e is too late: [s, e) still fails.
    """
    start, lo, hi = 0, clean, len(scope)
    mass = list(accumulate(_weights(book, scope), initial=0.0))
    while hi - lo > 1:
        begin = max(0, lo - SPAN)
        cuts = medians(mass, lo, hi, book.workers)
        got = yield from book.regions(Purpose.HALVE, [scope[begin:m] for m in cuts])
        if all(status is Status.UNRESOLVED for status in got):
            asked = yield from _nearby(book, scope, begin, lo, hi, cuts[len(cuts) // 2])
            if asked is None:
                break
            begin, cuts, got = asked
        bad = [m for m, status in zip(cuts, got, strict=True) if status is Status.FAIL]
        if bad:
            start, hi = begin, bad[0]
        lo = max([lo, *(m for m, s in zip(cuts, got, strict=True) if m < hi and s is Status.AGREE)])
        book.left, book.more = hi - lo, (hi - lo - 1).bit_length() + 1
    return start, hi


def _nearby(
    book: SearchState, scope: Items, begin: int, lo: int, hi: int, m: int
) -> Search[tuple[int, list[int], list[Status]] | None]:
    """The nearest other cut that can be asked, else another start; None where none of them can."""
    tries = [(begin, k) for d in (1, 2, 3, 5, 8) for k in (m - d, m + d)]
    tries += [(max(0, begin - d), m) for d in (1, 2, 4)] + [(0, m)]
    for start, cut in dict.fromkeys(tries):
        if lo < cut < hi:
            status = yield from book.region(Purpose.HALVE, scope[start:cut])
            if status is not Status.UNRESOLVED:
                return start, [cut], [status]
    return None


def medians(mass: Sequence[float], lo: int, hi: int, count: int) -> list[int]:
    """Up to `count` cuts strictly between lo and hi that part the weight evenly; `mass[k]` is that of all before k."""
    parts = min(count, hi - lo - 1) + 1
    found = set()
    for k in range(1, parts):
        goal = mass[lo] + (mass[hi] - mass[lo]) * k / parts
        m = bisect_left(mass, goal, lo + 1, hi - 1)
        if m - 1 > lo and goal - mass[m - 1] <= mass[m] - goal:
            m -= 1
        found.add(m)
    return sorted(found)


def _weights(book: SearchState, scope: Items) -> list[float]:
    some = [max(0.0, book.weights[k]) for k in scope]
    least = LEAST_WEIGHT * (sum(some) / len(some) if some else 0.0) or 1.0
    return [max(w, least) for w in some]
