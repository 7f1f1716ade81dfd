"""The questions about the full model that come before a search, in their order.

1. Does the candidate give outputs, and does the code around it keep its contract? `preflight`
   raises an error if not.
2. Does the reference repeat itself if it splits its work in another way? `find_reference_movement`
3. Do the outputs agree in the runtime's own full precision? `find_precise_setting`
4. Does the candidate repeat itself? Its failure has to repeat in another process before anything
   explains it; `ask.FullModelMode` notes sessions that contradict themselves.
5. Are the open dimensions the reason? `ask.Processes.try_pinned_shapes`

OpenVINO computes in bfloat16 where the processor has it, GPUs in TF32: one question for the
setting for full precision costs three runs at most, and a search would end at nodes that are right.
Code of the user has no such setting: the probe shows what it computes in.
A model that finds the scales of its quantized values as it runs returns other values with another
number of threads, since each thread may have a separate scale: a candidate that differs by no more
than the reference does from itself is right. Parts of the batch are not tried: if the first axis is
no batch, they have other outputs, and would excuse any candidate.

The first explanation ends the questions, and no node is searched then. Every verdict on the full
model also asks whether an agreement was earned (`comparison.evidence`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from subgraph.errors import OutOfTime, OutputError, SubcutError
from subgraph.graph.quantization import finds_scales
from subgraph.log import log
from subgraph.results.common import PreciseSetting
from subgraph.runtime.reference import Reference
from subgraph.runtime.run_result import RunResult
from subgraph.trials.candidate_runtime import find_changed_options
from subgraph.trials.float_forms import IN_FLOAT, is_in_float, measure_distance, read_outputs
from subgraph.trials.open_trials import with_candidate
from subgraph.trials.preflight import find_narrow_type
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.region_runs import RunLog
from subgraph.trials.trial import Trials
from subgraph.types import Array, Strings
from subgraph.verdict import NUMBERS, Status, Verdict, is_mute

MAX_AGAIN_SECONDS = 10.0  # of a run of the full model that is run again


def explain_full_model(trials: Trials) -> Explanation | None:
    """Return what explains the full model's outputs, so that no node is to blame.

    Args:
        trials: The candidate, whose outputs `preflight.require_usable` has accepted.

    Returns:
        None if nothing does, or a person or a score judges the outputs.

    Raises:
        OutOfTime: The time is used up.
    """
    if trials.runtime.is_manual or trials.judge.score:
        return None
    result = trials.run(trials.model.whole())
    for find in QUESTIONS:
        if (explanation := find(trials, result)) and not is_flaky(trials):
            return explanation
    if trials.processes.try_pinned_shapes() and is_flaky(trials):
        trials.processes.forget_pinned_shapes()
    return None


def find_flaky_outputs(trials: Trials, first: RunResult) -> Strings:
    """Return the outputs that differ in another run of the full model; none if it is slow or
    fails."""
    if first.failure or first.build + first.run > MAX_AGAIN_SECONDS:
        return ()
    whole = trials.model.whole()
    try:
        again = trials.run_extra(whole, repetition=1, fresh=True)
    except (OSError, OutputError) as e:  # a full disk tells nothing about the candidate
        log.debug("the full model does not run again, for a file cannot be written: %s", e)
        return ()
    if again.failure:
        return ()
    with trials.judge.files_unchanged(whole, first, again):
        names = first.differing(again)
    if trials.ask.contradicts_itself:
        verdicts = [trials.judge.verdict(whole, one) for one in (first, again)]
        judgements = itertools.chain.from_iterable(verdict.outputs for verdict in verdicts)
        names |= {j.name for j in judgements if j.status is Status.FAIL}
    return tuple(sorted(names))


def is_flaky(trials: Trials) -> bool:
    """Return whether a run of the full model in another process contradicts the first one."""
    whole = trials.model.whole()
    first = trials.verdict(whole)
    with trials.log.count_as_extra(whole):
        again = trials.verdict(whole, repetition=1, fresh=True)
    is_same = (first.status, first.signature) == (again.status, again.signature)
    return not is_same or trials.ask.contradicts_itself


RUNS = 2  # in processes of their own: a candidate that varies may agree once by chance
FOLDER = "precise"


def find_precise_setting(trials: Trials, result: RunResult) -> PreciseSetting | None:
    """Return the setting with which the full model agrees.

    Args:
        trials: The candidate as the user runs it.
        result: What it returned for the full model.

    Returns:
        None if the model does not fail by numbers, the runtime has no setting that is more precise
        than its present one, or the model fails with that as well.
    """
    runtime = trials.runtime
    options = runtime.about.exact
    verdict = trials.judge.verdict(trials.model.whole(), result)
    if verdict.signature not in NUMBERS:
        return None
    if not options:
        return _find_undeclared(trials, result, verdict)
    candidate = replace(runtime.candidate, options=dict(options), precision=None)
    try:
        with with_candidate(trials, candidate, FOLDER) as precise:
            claim = precise.runtime.about.precision
            if claim.eps >= runtime.about.precision.eps or not _agrees(precise, trials.log):
                return None
            changed = find_changed_options(runtime.candidate, options)
            return PreciseSetting(changed, claim, runtime.about.precision)
    except SubcutError as e:  # it is not available here: the search goes on without it
        log.debug("the setting for full precision is not tried: %s", e.what)
        return None


def _find_undeclared(trials: Trials, result: RunResult, verdict: Verdict) -> PreciseSetting | None:
    """Return the precision that code of the user computes in without saying so, if the outputs
    agree within its rounding."""
    runtime = trials.runtime
    claim = find_narrow_type(trials, verdict)
    if claim is None or claim.eps <= trials.judge.precision.eps:
        return None
    declared = replace(runtime, candidate=replace(runtime.candidate, precision=claim))
    judged = replace(trials.judge, runtime=declared).verdict(trials.model.whole(), result)
    if judged.status is not Status.AGREE or judged.is_mute:
        return None
    return PreciseSetting({}, trials.judge.precision, claim)


def _agrees(trials: Trials, log: RunLog) -> bool:
    whole = trials.model.whole()
    for k in range(RUNS):
        with log.count_as_extra(whole):
            verdict = trials.verdict(whole, repetition=k, fresh=k > 0)
        if verdict.status is not Status.AGREE or verdict.is_mute:
            return False
    return True


THREADS = (1, 2)
MAX_ERROR_RATIO = 2.0  # of the movement: two correct runs may move in opposite directions


@dataclass(frozen=True)
class ReferenceMovement:
    """A movement of the reference that explains the candidate's outputs.

    Attributes:
        reason: What moves it, or what the candidate does instead.
    """

    reason: str

    @property
    def says(self) -> str:
        """The reason in a line."""
        return f"because {self.reason}"


def find_reference_movement(trials: Trials, result: RunResult) -> ReferenceMovement | None:
    """Return the movement that explains the candidate's outputs of the full model.

    Args:
        trials: The candidate.
        result: The candidate's outputs.

    Returns:
        None if the outputs agree or differ by more than numbers, the model finds no scales as it
        runs, or the reference moves by less.
    """
    model = trials.model
    verdict = trials.judge.verdict(model.whole(), result)
    names = {j.name for j in verdict.outputs if j.status is not Status.AGREE and not is_mute(j)}
    is_numeric = verdict.signature in (None, *NUMBERS)
    are_tensors = all(model.values.records[0][name].form == "tensor" for name in names)
    is_dynamic = any(map(finds_scales, model.graph.nodes)) and not model.graph.random_nodes
    if not (names and is_numeric and are_tensors and is_dynamic):
        return None
    try:
        expected = read_outputs(model.values.records, names)
        errors = list(map(measure_distance, expected, read_outputs(result.tensors, names)))
        for way, moved in _iter_ways(model, names):
            movements = map(measure_distance, expected, moved)
            pairs = zip(errors, movements, strict=True)
            if all(error <= MAX_ERROR_RATIO * movement < math.inf for error, movement in pairs):
                return ReferenceMovement(f"the reference itself moves as much with {way}")
        if is_in_float(trials.judge, result.tensors, names):
            return ReferenceMovement(IN_FLOAT)
    except OutOfTime:
        raise
    except SubcutError as e:
        log.debug("the reference is not run in another way: %s", e.what)
    return None


def _iter_ways(model: ReferenceModel, names: Collection[str]) -> Iterator[tuple[str, list[Array]]]:
    """Yield the reference's outputs, each time computed in another way."""
    own = model.reference
    threads = own.options.get("threads", 0)
    for number in THREADS if own.fixed else ():
        if number == threads:
            continue
        with Reference(own.backend, {**own.options, "threads": number}, python=own.python) as other:
            other.share(own.deadline)
            values = model.values.with_inputs(model.values.records, other)
            values.need(names)
            least, most = sorted((number, threads))
            yield f"{least} and {most} threads", read_outputs(values.records, names)


Explanation: TypeAlias = PreciseSetting | ReferenceMovement
Question: TypeAlias = Callable[[Trials, RunResult], Explanation | None]

QUESTIONS: tuple[Question, ...] = (find_reference_movement, find_precise_setting)
