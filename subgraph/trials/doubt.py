"""The outputs of the full model do not decide whether the candidate is right -> what decides
instead.

One policy for every command and for pytest. `DOUBTS` is the table of the reasons for doubt; there
are two ways to settle one:

- *Rounding.* The outputs agree within the error of approximate kernels, but not within rounding:
  Winograd, a fast exp and the like change fp32 by up to 2e-3 of the scale. If, alone, only
  operators deviate that runtimes are known to approximate, the candidate is right. Otherwise all
  tensors are judged by rounding alone.
- *Quantization steps.* The model quantizes itself, and one step changes its outputs so much that
  two correct runtimes may differ as much. The regions between its quantizers decide: nothing
  amplifies an error there, and each code must be the nearest to the quantized value. So they are
  run as well if the outputs agree by such steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

from subgraph.comparison import CLIPPED, JUMPS, ROUNDING_ALONE, STEPS
from subgraph.errors import SubcutError
from subgraph.graph.graph import Graph
from subgraph.graph.properties import APPROXIMATED
from subgraph.graph.quantization import quantizes_itself
from subgraph.graph.region import Region
from subgraph.iterables import flatten
from subgraph.precision import Precision
from subgraph.runtime.run_result import RunResult
from subgraph.text import count
from subgraph.trials.float_forms import IN_FLOAT, is_in_float
from subgraph.trials.judge import Judge
from subgraph.trials.pooled_runs import list_pieces_between_quantizers, run_pieces
from subgraph.trials.trial import Trials
from subgraph.types import frozen
from subgraph.verdict import Judgement, Status, Verdict, is_mute

DEFAULT_CRITERION = "noise"
MIN_STEP = 1e-5  # of an output's scale: what differs by less shows no step
MIN_EXACT = 0.8  # of the nodes, if their steps explain the error of the full model


class Decision(StrEnum):
    """The evidence that decides whether the candidate is right."""

    FULL_MODEL = "full model"  # there is no doubt about its verdict
    APPROXIMATE_KERNELS = (  # right: only operators deviate that runtimes approximate
        "approximate kernels"
    )
    ROUNDING_ALONE = (  # approximate kernels explain nothing: judge all tensors by rounding
        "rounding alone"
    )
    NODES_NEEDED = "nodes needed"  # unresolved: the nodes were not run alone
    PIECES_AGREE = "pieces agree"  # right: each region between two quantizers agrees
    PIECES_DEVIATE = "pieces deviate"  # wrong: a region between two quantizers deviates
    PIECES_UNKNOWN = (  # unresolved: a region between two quantizers could not be judged
        "pieces unknown"
    )
    REFERENCE_MOVES = "reference moves"  # right: the reference differs as much from itself
    STEPS_ADD_UP = "steps add up"  # unresolved: each node of a quantized other model agrees alone


@frozen
class Settlement:
    """The settlement of a doubt.

    Attributes:
        decision: what decides.
        explanation: why the candidate counts as right, e.g. `within approximate kernels (38 Conv,
            ...)`; else "".
        wrong_pieces: regions between two quantizers that deviate.
        unknown_pieces: number of regions between two quantizers that could not be judged.
    """

    decision: Decision = Decision.FULL_MODEL
    explanation: str = ""
    wrong_pieces: tuple[Region, ...] = ()
    unknown_pieces: int = 0

    @property
    def is_open(self) -> bool:
        """Whether nothing but the full model has decided."""
        return self.decision is Decision.FULL_MODEL

    @property
    def says(self) -> str:
        """The explanation."""
        return self.explanation

    def labels(self, graph: Graph) -> list[str]:
        """Return the last node of each wrong piece."""
        return [graph.label(region.nodes[-1]) for region in self.wrong_pieces]

    def note(self, graph: Graph) -> str:
        """Return further facts about the pieces: wrong ones after the first, or the number of
        unknown ones."""
        if more := self.labels(graph)[1:]:
            return f"not the nearest codes either, each between two quantizers: {', '.join(more)}"
        if self.unknown_pieces:
            return f"{count(self.unknown_pieces, 'piece')} between quantizers could not be judged"
        return ""


UNDOUBTED = Settlement()


# ------------------------------------------------------------------------------------------------
# rounding


@frozen
class Deviation:
    """A region that does not agree by rounding alone.

    Attributes:
        approximated: its operators that runtimes approximate, if their error is within the usual
            tolerance; else empty.
        error: the relative error of its worst output.
    """

    approximated: frozenset[str]
    error: float

    @classmethod
    def make(cls, operators: Collection[str], error: float, *, agrees_usually: bool) -> Deviation:
        """Return the deviation of a region with these operators."""
        return cls(APPROXIMATED.intersection(operators) if agrees_usually else frozenset(), error)


@frozen
class NodeEvidence:
    """The deviations of nodes alone, judged by rounding alone.

    Attributes:
        deviations: nodes, or regions, that do not agree.
        unseen: number of nodes that could not be judged.
    """

    deviations: Sequence[Deviation] = ()
    unseen: int = 0

    @property
    def is_excused(self) -> bool:
        """Whether every deviation is that of an operator which runtimes approximate."""
        return all(deviation.approximated for deviation in self.deviations)

    @property
    def explanation(self) -> str:
        """`within approximate kernels (38 Conv, up to 8e-04 of the scale)`; "" if a deviation has
        another reason."""
        if not self.deviations or not self.is_excused:
            return ""
        kinds = Counter(flatten(deviation.approximated for deviation in self.deviations))
        pieces = ", ".join(f"{n} {op}" for op, n in kinds.most_common())
        worst = max(deviation.error for deviation in self.deviations)
        verb = "was" if self.unseen == 1 else "were"
        unseen = f"; {count(self.unseen, 'node')} {verb} not looked at" if self.unseen else ""
        return f"within approximate kernels ({pieces}, up to {worst:.1e} of the scale{unseen})"


def settle_rounding(
    evidence: NodeEvidence,
    *,
    is_beyond_rounding: bool,
    is_another_tensor_wrong: bool = False,
    is_partial: bool = False,
) -> Settlement:
    """Decide by the nodes alone whether approximate kernels explain an error beyond rounding.

    Args:
        evidence: what the nodes show alone.
        is_beyond_rounding: whether the full model agrees, but not by rounding alone.
        is_another_tensor_wrong: whether a tensor is wrong by the usual criterion, in place or
            alone.
        is_partial: whether only some nodes were to be run alone, so that they cannot decide.
    """
    is_excused = evidence.is_excused and not is_another_tensor_wrong
    if evidence.explanation:
        explained = Settlement(Decision.APPROXIMATE_KERNELS, evidence.explanation)
    else:
        explained = UNDOUBTED
    if not is_beyond_rounding and (is_excused or not evidence.deviations):
        return explained
    if is_excused and is_partial:
        return Settlement(Decision.NODES_NEEDED)
    if is_excused and evidence.deviations:
        return explained
    return Settlement(Decision.ROUNDING_ALONE)


def is_judged_by_noise_in_fp32(criterion: str, precision: Precision) -> bool:
    """Return whether a criterion allows the error of approximate kernels, which
    exceeds rounding."""
    return criterion == DEFAULT_CRITERION and precision is Precision.FP32


def is_beyond_rounding(trials: Trials, region: Region) -> bool:
    """Return whether a region agrees, but not by rounding alone."""
    return _agrees_beyond_rounding(trials.judge, region, trials.run(region))


def agrees(judge: Judge, region: Region, result: RunResult) -> bool:
    """Return whether the candidate's outputs of a region agree."""
    return judge.verdict(region, result).agrees


