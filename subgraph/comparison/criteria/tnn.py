"""TNN's model_check: fails if |d|/(|r| + |c|) > 0.005 and |d| > 1e-3

The default mode of `ModelChecker::CompareData` (Tencent/TNN, tools/model_check). In TNN a NaN
passes, because every comparison with a NaN is false; here it fails. Its cosine mode is
`threshold:cosine>=0.999`.
"""

from __future__ import annotations

import numpy as np

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

MAX_RELATIVE_ERROR = 0.005
MAX_ABSOLUTE_ERROR = 1e-3
MAX_STEPS = 1  # of quantized values
QUANTIZED = frozenset(("int8", "int32"))


def rule(options: str) -> Rule:
    """Floats: no element exceeds both limits. int8 and int32: |d| ≤ 1. Other integers, booleans and
    strings are equal.

    Raises:
        UsageError: any options.
    """
    refuse_options("tnn", options)
    return _judge


def _judge(pair: Pair, context: OutputContext) -> Ruling:
    quantized = pair.reference.dtype.name in QUANTIZED
    if ruling := settle(pair, exact=not quantized):
        return ruling
    if quantized:
        if pair.error <= MAX_STEPS:
            return agree(f"max_abs {pair.error:.0f} <= {MAX_STEPS}")
        return fail(f"max_abs {pair.error:.0f} > {MAX_STEPS} ({pair.reference.dtype.name} values)")
    far = pair.difference > MAX_ABSOLUTE_ERROR  # so neither side of the quotient is 0
    distance = pair.difference[far]
    # Halves: neither their sum nor distance leaves float64.
    reference, candidate = (v[far] / 2 for v in pair.values)
    relative = np.abs(candidate - reference) / (np.abs(reference) + np.abs(candidate))
    wrong = int((relative > MAX_RELATIVE_ERROR).sum())
    if not wrong:
        return agree(
            f"no element with |d| > {MAX_ABSOLUTE_ERROR:.0e} deviates by more than"
            f" {MAX_RELATIVE_ERROR}; max_abs"
            f" {pair.error:.1e}"
        )
    place = int(np.argmax(relative))
    worst = format_beside(float(relative[place]), MAX_RELATIVE_ERROR)
    beside = (
        f"{format_beside(float(distance[place]), MAX_ABSOLUTE_ERROR)} > {MAX_ABSOLUTE_ERROR:.0e}"
    )
    return fail(
        f"{wrong} of {pair.compared} elements off by more than {MAX_RELATIVE_ERROR}:"
        f" the worst by {worst}"
        f" with |d| {beside}"
    )
