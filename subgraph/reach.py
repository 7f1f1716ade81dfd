"""Everything that steps lead to: the walk of a graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def reach(starts: Iterable[T], follow: Callable[[T], Iterable[T]]) -> set[T]:
    """Return the starts, and everything that steps from them lead to.

    Each item is followed once. Complexity: linear in the items and steps.

    Args:
        starts: The first items.
        follow: Returns the items that one step leads to.

    >>> sorted(reach([6], lambda n: [d for d in range(1, n) if n % d == 0]))
    [1, 2, 3, 6]
    """
    found = set(starts)
    stack = list(found)
    while stack:
        for item in follow(stack.pop()):
            if item not in found:
                found.add(item)
                stack.append(item)
    return found
