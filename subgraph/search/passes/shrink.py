"""A failing region -> a 1-minimal one: no single item of it can be dropped. The last pass is the certificate.

Concepts: *part*: a weakly connected piece of the region, or the items above its last one; items of other branches came
in with the interval. *chunk*: consecutive items, as in delta debugging (Zeller and Hildebrandt 2002), of which only
complements are run. A dropped item's value comes from the capture, so the remaining items need not be convex.

Insight: an interaction has few items, so parts and chunks drop most of the items between them at once. If chunks are
1/32 of the region and none can be dropped, the region fails only as a whole, and further queries are wasted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from subgraph.search.findings import Purpose
from subgraph.search.oracle import Items
from subgraph.search.order import above, connected, ends
from subgraph.search.passes import gallop
from subgraph.search.passes.context import in_context
from subgraph.search.predicate import PASSES, Meaning
from subgraph.search.state import Search, SearchState

SMALL = 8  # items; up to here single items are tried at once
FINEST = 32  # chunks, none of which can be dropped: the region fails as a whole
LONG_WHOLE = 64  # items of a region that fails as a whole; of a longer one only sources and sinks are dropped alone
GRADED = 0.5  # of the region's share, in a neighbour that agrees: the error is there, below its limit


@dataclass(frozen=True)
class Smallest:
    """A failing region, as small as could be shown.

    Attributes:
        without: what the rest means without an item, of each item that was dropped alone; none of them fails.
        graded: a neighbour that does not fail has most of the error: does the error accumulate?
        even: each neighbour agrees, with most of the error: no item is to blame more than others.
        whole: the region is long, and no part of it seems to fail; only sources and sinks were dropped alone.
    """

    items: Items
    without: Mapping[int, Meaning] = field(default_factory=dict)
    graded: bool = False
    even: bool = False
    whole: bool = False

    def dropped(self, meaning: Meaning) -> Items:
        """The items without which the rest means that."""
        return tuple(k for k in self.items if self.without.get(k) is meaning)

    def neighbours(self, meaning: Meaning) -> list[Items]:
        """The regions with one item less that mean that, in the order in which they were asked."""
        return [tuple(k for k in self.items if k != item) for item, seen in self.without.items() if seen is meaning]

    @property
    def certified(self) -> bool:
        """Did it agree without any single item (if it fails as a whole: source or sink)?"""
        return all(seen is Meaning.AGREE for seen in self.without.values())


def shrink(state: SearchState, region: Items, *, gradual: bool = True) -> Search[Smallest]:
    """Shrink a region that is known to fail. `gradual`: stop early if the error of a long one seems to grow item by
    item.

    Complexity: O(k · log L) queries for k needed items of L, if FAIL is monotone.
    """
    if len(region) > SMALL:
        if not any(len(s) >= len(region) - 1 for s in state.agreeing_supersets(region[:-1])):
            region = yield from gallop.forth(state, region)
        if gradual and len(region) > 1 and (yield from _graded_ends(state, region)):
            return Smallest(region, graded=True)
    region = yield from _drop_parts(state, region)
    region, whole = yield from _drop_chunks(state, region)
    while True:
        smallest = yield from _drop_single(state, region, whole)
        if smallest.items == region:
            return smallest
        region = smallest.items


def _graded_ends(state: SearchState, region: Items) -> Search[bool]:
    """Does the error of a long region grow item by item? Asked before many queries are spent on the region."""
    neighbours = [region[1:], region[:-1]]
    statuses = yield from state.regions(Purpose.SHRINK, neighbours, explain=True)
    pairs = zip(statuses, neighbours, strict=True)
    return any(status in PASSES and graded(state, region, rest) for status, rest in pairs)


def graded(state: SearchState, region: Items, neighbour: Items) -> bool:
    """Has a neighbour that does not fail most of the region's error?"""
    share, rest = state.answer_to(region).share, state.answer_to(neighbour).share
    return share is not None and rest is not None and share > 0 and rest >= GRADED * share


def _drop_parts(state: SearchState, region: Items) -> Search[Items]:
    smallers: list[Callable[[Items], set[int]]] = [
        lambda r: next(connected(state.parents, r)),
        lambda r: above(state.parents, r, r[-1]),
    ]
    for smaller in smallers:
        part = tuple(sorted(smaller(region)))
        while len(part) < len(region) and (yield from state.region(Purpose.SHRINK, part)) is Meaning.FAIL:
            region, part = part, tuple(sorted(smaller(part)))
    return region


def _drop_chunks(state: SearchState, region: Items) -> Search[tuple[Items, bool]]:
    """The remaining region, and whether no chunk of a long one could be dropped."""
    if 3 < len(region) <= 2 * SMALL:
        rim = (region[0], region[-1])
        if (yield from state.region(Purpose.SHRINK, rim)) is Meaning.FAIL:
            return rim, False
        return region, False
    size, dropped = len(region) // 2, False
    while size > 1 and len(region) > 3:
        at = 0
        while at < len(region):
            rest = region[:at] + region[at + size :]
            state.left = len(region)
            if rest and (yield from state.region(Purpose.SHRINK, rest)) is Meaning.FAIL:
                region, dropped = rest, True
            else:
                at += size
        if not dropped and size * FINEST <= len(region):
            return region, True
        size = min(size // 2, len(region) // 2)
    return region, False


def _drop_single(state: SearchState, region: Items, whole: bool) -> Search[Smallest]:
    """A failing region with one item less; if there is none, the same region with its certificate.

    Inner items are tried first: a run of consecutive items has mostly been run without its first or last one.
    """
    if len(region) < 2:
        return Smallest(region)
    without = dict[int, Meaning]()
    most: list[bool] = []  # is most of the error left?
    whole = whole and len(region) > LONG_WHOLE
    rim = ends(state.parents, region)
    inner = () if whole else tuple(k for k in region if k not in rim)
    drops = inner + tuple(k for k in reversed(region) if k in rim)
    for dropped in drops:
        rest = tuple(k for k in region if k != dropped)
        state.left, state.more = len(region), len(region)
        (status,) = yield from state.regions(Purpose.SHRINK, [rest], explain=True)
        if status is Meaning.UNRESOLVED:
            status = yield from in_context(state, region, rest)
        if status is Meaning.FAIL:
            return Smallest(rest)
        without[dropped] = status
        if status is not Meaning.UNRESOLVED:
            most.append(graded(state, region, rest))
    even = all(most) and all(seen is Meaning.AGREE for seen in without.values())
    return Smallest(region, without, any(most), even, whole)