# ------------------------------------------------------------------------------------------------
# reasons


class Doubt(StrEnum):
    """A reason why the verdict on a region does not decide whether the candidate is right."""

    KERNELS = "kernels"  # it agrees, but not by rounding alone
    JUMPS = "jumps"  # it agrees only because single elements may jump; so they would after a fault
    STEPS = "steps"  # the model's own quantization steps explain the error, as many others


ROUNDING_DOUBTS = (Doubt.KERNELS, Doubt.JUMPS)  # an agreement that the nodes alone confirm


def can_hide_in_rounding(judge: Judge) -> bool:
    """Return whether the criterion allows the candidate errors beyond rounding."""
    is_noise = is_judged_by_noise_in_fp32(judge.criterion, judge.precision)
    return is_noise and not judge.score and not judge.runtime.is_manual


def _has_own_steps(judge: Judge) -> bool:
    runtime = judge.runtime
    # A person runs only regions that the search needs.
    return not runtime.is_manual and not runtime.own_model and not judge.score


def _agrees_beyond_rounding(judge: Judge, region: Region, result: RunResult) -> bool:
    by_rounding = judge.with_criterion(ROUNDING_ALONE)
    return (
        agrees(judge.ignore_evidence(), region, result)
        and by_rounding.verdict(region, result).fails
    )


def _agrees_despite_jumps(judge: Judge, region: Region, result: RunResult) -> bool:
    verdict = judge.ignore_evidence().verdict(region, result)
    return verdict.agrees and any(j.label == JUMPS for j in verdict.outputs)


