"""The smallest set of places that must be kept, for any predicate: no model is known here.

The most sensitive places are kept until the set is accepted: halving finds how many. The last of
them matters; if many before it were dropped, it comes first and the others are halved again, so
that a misjudged place keeps no others. Then places are given back, the least sensitive first: more
at once after each accepted step, fewer after a refused one, until none can. So each kept place was
given back once with all the others kept, and was refused.

Complexity: log n questions if the order is right, and about three for each place that is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field

from subgraph.errors import OutOfTime
from subgraph.types import frozen

FIRST_GROUPS = 16  # of the kept places, that is given back at once at first

# Raises OutOfTime if no time is left for another question.
Accepts = Callable[[Collection[int]], bool]


@frozen
class SmallestSet:
    """A set that was accepted.

    Attributes:
        kept: The kept places, in the order of their sensitivity.
        proven: Number of them that were given back alone, and refused; all if the set is minimal.
        levels: By kept place, its level above the lowest one; float is above all gears.
    """

    kept: tuple[int, ...]
    proven: int
    levels: Mapping[int, int] = field(default_factory=dict)

    @property
    def minimal(self) -> bool:
        return self.proven == len(self.kept)


def find_smallest_set(order: Sequence[int], accepts: Accepts) -> SmallestSet:
    """Find the smallest prefix that is accepted, without the places that can be given back.

    All of `order` is known to be accepted.

    >>> find_smallest_set([4, 2, 0, 1, 3], lambda kept: {2, 1} <= set(kept))
    SmallestSet(kept=(2, 1), proven=2, levels={})
    """
    results = {frozenset(order): True}
    best = list(order)

    def ask(kept: list[int]) -> bool:
        key = frozenset(kept)
        if key not in results:
            results[key] = accepts(kept)
            if results[key]:
                best[:] = kept
        return results[key]

    with suppress(OutOfTime):
        _give_back(_find_prefix(order, ask), ask)
    proven = sum(results.get(frozenset(best) - {place}) is False for place in best)
    return SmallestSet(tuple(best), proven)


def _find_prefix(order: Sequence[int], ask: Callable[[list[int]], bool]) -> list[int]:
    """Find the shortest prefix that is accepted.

    Places that turn out to matter more than those before them come first.
    """
    prefix = list[int]()
    rest = list(order)
    while True:
        refused = -1
        accepted = len(rest)
        while accepted - refused > 1:
            middle = (refused + accepted) // 2
            if ask([*prefix, *rest[:middle]]):
                accepted = middle
            else:
                refused = middle
        dropped = len(rest) - accepted
        rest = rest[:accepted]
        # Another halving costs more than it finds.
        if not rest or dropped < math.log2(dropped + accepted + 1):
            return [*prefix, *rest]
        prefix.append(rest.pop())


def _give_back(kept: list[int], ask: Callable[[list[int]], bool]) -> None:
    """Give places back until each was tried alone, with all the others kept."""
    size = max(1, len(kept) // FIRST_GROUPS)
    before = len(kept) + 1
    while len(kept) < before:
        before = end = len(kept)
        while end > 0:
            begin = max(0, end - size)
            if ask(fewer := kept[:begin] + kept[end:]):
                kept = fewer
                end = begin
                size = 2 * size
            elif size > 1:
                size //= 2
            else:
                end = begin
        size = 1
