"""The whole agrees within what approximate kernels may do, but not within rounding: are these what it is?

2e-3 of the scale is what Winograd, a fast exp and the like do to fp32. Whether they did is seen at the nodes alone: if
only operators that runtimes are known to approximate are off, they did; else a search by rounding alone follows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from subgraph.comparison import ROUNDING_ALONE
from subgraph.comparison.judge import parse_criterion
from subgraph.precision import Precision
from subgraph.text import count
from subgraph.trials.trial import Trials
from subgraph.verdict import Judgement, Status

USUAL = "noise"
# Of 16,110 tensors of healthy nodes on five runtimes, those beyond 1e-5 were of these kinds.
APPROXIMATED = frozenset(
    "AveragePool Conv ConvTranspose Erf Exp GRU Gelu GlobalAveragePool LSTM Sigmoid Softmax Tanh".split()
)


def needs_look(trials: Trials) -> bool:
    """Does the whole agree in fp32 only because of what approximate kernels may do?"""
    if trials.criterion != USUAL or trials.precision is not Precision.FP32 or trials.run_by_hand:
        return False
    whole = trials.whole()
    result = trials.run(whole)
    if trials.verdict_of(whole, result).status is not Status.AGREE:
        return False
    with by_rounding_alone(trials):
        return trials.verdict_of(whole, result).status is Status.FAIL


@contextmanager
def by_rounding_alone(trials: Trials) -> Iterator[None]:
    """In this block, `ROUNDING_ALONE` judges."""
    usual, trials.rule = trials.rule, parse_criterion(ROUNDING_ALONE)
    try:
        yield
    finally:
        trials.rule = usual


def named(off: Sequence[tuple[Collection[str], float]], unseen: int = 0) -> str:
    """`38 Conv, up to 8e-04 of the scale`: the operators and the error of each piece that rounding does not explain;
    "" where there is none, or one that nobody approximates."""
    if not off or not all(APPROXIMATED.intersection(ops) for ops, _ in off):
        return ""
    kinds = Counter(op for ops, _ in off for op in APPROXIMATED.intersection(ops))
    more = f"; {count(unseen, 'node')} {'was' if unseen == 1 else 'were'} not looked at" if unseen else ""
    pieces = ", ".join(f"{n} {op}" for op, n in kinds.most_common())
    return f"{pieces}, up to {max(error for _, error in off):.1e} of the scale{more}"


def error_of(judged: Judgement | None) -> float:
    """The relative error of a judgement."""
    return judged.errors.get("max_rel", 0.0) if judged else 0.0