def _is_within_steps(judge: Judge, region: Region, result: RunResult) -> bool:
    verdict = judge.verdict(region, result)
    if verdict.agrees:  # by its own steps, as it would after many faults
        is_excused = any(find_relative_error(output) > MIN_STEP for output in verdict.outputs)
        return is_excused and quantizes_itself(judge.model.graph)
    unknown = _list_unknown_outputs(verdict)
    are_steps = bool(unknown) and all(j.label == STEPS for j in unknown)
    return verdict.is_unresolved and are_steps


def _list_unknown_outputs(verdict: Verdict) -> list[Judgement]:
    return [j for j in verdict.outputs if j.is_unresolved and not is_mute(j)]


@frozen
class DoubtCheck:
    """The recognition of a reason for doubt.

    Attributes:
        is_possible: whether a judge can have this reason at all.
        applies: whether a result of a region has it.
    """

    is_possible: Callable[[Judge], bool]
    applies: Callable[[Judge, Region, RunResult], bool]


DOUBTS: Mapping[Doubt, DoubtCheck] = {
    Doubt.KERNELS: DoubtCheck(can_hide_in_rounding, _agrees_beyond_rounding),
    Doubt.JUMPS: DoubtCheck(can_hide_in_rounding, _agrees_despite_jumps),
    Doubt.STEPS: DoubtCheck(_has_own_steps, _is_within_steps),
}


def find_doubt(
    trials: Trials, reasons: Sequence[Doubt], regions: Sequence[Region] = ()
) -> Doubt | None:
    """Find the first of these reasons to doubt a verdict; None without a doubt.

    Args:
        trials: The candidate, which is run on the regions.
        reasons: The reasons that count, the most important one first.
        regions: The regions that were judged; empty for the full model.
    """
    for reason in reasons:
        check = DOUBTS[reason]
        if not check.is_possible(trials.judge):
            continue
        for region in regions or [trials.full_model]:
            if check.applies(trials.judge, region, trials.run(region)):
                return reason
    return None


def find_relative_error(judgement: Judgement | None) -> float:
    """Return the relative error of a judgement; 0 without one."""
    if judgement:
        return judgement.errors.get("max_rel", 0.0)
    return 0.0


# ------------------------------------------------------------------------------------------------
# quantization steps


def settle_quantization(trials: Trials) -> Settlement:
    """Run the regions between quantizers, if the model's own steps are the only reason why it is
    not wrong.

    That is: no output is wrong, and for each output that differs the model's own quantization steps
    explain the error, as they would explain many others.
    """
    if not find_doubt(trials, [Doubt.STEPS]):
        return UNDOUBTED
    whole = trials.full_model
    with suppress(SubcutError):
        if is_in_float(trials.judge, trials.run(whole).tensors, trials.model.outputs):
            return Settlement(Decision.PIECES_AGREE, f"though {IN_FLOAT}")
    regions = list_pieces_between_quantizers(trials.model)
    verdicts = run_pieces(trials, regions, trials.judge.verdict, lambda verdict: verdict.agrees)
    statuses = [verdict.status if verdict else Status.UNRESOLVED for verdict in verdicts]
    wrong = tuple(
        region for region, status in zip(regions, statuses, strict=True) if status is Status.FAIL
    )
    if wrong:
        return Settlement(Decision.PIECES_DEVIATE, "", wrong, statuses.count(Status.UNRESOLVED))
    unknown = _list_unknown_outputs(trials.verdict(whole))
    if not unknown:
        return UNDOUBTED
    if Status.UNRESOLVED in statuses:
        return Settlement(Decision.PIECES_UNKNOWN, unknown_pieces=statuses.count(Status.UNRESOLVED))
    amplified = min(
        max((j.noise or 0.0) * find_relative_error(j) / j.errors["max_abs"] for j in unknown), 1.0
    )
    step = f"the model turns one quantization step into {100 * amplified:.0f} % of its output"
    return Settlement(
        Decision.PIECES_AGREE, f"piece by piece; {step}, so two right runtimes may differ as much"
    )


# ------------------------------------------------------------------------------------------------
# quantization steps of the candidate's own model


def is_beyond_steps(verdict: Verdict | None, excused: str = CLIPPED) -> bool:
    """Return whether an output of an item fails for another reason than the one that is excused: a
    scale may clip what the outputs of the model do not show, since calibrators choose so."""
    return verdict is not None and any(j.fails and j.label != excused for j in verdict.outputs)


def explain_steps(exact: int, of: int) -> str:
    """Return why no node is wrong, though outputs are."""
    agreeing = f"{exact} of {of} items agree alone, each to the step of its quantizer"
    return f"no node is wrong: {agreeing}; these steps add up"
