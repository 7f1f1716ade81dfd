"""Before the first question: stored results of another candidate are dropped, and inputs that tell
nothing replaced.

Only inputs that the user did not give are replaced. Normal noise saturates many trained models; the
ways of `runtime.inputs.DRAWS` are tried in their order.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from subgraph.errors import OutOfTime, SubcutError
from subgraph.runtime.inputs import DRAWS
from subgraph.text import clean
from subgraph.trials.stored_answers import drop_if_changed
from subgraph.trials.trial import Trials
from subgraph.verdict import find_mute

log = logging.getLogger("subcut")


@dataclass(frozen=True)
class PreparedTrials:
    """Trials that can answer a question.

    Attributes:
        trials: The trials, on inputs by which the outputs tell something about the candidate if
            there are such inputs.
        notes: Sentences for the reader: dropped results, and how the inputs are drawn.
    """

    trials: Trials
    notes: tuple[str, ...] = ()


def prepare(trials: Trials, tensors: Collection[str] = ()) -> PreparedTrials:
    """Drop stored results that the candidate no longer gives, and choose the drawn inputs.

    Args:
        trials: The trials.
        tensors: Tensors whose reference values are needed, in addition to the model's outputs.

    Raises:
        BackendError: The candidate cannot be used at all.
    """
    trials.model.values.need([*trials.graph.outputs, *tensors])
    if trials.runtime.is_manual:
        return PreparedTrials(trials)
    notes: list[str] = []
    with suppress(OutOfTime):  # the question reports it
        if changed := drop_if_changed(trials):
            log.warning("%s", changed)
            notes.append(changed)
        chosen = _choose_drawn_inputs(trials)
        return PreparedTrials(chosen.trials, (*notes, *chosen.notes))
    return PreparedTrials(trials, tuple(notes))


def _choose_drawn_inputs(trials: Trials) -> PreparedTrials:
    """Draw the inputs in another way if the outputs tell nothing; keep those that the user gave."""
    values = trials.model.values
    whole = trials.model.whole()
    if trials.runtime.own_model or trials.judge.score or not values.are_drawn:
        return PreparedTrials(trials)
    verdict = trials.verdict(whole)
    if not verdict.is_mute:
        return PreparedTrials(trials)
    usual, *other_draws = DRAWS
    names = ", ".join(f"'{clean(name)}'" for name in find_mute(verdict.outputs))
    for draw in other_draws:
        other = trials.with_model(trials.model.fed_with(values.redrawn(draw))).restarted()
        if _is_telling(other):
            note = (
                f"the inputs are drawn: {DRAWS[draw]} ({DRAWS[usual]} tells nothing about {names})"
            )
            log.info("%s", note)
            return PreparedTrials(other, (note,))
    return PreparedTrials(trials)


def _is_telling(trials: Trials) -> bool:
    try:
        return not trials.verdict(trials.model.whole()).is_mute
    except OutOfTime:
        raise
    except SubcutError as e:
        log.debug("these inputs cannot be used: %s", e.what)
        return False
