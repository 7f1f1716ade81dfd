"""Ascend's msaccucmp: cosine ≥ 0.99, Euclidean distance ≤ 0.05, KL ≤ 0.005, RMSE ≤ 1, mean relative error ≤ 1

The metrics (algorithm_manager) and thresholds (cmp_process.py) of the compare tool in Ascend's CANN. There a metric
that is not defined passes; here it fails. RMSE has the tensor's unit: large activations fail it, small ones never do.
"""

from __future__ import annotations

from subgraph.comparison.criteria import Limit, OutputContext, Rule, Ruling, limited, settled
from subgraph.comparison.metrics import norm
from subgraph.comparison.pair import Pair
from subgraph.errors import UsageError
from subgraph.text import clean

LIMITS = (
    Limit("cosine", ">=", 0.99),
    Limit("rel_l2", "<=", 0.05),
    Limit("kl", "<=", 0.005),
    Limit("rmse", "<=", 1.0),
    Limit("mean_rel", "<=", 1.0),
)
ZERO = 2.0**-52  # float64's eps: a shorter vector is zero


def rule(words: str) -> Rule:
    """None of the five is beyond its threshold; integers, booleans and strings must be equal.

    Raises:
        UsageError: any words.
    """
    if words.strip():
        raise UsageError(f"criterion 'msaccucmp' takes no words, not '{clean(words)}'", "write msaccucmp")
    return _ask


def _ask(pair: Pair, subject: OutputContext) -> Ruling:
    if ruling := settled(pair):
        return ruling
    values = pair.measured(limit.metric for limit in LIMITS)
    empty = [norm(v) <= ZERO for v in pair.values]
    if pair.size == 1 or all(empty):
        values["cosine"] = 1.0
    elif any(empty):
        values["cosine"] = float("nan")
    if empty[0]:
        values["rel_l2"] = 0.0
    return limited(LIMITS, values)
