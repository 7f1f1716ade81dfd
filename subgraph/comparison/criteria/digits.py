"""Equal to N digits after the point, as Horizon's hb_verifier -c: digits:5

Horizon's documents define N only as "number of digits to compare", 5 by default. Here it is
|d| < 10⁻ᴺ: less than one unit of the last digit compared. (Comparing rounded texts would fail
0.4999999 against 0.5000001 at any N.)
"""

from __future__ import annotations

from subgraph.comparison.criteria import (
    OutputContext,
    Rule,
    Ruling,
    agree,
    fail,
    format_beside,
    settle,
)
from subgraph.comparison.pair import Pair
from subgraph.errors import UsageError

DEFAULT_DIGITS = 5
MAX_DIGITS = 17  # a float64 has no more
USAGE = "digits:5, a whole number from 0 to 17"


def rule(options: str) -> Rule:
    """max|c - r| < 10⁻ᴺ, whatever the scale; integers, booleans and strings must be equal.

    Raises:
        UsageError: not a whole number of digits.
    """
    text = options.strip() or str(DEFAULT_DIGITS)
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_DIGITS):
        raise UsageError(
            f"criterion 'digits' does not understand '{options}'",
            f"write {USAGE}",
            code="criterion.malformed",
        )
    limit = float(f"1e-{text}")

    def judge(pair: Pair, context: OutputContext) -> Ruling:
        if ruling := settle(pair):
            return ruling
        if pair.error < limit:
            return agree(f"max_abs {format_beside(pair.error, limit)} < {limit:.0e}")
        wrong = int((pair.difference >= limit).sum())
        return fail(
            f"{wrong} of {pair.compared} elements off: max_abs {format_beside(pair.error, limit)}"
            f" >= {limit:.0e}"
        )

    return judge
