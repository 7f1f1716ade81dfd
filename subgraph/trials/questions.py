"""The questions about the full model that come before a search, in their order.

1. Does the candidate return outputs, and does the code around it keep its contract? `preflight`
   raises an error if not.
2. Does the reference repeat itself if it splits its work in another way? `find_reference_movement`
3. Do the outputs agree in the runtime's own full precision? `find_precise_setting`
4. Does the candidate repeat itself? Its failure has to repeat in another process before anything
   explains it; `trial.FullModelMode` notes sessions that contradict themselves.
5. Are the open dimensions the reason? `trial.Processes.try_pinned_shapes`

OpenVINO computes in bfloat16 if the processor has it, GPUs in TF32: one question for the
setting for full precision costs three runs at most, and a search would end at nodes that are right.
Code of the user has no such setting: the probe shows its precision.
A model that finds the scales of its quantized values as it runs returns other values with another
number of threads, since each thread may have a separate scale: a candidate that differs by no more
than the reference does from itself is right. Parts of the batch are not tried: if the first axis is
no batch, they have other outputs, and would excuse any candidate.

The first explanation ends the questions, and no node is searched then. Every verdict on the full
model also requires evidence for an agreement (`comparison.evidence`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from subgraph.errors import OutOfTime, OutputError, SubcutError
from subgraph.graph.quantization import finds_scales
from subgraph.iterables import drop_repeats, flatten
from subgraph.log import log
from subgraph.results.common import PreciseSetting
from subgraph.runtime.inputs import DRAWS
from subgraph.runtime.reference import Reference
from subgraph.runtime.run_result import RunResult
from subgraph.storage.store import Store
from subgraph.text import clean
from subgraph.trials.candidate_runtime import Form, find_changed_options
from subgraph.trials.doubt import Decision, Settlement
from subgraph.trials.float_forms import IN_FLOAT, is_in_float, measure_distance, read_outputs
from subgraph.trials.judge import require_files_unchanged
from subgraph.trials.open_trials import with_candidate
from subgraph.trials.preflight import find_narrow_type
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.region_runs import NotStoredError, RunLog
from subgraph.trials.trial import Trials, try_pinned_shapes
from subgraph.types import Array, Strings, frozen
from subgraph.verdict import NUMBERS, find_mute, is_mute

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
    result = trials.run(trials.full_model)
    for find in QUESTIONS:
        if (explanation := find(trials, result)) and not is_flaky(trials):
            return explanation
    if try_pinned_shapes(trials.processes) and is_flaky(trials):
        trials.runner.forms.verdicts.pop(Form.PINNED)
    return None


def find_flaky_outputs(trials: Trials, first: RunResult) -> Strings:
    """Return the outputs that differ in another run of the full model; none if it is slow or
    fails."""
    if first.failure or first.build + first.run > MAX_AGAIN_SECONDS:
        return ()
    whole = trials.full_model
    try:
        again = trials.run_extra(whole, repetition=1, fresh=True)
    except (OSError, OutputError) as e:  # a full disk shows nothing about the candidate
        log.debug("the full model does not run again, for a file cannot be written: %s", e)
        return ()
    if again.failure:
        return ()
    with require_files_unchanged(trials.judge, whole, first, again):
        names = first.find_differing(again)
    if trials.runner.contradicts_itself:
        verdicts = [trials.judge.verdict(whole, one) for one in (first, again)]
        judgements = flatten(verdict.outputs for verdict in verdicts)
        names |= {j.name for j in judgements if j.fails}
    return tuple(sorted(names))


def is_flaky(trials: Trials) -> bool:
    """Return whether a run of the full model in another process contradicts the first one."""
    whole = trials.full_model
    first = trials.verdict(whole)
    with trials.log.count_as_extra(whole):
        again = trials.verdict(whole, repetition=1, fresh=True)
    is_same = (first.status, first.signature) == (again.status, again.signature)
    return not is_same or trials.runner.contradicts_itself


CONFIRMING_RUNS = 2  # in separate processes: a candidate that varies may agree once by chance
FOLDER = "precise"


def find_precise_setting(trials: Trials, result: RunResult) -> PreciseSetting | None:
    """Return the setting with which the full model agrees.

    Args:
        trials: The candidate as the user runs it.
        result: Its result for the full model.

    Returns:
        None if the model does not fail by numbers, the runtime has no setting that is more precise
        than its present one, or the model fails with that as well.
    """
    runtime = trials.runtime
    options = runtime.about.exact
    verdict = trials.judge.verdict(trials.full_model, result)
    if verdict.signature not in NUMBERS:
        return None
    if not options:
        narrow = find_narrow_type(trials, verdict)
        if narrow is None or narrow.eps <= trials.judge.precision.eps:
            return None
        declared = replace(runtime, candidate=replace(runtime.candidate, precision=narrow))
        judged = replace(trials.judge, runtime=declared).verdict(trials.full_model, result)
        if not judged.agrees or judged.is_mute:
            return None
        return PreciseSetting({}, trials.judge.precision, narrow)
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


def _agrees(trials: Trials, log: RunLog) -> bool:
    whole = trials.full_model
    for k in range(CONFIRMING_RUNS):
        with log.count_as_extra(whole):
            verdict = trials.verdict(whole, repetition=k, fresh=k > 0)
        if not verdict.agrees or verdict.is_mute:
            return False
    return True


THREADS = (1, 2)
MAX_ERROR_RATIO = 2.0  # of the movement: two correct runs may move in opposite directions


def find_reference_movement(trials: Trials, result: RunResult) -> Settlement | None:
    """Return the movement of the reference that explains the candidate's outputs of the full model.

    Args:
        trials: The candidate.
        result: The candidate's outputs.

    Returns:
        None if the outputs agree or differ by more than numbers, the model finds no scales as it
        runs, or the reference moves by less.
    """
    model = trials.model
    verdict = trials.judge.verdict(model.whole(), result)
    names = {j.name for j in verdict.outputs if not j.agrees and not is_mute(j)}
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
                why = f"because the reference itself moves as much with {way}"
                return Settlement(Decision.REFERENCE_MOVES, why)
        if is_in_float(trials.judge, result.tensors, names):
            return Settlement(Decision.REFERENCE_MOVES, f"because {IN_FLOAT}")
    except OutOfTime:
        raise
    except SubcutError as e:
        log.debug("the reference is not run in another way: %s", e.what)
    return None


def _iter_ways(model: ReferenceModel, names: Collection[str]) -> Iterator[tuple[str, list[Array]]]:
    """Yield the reference's outputs, each time computed in another way."""
    own = model.reference
    threads = own.options.get("threads", 0)
    for number in set(THREADS) - {threads} if own.fixed else ():
        with Reference(own.backend, {**own.options, "threads": number}, python=own.python) as other:
            other.share(own.deadline)
            values = model.values.replace_inputs(model.values.records, other)
            values.need(names)
            least, most = sorted((number, threads))
            yield f"{least} and {most} threads", read_outputs(values.records, names)


