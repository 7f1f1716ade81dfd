"""Every element within atol + rtol·|reference|, as numpy.testing.assert_allclose:
numpy:rtol=1e-3,atol=1e-5

numpy's own defaults (rtol 1e-7, atol 0) suit float64 and fail every healthy device; these are usual
for float32. Still, of all criteria this one raises the most false alarms: near zero only atol
counts, and no atol fits all tensors of a network.
"""

from __future__ import annotations

import numpy as np

from subgraph.comparison.criteria import (
    OutputContext,
    Rule,
    Ruling,
    agree,
    fail,
    parse_number,
    settle,
)
from subgraph.comparison.pair import Pair, compute_relative_error
from subgraph.errors import UsageError

DEFAULT = {"rtol": 1e-3, "atol": 1e-5}
USAGE = "numpy:rtol=1e-3,atol=1e-5"


def rule(options: str) -> Rule:
    """|c - r| ≤ atol + rtol·|r| for every element; integers, booleans and strings must be equal.

    Raises:
        UsageError: options other than rtol and atol, or a tolerance below 0.
    """
    tolerances = DEFAULT | dict(_parse(part) for part in options.split(",") if part.strip())
    rtol = tolerances["rtol"]
    atol = tolerances["atol"]

    def judge(pair: Pair, context: OutputContext) -> Ruling:
        if ruling := settle(pair):
            return ruling
        allowed = np.abs(pair.values[0])
        if rtol or not np.isinf(atol):  # 0 · ∞ is NaN
            allowed *= rtol
        allowed += atol
        beyond = pair.difference > allowed
        how = f"{atol:.0e} + {rtol:.0e}·|reference|"
        if not beyond.any():
            error = compute_relative_error(pair)
            return agree(
                f"every element is within {how}; the largest error is {error:.2g} of the scale"
            )
        place = int(np.argmax(np.where(beyond, pair.difference - allowed, -1.0)))
        error = float(pair.difference[place])
        limit = float(allowed[place])
        return fail(
            f"{int(beyond.sum())} of {pair.compared} elements are beyond {how}; "
            f"the worst deviates by {error:.1e}, allowed {limit:.1e}"
        )

    return judge


def _parse(option: str) -> tuple[str, float]:
    name, _, text = (part.strip() for part in option.partition("="))
    if name not in DEFAULT or not text:
        raise UsageError(
            f"criterion 'numpy' does not understand '{option}'",
            f"write {USAGE}",
            code="criterion.malformed",
        )
    value = parse_number(text, USAGE)
    if value < 0:
        raise UsageError(
            f"criterion 'numpy': {name} is {value:g}, below 0",
            f"write {USAGE}",
            code="criterion.out-of-range",
        )
    return name, value
