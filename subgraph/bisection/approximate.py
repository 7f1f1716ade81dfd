"""The nodes of a search, each alone, by rounding alone: are approximate kernels all that is off?"""

from __future__ import annotations

from subgraph.bisection.oracle import NodeOracle
from subgraph.trials.pieces import APPROXIMATED, by_rounding_alone, error_of, named, results
from subgraph.verdict import Status


def approximate_kernels(oracle: NodeOracle, most: float) -> str:
    """As `named`. At most a run per item, and no more than `most` of the search's; what is never approximated comes
    first, and ends it where it is off."""
    trials, graph = oracle.trials, oracle.trials.graph
    ops = [{graph.ops[i] for i in group} for group in oracle.groups]
    items = sorted(range(len(ops)), key=lambda k: bool(ops[k] & APPROXIMATED))
    regions = [oracle.region([k]) for k in items]
    off: list[tuple[set[str], float]] = []
    unseen = 0
    for k, region, result in zip(items, regions, results(trials, regions, most), strict=True):
        if result is None:
            unseen += 1
            continue
        allowed = trials.verdict_of(region, result).status is Status.AGREE
        with by_rounding_alone(trials):
            verdict = trials.verdict_of(region, result)
        if verdict.status is Status.FAIL:
            approximated = ops[k] & APPROXIMATED if allowed else set[str]()
            off.append((approximated, error_of(verdict.worst)))
            if not approximated:
                break
        unseen += verdict.status is Status.UNRESOLVED
    return named(off, unseen)
