"""Limits for any metrics, all of which must hold: threshold:max_rel<=1e-3 or
threshold:cosine>0.99,max_abs<1e-2

The default is max_rel<=1e-3: of the plain rules it raises the fewest false alarms in float32.
"""

from __future__ import annotations

import re

from subgraph import plugins
from subgraph.comparison.criteria import (
    Limit,
    OutputContext,
    Rule,
    Ruling,
    check_limits,
    parse_number,
    settle,
)
from subgraph.comparison.pair import Pair
from subgraph.errors import UsageError

DEFAULT = "max_rel<=1e-3"
USAGE = "threshold:cosine>0.999 or threshold:max_abs<1e-3,cosine>0.99"
# Metrics that may limit values that cannot be rounded. Others mean nothing there: any two positive
# class numbers have cosine 1.
COUNTING = frozenset(("max_abs", "mismatch"))


def rule(options: str) -> Rule:
    """Every term holds. Integers, booleans and strings must be equal, unless `max_abs` or
    `mismatch` limits them.

    A limit does not hold for a metric that is not defined (NaN).

    Raises:
        UsageError: an option is not a metric, a sign and a number.
        UnknownName: no such metric; carries the nearest.
    """
    limits = _parse_limits(options)
    for limit in limits:
        plugins.load("metrics", limit.metric)

    def judge(pair: Pair, context: OutputContext) -> Ruling:
        if pair.floating:
            applied = limits
        else:
            applied = [limit for limit in limits if limit.metric in COUNTING]
        if ruling := settle(pair, exact=not applied):
            return ruling
        values = pair.compute_metric(dict.fromkeys(limit.metric for limit in applied))
        if not pair.measurable and "max_abs" in values:
            values["max_abs"] = pair.error  # of booleans and strings: 1 if any differs
        return check_limits(applied, values)

    return judge


def files(options: str) -> list[str]:
    """Return the metrics that are Python files."""
    return [limit.metric for limit in _parse_limits(options) if limit.metric.endswith(".py")]


def _parse_limits(options: str) -> list[Limit]:
    return [_parse(part) for part in (options.strip() or DEFAULT).split(",")]


def _parse(option: str) -> Limit:
    match = re.fullmatch(r"\s*(.+?)\s*(<=|>=|<|>)\s*([^<>=]+?)\s*", option)
    if not match:
        raise UsageError(
            f"criterion 'threshold' does not understand '{option}'",
            f"write {USAGE}",
            code="criterion.malformed",
        )
    name = match[1] if match[1].endswith(".py") else match[1].replace("-", "_")
    return Limit(name, match[2], parse_number(match[3], USAGE))
