"""The error of some items: how much of the error that is looked for it explains, what is wrong in
place, and the costs of another model.

`SeenRuns` holds the runs that later answers rest on: what failed, and what differs from run to run.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import field, replace

from subgraph.comparison.pair import compute_relative_error, pair_if_comparable
from subgraph.errors import ModelError, NoRegion
from subgraph.graph import region as regions
from subgraph.graph.region import Region
from subgraph.iterables import ungroup
from subgraph.questions.bisection.items import NodeItems
from subgraph.results.bisect import OtherModel, PieceCost, SaturatedTensor
from subgraph.runtime.run_result import RunResult
from subgraph.search.oracle import (
    Answer,
    ErrorShare,
    Items,
    ItemStatuses,
    PrefixError,
    Query,
    QueryKind,
)
from subgraph.trials import compare_tensors
from subgraph.trials.attribution import (
    Target,
    attribute,
    compute_error,
    compute_error_alone,
    compute_outputs_with_only,
    make_full_target,
    restores_outputs,
    share_of,
    superposes,
)
from subgraph.trials.candidate_model import CandidateModel, describe_matches, measure_saturation
from subgraph.trials.judge import Judge, require_files_unchanged
from subgraph.trials.propagation import find_locally_wrong
from subgraph.trials.trial import Trials
from subgraph.types import frozen
from subgraph.verdict import Judgement, Signature, Status, Verdict, compute_gravity

Nodes = tuple[int, ...]


@frozen
class ErrorShares:
    """Explains errors by those of items; it runs the candidate only if that is unavoidable."""

    items: NodeItems
    seen: SeenRuns

    @property
    def _trials(self) -> Trials:
        return self.items.trials

    @property
    def _judge(self) -> Judge:
        return self.items.trials.judge

    def _run_whole(self) -> RunResult:
        return self.seen.result(self._trials, self._trials.full_model)

    def compute_share(
        self, query: Query, region: Region, result: RunResult, answer: Answer
    ) -> ErrorShare:
        """Return the region's share of the error of the target, and of that of the full model.

        The error of the full model has a share if it exists.
        """
        failure = self._run_whole().failure
        if not query.target and failure and answer.signature not in (None, failure.signature):
            return ErrorShare(is_culprit=restores_outputs(self._trials, region))
        fails = answer.fails and answer.signature is not Signature.TIMEOUT
        target = self._make_target(query.target) if fails or query.explain else None
        attribution = attribute(self._trials, region, result, target) if target else None
        if answer.verdict:
            errors = [j.errors.get("max_rel", math.nan) for j in answer.verdict.outputs]
        else:
            errors = []
        largest_error = max((e for e in errors if not math.isnan(e)), default=None)
        if attribution is None:
            return ErrorShare(largest_error=largest_error)
        of_model: float | None = attribution.share
        if query.target:
            whole = compute_error(self._judge, self._make_target(()).values)
            alone = None
            if whole is not None and whole.any() and not result.failure:
                alone = compute_error_alone(self._judge, region, result)
            of_model = None if whole is None or alone is None else share_of(alone, whole)
        return ErrorShare(
            attribution.share, attribution.made, of_model, attribution.culprit, largest_error
        )

    def _make_target(self, items: Items) -> Target:
        """Return the error of these items when all others are right; of the whole model for ()."""
        targets = self.seen.targets
        if items not in targets:
            trials = self._trials
            if items:
                region = self.items.region(items)
                result = self.seen.result(trials, region)
                values = compute_outputs_with_only(trials.model, region, result)
                right = frozenset(trials.full_model.nodes) - frozenset(region.nodes)
                targets[items] = Target(values or (), right)
            else:
                targets[items] = make_full_target(trials, self._run_whole())
        return targets[items]

    def judge_rest(self, query: Query, region: Region, result: RunResult) -> Answer:
        """Return whether the model agrees when only these items are the candidate's. If the
        reference cannot go on with their outputs, the verdict is that on these outputs. The answer
        also has whether the omitted items alone cause the error that disappeared."""
        judge = self._judge
        values = compute_outputs_with_only(self._trials.model, region, result)
        if values is None:
            return answer_of(judge.verdict(region, result))
        outputs = RunResult(
            tuple(values), result.others, None, result.build, result.run, result.stored
        )
        answer = answer_of(judge.verdict_of_mixed_run(outputs))
        failed = self.seen.failed
        if answer.fails:
            failed.setdefault(region.nodes, result)
        removed = sorted(set(query.target or self.items.all_items) - set(query.items))
        piece = self.items.region(removed).nodes
        before = compute_error(judge, self._make_target(query.target).values)
        left = compute_error(judge, values)
        if before is None or left is None or piece not in failed:
            return answer
        alone = compute_error_alone(judge, self.items.region(removed), failed[piece])
        if alone is None:
            return answer
        return replace(answer, detail=ErrorShare(is_culprit=superposes(before, left, alone)))

    def measure_prefix(self, verdict: Verdict) -> PrefixError | None:
        """Return the largest error of a prefix, relative to that of the full model.

        Returns:
            None if one of them is unknown.
        """
        whole = self._trials.verdict(self._trials.full_model).largest_error()
        is_known = whole and verdict.outputs
        if is_known:
            return PrefixError(verdict.largest_error() / whole)
        return None


def answer_of(verdict: Verdict) -> Answer:
    """Return a verdict as an answer. A stored one takes as long as its run did, so that the search
    takes the same path again."""
    seconds = verdict.build + verdict.run
    return Answer(verdict.status, verdict.signature, verdict.why, seconds=seconds, verdict=verdict)


@frozen
class SeenRuns:
    """Results of a bisection's runs, by the nodes of their region.

    Attributes:
        failed: The first failing result: a flaky candidate's other results may be right.
        first: The first result of each kind of query.
        nondeterministic: Tensors that two runs on the same values returned differently.
        targets: By items, their error when all other items are right.
    """

    failed: dict[Nodes, RunResult] = field(default_factory=dict)
    first: dict[tuple[QueryKind, Nodes], RunResult] = field(default_factory=dict)
    nondeterministic: dict[Nodes, set[str]] = field(default_factory=dict)
    targets: dict[Items, Target] = field(default_factory=dict)

    def result(self, trials: Trials, region: Region) -> RunResult:
        """Return the candidate's first failing result of a region, or its first one."""
        first = self.failed.get(region.nodes) or self.first.get((QueryKind.WHOLE, region.nodes))
        return first or trials.run(region)

    def note(self, judge: Judge, query: Query, region: Region, result: RunResult) -> None:
        """Note a result, and the tensors in which it differs from the first one."""
        first = self.first.setdefault((query.kind, region.nodes), result)
        if first.failure or result.failure:
            return
        with require_files_unchanged(judge, region, first, result):
            names = first.find_differing(result)
        if names:
            self.nondeterministic.setdefault(region.nodes, set()).update(names)


