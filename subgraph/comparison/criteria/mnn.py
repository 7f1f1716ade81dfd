"""MNN's testMNNFromOnnx.py: max|d| ≤ 0.01·max|reference|

The largest reference value counts as 1e-4 at least. In MNN any NaN or infinity fails; here only one
that the other side does not have.
"""

from __future__ import annotations

from subgraph.comparison.criteria import (
    OutputContext,
    Rule,
    Ruling,
    agree,
    fail,
    format_beside,
    refuse_options,
    settle,
)
from subgraph.comparison.pair import Pair

MAX_ERROR_SHARE = 0.01  # of the largest reference value
MIN_SCALE = 1e-4


def rule(options: str) -> Rule:
    """max|c - r| ≤ 0.01·max(max|r|, 1e-4); integers, booleans and strings must be equal.

    Raises:
        UsageError: any options.
    """
    refuse_options("mnn", options)
    return _judge


def _judge(pair: Pair, context: OutputContext) -> Ruling:
    if ruling := settle(pair):
        return ruling
    scale = max(pair.scale, MIN_SCALE)
    share = format_beside(pair.error / scale, MAX_ERROR_SHARE)
    if pair.error <= MAX_ERROR_SHARE * scale:
        return agree(f"off by {share} of the largest reference value, allowed {MAX_ERROR_SHARE}")
    return fail(f"off by {share} of the largest reference value, allowed {MAX_ERROR_SHARE}")