Explanation: TypeAlias = PreciseSetting | Settlement
Question: TypeAlias = Callable[[Trials, RunResult], Explanation | None]

QUESTIONS: tuple[Question, ...] = (find_reference_movement, find_precise_setting)


# ------------------------------------------------------------ preparation
# Before the first question: stored results of another candidate are dropped, and inputs that show
# nothing are replaced.
#
# Only inputs that the user did not provide are replaced. Normal noise saturates many trained
# models; the ways of `runtime.inputs.DRAWS` are tried in their order.
#
# A key has all that is known of a candidate without running it. The parts that it lacks (a library,
# a driver, a board's firmware, a server) show when a run of the full model is repeated, once per
# command.

KNOWN_RUNS = 8  # of the full model, that may be stored
MIN_OLD_SECONDS = 3600.0  # seconds after which the summary has the age of answers


@frozen
class PreparedTrials:
    """Trials that can answer a question.

    Attributes:
        trials: The trials, on inputs by which the outputs show something about the candidate if
            there are such inputs.
        notes: Sentences for the reader: dropped results, and how the inputs are drawn.
    """

    trials: Trials
    notes: Strings = ()


def prepare(trials: Trials, tensors: Collection[str] = ()) -> PreparedTrials:
    """Drop stored results that the candidate no longer returns, and choose the drawn inputs.

    Args:
        trials: The trials.
        tensors: Tensors whose reference values are needed, in addition to the model's outputs.

    Raises:
        BackendError: The candidate cannot be used at all.
    """
    trials.values.need([*trials.graph.outputs, *tensors])
    if trials.runtime.is_manual:
        return PreparedTrials(trials)
    notes = []
    with suppress(OutOfTime):  # the question reports it
        if changed := drop_if_changed(trials):
            log.warning("%s", changed)
            notes.append(changed)
        chosen = _choose_drawn_inputs(trials)
        return PreparedTrials(chosen.trials, (*notes, *chosen.notes))
    return PreparedTrials(trials, tuple(notes))


