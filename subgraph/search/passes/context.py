"""Some items cannot be asked about alone: a lone Shape is refused. Asked in company they can.

Insight: where a set agrees, each part of it would have agreed (but for what masks); so company that agrees clears a
part that could not be asked, and company that agrees acquits a lone item that was refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Signature, Status

NEAR = 6  # places to both sides that may keep company


def in_company(book: SearchState, region: Items, rest: Items) -> Search[Status]:
    """A neighbour `rest` of a failing region that cannot be asked: AGREE where it does together with items that are
    not the region's, else UNRESOLVED."""
    others = [k for k in around(book, rest) if k not in region]
    tries = [(k,) for k in others[:4]] + [tuple(others[:3]), tuple(others)]
    for more in dict.fromkeys(t for t in tries if t):
        if (yield from book.region(Purpose.SHRINK, tuple(sorted({*rest, *more})))) is Status.AGREE:
            return Status.AGREE
    return Status.UNRESOLVED


def acquitted(book: SearchState, region: Items) -> Search[bool]:
    """Refused alone, but not beside its neighbours?"""
    if book.signature is not Signature.REFUSED:
        return False
    near = around(book, region)
    for more in dict.fromkeys((tuple(near[:2]), *((k,) for k in near[:3]))):
        if more and (yield from book.region(Purpose.CONFIRM, tuple(sorted({*region, *more})))) is Status.AGREE:
            return True
    return False


def around(book: SearchState, places: Iterable[int]) -> list[int]:
    """Places that feed these, then those beside them in the order, nearest first."""
    inside = set(places)
    low, high = min(inside), max(inside)
    near = [p for k in sorted(inside) for p in book.parents[k]]
    near += [k for d in range(1, NEAR) for k in (low - d, high + d) if 0 <= k < book.n]
    return [k for k in dict.fromkeys(near) if k not in inside]
