"""The whole agrees within what approximate kernels may do, but not within rounding: are these what it is?

2e-3 of the scale is what Winograd, a fast exp and the like do to fp32. Whether they did is seen at the nodes alone: if
only operators that runtimes are known to approximate are off, they did; else a search by rounding alone follows.
"""

from __future__ import annotations

import time
from collections import Counter

from subgraph.bisection.oracle import NodeOracle
from subgraph.comparison.judge import parse_criterion
from subgraph.errors import ModelError, OutOfTime
from subgraph.precision import Precision
from subgraph.text import count
from subgraph.trials.trial import Trials
from subgraph.verdict import Status

USUAL, EXACTLY = "noise", "noise:floor=1e-5"  # healthy kernels stay within 1e-5 of the scale
# Of 16,110 tensors of healthy nodes on five runtimes, those beyond 1e-5 were of these kinds.
APPROXIMATED = frozenset(
    "AveragePool Conv ConvTranspose Erf Exp GRU Gelu GlobalAveragePool LSTM Sigmoid Softmax Tanh".split()
)
MAX_SECONDS, MAX_WHOLE = 60.0, 10  # that looking takes: the longer of a time, and of so many runs of the whole


def needs_look(trials: Trials, criterion: str) -> bool:
    """Does the whole agree in fp32 only because of what approximate kernels may do? From then on rounding judges."""
    if criterion != USUAL or trials.precision is not Precision.FP32 or trials.run_by_hand:
        return False
    whole, usual = trials.whole(), trials.rule
    result = trials.run(whole)
    if trials.verdict_of(whole, result).status is not Status.AGREE:
        return False
    trials.rule = parse_criterion(EXACTLY)
    if trials.verdict_of(whole, result).status is Status.FAIL:
        return True
    trials.rule = usual
    return False


def approximate_kernels(oracle: NodeOracle) -> str:
    """`38 Conv, up to 8e-04 of their scale`, where these alone are beyond rounding; "" where others are, or none.

    At most a run per item; what is never approximated comes first.
    """
    trials, graph = oracle.trials, oracle.trials.graph
    ops = [{graph.ops[i] for i in group} for group in oracle.groups]
    items = sorted(range(len(ops)), key=lambda k: bool(ops[k] & APPROXIMATED))
    whole = trials.verdict(trials.whole())
    end = time.monotonic() + max(MAX_SECONDS, MAX_WHOLE * (whole.build + whole.run))
    kinds, largest, unseen = Counter[str](), 0.0, 0
    for k in items:
        region = oracle.region([k])
        try:
            verdict = None if time.monotonic() > end else trials.verdict_of(region, trials.run_extra(region))
        except (ModelError, OutOfTime):
            verdict = None
        unseen += verdict is None
        if verdict is None or verdict.status is not Status.FAIL:
            continue
        if not ops[k] & APPROXIMATED:
            return ""
        kinds.update(ops[k] & APPROXIMATED)
        largest = max(largest, verdict.worst.errors.get("max_rel", 0.0) if verdict.worst else 0.0)
    if not kinds:
        return ""
    named = ", ".join(f"{n} {op}" for op, n in kinds.most_common())
    more = f"; {count(unseen, 'node')} {'was' if unseen == 1 else 'were'} not looked at" if unseen else ""
    return f"{named}, up to {largest:.1e} of the scale{more}"