# ------------------------------------------------------------ in place
# A run with intermediate tensors as outputs: the items that are wrong in it.

# Of the largest final error: from here on a profile shows another run than the plain one.
MAX_PROFILE_CHANGE = 0.1


def tap_region(nodes: NodeItems, items: Items) -> Region:
    """Return the region of some items whose intermediate tensors are outputs, each by itself.

    For all items it is the region of the full model.

    Raises:
        NoRegion: The items only draw random numbers.
    """
    inner = list(_find_inner_tensors(nodes, items))
    if len(items) == len(nodes.groups):
        return nodes.trials.model.whole(inner)
    # The known culprits are omitted: all nodes downstream of them would be wrong.
    return regions.build_region(nodes.graph, nodes.list_indices(items), [(n,) for n in inner])


def _find_inner_tensors(nodes: NodeItems, items: Items) -> dict[str, int]:
    """Return the tensors that a profile reads, each with the item that computes it."""
    readable = set(nodes.trials.model.tensors())
    made = ungroup((k, nodes.graph.iter_outputs(nodes.groups[k])) for k in items)
    return {name: k for k, name in made if name in readable}


def read_items(
    nodes: NodeItems, seen: SeenRuns, items: Items, result: RunResult, verdict: Verdict
) -> ItemStatuses:
    """Return the items that are wrong in a run with their tensors as outputs.

    Their relative errors, given the values that they read there, are None if they are unknown, or
    if reading intermediate tensors changed the outputs of the full model.
    """
    producers = _find_inner_tensors(nodes, items)
    gravest: dict[int, Judgement] = {}  # the gravest output of each item
    for judgement in verdict.outputs:
        item = producers.get(judgement.name)
        if item is not None:
            gravest[item] = max(gravest.get(item, judgement), judgement, key=compute_gravity)
    statuses = {item: judgement.status for item, judgement in gravest.items()}
    trials = nodes.trials
    if result.failure:
        return ItemStatuses(statuses)
    if len(items) == len(nodes.groups):
        whole = seen.result(trials, trials.full_model)
        plain, probed = (compute_error(trials.judge, r.tensors) for r in (whole, result))
        # The model's outputs must deviate as far in the profile as in the plain run.
        is_as_plain = whole.failure is None and plain is probed
        if plain is not None and probed is not None:
            change = abs(plain - probed).max(initial=0.0)
            is_as_plain = bool(change <= MAX_PROFILE_CHANGE * abs(plain).max(initial=0.0))
        if not is_as_plain:
            return ItemStatuses(statuses)
    suspects = [k for k in items if statuses.get(k) is Status.FAIL]
    wrong = find_locally_wrong(trials, [nodes.region([k]) for k in suspects], result)
    if wrong is None:
        return ItemStatuses(statuses)
    return ItemStatuses(statuses, {suspects[k]: error for k, error in wrong.items()})


