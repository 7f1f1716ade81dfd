"""`Region`: nodes of a graph, and the boundary that follows from them.

The boundary is the set of tensors that enter or leave the nodes. A tensor that enters is constant
(its producers are pulled in, or it is a weight), depends only on shapes (the cut freezes it if its
value was captured), or is an input of the region. A tensor leaves if a node outside reads it or the
model outputs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace

from subgraph.documents import json_key
from subgraph.errors import ModelError, NoRegion
from subgraph.graph.graph import Graph, find_made_twice
from subgraph.graph.kinds import CONSTANT, SHAPE, VALUE, find_kinds
from subgraph.graph.selection import Selection, select
from subgraph.graph.value_types import find_value_infos
from subgraph.graph.walks import (
    find_ancestors,
    find_ancestors_until,
    find_descendants,
    iter_predecessors,
    iter_successors,
)
from subgraph.iterables import flatten
from subgraph.log import log
from subgraph.text import clean
from subgraph.types import Strings, frozen

MAX_DRAWN = 40  # nodes of a region's surroundings, more only if the region has more


@frozen
class Region:
    """Nodes of one graph and the tensors of their boundary, all in topological order.

    Attributes:
        start: Labels of the start nodes that the user named; empty for a region of node indices.
        end: Labels of the end nodes that the user named; empty for a region of node indices.
        nodes: Indices of the nodes.
        pulled: Indices of further nodes that produce constants for them (Constant, DequantizeLinear
            of a weight …).
        random: Indices of nodes that are omitted because they draw random numbers; their outputs
            enter instead.
        inputs: Tensors that enter and depend on values of model inputs.
        shapes: Tensors that enter and depend only on shapes of model inputs.
        outputs: Tensors of the nodes that other nodes read, that are outputs of the model, or that
            were requested.
        weights: Initializers that the nodes read, sorted by name.

    >>> from subgraph import cut, load
    >>> region = cut(load("resnet50.onnx"), "pool1", "res2a_relu").region
    >>> region.start, region.end, region.inputs, region.outputs
    (('pool1',), ('res2a_relu',), ('conv1',), ('res2a',))
    """

    start: Strings
    end: Strings
    nodes: tuple[int, ...]
    pulled: tuple[int, ...]
    random: tuple[int, ...]
    inputs: Strings
    shapes: Strings
    outputs: Strings
    weights: Strings = field(repr=False)

    @property
    def all_nodes(self) -> tuple[int, ...]:
        """Indices of the nodes, then of those that produce constants for them."""
        return (*self.nodes, *self.pulled)

    @property
    def entering(self) -> Strings:
        """The tensors that enter."""
        return (*self.inputs, *self.shapes)

    @property
    def boundary(self) -> Strings:
        """The tensors that enter or leave."""
        return (*self.entering, *self.outputs)


def prepare_graph(graph: Graph) -> Graph:
    """Index readers, kinds and value infos of all tensors; return the graph itself.

    Deriving a region then costs time linear in the region rather than in the model. For a single
    region the index costs more than it saves.

    Raises:
        ModelError: the graph has a cycle, or a value_info is damaged.
    """
    if graph.known_kinds is None:
        _ = graph.readers
        infos = enumerate(find_value_infos(graph).items())
        graph.known_infos = {name: (k, info) for k, (name, info) in infos}
        graph.known_kinds = find_kinds(graph, graph.maker)
    return graph


def find_region(graph: Graph, start: Sequence[str], end: Sequence[str]) -> Region:
    """Return the region of all nodes on a path from a start node to an end node, both included.

    Complexity: linear in the nodes upstream of the ends and their edges.

    Args:
        graph: The model.
        start: Selectors (`graph.selection.select`); empty for the model's inputs that a path joins.
        end: Selectors; empty for the model's outputs that a path joins.

    Raises:
        UnknownName: A selector matches nothing.
        UsageError: A selector matches several things.
        NoRegion: A start or an end is on no path. The error states how the two are related.
        ModelError: The graph has a cycle, a tensor with several producers, or a tensor without a
            producer.
    """
    if made_twice := find_made_twice(graph):
        name, first, second = made_twice[0]
        raise ModelError(
            f"tensor '{name}' has two producers: {graph.label(first)} and {graph.label(second)}",
            f"subcut inspect {graph.path.name}",
            code="graph.two-producers",
        )
    starts = [select(graph, text) for text in start] or [
        Selection(name, tuple(nodes), name)
        for name, nodes in graph.readers_of(graph.inputs).items()
    ]
    ends = [_select_end(graph, text) for text in end] or [
        Selection(name, (graph.maker[name],), name) for name in graph.outputs if name in graph.maker
    ]
    if not starts or not ends:
        missing = "reads an input" if not starts else "makes an output"
        raise NoRegion(
            f"no node {missing} of {graph.path.name}",
            "name a node with --start and one with --end",
            code="region.no-ends",
        )
    start_nodes = {*flatten(s.nodes for s in starts)}
    # Nodes of lower rank depend on no start.
    floor = min((graph.rank[i] for i in start_nodes), default=0)
    upstream = find_ancestors(graph, flatten(s.nodes for s in ends), floor)
    inside = start_nodes & upstream
    for i in graph.in_order(upstream - inside):
        if not inside.isdisjoint(iter_predecessors(graph, i)):
            inside.add(i)
    for s in starts if start or not inside else ():
        if not inside.intersection(s.nodes):
            raise _make_no_path_error(graph, s, ends[0])
    for e in ends if end or not inside else ():
        if not inside.intersection(e.nodes):
            raise _make_no_path_error(graph, starts[0], e)
    starts, ends = (
        [s for s in selected if inside.intersection(s.nodes)] for selected in (starts, ends)
    )
    inside, ends = _drop_maps(graph, inside, ends)
    requested = [(e.tensor,) if e.tensor else tuple(graph.iter_outputs(e.nodes)) for e in ends]
    region = build_region(graph, inside, requested)
    return replace(region, start=_list_labels(graph, starts), end=_list_labels(graph, ends))


def _drop_maps(
    graph: Graph, inside: set[int], ends: list[Selection]
) -> tuple[set[int], list[Selection]]:
    """Return nodes and ends without a ZipMap, because no file can store its maps.

    The region ends with the input of the ZipMap instead.
    """
    maps = {i for i in inside if graph.ops[i] == "ZipMap" and graph.reads[i][0] in graph.maker}
    if not maps or maps == inside:
        return inside, ends
    kept = [s for s in ends if not maps.issuperset(s.nodes)]
    for i in sorted(maps):
        tensor = graph.reads[i][0]
        log.info(
            "%s makes maps, which no file holds: the region ends before it", clean(graph.label(i))
        )
        kept.append(Selection(tensor, (graph.maker[tensor],), tensor))
    return inside - maps, kept


def _list_labels(graph: Graph, selections: Iterable[Selection]) -> Strings:
    return tuple(
        s.text if s.tensor in graph.inputs or len(s.nodes) != 1 else graph.label(s.nodes[0])
        for s in selections
    )


def _select_end(graph: Graph, text: str) -> Selection:
    selection = select(graph, text)
    if selection.tensor in graph.inputs:
        raise NoRegion(
            f"end '{text}' is an input of the model: nothing comes before it",
            f"--start {text}",
            code="region.end-is-input",
        )
    return selection


def find_upstream(graph: Graph, tensors: Iterable[str], *, keep_random: bool = True) -> Region:
    """Return the region that computes tensors from the model's inputs; model inputs are ignored.

    Args:
        tensors: Their names.
        keep_random: As for `build_region`.
    """
    computed = [name for name in tensors if name in graph.maker]
    nodes = find_ancestors(graph, graph.producers(computed))
    return build_region(graph, nodes, [(name,) for name in computed], keep_random=keep_random)


def find_upstream_until(
    graph: Graph, names: Sequence[str], stops: Callable[[str], bool]
) -> Region | None:
    """Return the region that computes some tensors from tensors for which `stops` is true.

    `stops` is not called for `names` themselves.

    Returns:
        None without such a region.
    """
    nodes = find_ancestors_until(graph, graph.producers(names), stops)
    kinds = find_kinds(graph, list(graph.iter_outputs(nodes)))
    kept = [i for i in nodes if any(kinds[n] == VALUE for n in graph.makes[i])]
    try:
        if kept:
            return build_region(graph, kept, [(n,) for n in names])
        return None
    except NoRegion:
        return None


def build_region(
    graph: Graph,
    nodes: Iterable[int],
    requested: Iterable[Strings] = (),
    *,
    keep_random: bool = False,
    keep_undefined: bool = False,
) -> Region:
    """Return the region that consists of these nodes; it need not be connected or convex.

    `requested` are groups of tensors made inside that must leave even if nothing outside reads
    them: of each group those that some node reads, or all if none is read. So the unused mask of a
    Dropout is omitted, but not the outputs of the last node. Random nodes are omitted unless
    `keep_random`. A tensor that no node produces is an error unless `keep_undefined`.

    Complexity: linear in the region for a graph that was prepared (`prepare_graph`), else linear in
    the model.

    Raises:
        ModelError: a node reads a tensor that no node makes and that is neither input nor weight.
        NoRegion: all nodes are random.
    """
    inside = set(nodes)
    random = inside & graph.random_nodes if not keep_random else set()
    inside -= random
    if random and not inside:
        raise NoRegion(
            "nothing to cut: every node between draws random numbers, which are captured, never"
            " copied",
            "move --end further down",
            code="region.only-random",
        )
    produced = set(graph.iter_outputs(inside))
    read = dict.fromkeys(graph.iter_inputs(graph.in_order(inside)))
    entering = [name for name in read if name not in produced]
    weights = set(filter(graph.is_weight, entering))
    sources = weights | graph.inputs.keys()
    undefined = [name for name in entering if name not in sources and name not in graph.maker]
    if undefined and not keep_undefined:
        reader = graph.label(graph.readers_of(undefined[:1])[undefined[0]][0])
        raise ModelError(
            f"tensor '{undefined[0]}', read by {reader}, has no producer and is not an input or"
            " weight",
            f"subcut inspect {graph.path.name}",
            code="graph.no-producer",
        )
    kinds = find_kinds(
        graph, (name for name in entering if name in graph.maker and name not in sources)
    )
    pulled = find_ancestors(
        graph, graph.producers(n for n, kind in kinds.items() if kind == CONSTANT)
    )
    weights.update(name for name in graph.iter_inputs(pulled) if name not in graph.maker)
    return Region(
        start=(),
        end=(),
        nodes=tuple(graph.in_order(inside)),
        pulled=tuple(graph.in_order(pulled - inside)),
        random=tuple(graph.in_order(random)),
        inputs=tuple(n for n in entering if n in graph.inputs or kinds.get(n) == VALUE),
        shapes=tuple(n for n in entering if kinds.get(n) == SHAPE),
        outputs=_find_leaving(graph, inside, produced, requested),
        weights=tuple(sorted(weights)),
    )


def _find_leaving(
    graph: Graph, inside: set[int], produced: set[str], requested: Iterable[Strings]
) -> Strings:
    leaving = produced.intersection(graph.outputs)
    leaving.update(
        name
        for name, readers in graph.readers_of(produced).items()
        if not inside.issuperset(readers)
    )
    read = leaving.union(*(graph.reads[i] for i in inside))
    for group in requested:
        leaving.update([name for name in group if name in read] or group)
    return tuple(name for name in graph.iter_outputs(graph.in_order(inside)) if name in leaving)


def _make_no_path_error(graph: Graph, start: Selection, end: Selection) -> NoRegion:
    """Return the error for a start without a path to the end.

    The error states whether the end is upstream, or where their paths join.
    """
    below_end = find_descendants(graph, end.nodes)
    if below_end.intersection(start.nodes):
        away = len(below_end & find_ancestors(graph, start.nodes)) - 1
        return NoRegion(
            f"end '{end.text}' is not downstream of start '{start.text}' "
            f"(it comes {away} node{'s' * (away != 1)} earlier; swap them?)",
            f"--start {end.text} --end {start.text}",
            code="region.end-is-upstream",
        )
    common = below_end & find_descendants(graph, start.nodes)
    fact = f"no path leads from start '{start.text}' to end '{end.text}'"
    if common:
        first = graph.label(min(common, key=graph.rank.__getitem__))
        return NoRegion(
            f"{fact}; both lead to '{first}'",
            f"--start {start.text} --end {first} holds that join",
            code="region.no-path",
        )
    return NoRegion(
        f"{fact}, and they meet nowhere below",
        "name two nodes of one branch",
        code="region.separate-branches",
    )


@frozen
class Drawn:
    """A node in the drawing of a region; `inside` if it belongs to the region."""

    index: int
    label: str
    op: str
    inside: bool


@frozen
class DrawnEdge:
    """A tensor between two drawn nodes; None for an input or output of the model."""

    tensor: str
    source: int | None = json_key("from")
    target: int | None = json_key("to")


@frozen
class Surroundings:
    """A region with the nodes around it; `left_out` nodes around it are not drawn."""

    nodes: Sequence[Drawn]
    edges: Sequence[DrawnEdge]
    left_out: int


def find_surroundings(graph: Graph, nodes: Iterable[int]) -> Surroundings:
    """Return the region, its producers and consumers, their other neighbors and the tensors."""
    inside = set(nodes)
    upstream = set(graph.producers(graph.iter_inputs(inside))) - inside
    downstream = set(flatten(iter_successors(graph, i) for i in inside)) - inside
    siblings = set(graph.producers(graph.iter_inputs(downstream)))
    siblings.update(flatten(iter_successors(graph, i) for i in upstream))
    order = [
        *graph.in_order(inside),
        *graph.in_order(upstream | downstream),
        *graph.in_order(siblings - upstream - downstream - inside),
    ]
    drawn = dict.fromkeys(graph.in_order(order[: max(MAX_DRAWN, len(inside))]))
    edges = []
    for i in drawn:
        for name in dict.fromkeys(graph.reads[i]):
            maker = graph.maker.get(name)
            if maker in drawn or name in graph.inputs:
                edges.append(DrawnEdge(name, maker, i))
        edges += [DrawnEdge(n, i, None) for n in graph.makes[i] if n in graph.outputs]
    boxes = [Drawn(i, graph.label(i), graph.ops[i], i in inside) for i in drawn]
    return Surroundings(boxes, edges, len(set(order)) - len(drawn))
