"""What a plan is accepted by: a criterion on every output, or a score of the task
(`trials.score`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from subgraph.runtime.run_result import RunResult
from subgraph.trials.score import Judged, not_run
from subgraph.trials.trial import Trials


class Acceptance(Protocol):
    """Says which models are good enough."""

    def judge(self, result: RunResult) -> Judged:
        """Is what a model gave good enough?"""


@dataclass
class ByCriterion:
    """Every output of every sample agrees with the float model's."""

    trials: Trials

    def judge(self, result: RunResult) -> Judged:
        if result.failure:
            return not_run(result.failure.why)
        verdict = self.trials.judge.verdict(self.trials.model.whole(), result)
        return Judged(verdict.status, verdict.why or verdict.status.value)
