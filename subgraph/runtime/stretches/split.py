"""Costs of nodes in topological order → stretches: ranges whose weights and live tensors fit into
memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cost:
    """Bytes that one node takes.

    Attributes:
        weights: by name; a weight that several nodes of a stretch read is held once.
        work: while the node runs alone.
        kept: of tensors that were asked for: they are held until its stretch ends.
    """

    weights: Mapping[str, int] = field(default_factory=dict)
    work: int = 0
    kept: int = 0


def next_end(costs: Sequence[Cost], live: Sequence[int], start: int, limit: int) -> int:
    """The end of the longest stretch from `start` that holds at most `limit` bytes; `start + 1`
    where no node fits.

    Args:
        live: bytes of the tensors that are made before node k and read at it or later, for k from 0
            to `len(costs)`.

    Complexity: linear in the nodes of the stretch and the weights that they read.
    """
    seen: set[str] = set()
    weights = kept = work = most_live = 0
    for k in range(start, len(costs)):
        cost = costs[k]
        weights += sum(size for name, size in cost.weights.items() if name not in seen)
        seen.update(cost.weights)
        kept += cost.kept
        work = max(work, cost.work)
        most_live = max(most_live, live[k + 1])
        if k > start and live[start] + weights + kept + work + most_live > limit:
            return k
    return len(costs)


def peak(costs: Sequence[Cost], live: Sequence[int], nodes: range) -> int:
    """Bytes that a stretch holds at most: its weights, what enters it, what is alive in it, and
    what is asked for."""
    weights: dict[str, int] = {}
    for k in nodes:
        weights.update(costs[k].weights)
    inside = [costs[k] for k in nodes]
    kept = sum(c.kept for c in inside)
    work = max((c.work for c in inside), default=0)
    most_live = max((live[k + 1] for k in nodes), default=0)
    return live[nodes.start] + sum(weights.values()) + kept + work + most_live


def stretches(
    costs: Sequence[Cost], live: Sequence[int], limit: int, start: int = 0
) -> Iterator[range]:
    """Every node from `start` on, in ranges of at most `limit` bytes, or of one node that takes
    more."""
    while start < len(costs):
        end = next_end(costs, live, start, limit)
        yield range(start, end)
        start = end
