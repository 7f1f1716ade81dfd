"""The error of some items, and how much of the error that is looked for it explains.

`SeenRuns` holds the runs that later answers rest on: what failed, and what differs from run to run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from subgraph.bisection.items import NodeItems
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.search.oracle import Answer, ErrorShare, Items, PrefixError, Query, QueryKind
from subgraph.trials.attribution import (
    Target,
    attribute,
    error_alone,
    error_of,
    outputs_with_only,
    restores_outputs,
    share_of,
    superposes,
    whole_target,
)
from subgraph.trials.judge import Judge
from subgraph.trials.trial import Trials
from subgraph.verdict import Signature, Status, Verdict

Nodes = tuple[int, ...]


@dataclass(frozen=True)
class ErrorShares:
    """Explains errors by those of items; it runs the candidate only where that is unavoidable."""

    items: NodeItems
    seen: SeenRuns

    @property
    def _trials(self) -> Trials:
        return self.items.trials

    @property
    def _judge(self) -> Judge:
        return self.items.trials.judge

    def _whole(self) -> RunResult:
        return self.seen.result(self._trials, self._trials.model.whole())

    def of_region(
        self, query: Query, region: Region, result: RunResult, answer: Answer
    ) -> ErrorShare:
        """The region's share of the target's error, and of the whole model's, if there is one."""
        failure = self._whole().failure
        if not query.target and failure and answer.signature not in (None, failure.signature):
            return ErrorShare(is_culprit=restores_outputs(self._trials, region))
        fails = answer.status is Status.FAIL and answer.signature is not Signature.TIMEOUT
        target = self._target(query.target) if fails or query.explain else None
        attribution = attribute(self._trials, region, result, target) if target else None
        largest_error = _largest_error(answer.verdict)
        if attribution is None:
            return ErrorShare(largest_error=largest_error)
        of_model = self._of_model(region, result) if query.target else attribution.share
        return ErrorShare(
            attribution.share, attribution.made, of_model, attribution.culprit, largest_error
        )

    def _of_model(self, region: Region, result: RunResult) -> float | None:
        """The share of the whole model's error, where both have one."""
        whole = error_of(self._judge, self._target(()).values)
        alone = (
            None
            if result.failure or whole is None or not whole.any()
            else error_alone(self._judge, region, result)
        )
        return None if whole is None or alone is None else share_of(alone, whole)

    def _target(self, items: Items) -> Target:
        """The error of these items when all others are right; of the whole model for ()."""
        targets = self.seen.targets
        if items not in targets:
            trials = self._trials
            if items:
                region = self.items.region(items)
                result = self.seen.result(trials, region)
                values = outputs_with_only(trials.model, region, result)
                right = frozenset(trials.model.whole().nodes) - frozenset(region.nodes)
                targets[items] = Target(values or (), right)
            else:
                targets[items] = whole_target(trials, self._whole())
        return targets[items]

    def of_rest(self, query: Query, region: Region, result: RunResult) -> Answer:
        """Return whether the model agrees when only these items are the candidate's. If the
        reference cannot go on with their outputs, the verdict is that on these outputs. The answer
        also has whether the omitted items alone cause the error that disappeared."""
        judge = self._judge
        values = outputs_with_only(self._trials.model, region, result)
        if values is None:
            return answer_of(judge.verdict(region, result))
        outputs = RunResult(
            tuple(values), result.others, None, result.build, result.run, result.stored
        )
        answer = answer_of(judge.verdict_of_mixed_run(outputs))
        failed = self.seen.failed
        if answer.status is Status.FAIL:
            failed.setdefault(region.nodes, result)
        removed = sorted(set(query.target or range(len(self.items.groups))) - set(query.items))
        piece = self.items.region(removed).nodes
        before = error_of(judge, self._target(query.target).values)
        left = error_of(judge, values)
        if before is None or left is None or piece not in failed:
            return answer
        alone = error_alone(judge, self.items.region(removed), failed[piece])
        if alone is None:
            return answer
        return replace(answer, detail=ErrorShare(is_culprit=superposes(before, left, alone)))

    def of_prefix(self, verdict: Verdict) -> PrefixError | None:
        """The largest error of a prefix, relative to that of the whole."""
        error, whole = (
            max((j.errors.get("max_rel", 0.0) for j in v.outputs), default=0.0)
            for v in (verdict, self._trials.verdict(self._trials.model.whole()))
        )
        return PrefixError(error / whole) if whole and verdict.outputs else None


def _largest_error(verdict: Verdict | None) -> float | None:
    errors = [j.errors.get("max_rel", math.nan) for j in verdict.outputs] if verdict else []
    return max((e for e in errors if not math.isnan(e)), default=None)


def answer_of(verdict: Verdict) -> Answer:
    """A verdict as an answer. A stored one takes as long as its run did, so that the search takes
    the same path again."""
    seconds = verdict.build + verdict.run
    return Answer(verdict.status, verdict.signature, verdict.why, seconds=seconds, verdict=verdict)


@dataclass(frozen=True)
class SeenRuns:
    """Results of a bisection's runs, by the nodes of their region.

    Attributes:
        failed: the first failing result: a flaky candidate's other results may be right.
        first: the first result of each kind of query.
        nondeterministic: tensors that two runs on the same values gave differently.
        targets: by items, the error that they make when all others are right.
    """

    failed: dict[Nodes, RunResult] = field(default_factory=dict)
    first: dict[tuple[QueryKind, Nodes], RunResult] = field(default_factory=dict)
    nondeterministic: dict[Nodes, set[str]] = field(default_factory=dict)
    targets: dict[Items, Target] = field(default_factory=dict)

    def result(self, trials: Trials, region: Region) -> RunResult:
        """The candidate's first failing result of a region; if there is none, its first result."""
        first = self.failed.get(region.nodes) or self.first.get((QueryKind.WHOLE, region.nodes))
        return first or trials.run(region)

    def note(self, judge: Judge, query: Query, region: Region, result: RunResult) -> None:
        """Note a result, and which tensors it gives differently than the first one."""
        first = self.first.setdefault((query.kind, region.nodes), result)
        if first.failure or result.failure:
            return
        with judge.files_unchanged(region, first, result):
            names = first.differing(result)
        if names:
            self.nondeterministic.setdefault(region.nodes, set()).update(names)
