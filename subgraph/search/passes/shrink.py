"""A failing region -> a 1-minimal one: no single item of it can be dropped. The last pass is the
certificate.

Concepts: *component*: a weakly connected piece of the region, or the items above its last one;
items of other branches came in with the interval. *chunk*: consecutive items, as in delta debugging
(Zeller and Hildebrandt 2002), of which only complements are run. A dropped item's value comes from
the capture, so the remaining items need not be convex.

Insight: an interaction has few items, so components and chunks drop most of the items between them
at once. If chunks are 1/32 of the region and none can be dropped, the region fails only as a whole,
and further queries are wasted.

A piece that fails and explains little may be a culprit nevertheless: errors of several culprits may
cancel each other, so that none explains the full error; then the error that disappears without a
piece is the error that the piece causes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from subgraph.iterables import flatten
from subgraph.reach import reach
from subgraph.search.driver import Search
from subgraph.search.oracle import NOT_HERE, Items, Purpose, RegionOutcome, exclude
from subgraph.search.passes.halve import gallop_forth
from subgraph.search.state import SearchState
from subgraph.types import frozen
from subgraph.verdict import Signature

MAX_SINGLE_ITEMS = 8  # items; up to here single items are tried at once
MAX_CHUNKS = 32  # chunks, none of which can be dropped: the region fails as a whole
# Items of a region that fails as a whole; of a longer one only sources and sinks are dropped alone.
MAX_WHOLE_ITEMS = 64
# Items on both sides of a region, with which one that is refused alone is run.
MAX_CONTEXT_ITEMS = 6
# Of the region's share, in a neighbor that agrees: the error is there, below its limit.
MIN_GRADED_SHARE = 0.5
CANCELS = (
    "accounts for little of the whole error because errors of other pieces cancel it or exceed it"
)
ALIKE_INSIDE = (
    "accounts for little of the whole error, and is as wrong inside the model as it is alone"
)
MAX_ERROR_RATIO = 3.0  # ratio of an item's errors inside the model and alone


@frozen
class Smallest:
    """A failing region, as small as could be shown.

    Attributes:
        without: what the rest means without an item, of each item that was dropped alone; none of
            them fails.
        graded: a neighbor that does not fail has most of the error: does the error accumulate?
        even: each neighbor agrees, with most of the error: no item is to blame more than others.
        whole: the region is long, and no part of it seems to fail; only sources and sinks were
            dropped alone.
    """

    items: Items
    without: Mapping[int, RegionOutcome] = field(default_factory=dict)
    graded: bool = False
    even: bool = False
    whole: bool = False

    def list_dropped(self, outcome: RegionOutcome) -> Items:
        """Return the items without which the remaining items have this outcome."""
        return tuple(k for k in self.items if self.without.get(k) is outcome)

    def list_neighbors(self, outcome: RegionOutcome) -> list[Items]:
        """Return the regions with one item less and this outcome, in the order of their runs."""
        return [
            exclude(self.items, (item,)) for item, seen in self.without.items() if seen is outcome
        ]

    @property
    def certified(self) -> bool:
        """Whether it agreed without any single item (if it fails as a whole: source or sink)."""
        return all(seen is RegionOutcome.AGREE for seen in self.without.values())


def shrink(state: SearchState, region: Items, *, gradual: bool = True) -> Search[Smallest]:
    """Shrink a region that is known to fail. `gradual`: stop early if the error of a long one seems
    to grow item by item.

    Complexity: O(k · log L) queries for k needed items of L, if FAIL is monotone.
    """
    if len(region) > MAX_SINGLE_ITEMS:
        if not any(
            len(s) >= len(region) - 1 for s in state.seen.find_agreeing_supersets(region[:-1])
        ):
            region = yield from gallop_forth(state, region)
        if gradual and len(region) > 1:  # before many queries are spent on the region
            neighbors = [region[1:], region[:-1]]
            statuses = yield from state.probe_all(Purpose.SHRINK, neighbors, explain=True)
            pairs = zip(statuses, neighbors, strict=True)
            if any(s in NOT_HERE and is_gradual(state, region, rest) for s, rest in pairs):
                return Smallest(region, graded=True)
    smallers: list[Callable[[Items], set[int]]] = [
        lambda r: next(split_components(state.parents, r)),
        lambda r: find_upstream(state.parents, r, r[-1]),
    ]
    for smaller in smallers:
        component = tuple(sorted(smaller(region)))
        while len(component) < len(region) and (yield from state.fails(Purpose.SHRINK, component)):
            region = component
            component = tuple(sorted(smaller(component)))
    region, whole = yield from _drop_chunks(state, region)
    while True:
        smallest = yield from _drop_single(state, region, whole)
        if smallest.items == region:
            return smallest
        region = smallest.items


def is_gradual(state: SearchState, region: Items, neighbor: Items) -> bool:
    """Return whether a passing neighbor of a failing region has most of the region's error. That
    all is healed without it is no sign."""
    whole = state.answer_to(region)
    part = state.answer_to(neighbor)
    share = whole.share.of_target
    rest = part.share.made_of_target
    if rest is None:
        rest = part.share.of_target
    return share is not None and rest is not None and share > 0 and rest >= MIN_GRADED_SHARE * share


def _drop_chunks(state: SearchState, region: Items) -> Search[tuple[Items, bool]]:
    """Return the remaining region, and whether no chunk of a long one could be dropped."""
    if 3 < len(region) <= 2 * MAX_SINGLE_ITEMS:
        rim = (region[0], region[-1])
        if (yield from state.fails(Purpose.SHRINK, rim)):
            return rim, False
        return region, False
    size = len(region) // 2
    dropped = False
    while size > 1 and len(region) > 3:
        at = 0
        while at < len(region):
            rest = region[:at] + region[at + size :]
            if rest and (yield from state.fails(Purpose.SHRINK, rest)):
                region = rest
                dropped = True
            else:
                at += size
        if not dropped and size * MAX_CHUNKS <= len(region):
            return region, True
        size = min(size // 2, len(region) // 2)
    return region, False


def ends(parents: Sequence[Sequence[int]], items: Iterable[int]) -> set[int]:
    """Return sources and sinks of a region: they read, or are read by, no other item of the region.
    O(its edges)."""
    inside = set(items)
    readers = {p for p in flatten(parents[i] for i in inside) if p in inside}
    return {i for i in inside if i not in readers or not inside.intersection(parents[i])}


def split_components(
    parents: Sequence[Sequence[int]] | Mapping[int, Sequence[int]], items: Iterable[int]
) -> Iterator[set[int]]:
    """Yield the weakly connected components of a region, the one with the last item first. O(its
    edges)."""
    inside = sorted(set(items))
    adjacent: dict[int, list[int]] = {i: [] for i in inside}
    for i in inside:
        for p in parents[i]:
            if p in adjacent:
                adjacent[i].append(p)
                adjacent[p].append(i)
    seen = set()
    for start in reversed(inside):
        if start in seen:
            continue
        component = reach([start], adjacent.__getitem__)
        seen |= component
        yield component


def find_upstream(parents: Sequence[Sequence[int]], items: Iterable[int], last: int) -> set[int]:
    """Return the items of a region on which `last` depends, itself included. O(its edges)."""
    inside = set(items)
    return reach([last], lambda k: inside.intersection(parents[k]))


def _drop_single(state: SearchState, region: Items, whole: bool) -> Search[Smallest]:
    """Return a failing region with one item less, or the same region with its certificate.

    Inner items are tried first: a run of consecutive items has mostly been run without its first or
    last one.
    """
    if len(region) < 2:
        return Smallest(region)
    without = {}
    most: list[bool] = []  # is most of the error left?
    whole = whole and len(region) > MAX_WHOLE_ITEMS
    rim = ends(state.parents, region)
    inner = () if whole else exclude(region, rim)
    drops = inner + tuple(k for k in reversed(region) if k in rim)
    for dropped in drops:
        rest = exclude(region, (dropped,))
        state.expect(len(region))
        status = yield from state.probe(Purpose.SHRINK, rest, explain=True)
        if status is RegionOutcome.UNRESOLVED:
            status = yield from _run_in_context(state, region, rest)
        if status is RegionOutcome.FAIL:
            return Smallest(rest)
        without[dropped] = status
        if status is not RegionOutcome.UNRESOLVED:
            most.append(is_gradual(state, region, rest))
    even = all(most) and all(seen is RegionOutcome.AGREE for seen in without.values())
    return Smallest(region, without, any(most), even, whole)


def _run_in_context(state: SearchState, region: Items, rest: Items) -> Search[RegionOutcome]:
    """Return the outcome of a neighbor `rest` that cannot be run (for example a single Shape).

    It is AGREE if `rest` agrees together with items outside of the region, because then each part
    of them would have agreed, unless masked; else UNRESOLVED.
    """
    # Items that feed these come first, then those next to them in the order, the nearest first.
    near = list(flatten(state.parents[k] for k in rest))
    for distance in range(1, MAX_CONTEXT_ITEMS):
        near += [k for k in (rest[0] - distance, rest[-1] + distance) if 0 <= k < state.n]
    others = [k for k in dict.fromkeys(near) if k not in region]
    contexts = [(k,) for k in others[:4]] + [tuple(others[:3]), tuple(others)]
    passes = NOT_HERE if state.aim.no_output else (RegionOutcome.AGREE,)
    for context in dict.fromkeys(c for c in contexts if c):
        if (yield from state.probe(Purpose.SHRINK, tuple(sorted({*rest, *context})))) in passes:
            return RegionOutcome.AGREE
    return RegionOutcome.UNRESOLVED


def is_culprit(state: SearchState, base: Items, piece: Items) -> Search[bool]:
    """Return whether a piece that explains little is a culprit nevertheless, of the items `base`
    that are the candidate's. It is if the error that disappears without it is the one that it
    causes alone: errors of several culprits may cancel each other."""
    if state.aim.no_output or state.aim.signature is Signature.PRECISION:
        return False
    answer = yield from state.tail(Purpose.TAIL, exclude(base, piece))
    if answer.share.is_culprit:
        state.prove(piece, CANCELS)
    return answer.share.is_culprit is True


def is_alike_inside(state: SearchState, item: int, local: float | None) -> bool:
    """Return whether an item is about as wrong alone as it is inside the model. Then it is a
    culprit, whatever it explains."""
    alone = state.answer_to((item,)).share.largest_error
    return bool(alone and local and 1 / MAX_ERROR_RATIO <= local / alone <= MAX_ERROR_RATIO)
