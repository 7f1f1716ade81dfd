"""A DAG -> an order in which few tensors cross a cut, so that consecutive items are what belongs together.

Insight: a run of consecutive items in any topological order is closed under paths, so each is a legal cut; the freedom
left is which order. Walking up from the sinks, one branch after the other (depth first), keeps branches in one piece.
No rule is best for all graphs, so a few orders are made, and the one with the fewest live tensors is kept; the order
that came in is one of them, so that the result is never worse than it; of equals the one that keeps branches wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from subgraph.search.oracle import Items

Parents = Sequence[Sequence[int]]


def cut_order(parents: Parents) -> Items:
    """A topological order of 0 … n−1 with few crossings.

    Complexity: O(items + edges). Raises: ValueError: there is a cycle.
    """
    n = len(parents)
    if all(p < i for i, row in enumerate(parents) for p in row) and chained(parents):
        return tuple(range(n))
    orders = [_upwards(parents, False), _upwards(parents, True)]
    if all(p < i for i, row in enumerate(parents) for p in row):
        orders.append(tuple(range(n)))
    return min(orders, key=lambda order: crossings(parents, order))


def chained(parents: Parents) -> bool:
    """Is it one chain, in order?"""
    return all(set(row) <= {i - 1} for i, row in enumerate(parents))


def crossings(parents: Parents, order: Sequence[int]) -> int:
    """Over all cuts of an order, the tensors that cross: how long each item's result stays live, summed. O(E)."""
    place = {item: k for k, item in enumerate(order)}
    last = dict(place)
    for item in order:
        for p in parents[item]:
            last[p] = max(last[p], place[item])
    return sum(last[item] - place[item] for item in order)


def _upwards(parents: Parents, backwards: bool) -> Items:
    """Depth-first post-order from the sinks; `backwards` visits what an item reads in the other order."""
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
    """Sources and sinks of a region: items that read, or are read by, no other item of it. O(its edges)."""
    inside = set(items)
    readers = {p for i in inside for p in parents[i] if p in inside}
    return {i for i in inside if i not in readers or not inside.intersection(parents[i])}


def connected(parents: Parents, items: Iterable[int]) -> Iterator[set[int]]:
    """The weakly connected parts of a region, the one with the last item first. O(its edges)."""
    inside = sorted(set(items))
    near: dict[int, list[int]] = {i: [] for i in inside}
    for i in inside:
        for p in parents[i]:
            if p in near:
                near[i].append(p)
                near[p].append(i)
    seen: set[int] = set()
    for start in reversed(inside):
        if start in seen:
            continue
        part, stack = {start}, [start]
        while stack:
            for j in near[stack.pop()]:
                if j not in part:
                    part.add(j)
                    stack.append(j)
        seen |= part
        yield part


def nearest_last(parents: Parents, items: Iterable[int], last: int) -> Items:
    """The same, ordered by the distance to `last`, which comes last; equal ones as they were. O(its edges)."""
    inside, far, level = set(items), {last: 0}, [last]
    while level:
        level = [p for k in level for p in parents[k] if p in inside and far.setdefault(p, far[k] + 1) == far[k] + 1]
        level = list(dict.fromkeys(level))
    return tuple(sorted(far, key=lambda k: (-far[k], k)))


def above(parents: Parents, items: Iterable[int], last: int) -> set[int]:
    """What the item `last` depends on within a region, itself included. O(its edges)."""
    inside, found, stack = set(items), {last}, [last]
    while stack:
        for p in parents[stack.pop()]:
            if p in inside and p not in found:
                found.add(p)
                stack.append(p)
    return found
