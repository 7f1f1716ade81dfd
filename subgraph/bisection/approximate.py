"""The nodes of a search, each alone, by rounding alone: are approximate kernels all that is off?"""

from __future__ import annotations

import time

from subgraph.bisection.oracle import NodeOracle
from subgraph.errors import ModelError, OutOfTime
from subgraph.trials.approximate import APPROXIMATED, by_rounding_alone, error_of, named
from subgraph.verdict import Status

MAX_SECONDS, MAX_WHOLE = 60.0, 10  # that looking takes: the longer of a time, and of so many runs of the whole


def approximate_kernels(oracle: NodeOracle) -> str:
    """As `named`. At most a run per item; what is never approximated comes first, and ends it where it is off."""
    trials, graph = oracle.trials, oracle.trials.graph
    ops = [{graph.ops[i] for i in group} for group in oracle.groups]
    whole = trials.verdict(trials.whole())
    end = time.monotonic() + max(MAX_SECONDS, MAX_WHOLE * (whole.build + whole.run))
    off: list[tuple[set[str], float]] = []
    unseen = 0
    for k in sorted(range(len(ops)), key=lambda k: bool(ops[k] & APPROXIMATED)):
        region = oracle.region([k])
        try:
            result = None if time.monotonic() > end else trials.run_extra(region)
        except (ModelError, OutOfTime):
            result = None
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
