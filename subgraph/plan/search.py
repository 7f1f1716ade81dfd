"""The smallest set of places that must be kept, of those that it was asked about: no model is known here.

The most sensitive places are kept until that is accepted: halving finds how many. Then chunks are given back, the least
sensitive first, until none can. So each kept place was given back once with all the others kept, and was refused.
Complexity: log n questions, and about three for each place that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from subgraph.errors import OutOfTime

Accepts = Callable[[Collection[int]], bool]  # raises OutOfTime where there is none for another question


@dataclass(frozen=True)
class Found:
    """A set that was accepted.

    Attributes:
        kept: in the order of their sensitivity.
        proven: how many of them were given back alone, and refused; all of them where the set is minimal.
        levels: by kept place, how high above what is lowest; higher than any gear where there is none.
    """

    kept: tuple[int, ...]
    proven: int
    levels: Mapping[int, int] = field(default_factory=dict)

    @property
    def minimal(self) -> bool:
        return self.proven == len(self.kept)


def smallest(order: Sequence[int], accepts: Accepts) -> Found:
    """The smallest prefix that is accepted, without what can be given back; all of `order` is known to be accepted.

    >>> smallest([4, 2, 0, 1, 3], lambda kept: {2, 1} <= set(kept))
    Found(kept=(2, 1), proven=2, levels={})
    """
    asked: dict[frozenset[int], bool] = {frozenset(order): True}

    def ask(kept: Sequence[int]) -> bool:
        key = frozenset(kept)
        if key not in asked:
            asked[key] = accepts(kept)
        return asked[key]

    kept = list(order)
    try:
        refused, accepted = -1, len(order)
        while accepted - refused > 1:
            middle = (refused + accepted) // 2
            if ask(order[:middle]):
                accepted, kept = middle, list(order[:middle])
            else:
                refused = middle
        size = max(1, len(kept) // 2)
        while True:
            before = len(kept)
            end = len(kept)
            while end > 0:
                begin = max(0, end - size)
                if ask(rest := kept[:begin] + kept[end:]):
                    kept = rest
                end = begin
            if size == 1 and len(kept) == before:
                break
            size = max(1, size // 2)
    except OutOfTime:
        pass
    proven = sum(asked.get(frozenset(kept) - {place}) is False for place in kept)
    return Found(tuple(kept), proven)
