"""The items of a bisection: groups of nodes that carry values, in topological order.

Nodes that only compute shapes are not items: their outputs are frozen in every cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from subgraph.graph import region as regions
from subgraph.graph.graph import SHAPE, VALUE, Graph
from subgraph.graph.region import Region
from subgraph.trials.reference_model import ReferenceModel
from subgraph.trials.trial import Trials
from subgraph.types import Strings


@dataclass
class NodeItems:
    """The nodes that a search asks about.

    Attributes:
        groups: per item, the indices of its nodes: several where no edge between them can be cut.
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
        item = {node: k for k, group in enumerate(self.groups) for node in group}
        before = self.graph.predecessors
        return [
            sorted({item[b] for node in group for b in before(node) if b in item} - {k})
            for k, group in enumerate(self.groups)
        ]

    @property
    def size(self) -> int:
        """Number of nodes in question."""
        return sum(map(len, self.groups))

    def label(self, item: int) -> str:
        """The label of an item's last node."""
        return self.graph.label(self.groups[item][-1])

    def indices(self, items: Iterable[int]) -> list[int]:
        """The nodes of some items, in topological order."""
        return self.graph.in_order(node for k in items for node in self.groups[k])

    def region(self, items: Iterable[int]) -> Region:
        """The region of some items.

        Raises:
            NoRegion: they only draw random numbers.
        """
        return regions.build_region(self.graph, self.indices(items))

    @property
    def kinds(self) -> list[Strings]:
        """Per item, the operators of its nodes."""
        ops = self.graph.ops
        return [tuple(ops[i] for i in group) for group in self.groups]


def items_of(model: ReferenceModel) -> tuple[tuple[int, ...], ...]:
    """The items of a search, each as its nodes: nodes that an output needs and whose outputs depend
    on more than shapes; if shapes are not frozen, on more than constants."""
    graph = model.graph
    nodes = model.whole().nodes
    kinds = graph.kinds(list(graph.iter_outputs(nodes)))
    least = VALUE if model.freeze else SHAPE
    suspects = [
        i
        for i in nodes
        if any(kinds[n] >= least for n in graph.makes[i]) and i not in graph.random_nodes
    ]
    if model.comparable is None:
        return tuple((i,) for i in suspects)
    return _join(graph, suspects, model.comparable)


def _join(
    graph: Graph, nodes: Sequence[int], shared: Collection[str]
) -> tuple[tuple[int, ...], ...]:
    """Groups of nodes, in topological order, such that each value between two groups is one that
    both sides have.

    The maker of any other value joins its readers, and groups that would read each other are
    joined. Complexity: linear in nodes and edges.
    """
    import networkx  # slow to import, and needed for few bisections

    inside = set(nodes)
    kinds = graph.kinds(graph.maker)
    joins = networkx.Graph()
    joins.add_nodes_from(nodes)
    for i in nodes:
        for name in graph.makes[i]:
            if kinds[name] == VALUE and name not in shared:
                joins.add_edges_from(
                    (i, reader) for reader in graph.readers.get(name, ()) if reader in inside
                )
    group = {i: k for k, some in enumerate(networkx.connected_components(joins)) for i in some}
    flow = networkx.DiGraph()
    flow.add_nodes_from(group.values())
    flow.add_edges_from(
        (group[b], group[i])
        for i in nodes
        for b in graph.predecessors(i)
        if b in inside and group[b] != group[i]
    )
    acyclic = networkx.condensation(flow)
    component = acyclic.graph["mapping"]
    members: dict[int, list[int]] = {}
    for i in graph.in_order(nodes):
        members.setdefault(component[group[i]], []).append(i)
    return tuple(tuple(members[c]) for c in networkx.topological_sort(acyclic))
