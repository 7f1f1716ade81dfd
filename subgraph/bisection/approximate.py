"""Where the whole is right but for approximate kernels: which nodes show them, each alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from subgraph.bisection.oracle import NodeOracle
from subgraph.comparison.judge import parse_criterion
from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.search.findings import FindingKind, Findings, Outcome
from subgraph.trials.pieces import APPROXIMATED, USUAL, agrees, by_rounding_alone, error_of, judged, judged_by, named
from subgraph.trials.trial import Trials
from subgraph.verdict import Status, Verdict

MIN_PART = 0.1  # of time and runs, that nodes get whose kernels may be approximate


class _Alone(NamedTuple):
    """One node: by rounding alone, and the kinds of it that excuse where it is off."""

    verdict: Verdict
    excused_by: frozenset[str]


def look(oracle: NodeOracle, most: float) -> tuple[str, bool]:
    """Each node alone: as `named`, and whether one is off that its kind does not excuse. At most a run per item, and no
    more than `most` of the search's; what is never approximated comes first, and ends it where it is off."""
    ops = [_ops(oracle, [k]) for k in range(len(oracle.groups))]
    items = sorted(range(len(ops)), key=lambda k: bool(ops[k] & APPROXIMATED))
    regions = [oracle.region([k]) for k in items]
    last = sum(bool(each & APPROXIMATED) for each in ops)
    off: list[tuple[frozenset[str], float]] = []
    unseen = 0
    for found in _alone(oracle.trials, regions, last, most):
        if found is None or found.verdict.status is Status.UNRESOLVED:
            unseen += 1
        elif found.verdict.status is Status.FAIL:
            off.append((found.excused_by, error_of(found.verdict.worst)))
            if not found.excused_by:
                return "", True
    return named(off, unseen), False


def _alone(trials: Trials, regions: Sequence[Region], last: int, most: float) -> Iterator[_Alone | None]:
    """`judged`, of which the last few get their part of time and runs, however long the others take."""

    def judge(region: Region, result: RunResult) -> _Alone:
        with by_rounding_alone(trials):
            verdict = trials.verdict_of(region, result)
        kinds = APPROXIMATED.intersection(trials.graph.ops[i] for i in region.nodes)
        allowed = kinds and verdict.status is Status.FAIL and agrees(trials, region, result)
        return _Alone(verdict, kinds if allowed else frozenset())

    def enough(found: _Alone) -> bool:
        return found.verdict.status is Status.AGREE or bool(found.excused_by)

    part = max(last / len(regions), MIN_PART) if last else 0.0
    split, before = len(regions) - last, trials.extra_runs
    limit = most if math.isinf(most) else math.ceil(most * (1 - part))
    yield from judged(trials, regions[:split], judge, enough, limit, 1 - part)
    yield from judged(trials, regions[split:], judge, enough, most - (trials.extra_runs - before), part)


def excused(oracle: NodeOracle, findings: Findings) -> str:
    """As `named`, where a search by rounding alone ends with nodes whose kernels may be approximate, and no more off
    than that; "" else."""
    trials, usual, off = oracle.trials, parse_criterion(USUAL), list[tuple[set[str], float]]()
    if findings.outcome is not Outcome.DISAGREE or not findings.complete:
        return ""
    for finding in findings.findings:
        region = oracle.region(finding.items)
        result = oracle.run_result(region)
        verdict = trials.verdict_of(region, result)
        approximated = _ops(oracle, finding.items) & APPROXIMATED
        alone = finding.kind is FindingKind.CULPRIT and len(finding.items) == 1 and not finding.alike
        with judged_by(trials, usual):
            allowed = alone and trials.verdict_of(region, result).status is Status.AGREE
        off.append((approximated if allowed else set(), error_of(verdict.worst)))
    return named(off)


def _ops(oracle: NodeOracle, items: Sequence[int]) -> set[str]:
    return {oracle.trials.graph.ops[i] for k in items for i in oracle.groups[k]}
