"""A run with intermediate tensors as outputs: the items that are wrong in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from subgraph.bisection.error_shares import SeenRuns
from subgraph.bisection.items import NodeItems
from subgraph.graph import region as regions
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.search.oracle import Items, ItemStatuses, Query, QueryKind
from subgraph.trials import compare_tensors
from subgraph.trials.attribution import error_of
from subgraph.trials.judge import Judge
from subgraph.trials.local_errors import locally_wrong
from subgraph.verdict import Judgement, Status, Verdict, gravity

UNFAITHFUL = (
    0.1  # of the largest final error: from here on a profile shows another run than the plain one
)


def tap_region(nodes: NodeItems, items: Items) -> Region:
    """The region of some items whose intermediate tensors are outputs, each by itself: of all items
    the whole model's.

    Raises:
        NoRegion: they only draw random numbers.
    """
    inner = list(_inner_tensors(nodes, items))
    if len(items) == len(nodes.groups):
        return nodes.trials.model.whole(inner)
    # without the culprits known so far: everything behind them would be wrong
    return regions.build_region(nodes.graph, nodes.indices(items), [(n,) for n in inner])


def _inner_tensors(nodes: NodeItems, items: Items) -> dict[str, int]:
    """Tensors that a profile reads, with the item that makes each."""
    makes = nodes.graph.makes
    readable = set(nodes.trials.model.tensors())
    return {n: k for k in items for i in nodes.groups[k] for n in makes[i] if n in readable}


def read_items(
    nodes: NodeItems, seen: SeenRuns, items: Items, result: RunResult, verdict: Verdict
) -> ItemStatuses:
    """Return the items that are wrong in a run with their tensors as outputs."""
    statuses = statuses_of(verdict, _inner_tensors(nodes, items))
    return ItemStatuses(statuses, _local_errors(nodes, seen, items, result, statuses))


def statuses_of(verdict: Verdict, items: Mapping[str, int]) -> dict[int, Status]:
    """The status of each item, by its gravest output; `items`: the item that makes each tensor."""
    gravest: dict[int, Judgement] = {}
    for judgement in verdict.outputs:
        item = items.get(judgement.name)
        if item is not None:
            gravest[item] = max(gravest.get(item, judgement), judgement, key=gravity)
    return {item: judgement.status for item, judgement in gravest.items()}


def _local_errors(
    nodes: NodeItems,
    seen: SeenRuns,
    items: Items,
    result: RunResult,
    statuses: Mapping[int, Status],
) -> dict[int, float] | None:
    """Of the items that are wrong in place those that are so given what they read, with the
    relative error; None if unknown, or if reading intermediate tensors changed what the whole
    gives."""
    trials = nodes.trials
    suspects = [k for k in items if statuses.get(k) is Status.FAIL]
    whole = seen.result(trials, trials.model.whole())
    is_all = len(items) == len(nodes.groups)
    if result.failure or (is_all and not _is_as_plain(trials.judge, whole, result)):
        return None
    wrong = locally_wrong(trials, [nodes.region([k]) for k in suspects], result)
    return None if wrong is None else {suspects[k]: error for k, error in wrong.items()}


def _is_as_plain(judge: Judge, whole: RunResult, result: RunResult) -> bool:
    """Return whether the model's outputs deviate as far in a profile as in the plain run."""
    plain, probed = (error_of(judge, r.tensors) for r in (whole, result))
    if plain is None or probed is None:
        return whole.failure is None and plain is probed
    return bool(abs(plain - probed).max(initial=0.0) <= UNFAITHFUL * abs(plain).max(initial=0.0))


def measure_disturbance(nodes: NodeItems, seen: SeenRuns, queries: Iterable[Query]) -> float:
    """Return how far reading all intermediate tensors moved the outputs, relative to their largest
    value.

    0 if no query read them, or if the outputs vary from run to run anyway.
    """
    trials = nodes.trials
    whole = trials.model.whole()
    is_read = any(
        q.kind is QueryKind.PROFILE and len(q.items) == len(nodes.groups) for q in queries
    )
    if not is_read or whole.nodes in seen.nondeterministic:
        return 0.0
    tapped = tap_region(nodes, tuple(range(len(nodes.groups))))
    return compare_tensors.measure_disturbance(seen.result(trials, whole), trials.run(tapped))
