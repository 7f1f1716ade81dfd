"""Every element within atol + rtol·|reference|, as numpy.testing.assert_allclose: numpy:rtol=1e-3,atol=1e-5

numpy's own defaults (rtol 1e-7, atol 0) are meant for float64 and fail every healthy device; ours are those that people
write for float32. Even so the element-wise rule raises the most false alarms: near zero only atol
counts, and no single atol fits all tensors of a network.
"""

from __future__ import annotations

import numpy as np

from subgraph.comparison.criteria import OutputContext, Rule, Ruling, agree, fail, number, settled
from subgraph.comparison.pair import Pair
from subgraph.errors import UsageError
from subgraph.text import clean

DEFAULT = {"rtol": 1e-3, "atol": 1e-5}
FORM = "numpy:rtol=1e-3,atol=1e-5"


def rule(words: str) -> Rule:
    """|c - r| ≤ atol + rtol·|r| for every element; integers, booleans and strings must be equal.

    Raises:
        UsageError: words other than rtol and atol, or a tolerance below 0.
    """
    tolerances = DEFAULT | dict(_read(word) for word in words.split(",") if word.strip())
    rtol, atol = tolerances["rtol"], tolerances["atol"]

    def ask(pair: Pair, subject: OutputContext) -> Ruling:
        if ruling := settled(pair):
            return ruling
        allowed = np.abs(pair.values[0])
        if rtol or not np.isinf(atol):  # 0 · ∞ is no number
            allowed *= rtol
        allowed += atol
        beyond = pair.difference > allowed
        how = f"{atol:.0e} + {rtol:.0e}·|reference|"
        if not beyond.any():
            return agree(f"every element within {how}; max_abs {pair.error:.1e}")
        place = int(np.argmax(np.where(beyond, pair.difference - allowed, -1.0)))
        error, limit = float(pair.difference[place]), float(allowed[place])
        return fail(
            f"{int(beyond.sum())} of {pair.compared} elements beyond {how}; "
            f"the worst is off by {error:.1e}, where {limit:.1e} is allowed"
        )

    return ask


def _read(word: str) -> tuple[str, float]:
    name, _, text = (part.strip() for part in word.partition("="))
    if name not in DEFAULT or not text:
        raise UsageError(f"criterion 'numpy' does not understand '{clean(word)}'", f"write {FORM}")
    value = number(text, FORM)
    if value < 0:
        raise UsageError(f"criterion 'numpy': {name} is {value:g}, below 0", f"write {FORM}")
    return name, value
