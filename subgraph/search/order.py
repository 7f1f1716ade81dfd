"""A DAG -> a topological order in which few tensors cross a cut, so that consecutive items belong together.

Insight: consecutive items of any topological order are closed under paths, so each such interval is a legal cut, and
only the order is free. Walking up from the sinks, one branch after the other (depth first), keeps branches together.
No rule is best for all graphs: of a few orders the one with the fewest live tensors is kept. The order given is among
them, so the result is never worse; of equally good orders, one that keeps branches together wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from subgraph.search.oracle import Items

Parents = Sequence[Sequence[int]]


def cut_order(parents: Parents) -> Items:
    """A topological order of 0 … n−1 with few crossings. Complexity: O(items + edges).

    Raises:
        ValueError: there is a cycle.
    """
    n = len(parents)
    if all(p < i for i, row in enumerate(parents) for p in row) and chained(parents):
        return tuple(range(n))
    orders = [_upwards(parents, False), _upwards(parents, True)]
    if all(p < i for i, row in enumerate(parents) for p in row):
        orders.append(tuple(range(n)))
    return min(orders, key=lambda order: crossings(parents, order))


def chained(parents: Parents) -> bool:
    """Is the graph one chain, in this order?"""
    return all(set(row) <= {i - 1} for i, row in enumerate(parents))


def crossings(parents: Parents, order: Sequence[int]) -> int:
    """Tensors that cross a cut, summed over all cuts: how long each item's result stays live. O(edges)."""
    place = {item: k for k, item in enumerate(order)}
    last = dict(place)
    for item in order:
        for p in parents[item]:
            last[p] = max(last[p], place[item])
    return sum(last[item] - place[item] for item in order)


def _upwards(parents: Parents, backwards: bool) -> Items:
    """Depth-first post-order from the sinks; `backwards` visits the parents of each item last to first."""
    done: list[int] = []
    state = [0] * len(parents)  # 0 new, 1 open, 2 done
    for sink in _sinks(parents):
        stack = [(sink, iter(_rows(parents, sink, backwards)))] if not state[sink] else []
        state[sink] = state[sink] or 1
        while stack:
            item, rest = stack[-1]
            p = next((p for p in rest if state[p] != 2), None)
            if p is None:
                stack.pop()
                state[item] = 2
                done.append(item)
            elif state[p] == 1:
                raise ValueError(f"items {p} and {item} depend on each other")
            else:
                state[p] = 1
                stack.append((p, iter(_rows(parents, p, backwards))))
    if len(done) < len(parents):
        raise ValueError("some items depend on each other")
    return tuple(done)


def _rows(parents: Parents, item: int, backwards: bool) -> Sequence[int]:
    return parents[item][::-1] if backwards else parents[item]


def _sinks(parents: Parents) -> list[int]:
    read = {p for row in parents for p in row}
    return [i for i in range(len(parents)) if i not in read]


def ends(parents: Parents, items: Iterable[int]) -> set[int]:
    """Sources and sinks of a region: they read, or are read by, no other item of the region. O(its edges)."""
    inside = set(items)
    readers = {p for i in inside for p in parents[i] if p in inside}
    return {i for i in inside if i not in readers or not inside.intersection(parents[i])}


def connected(parents: Parents, items: Iterable[int]) -> Iterator[set[int]]:
    """The weakly connected parts of a region, the part with the last item first. O(its edges)."""
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
        part, stack = {start}, [start]
        while stack:
            for j in adjacent[stack.pop()]:
                if j not in part:
                    part.add(j)
                    stack.append(j)
        seen |= part
        yield part


def nearest_last(parents: Parents, items: Iterable[int], last: int) -> Items:
    """Items above `last`, by decreasing distance to `last`, then in their order. O(its edges)."""
    inside, distance, level = set(items), {last: 0}, [last]
    while level:
        level = [
            p
            for k in level
            for p in parents[k]
            if p in inside and distance.setdefault(p, distance[k] + 1) == distance[k] + 1
        ]
        level = list(dict.fromkeys(level))
    return tuple(sorted(distance, key=lambda k: (-distance[k], k)))


def above(parents: Parents, items: Iterable[int], last: int) -> set[int]:
    """The items of a region on which `last` depends, itself included. O(its edges)."""
    inside, ancestors, stack = set(items), {last}, [last]
    while stack:
        for p in parents[stack.pop()]:
            if p in inside and p not in ancestors:
                ancestors.add(p)
                stack.append(p)
    return ancestors
