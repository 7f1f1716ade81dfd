"""TNN's model_check: fails where |d|/(|r| + |c|) > 0.005 and |d| > 1e-3

The default mode of `ModelChecker::CompareData` (Tencent/TNN, tools/model_check). There a NaN passes, because every
comparison with one is false; here it fails. Its cosine mode is `threshold:cosine>=0.999`.
"""

from __future__ import annotations

import numpy as np

from subgraph.comparison.criteria import OutputContext, Rule, Ruling, agree, fail, settled, shown
from subgraph.comparison.pair import Pair
from subgraph.errors import UsageError
from subgraph.text import clean

RELATIVE = 0.005
ABSOLUTE = 1e-3
STEP = 1  # of quantized values
QUANTIZED = frozenset(("int8", "int32"))


def rule(words: str) -> Rule:
    """Floats: no element is off by both limits. int8 and int32: |d| ≤ 1. What else cannot be rounded must be equal.

    Raises:
        UsageError: any words.
    """
    if words.strip():
        raise UsageError(f"criterion 'tnn' takes no words, not '{clean(words)}'", "write tnn")
    return _ask


def _ask(pair: Pair, subject: OutputContext) -> Ruling:
    quantized = pair.reference.dtype.name in QUANTIZED
    if ruling := settled(pair, exact=not quantized):
        return ruling
    if quantized:
        return _steps(pair)
    far = pair.difference > ABSOLUTE  # so neither side of the quotient is 0
    distance = pair.difference[far]
    reference, candidate = (v[far] / 2 for v in pair.values)  # halves: neither their sum nor distance leaves float64
    relative = np.abs(candidate - reference) / (np.abs(reference) + np.abs(candidate))
    off = int((relative > RELATIVE).sum())
    if not off:
        return agree(f"no element with |d| > {ABSOLUTE:.0e} is off by more than {RELATIVE}; max_abs {pair.error:.1e}")
    place = int(np.argmax(relative))
    return fail(
        f"{off} of {pair.compared} elements off by more than {RELATIVE}: the worst by "
        f"{shown(float(relative[place]), RELATIVE)} with |d| {shown(float(distance[place]), ABSOLUTE)} > {ABSOLUTE:.0e}"
    )


def _steps(pair: Pair) -> Ruling:
    if pair.error <= STEP:
        return agree(f"max_abs {pair.error:.0f} <= {STEP}")
    return fail(f"max_abs {pair.error:.0f} > {STEP} ({pair.reference.dtype.name} values)")
