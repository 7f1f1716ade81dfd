"""The items of a bisection: groups of nodes that carry values, in topological order.

Nodes that only compute shapes are not items: their outputs are frozen in every cut.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter

from subgraph.graph import region as regions
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import SHAPE, VALUE, find_kinds
from subgraph.graph.region import Region
from subgraph.graph.walks import iter_predecessors
from subgraph.inspection.summary import format_attribute
from subgraph.iterables import flatten, group_values, invert, pick, ungroup
from subgraph.results.bisect import KindDocument
from subgraph.search import Purpose, QueryKind, Step
from subgraph.search.oracle import Items, RegionOutcome
from subgraph.text import count
from subgraph.trials.candidate_model import find_joined_tensors
from subgraph.trials.pooled_runs import run_pieces
from subgraph.trials.trial import Trials
from subgraph.types import Strings
from subgraph.verdict import Verdict


@dataclass
class NodeItems:
    """The nodes that a search examines.

    Attributes:
        trials: The trials on the model.
        groups: Per item, the indices of its nodes: several if no edge between them can be cut.
    """

    trials: Trials
    groups: tuple[tuple[int, ...], ...]

    @property
    def graph(self) -> Graph:
        """The model."""
        return self.trials.graph

    @property
    def parents(self) -> list[list[int]]:
        """Per item, the items whose outputs it reads."""
        item = invert(enumerate(self.groups))
        graph = self.graph
        return [
            sorted(set(pick(item, graph.producers(graph.iter_inputs(group))).values()) - {k})
            for k, group in enumerate(self.groups)
        ]

    @property
    def size(self) -> int:
        """Number of nodes in question."""
        return sum(map(len, self.groups))

    @property
    def all_items(self) -> Items:
        """All items, in topological order."""
        return tuple(range(len(self.groups)))

    def find_items(self, nodes: Collection[int]) -> list[int]:
        """Return the items that have one of these nodes."""
        inside = set(nodes)
        return [k for k, group in enumerate(self.groups) if not inside.isdisjoint(group)]

    def label(self, item: int) -> str:
        """Return the label of an item's last node."""
        return self.graph.label(self.groups[item][-1])

    def list_indices(self, items: Iterable[int]) -> list[int]:
        """Return the nodes of some items, in topological order."""
        return self.graph.in_order(flatten(self.groups[k] for k in items))

    def region(self, items: Iterable[int]) -> Region:
        """Return the region of some items.

        Raises:
            NoRegion: they only draw random numbers.
        """
        return regions.build_region(self.graph, self.list_indices(items))

    def judge_steps(self) -> dict[int, Verdict | None]:
        """Run each item alone that only the steps of its quantizers excuse; None if it was not
        run."""
        judge = self.trials.judge
        regions = {k: self.region([k]) for k in self.all_items}
        exact = {k: r for k, r in regions.items() if judge.output_scales(r) is not None}
        pieces = run_pieces(self.trials, [*exact.values()], judge.verdict, attrgetter("agrees"))
        return dict(zip(exact, pieces, strict=True))

    @property
    def kinds(self) -> list[Strings]:
        """Per item, the operators of its nodes."""
        ops = self.graph.ops
        return [tuple(ops[i] for i in group) for group in self.groups]


def list_items(trials: Trials) -> tuple[tuple[int, ...], ...]:
    """Return the items of a search, each as its nodes: nodes that an output needs and whose outputs
    depend on more than shapes; if shapes are not frozen, on more than constants."""
    model = trials.model
    other = trials.runtime.own_model
    graph = model.graph
    nodes = model.whole().nodes
    kinds = find_kinds(graph, list(graph.iter_outputs(nodes)))
    least = VALUE if model.freeze else SHAPE
    suspects = [
        i
        for i in nodes
        if any(kinds[n] >= least for n in graph.makes[i]) and i not in graph.random_nodes
    ]
    if model.comparable is None:
        return tuple((i,) for i in suspects)
    return _join(graph, suspects, model.comparable, find_joined_tensors(other) if other else ())


def _join(
    graph: Graph, nodes: Sequence[int], shared: Collection[str], joined: Sequence[Strings]
) -> tuple[tuple[int, ...], ...]:
    """Return groups of nodes, in topological order, whose exchanged values both models have.

    The producer of any other value joins its consumers, the producers of `joined` tensors join, and
    groups that would read each other are joined.

    Complexity: linear in nodes and edges.
    """
    import networkx  # slow to import, and needed for few bisections

    inside = set(nodes)
    kinds = find_kinds(graph, graph.maker)
    joins = networkx.Graph()
    joins.add_nodes_from(nodes)
    for i in nodes:
        for name in graph.makes[i]:
            if kinds[name] == VALUE and name not in shared:
                joins.add_edges_from(
                    (i, reader) for reader in graph.readers.get(name, ()) if reader in inside
                )
    for names in joined:
        makers = [i for i in graph.producers(names) if i in inside]
        joins.add_edges_from(pairwise(makers))
    group = invert(enumerate(networkx.connected_components(joins)))
    flow = networkx.DiGraph()
    flow.add_nodes_from(group.values())
    flow.add_edges_from(
        (group[b], group[i])
        for i, b in ungroup((i, iter_predecessors(graph, i)) for i in nodes)
        if b in inside and group[b] != group[i]
    )
    acyclic = networkx.condensation(flow)
    component = acyclic.graph["mapping"]
    members = group_values((component[group[i]], i) for i in graph.in_order(nodes))
    return tuple(tuple(members[c]) for c in networkx.topological_sort(acyclic))


