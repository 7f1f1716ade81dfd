"""The runs of a bisection that later answers rest on: what failed, and what differs from run to
run."""

from __future__ import annotations

from dataclasses import dataclass, field

from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.search.oracle import Items, Query, QueryKind
from subgraph.trials.attribution import Target
from subgraph.trials.judge import Judge
from subgraph.trials.trial import Trials

Nodes = tuple[int, ...]


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
