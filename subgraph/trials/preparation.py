"""Before the first question: stored results of another candidate are dropped, and inputs that tell
nothing replaced.

Only inputs that the user did not give are replaced. Normal noise saturates many trained models; the
ways of `runtime.inputs.DRAWS` are tried in their order.

A key has all that is known of a candidate without running it. What it does not have (a library, a
driver, a board's firmware, a server) shows when a run of the full model is repeated, once per
command.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from subgraph.errors import OutOfTime, SubcutError
from subgraph.log import log
from subgraph.runtime.inputs import DRAWS
from subgraph.runtime.run_result import RunResult
from subgraph.storage.store import Store
from subgraph.text import clean
from subgraph.trials.forms import Form
from subgraph.trials.region_runs import NotStored
from subgraph.trials.trial import Trials
from subgraph.types import Strings
from subgraph.verdict import find_mute

KNOWN_RUNS = 8  # of the whole, that may be stored
OLD = 3600.0  # seconds after which the summary says how old answers are


@dataclass(frozen=True)
class PreparedTrials:
    """Trials that can answer a question.

    Attributes:
        trials: The trials, on inputs by which the outputs tell something about the candidate if
            there are such inputs.
        notes: Sentences for the reader: dropped results, and how the inputs are drawn.
    """

    trials: Trials
    notes: Strings = ()


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


def drop_if_changed(trials: Trials) -> str:
    """Repeat one stored run of the whole; drop the candidate's stored answers if it gives others
    now: then say so.

    Where the new run equals a stored one bit for bit, nothing has changed. Where none does, the
    candidate is another one, or is not deterministic: it is not where its stored runs differ among
    themselves, or a second new run differs from the first. Its answers are kept then, for a
    difference tells nothing. So this costs one run, and a second one only where the first differs;
    nothing where nothing is stored.

    Raises:
        BackendError: the candidate cannot be used.
    """
    whole = trials.model.whole()
    stored = _list_stored_runs(trials, fresh=True) or _list_stored_runs(trials, fresh=False)
    if not stored:
        return ""
    with Store(trials.model.scratch / "again") as store:
        anew = trials.processes.with_store(store, Form.SHIPPED)
        first = anew.run(whole, fresh=True)
        if any(_same(first, known) for known in stored) or not all(
            _same(stored[0], known) for known in stored
        ):
            return ""
        if not _same(first, anew.run(whole, fresh=True, repetition=1)):
            return ""
    trials.processes.runs.candidate_key.discard_results()
    name = clean(trials.runtime.candidate.name)
    return (
        f"{name} gives other results than on {_day(stored[0].made)}: its stored results are no"
        " longer used"
    )


def _list_stored_runs(trials: Trials, *, fresh: bool) -> list[RunResult]:
    """The stored runs of the whole."""
    loading = trials.processes.only_stored()
    runs: list[RunResult] = []
    with suppress(NotStored):
        runs.extend(
            loading.run(trials.model.whole(), repetition=k, fresh=fresh) for k in range(KNOWN_RUNS)
        )
    return runs


def _same(one: RunResult, other: RunResult) -> bool:
    """Return whether two runs of a model return the same, bit for bit, or end in the same way."""
    if one.failure or other.failure:
        ends = [r.failure and (r.failure.status, r.failure.signature) for r in (one, other)]
        return ends[0] == ends[1]
    return not one.differing(other)


def age(trials: Trials) -> str:
    """`12 of 14 answers are from 2026-11-20`; "" if none is old."""
    times = trials.log.made.values()
    old = sorted(made for made in times if 0 < made < trials.log.began - OLD)
    if not old:
        return ""
    days = list(dict.fromkeys((_day(old[0]), _day(old[-1]))))
    return (
        f"{len(old)} of {len(times)} results were stored on {' to '.join(days)}; --fresh runs"
        " everything again"
    )


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))