def _choose_drawn_inputs(trials: Trials) -> PreparedTrials:
    """Draw the inputs in another way if the outputs show nothing; keep the inputs of the user."""
    values = trials.values
    whole = trials.full_model
    if trials.runtime.own_model or trials.judge.score or not values.are_drawn:
        return PreparedTrials(trials)
    verdict = trials.verdict(whole)
    if not verdict.is_mute:
        return PreparedTrials(trials)
    usual, *other_draws = DRAWS
    names = ", ".join(f"'{clean(name)}'" for name in find_mute(verdict.outputs))
    for draw in other_draws:
        other = trials.with_model(trials.model.with_values(values.redraw(draw))).with_new_session()
        try:
            is_mute = other.verdict(other.full_model).is_mute
        except OutOfTime:
            raise
        except SubcutError as e:
            log.debug("these inputs cannot be used: %s", e.what)
            continue
        if not is_mute:
            note = (
                f"the inputs are drawn: {DRAWS[draw]} ({DRAWS[usual]} shows nothing about {names})"
            )
            log.info("%s", note)
            return PreparedTrials(other, (note,))
    return PreparedTrials(trials)


def drop_if_changed(trials: Trials) -> str:
    """Repeat one stored run of the full model; drop the stored answers of a changed candidate.

    If the new run equals a stored one bit for bit, nothing has changed. If it equals none of them,
    the candidate is another one, or is not deterministic. It is not deterministic if its stored
    runs differ among themselves, or a second new run differs from the first. Then its answers are
    kept, because a difference shows nothing. So this costs one run, and a second one only if the
    first differs; nothing if nothing is stored.

    Returns:
        A sentence for the user if the answers were dropped, else "".

    Raises:
        BackendError: The candidate cannot be used.
    """
    whole = trials.full_model
    stored = _list_stored_runs(trials, fresh=True) or _list_stored_runs(trials, fresh=False)
    if not stored:
        return ""
    with Store(trials.model.scratch / "again") as store:
        anew = trials.processes.with_store(store, Form.SHIPPED)
        first = anew.run(whole, fresh=True)
        if any(_are_same(first, known) for known in stored) or not all(
            _are_same(stored[0], known) for known in stored
        ):
            return ""
        if not _are_same(first, anew.run(whole, fresh=True, repetition=1)):
            return ""
    trials.processes.runs.candidate_key.discard_results()
    name = clean(trials.runtime.candidate.name)
    day = _format_day(stored[0].made)
    return f"{name} returns other results than on {day}: its stored results are no longer used"


def _list_stored_runs(trials: Trials, *, fresh: bool) -> list[RunResult]:
    """Return the stored runs of the full model."""
    loading = trials.processes.only_stored()
    runs: list[RunResult] = []
    with suppress(NotStoredError):
        runs.extend(
            loading.run(trials.full_model, repetition=k, fresh=fresh) for k in range(KNOWN_RUNS)
        )
    return runs


def _are_same(result: RunResult, other: RunResult) -> bool:
    """Return whether two runs of a model return the same, bit for bit, or end in the same way."""
    if result.failure or other.failure:
        failures = (result.failure, other.failure)
        ends = [failure and (failure.status, failure.signature) for failure in failures]
        return ends[0] == ends[1]
    return not result.find_differing(other)


def describe_age(trials: Trials) -> str:
    """Return `12 of 14 answers are from 2026-11-20`; "" if none is old."""
    times = trials.log.made.values()
    old = sorted(made for made in times if 0 < made < trials.log.began - MIN_OLD_SECONDS)
    if not old:
        return ""
    days = drop_repeats((_format_day(old[0]), _format_day(old[-1])))
    return (
        f"{len(old)} of {len(times)} results were stored on {' to '.join(days)}; --fresh runs"
        " everything again"
    )


def _format_day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))
