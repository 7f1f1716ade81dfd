"""The end of a failing piece is known; where does it start? Lengths 1, 2, 4, … until it fails, then binary.

Insight: faults are short. Galloping (Bentley and Yao 1976) finds a length L in about 2·log2 L questions, whatever the
size of the model, where halving would pay log2 N.
"""

from __future__ import annotations

from collections.abc import Callable

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Status

MOST = 32  # the longest fault looked for where it is not known that some length fails


def back(book: SearchState, scope: Items, end: int, start: int | None) -> Search[int | None]:
    """The largest s such that scope[s:end] fails. `start`: scope[start:end] is known to fail; None: nothing is known,
    and None is the answer where no length up to `MOST` fails.
    """
    length = yield from _shortest(
        book,
        lambda k: tuple(sorted(scope[end - k : end])),
        min(MOST, end) if start is None else end - start,
        start is not None,
    )
    return None if length is None else end - length


def forth(book: SearchState, region: Items) -> Search[Items]:
    """The shortest beginning of a failing region that fails."""
    length = yield from _shortest(book, lambda k: region[:k], len(region), True)
    return region[:length]


def _shortest(book: SearchState, piece: Callable[[int], Items], most: int, fails: bool) -> Search[int | None]:
    """The shortest length up to `most` that fails; `fails`: the longest does. Lengths from 1, `workers` at a time."""
    lengths = [1 << k for k in range(most.bit_length()) if 1 << k < most] + ([] if fails else [most])
    passed, failed = 0, most if fails else None
    while lengths and (failed is None or lengths[0] < failed):
        some, lengths = lengths[: book.workers], lengths[book.workers :]
        got = yield from book.regions(Purpose.GALLOP, [piece(k) for k in some])
        bad = [k for k, status in zip(some, got, strict=True) if status is Status.FAIL]
        failed = bad[0] if bad else failed
        passed = max([passed, *(k for k in some if failed is None or k < failed)])
        book.left, book.more = (failed or most) - passed, len(lengths) + 2
        if bad:
            break
    if failed is None:
        return None
    return (yield from _between(book, piece, passed, failed))


def _between(book: SearchState, piece: Callable[[int], Items], passed: int, failed: int) -> Search[int]:
    """Binary: `passed` did not fail, `failed` did. A length that cannot be asked makes room for the next longer."""
    while failed - passed > 1:
        parts = min(book.workers, failed - passed - 1) + 1
        cuts = sorted({passed + (failed - passed) * k // parts for k in range(1, parts)} - {passed, failed})
        got = yield from book.regions(Purpose.GALLOP, [piece(k) for k in cuts])
        if all(status is Status.UNRESOLVED for status in got):
            passed = cuts[-1]  # not a pass: what is dropped later asks again
            continue
        bad = [k for k, status in zip(cuts, got, strict=True) if status is Status.FAIL]
        failed = bad[0] if bad else failed
        passed = max([passed, *(k for k in cuts if k < failed)])
        book.left, book.more = failed - passed, (failed - passed).bit_length()
    return failed
