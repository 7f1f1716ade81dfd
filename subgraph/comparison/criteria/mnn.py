"""MNN's testMNNFromOnnx.py: max|d| ≤ 0.01·max|reference|

The reference's largest value counts as 1e-4 at least. There any NaN or infinity fails; here only one that the other
side does not have.
"""

from __future__ import annotations

from subgraph.comparison.criteria import OutputContext, Rule, Ruling, agree, fail, settled, shown
from subgraph.comparison.pair import Pair
from subgraph.errors import UsageError
from subgraph.text import clean

SHARE = 0.01
FLOOR = 1e-4


def rule(words: str) -> Rule:
    """max|c - r| ≤ 0.01·max(max|r|, 1e-4); integers, booleans and strings must be equal.

    Raises:
        UsageError: any words.
    """
    if words.strip():
        raise UsageError(f"criterion 'mnn' takes no words, not '{clean(words)}'", "write mnn")
    return _ask


def _ask(pair: Pair, subject: OutputContext) -> Ruling:
    if ruling := settled(pair):
        return ruling
    limit = SHARE * max(pair.scale, FLOOR)
    if pair.error <= limit:
        return agree(f"max_abs {shown(pair.error, limit)} <= {limit:.1e}, 0.01 of the largest reference value")
    return fail(f"max_abs {shown(pair.error, limit)} > {limit:.1e}, 0.01 of the largest reference value")
