"""A recorded run -> where it goes wrong: the last good tensors, the first bad ones, the suspect
nodes between them.

A recording cannot be queried again, so no region is certified. But the fault lies between tensors
that agree and the first that does not, whatever the device does inside. Behind the first bad tensor
every tensor may be wrong; there the isolated judgement says whether a region adds an error of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from subgraph.graph import region as regions
from subgraph.graph.graph import VALUE, Graph
from subgraph.graph.region import Region
from subgraph.inspection import lint
from subgraph.recordings.run_comparison import RunComparison, TensorRow
from subgraph.types import Strings
from subgraph.verdict import Status

# How many times likelier than others a node is to blame:
LINT_WEIGHT = 3.0  # with a known trouble
INTERVAL_WEIGHT = 8.0  # in an interval of a recording
WITNESS_WEIGHT = 2.0  # in a region that adds an error; in one that does not, its inverse
MAX_LINTED = 10_000  # nodes of a model that is searched for known troubles
SLOW = (
    "baked-shape",
    "denormals",
    "overflow",
    "underflow",
)  # rules that read weights, or try another size


@dataclass(frozen=True)
class Interval:
    """One place where a recording goes wrong.

    Attributes:
        region: the nodes between; its inputs are the last good tensors, or the model's.
        first_bad: the first tensors that are wrong; their regions share nodes.
        last_good, wrong_before: the recorded tensors that enter it, those that agree and those that
            do not.
        unseen: tensors inside that were not recorded, or whose match is uncertain.
        first: is everything before it right? Else it adds an error to an inherited one.
        suspects: its nodes with their weights, the likeliest first.
        adds_error: does the isolated judgement of a first bad tensor fail? None: not known.
    """

    region: Region
    first_bad: Strings
    last_good: Strings
    wrong_before: Strings
    unseen: Strings
    first: bool
    suspects: tuple[tuple[int, float], ...]
    adds_error: bool | None = None


def find_intervals(
    comparison: RunComparison, weights: Mapping[int, float] | None = None
) -> list[Interval]:
    """Where one run goes wrong, in the order of the model; regions that share nodes are one
    interval.

    A tensor that adds an error behind a first bad one gets an interval of its own only if its
    region shares no nodes with those before. Else it is a witness: if two regions that share nodes
    both fail, the shared nodes are suspect. `weights`: of nodes, from other sources. Complexity:
    linear in the model for each tensor that is wrong.
    """
    graph = comparison.judge.model.graph
    rows = comparison.rows
    rounded = set(comparison.rounded)
    failing = [n for n in comparison.failing if n not in rounded]
    behind = _find_downstream_of(comparison, failing)
    wrong = [n for n in failing if n not in behind or rows[n].alone]
    above = {
        n: regions.find_upstream_until(graph, [n], lambda m: _is_certain(rows.get(m)))
        for n in wrong
    }
    inside = {n: set(region.nodes) if region else set() for n, region in above.items()}
    groups = _group_by_region([n for n in wrong if n not in behind], inside)
    taken = {i for names in groups for n in names for i in inside[n]}
    later = [n for n in wrong if n in behind and _adds_error(rows[n]) and not inside[n] & taken]
    witnesses = [(inside[n], _adds_error(rows[n])) for n in wrong if n in behind and n not in later]
    ends = [(names, True) for names in groups] + [
        (names, False) for names in _group_by_region(later, inside)
    ]
    intervals = [
        _make_interval(graph, rows, names, first, witnesses, weights or {}) for names, first in ends
    ]
    return [interval for interval in intervals if interval]


def _make_interval(
    graph: Graph,
    rows: Mapping[str, TensorRow],
    names: Sequence[str],
    first: bool,
    witnesses: Sequence[tuple[set[int], bool]],
    weights: Mapping[int, float],
) -> Interval | None:
    ends = [end for n in names for end in (n, *rows[n].match.alternatives)]
    region = regions.find_upstream_until(graph, ends, lambda n: _is_certain(rows.get(n)))
    if region is None:
        return None
    adds_error = [_adds_error(rows[n]) for n in names if rows[n].alone]
    inner = [n for n in graph.iter_outputs(region.nodes) if n not in names]
    kinds = graph.kinds(inner)
    return Interval(
        region,
        tuple(names),
        tuple(n for n in region.inputs if n in rows and rows[n].agreeing),
        tuple(n for n in region.inputs if n in rows and rows[n].failing),
        tuple(n for n in inner if kinds[n] == VALUE and n not in ends),
        first,
        _rank_nodes(graph, region, names, witnesses, weights),
        any(adds_error) if adds_error else None,
    )


def _is_certain(row: TensorRow | None) -> bool:
    """Is it certain which value the device had there?"""
    return row is not None and (row.agreeing or (row.failing and not row.match.alternatives))


def _adds_error(row: TensorRow) -> bool:
    return row.alone is not None and row.alone.status is Status.FAIL


def _find_downstream_of(comparison: RunComparison, wrong: Sequence[str]) -> set[str]:
    """Tensors that depend on one that is wrong."""
    graph = comparison.judge.model.graph
    bad = {graph.maker[n] for n in wrong if n in graph.maker}
    below = graph.descendants(chain.from_iterable(graph.successors(i) for i in bad))
    return {n for n in comparison.rows if n in graph.maker and graph.maker[n] in below}


def _group_by_region(names: Sequence[str], regions: Mapping[str, set[int]]) -> list[list[str]]:
    """Bad tensors, those whose regions share nodes together: one fault may show in several
    branches."""
    groups: list[tuple[set[int], list[str]]] = []
    for name in names:
        touching = [g for g in groups if g[0] & regions[name]]
        groups = [g for g in groups if not g[0] & regions[name]]
        merged = set().union(regions[name], *(g[0] for g in touching))
        groups.append((merged, [*chain.from_iterable(g[1] for g in touching), name]))
    return [names for _, names in groups]


def _rank_nodes(
    graph: Graph,
    region: Region,
    bad: Sequence[str],
    witnesses: Sequence[tuple[set[int], bool]],
    weights: Mapping[int, float],
) -> tuple[tuple[int, float], ...]:
    """The nodes of a region with their weights, the heaviest first; of equal ones the nearest to
    its end.

    A node weighs more the more bad tensors depend on it, and in regions that add an error.
    """
    above = [graph.ancestors([graph.maker[n]]) for n in bad]
    rank = {i: k for k, i in enumerate(region.nodes)}
    total = {i: weights.get(i, 1.0) * sum(i in a for a in above) for i in region.nodes}
    for nodes, adds_error in witnesses:
        for i in nodes & total.keys():
            total[i] *= WITNESS_WEIGHT if adds_error else 1 / WITNESS_WEIGHT
    return tuple(sorted(total.items(), key=lambda item: (-item[1], -rank[item[0]])))


def weigh_intervals(comparisons: Sequence[RunComparison]) -> dict[int, float]:
    """The weights of nodes in the intervals of some runs, for a search."""
    weights: dict[int, float] = {}
    for comparison in comparisons:
        for interval in find_intervals(comparison):
            weight = INTERVAL_WEIGHT if interval.first else INTERVAL_WEIGHT / 2
            weights |= {i: max(weights.get(i, 1.0), weight) for i in interval.region.nodes}
    return weights


def find_known_troubles(graph: Graph) -> dict[int, str]:
    """By node, the first warning of lint, of the rules that need not read weights; none of large
    models."""
    troubles: dict[int, str] = {}
    if len(graph.nodes) > MAX_LINTED:
        return troubles
    for finding in lint.document(lint.LintContext(graph), lint.choose_rules((), SLOW)).findings:
        node = finding.node
        if finding.severity == lint.WARNING and node and node.index is not None:
            troubles.setdefault(node.index, f"{finding.rule}: {finding.reason}")
    return troubles


def weigh_nodes(
    graph: Graph, recorded: Mapping[int, float] | None = None, known: Iterable[int] = ()
) -> dict[int, float]:
    """How many times likelier than others a node is to blame, by lint and by `weigh_intervals`.

    `known`: nodes like those that the runtime is known to compute wrongly.
    """
    weights = dict(recorded or {})
    for i in {*find_known_troubles(graph), *known}:
        weights[i] = weights.get(i, 1.0) * LINT_WEIGHT
    return weights