# ------------------------------------------------------------ kinds
# Nodes with one operator that fail in the same way -> what only they have: attributes, a number
# of inputs.


def describe_kind(graph: Graph, wrong: Collection[int], *, is_complete: bool) -> KindDocument:
    """Return the operator of these nodes, and what distinguishes them from its other nodes.

    `is_complete`: whether all other nodes are known to agree.
    """
    op = graph.ops[min(wrong)]
    kind = [i for i, name in enumerate(graph.ops) if name == op]
    right = [_list_traits(graph, i) for i in kind if i not in wrong]
    common = set.intersection(*(_list_traits(graph, i) for i in wrong)).difference(*right)
    return KindDocument(op, len(kind), sorted(common) if is_complete and right else [])


def _list_traits(graph: Graph, node: int) -> set[str]:
    proto = graph.nodes[node]
    inputs = count(sum(map(bool, proto.input)), "input")
    return {inputs, *(f"{a.name}={format_attribute(a)}" for a in proto.attribute)}


# ------------------------------------------------------------ remaining items
# Steps of a search -> how many nodes may still be guilty, and how many runs are still to come.

# Times the search's own estimate, which is that of one guilty node: half of 84 simulated searches
# (several culprits, accumulated errors among them) took 4.6 times as many runs, and those with one
# culprit 0.8 times.
TIMES = 2


@dataclass
class Remaining:
    """The suspects and runs that are left after the steps of a search.

    Attributes:
        size: Number of nodes in question.
        left: Number of these nodes in the failing regions that were found; all while no region has
            failed.
        runs_left: Estimated number of runs still to come.
        only_repeats: Whether these are runs of the full model, which has agreed in each run.
        seconds: Duration of all runs on the wall clock; stored runs count with their duration when
            they ran.
        runs: Number of all runs.
    """

    size: int
    left: int = 0
    runs_left: int = 0
    only_repeats: bool = False
    seconds: float = 0.0
    runs: int = 0
    _failing: list[frozenset[Hashable]] = field(default_factory=list)
    _begin: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.size

    def add(self, step: Step, nodes: Collection[Hashable]) -> None:
        """Take a step into account; `nodes`: those that it is about, none for the whole model.

        Complexity: linear in the nodes of the failing regions.
        """
        now = time.monotonic()
        if step.answer.verdict is None or not step.answer.verdict.stored:
            self._record_time(now - self._begin)
        elif step.answer.seconds:
            self._record_time(step.answer.seconds)
        self._begin = now
        if (
            step.query.kind in (QueryKind.ISOLATED, QueryKind.REST)
            and step.outcome is RegionOutcome.FAIL
        ):
            region = frozenset(nodes)
            if region and not any(known <= region for known in self._failing):
                self._failing = [known for known in self._failing if not region < known] + [region]
                self.left = len(frozenset().union(*self._failing))
        self.only_repeats = step.only_repeats
        self.runs_left = step.estimated_runs * (1 if step.only_repeats else TIMES)

    def _record_time(self, seconds: float) -> None:
        self.seconds = self.seconds + seconds
        self.runs = self.runs + 1

    def describe_progress(self, step: Step) -> str:
        """Return `2 of 27 nodes left`, as of the last step."""
        if step.query.is_whole:
            return "whole model"
        if step.purpose is Purpose.GROWTH:
            return "growth of the error"
        if step.purpose is Purpose.EVERYWHERE:
            return "nodes of all kinds"
        return f"{self.left} of {self.size} nodes left"

    @property
    def estimate(self) -> str:
        """`about 18 more runs, 1.5 s`; `at most 5 more runs of the full model, 2 s` while it
        agrees; "" if nothing is known."""
        if not self.runs_left:
            return ""
        seconds = self.seconds / max(self.runs, 1) * self.runs_left
        time_left = f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
        if seconds >= 120:
            time_left = f"{seconds / 60:.0f} min"
        runs = count(self.runs_left, "more run")
        if self.only_repeats:
            return f"at most {runs} of the full model, {time_left}"
        return f"about {runs}, {time_left}"
