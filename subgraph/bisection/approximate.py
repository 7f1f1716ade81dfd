"""The full model agrees, but not by rounding alone -> what its nodes show alone, as evidence for
`trials.doubt`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from subgraph.bisection.oracle import NodeOracle
from subgraph.comparison import ROUNDING_ALONE
from subgraph.graph.properties import APPROXIMATED
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.search.findings import FindingKind, Findings, Outcome
from subgraph.trials.doubt import Deviation, NodeEvidence, agrees, error_of
from subgraph.trials.judge import Judge
from subgraph.trials.pieces import run_pieces
from subgraph.trials.trial import Trials
from subgraph.verdict import Status, Verdict

MIN_PART = 0.1  # of time and runs that is reserved for nodes whose kernels may be approximate


class _NodeAlone(NamedTuple):
    """One node, judged by rounding alone; `deviation` if it does not agree."""

    verdict: Verdict
    deviation: Deviation | None


def evidence_of_nodes(oracle: NodeOracle, most: float) -> NodeEvidence:
    """Run each node alone: at most one run per item, and at most `most` runs.

    Nodes that no runtime approximates come first; the first of them that deviates ends it.
    """
    operators = [operators_of(oracle, [k]) for k in range(len(oracle.groups))]
    items = sorted(range(len(operators)), key=lambda k: bool(operators[k] & APPROXIMATED))
    approximated = sum(bool(some & APPROXIMATED) for some in operators)
    deviations = list[Deviation]()
    unseen = 0
    for node in _run_nodes(oracle.trials, [oracle.region([k]) for k in items], approximated, most):
        if node is None or node.verdict.status is Status.UNRESOLVED:
            unseen += 1
        elif node.deviation:
            deviations.append(node.deviation)
            if not node.deviation.approximated:
                break
    return NodeEvidence(deviations, unseen)


def _run_nodes(
    trials: Trials, regions: Sequence[Region], approximated: int, most: float
) -> Iterator[_NodeAlone | None]:
    """Run the nodes; the last ones, which are `approximated`, get their share of time and runs in
    any case."""
    by_rounding = trials.judge.with_criterion(ROUNDING_ALONE)

    def judge(region: Region, result: RunResult) -> _NodeAlone:
        verdict = by_rounding.verdict(region, result)
        if verdict.status is not Status.FAIL:
            return _NodeAlone(verdict, None)
        operators = APPROXIMATED.intersection(trials.graph.ops[i] for i in region.nodes)
        agrees_usually = bool(operators) and agrees(trials.judge, region, result)
        deviation = Deviation.of(operators, error_of(verdict.worst), agrees_usually=agrees_usually)
        return _NodeAlone(verdict, deviation)

    def is_conclusive(node: _NodeAlone) -> bool:
        return node.verdict.status is Status.AGREE or bool(
            node.deviation and node.deviation.approximated
        )

    part = max(approximated / len(regions), MIN_PART) if approximated else 0.0
    split = len(regions) - approximated
    before = trials.log.extra_runs
    limit = most if math.isinf(most) else math.ceil(most * (1 - part))
    yield from run_pieces(trials, regions[:split], judge, is_conclusive, limit, 1 - part)
    left = most - (trials.log.extra_runs - before)
    yield from run_pieces(trials, regions[split:], judge, is_conclusive, left, part)


def evidence_of_findings(oracle: NodeOracle, findings: Findings, usual: Judge) -> NodeEvidence:
    """What a search by rounding alone found, as evidence; empty if it did not find all that is
    wrong.

    `usual`: judges by the usual criterion. Only single nodes can be excused.
    """
    if findings.outcome is not Outcome.DISAGREE or not findings.complete:
        return NodeEvidence()
    deviations = list[Deviation]()
    for finding in findings.findings:
        is_single = (
            finding.kind is FindingKind.CULPRIT and len(finding.items) == 1 and not finding.alike
        )
        for items in finding.regions:
            region = oracle.region(items)
            with oracle.trials.log.count_as_extra(region):
                result = oracle.run_result(region)
            error = error_of(oracle.trials.judge.verdict(region, result).worst)
            agrees_usually = is_single and agrees(usual, region, result)
            deviations.append(
                Deviation.of(operators_of(oracle, items), error, agrees_usually=agrees_usually)
            )
    return NodeEvidence(deviations)


def operators_of(oracle: NodeOracle, items: Sequence[int]) -> set[str]:
    """The operators of some items."""
    return {oracle.graph.ops[i] for k in items for i in oracle.groups[k]}
