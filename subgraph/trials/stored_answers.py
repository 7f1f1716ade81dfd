"""Is a candidate still what it was when its answers were stored? And how old are they?

A key says all that can be known of a candidate without running it. What it does not say (a library,
a driver, a board's firmware, a server) shows when a run is repeated: once per command, of the whole
model.
"""

from __future__ import annotations

import time
from contextlib import suppress

from subgraph.runtime.run_result import RunResult
from subgraph.storage.store import Store
from subgraph.text import clean
from subgraph.trials.forms import Form
from subgraph.trials.region_runs import NotStored
from subgraph.trials.trial import Trials

KNOWN_RUNS = 8  # of the whole, that may be stored
OLD = 3600.0  # seconds after which the summary says how old answers are


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
    stored = _stored(trials, fresh=True) or _stored(trials, fresh=False)
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


def _stored(trials: Trials, *, fresh: bool) -> list[RunResult]:
    """The stored runs of the whole."""
    loading = trials.processes.only_stored()
    runs: list[RunResult] = []
    with suppress(NotStored):
        runs.extend(
            loading.run(trials.model.whole(), repetition=k, fresh=fresh) for k in range(KNOWN_RUNS)
        )
    return runs


def _same(one: RunResult, other: RunResult) -> bool:
    """Do two runs of a model give the same, bit for bit, or end in the same way?"""
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
