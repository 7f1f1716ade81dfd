"""Limits for any metrics, all of which must hold: threshold:max_rel<=1e-3 or threshold:cosine>0.99,max_abs<1e-2

The default is max_rel<=1e-3: of the plain rules it raises the fewest false alarms in float32.
"""

from __future__ import annotations

import re

from subgraph import plugins
from subgraph.comparison.criteria import Limit, OutputContext, Rule, Ruling, limited, number, settled
from subgraph.comparison.pair import Pair
from subgraph.errors import UsageError
from subgraph.text import clean

DEFAULT = "max_rel<=1e-3"
FORM = "threshold:cosine>0.999 or threshold:max_abs<1e-3,cosine>0.99"
# What limits values that cannot be rounded. The others are blind there: any two positive class numbers have cosine 1.
COUNTING = frozenset(("max_abs", "mismatch"))


def rule(words: str) -> Rule:
    """Every term holds. Integers, booleans and strings must be equal, unless `max_abs` or `mismatch` limits them.

    A metric that is not defined for two values (NaN) holds no limit.

    Raises:
        UsageError: not of the form metric, sign, number.
        UnknownName: no such metric; carries the nearest.
    """
    limits = [_read(word) for word in (words.strip() or DEFAULT).split(",")]

    def ask(pair: Pair, subject: OutputContext) -> Ruling:
        asked = limits if pair.floating else [limit for limit in limits if limit.metric in COUNTING]
        if ruling := settled(pair, exact=not asked):
            return ruling
        values = pair.measured(dict.fromkeys(limit.metric for limit in asked))
        if not pair.measurable and "max_abs" in values:
            values["max_abs"] = pair.error  # of booleans and strings: 1 where any differs
        return limited(asked, values)

    return ask


def _read(word: str) -> Limit:
    match = re.fullmatch(r"\s*(.+?)\s*(<=|>=|<|>)\s*([^<>=]+?)\s*", word)
    if not match:
        raise UsageError(f"criterion 'threshold' does not understand '{clean(word)}'", f"write {FORM}")
    name = match[1] if match[1].endswith(".py") else match[1].replace("-", "_")
    plugins.load("metrics", name)
    return Limit(name, match[2], number(match[3], FORM))