def measure_disturbance(nodes: NodeItems, seen: SeenRuns, queries: Iterable[Query]) -> float:
    """Return how far reading all intermediate tensors moved the outputs, relative to their largest
    value.

    0 if no query read them, or if the outputs vary from run to run anyway.
    """
    trials = nodes.trials
    whole = trials.full_model
    is_read = any(
        q.kind is QueryKind.PROFILE and len(q.items) == len(nodes.groups) for q in queries
    )
    if not is_read or whole.nodes in seen.nondeterministic:
        return 0.0
    tapped = tap_region(nodes, nodes.all_items)
    return compare_tensors.measure_disturbance(seen.result(trials, whole), trials.run(tapped))


# ------------------------------------------------------------ costs
# The cost of running another model (for example a quantized one): by node, by tensor.
#
# The share of an item is the part of the final error that appears if only this item runs in the
# candidate's model; the shares of many small errors add up to about one. Saturated values are
# counted if the candidate's model has a scale.

MAX_MEASURED = 64  # items whose share is measured: those with the largest error alone


def measure_costs(items: NodeItems, other: CandidateModel) -> OtherModel:
    """Measure the costs: a run of the candidate per item, and runs of the reference per item whose
    share is measured.

    Raises:
        BackendError: the candidate cannot be used. OutOfTime: the time is used up.
    """
    trials = items.trials
    ops = items.graph.ops
    errors = []
    groups = items.groups
    for k in items.all_items:
        # An item that is random or not in that model has no cost.
        with contextlib.suppress(ModelError, NoRegion):
            errors.append((_measure_error(trials, items.region([k])), k))
    pieces = []
    for error, k in sorted((e for e in errors if e[0] > 0), reverse=True)[:MAX_MEASURED]:
        attribution = attribute(trials, items.region([k]))
        if attribution is not None:
            labels = [trials.graph.label(i) for i in groups[k]]
            last = groups[k][-1]
            pieces.append(PieceCost(labels[-1], labels, ops[last], last, error, attribution.share))
    saturated = sorted(
        measure_saturation(other, trials.values).items(), key=lambda tensor: -tensor[1]
    )
    return OtherModel(
        other.graph.path.name,
        describe_matches(other),
        other.weight_cost,
        trials.judge.precision,
        len(groups),
        sorted(pieces, key=lambda piece: -piece.explains),
        [SaturatedTensor(name, share) for name, share in saturated if share > 0],
    )


def _measure_error(trials: Trials, region: Region) -> float:
    """Return the largest error of a region's outputs alone, over their scale; 0 if nothing can be
    compared."""
    result = trials.run(region)
    errors = [0.0]
    for reference, candidate in zip(trials.values.records, result.tensors, strict=False):
        for name in region.outputs:
            if name in candidate and reference[name].form == "tensor":
                pair = pair_if_comparable(reference[name].value(), candidate[name].value())
                errors.append(compute_relative_error(pair) if pair else 0.0)
    return max(errors)
