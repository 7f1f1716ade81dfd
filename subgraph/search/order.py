"""Regions of a DAG whose items are in topological order: their ends, connected components, and what
lies above.

Insight: consecutive items of a topological order are closed under paths, so each such interval is a
legal cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from subgraph.reach import reach
from subgraph.search.oracle import Items

Parents = Sequence[Sequence[int]]


def require_topological(parents: Parents) -> None:
    """
    Raises:
        ValueError: an item reads one that comes later, or itself.
    """
    for i, row in enumerate(parents):
        if any(p >= i for p in row):
            raise ValueError(
                f"item {i} reads item {max(row)}: items must come in topological order"
            )


def ends(parents: Parents, items: Iterable[int]) -> set[int]:
    """Sources and sinks of a region: they read, or are read by, no other item of the region. O(its
    edges)."""
    inside = set(items)
    readers = {p for i in inside for p in parents[i] if p in inside}
    return {i for i in inside if i not in readers or not inside.intersection(parents[i])}


def split_components(parents: Parents, items: Iterable[int]) -> Iterator[set[int]]:
    """The weakly connected components of a region, the one with the last item first. O(its
    edges)."""
    inside = sorted(set(items))
    adjacent: dict[int, list[int]] = {i: [] for i in inside}
    for i in inside:
        for p in parents[i]:
            if p in adjacent:
                adjacent[i].append(p)
                adjacent[p].append(i)
    seen: set[int] = set()
    for start in reversed(inside):
        if start in seen:
            continue
        component = reach([start], adjacent.__getitem__)
        seen |= component
        yield component


def nearest_last(parents: Parents, items: Iterable[int], last: int) -> Items:
    """Items above `last`, by decreasing distance to `last`, then in their order. O(its edges)."""
    inside = set(items)
    distance = {last: 0}
    level = [last]
    while level:
        level = [
            p
            for k in level
            for p in parents[k]
            if p in inside and distance.setdefault(p, distance[k] + 1) == distance[k] + 1
        ]
        level = list(dict.fromkeys(level))
    return tuple(sorted(distance, key=lambda k: (-distance[k], k)))


def find_upstream(parents: Parents, items: Iterable[int], last: int) -> set[int]:
    """The items of a region on which `last` depends, itself included. O(its edges)."""
    inside = set(items)
    return reach([last], lambda k: inside.intersection(parents[k]))
