"""Where the whole does not decide: what do its pieces say, each alone on reference values?

Two cases. The whole agrees within what approximate kernels may do, but not within rounding: 2e-3 of the scale is what
Winograd, a fast exp and the like do to fp32. Whether they did is seen at the nodes alone: if only operators that
runtimes are known to approximate are off, they did; else a search by rounding alone follows.

Or the model quantizes itself, and one step moves its outputs beyond use, so that two right runtimes may differ as much.
Then what lies between its quantizers decides: there nothing amplifies an error, and no value may be off by more than a
step.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from subgraph.comparison import JUMPS, ROUNDING_ALONE, STEPS
from subgraph.comparison.criteria import Rule
from subgraph.comparison.judge import parse_criterion
from subgraph.errors import ModelError, OutOfTime
from subgraph.graph.graph import VALUE, Graph
from subgraph.graph.quantization import makes_steps
from subgraph.graph.region import Region, above_until
from subgraph.precision import Precision
from subgraph.runtime.run_result import RunResult
from subgraph.text import count
from subgraph.trials.pooled_runs import pooled_results
from subgraph.trials.trial import Trials
from subgraph.verdict import NOTHING, Judgement, Status

USUAL = "noise"
# Of 16,110 tensors of healthy nodes on five runtimes, those beyond 1e-5 were of these kinds.
APPROXIMATED = frozenset(
    "AveragePool Conv ConvTranspose Erf Exp GRU Gelu GlobalAveragePool LSTM Sigmoid Softmax Tanh".split()
)
POOL = 256  # regions that are cut before the candidate runs them, in as few pools as hold them
MAX_SECONDS, MAX_WHOLE = 60.0, 10  # that looking takes: the longer of a time, and of so many runs of the whole

Judged = TypeVar("Judged")


def judged(
    trials: Trials,
    regions: Sequence[Region],
    judge: Callable[[Region, RunResult], Judged],
    enough: Callable[[Judged], bool],
    most: float = math.inf,
    part: float = 1.0,
) -> Iterator[Judged | None]:
    """What is said of each region: as one of a pool where that is `enough`, else alone. None where the candidate was
    not asked: for want of time, or because `most` new runs were made. `part`: of the time that looking may take."""
    whole = trials.verdict(trials.whole())
    end = time.monotonic() + part * max(MAX_SECONDS, MAX_WHOLE * (whole.build + whole.run))
    end = min(end, trials.workers.deadline)
    most += trials.extra_runs

    def over() -> bool:
        return time.monotonic() > end or trials.extra_runs >= most

    for first in range(0, len(regions), POOL):
        some = regions[first : first + POOL]
        pooled = _pooled(trials, some) if len(some) > 1 and trials.pools and not over() else [None] * len(some)
        for region, result in zip(some, pooled, strict=True):
            try:
                found = judge(region, result) if result else None
                if found is None or not enough(found):
                    found = None if over() else judge(region, trials.run_extra(region))
                yield found
            except (ModelError, OutOfTime):
                yield None


def _pooled(trials: Trials, regions: Sequence[Region]) -> Sequence[RunResult | None]:
    """The result of each region in its pool, where it has one."""
    try:
        return pooled_results(trials, regions)
    except (ModelError, OutOfTime):
        return [None] * len(regions)


# ------------------------------------------------------------------------------------------------ approximate kernels


def may_be_approximate(trials: Trials) -> bool:
    """Does the whole agree in fp32 only because of what approximate kernels may do?"""
    return allows_approximations(trials) and is_approximate(trials, trials.whole())


def allows_approximations(trials: Trials) -> bool:
    """Does the criterion allow fp32 more than rounding?"""
    judged_by_noise = trials.criterion == USUAL and not trials.score
    return judged_by_noise and trials.precision is Precision.FP32 and not trials.run_by_hand


def is_approximate(trials: Trials, region: Region) -> bool:
    """Does a region agree, but not by rounding alone?"""
    result = trials.run(region)
    if not agrees(trials, region, result):
        return False
    with by_rounding_alone(trials):
        return trials.verdict_of(region, result).status is Status.FAIL


def agrees(trials: Trials, region: Region, result: RunResult) -> bool:
    """Does what the candidate made of a region agree?"""
    return trials.verdict_of(region, result).status is Status.AGREE


def jumps(trials: Trials, region: Region) -> bool:
    """Does a region agree only because single elements jump behind a choice? They would behind a fault as well."""
    verdict = trials.verdict_of(region, trials.run(region))
    return verdict.status is Status.AGREE and any(j.label == JUMPS for j in verdict.outputs)


@contextmanager
def by_rounding_alone(trials: Trials) -> Iterator[None]:
    """In this block, `ROUNDING_ALONE` judges."""
    with judged_by(trials, parse_criterion(ROUNDING_ALONE)):
        yield


@contextmanager
def judged_by(trials: Trials, rule: Rule) -> Iterator[None]:
    """In this block, another rule judges."""
    usual, trials.rule = trials.rule, rule
    try:
        yield
    finally:
        trials.rule = usual


def named(off: Sequence[tuple[Collection[str], float]], unseen: int = 0) -> str:
    """`within approximate kernels (38 Conv, up to 8e-04 of the scale)`: the operators and the error of each piece that
    rounding does not explain; "" where there is none, or one that nobody approximates."""
    if not off or not all(APPROXIMATED.intersection(ops) for ops, _ in off):
        return ""
    kinds = Counter(op for ops, _ in off for op in APPROXIMATED.intersection(ops))
    more = f"; {count(unseen, 'node')} {'was' if unseen == 1 else 'were'} not looked at" if unseen else ""
    pieces = ", ".join(f"{n} {op}" for op, n in kinds.most_common())
    return f"within approximate kernels ({pieces}, up to {max(error for _, error in off):.1e} of the scale{more})"


def error_of(judged: Judgement | None) -> float:
    """The relative error of a judgement."""
    return judged.errors.get("max_rel", 0.0) if judged else 0.0


# ------------------------------------------------------------------------------------------------ quantization steps


@dataclass(frozen=True)
class BetweenQuantizers:
    """What the pieces of a model that quantizes itself say.

    Attributes:
        off: those that are wrong alone. unknown: how many could not be judged.
        amplified: into which share of an output one step turns.
    """

    off: tuple[Region, ...]
    unknown: int
    amplified: float

    @property
    def says(self) -> str:
        """Why the whole counts as right; "" where that is not known."""
        if self.off or self.unknown:
            return ""
        step = f"the model turns one quantization step into {100 * self.amplified:.0f} % of its output"
        return f"piece by piece; {step}, so two right runtimes may differ as much"

    def note(self, graph: Graph) -> str:
        """What else there is to say of the pieces: those beside the first that is off."""
        more = [graph.label(region.nodes[-1]) for region in self.off[1:]]
        if more:
            return f"off by more than a step as well, each between two quantizers: {', '.join(more)}"
        return f"{count(self.unknown, 'piece')} between quantizers could not be judged" if self.unknown else ""


def between_quantizers(trials: Trials) -> BetweenQuantizers | None:
    """None unless it is the pieces that decide: no output is wrong, and of each that is not known to be right, the
    model's own steps explain the error, as they would many others."""
    if trials.run_by_hand:
        return None  # a person is asked for no more pieces than the search wants
    whole = trials.verdict(trials.whole())
    unknown = [j for j in whole.outputs if j.status is Status.UNRESOLVED and j.label != NOTHING]
    if whole.status is not Status.UNRESOLVED or any(j.label != STEPS for j in unknown) or not unknown:
        return None
    amplified = max((j.noise or 0.0) * error_of(j) / j.errors["max_abs"] for j in unknown)
    regions = _pieces(trials)
    verdicts = judged(trials, regions, trials.verdict_of, lambda verdict: verdict.status is Status.AGREE)
    statuses = [verdict.status if verdict else Status.UNRESOLVED for verdict in verdicts]
    off = tuple(region for region, status in zip(regions, statuses, strict=True) if status is Status.FAIL)
    return BetweenQuantizers(off, statuses.count(Status.UNRESOLVED), min(amplified, 1.0))


def _pieces(trials: Trials) -> list[Region]:
    """What computes the steps of each quantizer, and each output of the model, from the steps before it."""
    graph = trials.graph
    makers = [i for i in trials.whole().nodes if makes_steps(graph.nodes[i])]
    kinds = graph.kinds(graph.makes[i][0] for i in makers)
    steps = [graph.makes[i] for i in makers if kinds[graph.makes[i][0]] == VALUE]
    made = {name for names in steps for name in names}
    ends = [*steps, *((name,) for name in trials.whole().outputs if name not in made)]
    return [region for names in ends if (region := above_until(graph, names, made.__contains__))]
