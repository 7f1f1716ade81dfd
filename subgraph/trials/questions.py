"""The questions about the full model that come before a search, in their order.

1. Does the candidate give outputs, and does the code around it keep its contract? `preflight`
   raises an error if not.
2. Does the reference repeat itself if it splits its work in another way? `reference_movement`
3. Do the outputs agree in the runtime's own full precision? `precise_setting`
4. Does the candidate repeat itself? Its failure has to repeat in another process before anything
   explains it; `ask.FullModelMode` notes sessions that contradict themselves.
5. Are the open dimensions the reason? `ask.Processes.try_pinned_shapes`

The first explanation ends the questions, and no node is searched then. Every verdict on the full
model also asks whether an agreement was earned (`comparison.evidence`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import TypeAlias

from subgraph.errors import OutputError
from subgraph.results.common import PreciseSetting
from subgraph.runtime.run_result import RunResult
from subgraph.trials.precise_setting import find_precise_setting
from subgraph.trials.reference_movement import ReferenceMovement, find_reference_movement
from subgraph.trials.trial import Trials
from subgraph.verdict import Status

log = logging.getLogger("subcut")

MAX_AGAIN_SECONDS = 10.0  # of a run of the full model that is run again
Explanation: TypeAlias = PreciseSetting | ReferenceMovement
Question: TypeAlias = Callable[[Trials, RunResult], Explanation | None]

QUESTIONS: tuple[Question, ...] = (find_reference_movement, find_precise_setting)


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


def find_flaky_outputs(trials: Trials, first: RunResult) -> tuple[str, ...]:
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
