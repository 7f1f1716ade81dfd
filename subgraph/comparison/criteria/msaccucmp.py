"""Ascend's msaccucmp: cosine ≥ 0.99, Euclidean distance ≤ 0.05, KL ≤ 0.005, RMSE ≤ 1, mean relative
error ≤ 1

The metrics (algorithm_manager) and thresholds (cmp_process.py) of the compare tool in Ascend's
CANN. In CANN a metric that is not defined passes; here it fails. RMSE has the tensor's unit: large
activations fail it, small ones never do.
"""

from __future__ import annotations

from subgraph.comparison.criteria import (
    Limit,
    OutputContext,
    Rule,
    Ruling,
    check_limits,
    refuse_options,
    settle,
)
from subgraph.comparison.metrics import compute_norm
from subgraph.comparison.pair import Pair

LIMITS = (
    Limit("cosine", ">=", 0.99),
    Limit("rel_l2", "<=", 0.05),
    Limit("kl", "<=", 0.005),
    Limit("rmse", "<=", 1.0),
    Limit("mean_rel", "<=", 1.0),
)
ZERO = 2.0**-52  # float64's eps: a vector that is not longer counts as zero


def rule(options: str) -> Rule:
    """None of the five is beyond its threshold; integers, booleans and strings must be equal.

    Raises:
        UsageError: any options.
    """
    refuse_options("msaccucmp", options)
    return _judge


def _judge(pair: Pair, context: OutputContext) -> Ruling:
    if ruling := settle(pair):
        return ruling
    return check_limits(LIMITS, measure(pair))


def measure(pair: Pair) -> dict[str, float]:
    """Return the five metrics by name, with msaccucmp's values for a scalar and for vectors of
    zeros."""
    values = pair.compute_metric(limit.metric for limit in LIMITS)
    empty = [compute_norm(v) <= ZERO for v in pair.values]
    if pair.size == 1 or all(empty):
        values["cosine"] = 1.0
    elif any(empty):
        values["cosine"] = float("nan")
    if empty[0]:
        values["rel_l2"] = 0.0
    return values
