"""Is a candidate wrong only in the lower precision that it chose?

OpenVINO computes in bfloat16 where the processor has it, GPUs in TF32. Where the outputs differ,
one question comes before any search: do they agree with the runtime's own setting for full
precision? The question costs three runs at most; a search would take dozens, and end at nodes that
are right.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from subgraph.errors import SubcutError
from subgraph.results.common import PreciseSetting
from subgraph.runtime.run_result import RunResult
from subgraph.trials.region_runs import RunLog
from subgraph.trials.session import with_candidate
from subgraph.trials.trial import Trials
from subgraph.verdict import NUMBERS, Status

log = logging.getLogger("subcut")

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
    signature = trials.judge.verdict(trials.model.whole(), result).signature
    if not options or signature not in NUMBERS:
        return None
    candidate = replace(runtime.candidate, options=dict(options), precision=None)
    try:
        with with_candidate(trials, candidate, FOLDER) as precise:
            claim = precise.runtime.about.precision
            if claim.eps >= runtime.about.precision.eps or not _agrees(precise, trials.log):
                return None
            changed = _changed(runtime.candidate.options, options)
            return PreciseSetting(changed, claim, runtime.about.precision)
    except SubcutError as e:  # it is not available here: the search goes on without it
        log.debug("the setting for full precision is not tried: %s", e.what)
        return None


def _agrees(trials: Trials, log: RunLog) -> bool:
    whole = trials.model.whole()
    for k in range(RUNS):
        with log.count_as_extra(whole):
            verdict = trials.verdict(whole, repetition=k, fresh=k > 0)
        if verdict.status is not Status.AGREE or verdict.is_mute:
            return False
    return True


def _changed(present: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if present.get(name) != value}
