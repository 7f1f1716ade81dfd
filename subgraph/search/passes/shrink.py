"""A failing region -> the smallest: no single item of it can be dropped. The last pass is the certificate.

Concepts: *part* — a weakly connected piece of the region, or what is above its last item: items of other branches that
came in with the interval. *chunk* — consecutive items, as in delta debugging (Zeller and Hildebrandt 2002), its
complements only: the value of a dropped item comes from the capture, so what is left need not be convex.

Insight: an interaction has few items, so parts and chunks drop most of what lies between at once; where chunks are
1/32 of the region and none can be dropped, it fails only as a whole, and further questions are wasted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.order import above, connected, ends
from subgraph.search.passes import gallop
from subgraph.search.passes.context import in_company
from subgraph.search.state import Search, SearchState
from subgraph.verdict import Status

SMALL = 8  # up to here single items are tried at once
FINEST = 32  # chunks of which none can be dropped: it fails as a whole
WHOLE = 64  # of larger regions that fail as a whole only sources and sinks are tried alone
GRADED = 0.5  # of the region's share, in a neighbour that agrees: the error is there, below its limit


@dataclass(frozen=True)
class Smallest:
    """Attributes:
    items: fails, and is as small as could be shown.
    certified: without any one item (of a region that fails as a whole: source or sink) it agreed.
    doubtful: the neighbours that could not be asked.
    neighbour: one that agreed.
    graded: a neighbour that agrees has most of the error: it accumulates.
    whole: it is long, and no part of it seems to fail; only sources and sinks were dropped alone.
    """

    items: Items
    certified: bool = True
    doubtful: tuple[Items, ...] = ()
    neighbour: Items | None = None
    graded: bool = False
    whole: bool = False


def shrink(book: SearchState, region: Items, *, gradual: bool = True) -> Search[Smallest]:
    """`region` is known to fail. `gradual`: stop early where the error of a long one seems to grow item by item.

    Questions: O(k · log L) for k items that are needed of L, if it fails monotonously.
    """
    if len(region) > SMALL:
        if not any(len(s) >= len(region) - 1 for s in book.larger_that_agreed(region[:-1])):
            region = yield from gallop.forth(book, region)
        if gradual and (yield from _graded_ends(book, region)):
            return Smallest(region, certified=False, graded=True)
    region = yield from _parts(book, region)
    region, whole = yield from _chunks(book, region)
    while True:
        smaller, final = yield from _singles(book, region, whole)
        if smaller is None:
            return final
        region = smaller


def _graded_ends(book: SearchState, region: Items) -> Search[bool]:
    """Before much is asked about a long region: does its error grow item by item?"""
    near = [region[1:], region[:-1]]
    got = yield from book.regions(Purpose.SHRINK, near, explain=True)
    return any(s is Status.AGREE and graded(book, region, near_) for s, near_ in zip(got, near, strict=True))


def graded(book: SearchState, region: Items, neighbour: Items) -> bool:
    """Has a neighbour that does not fail most of the region's error?"""
    share, rest = book.known(region).share, book.known(neighbour).share
    return share is not None and rest is not None and share > 0 and rest >= GRADED * share


def _parts(book: SearchState, region: Items) -> Search[Items]:
    smallers: list[Callable[[Items], set[int]]] = [
        lambda r: next(connected(book.parents, r)),
        lambda r: above(book.parents, r, r[-1]),
    ]
    for smaller in smallers:
        part = tuple(sorted(smaller(region)))
        while len(part) < len(region) and (yield from book.region(Purpose.SHRINK, part)) is Status.FAIL:
            region, part = part, tuple(sorted(smaller(part)))
    return region


def _chunks(book: SearchState, region: Items) -> Search[tuple[Items, bool]]:
    """What is left, and whether nothing could be dropped of a long region."""
    if 3 < len(region) <= 2 * SMALL:
        rim = (region[0], region[-1])
        if (yield from book.region(Purpose.SHRINK, rim)) is Status.FAIL:
            return rim, False
        return region, False
    size, dropped = len(region) // 2, False
    while size > 1 and len(region) > 3:
        at = 0
        while at < len(region):
            rest = region[:at] + region[at + size :]
            book.left = len(region)
            if rest and (yield from book.region(Purpose.SHRINK, rest)) is Status.FAIL:
                region, dropped = rest, True
            else:
                at += size
        if not dropped and size * FINEST <= len(region):
            return region, True
        size = min(size // 2, len(region) // 2)
    return region, False


def _singles(book: SearchState, region: Items, whole: bool) -> Search[tuple[Items | None, Smallest]]:
    """(a smaller failing region, …), or (None, the certificate). Inner items first: a run of items that failed has
    mostly been asked without its first or last one."""
    if len(region) < 2:
        return None, Smallest(region)
    doubtful, agreed, steep = [], [], True
    whole = whole and len(region) > WHOLE
    for some in _batched(_drops(book, region, whole), book.workers):
        near = [tuple(k for k in region if k != x) for x in some]
        book.left, book.more = len(region), len(region)
        got = yield from book.regions(Purpose.SHRINK, near, explain=True)
        for rest, status in zip(near, got, strict=True):
            if status is Status.UNRESOLVED:
                status = yield from in_company(book, region, rest)
            if status is Status.FAIL:
                return rest, Smallest(rest)
            if status is Status.UNRESOLVED:
                doubtful.append(rest)
            else:
                agreed.append(rest)
                steep = steep and not graded(book, region, rest)
    neighbour = agreed[-1] if agreed else None
    return None, Smallest(region, not doubtful, tuple(doubtful), neighbour, not steep, whole)


def _drops(book: SearchState, region: Items, only_ends: bool) -> Items:
    rim = ends(book.parents, region)
    inner = () if only_ends else tuple(k for k in region if k not in rim)
    return inner + tuple(k for k in reversed(region) if k in rim)


def _batched(items: Items, size: int) -> Iterator[Items]:
    return (items[k : k + size] for k in range(0, len(items), size))
