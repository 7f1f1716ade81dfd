"""Region: an edge (the tensors that cross a border) and the nodes between, derived for one Graph.

Insight: the border follows from the nodes alone. What enters is constant (pulled in or kept as a weight), depends only
on shapes (frozen when its value is known), or is an input; what leaves is what somebody outside reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from subgraph.errors import ModelError, NoRegion
from subgraph.graph.graph import CONSTANT, SHAPE, Graph, Selection


@dataclass(frozen=True)
class Region:
    """Nodes of one graph and the tensors that cross their border, all in topological order.

    Attributes:
        start, end: labels of the nodes it was asked for with; empty for a region made from nodes.
        nodes: indices of the nodes between.
        pulled: indices of constant-making nodes that come along (Constant, a weight's DequantizeLinear …).
        random: indices of random nodes in between; their outputs are inputs of the region instead.
        inputs: tensors that enter and depend on the model's inputs.
        shapes: tensors that enter and depend only on shapes of the model's inputs.
        outputs: tensors made inside and read outside, or outputs of the model, or asked for.
        weights: initializers read inside.
    """

    start: tuple[str, ...]
    end: tuple[str, ...]
    nodes: tuple[int, ...]
    pulled: tuple[int, ...]
    random: tuple[int, ...]
    inputs: tuple[str, ...]
    shapes: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = field(repr=False)


def between(graph: Graph, start: Sequence[str], end: Sequence[str]) -> Region:
    """The region of all nodes on a path from a start to an end, both included.

    `start` and `end` are selectors (`Graph.select`). An empty `start` means the model's inputs, an empty `end` its
    outputs, those of them that a path joins. Complexity: linear in the nodes above the ends and the edges around them.

    Raises:
        UnknownName, UsageError: a selector means nothing or several things.
        NoRegion: a start or an end lies on no path; says how the two stand to each other.
        ModelError: the graph is no DAG, or a tensor of the region comes from nowhere.
    """
    if graph.made_twice:
        name, one, two = graph.made_twice[0]
        raise ModelError(
            f"tensor '{name}' is made twice, by {graph.label(one)} and {graph.label(two)}",
            f"subcut inspect {graph.path.name}",
        )
    starts = [graph.select(text) for text in start] or [
        Selection(name, tuple(nodes), name) for name, nodes in graph.readers_of(graph.inputs).items()
    ]
    ends = [_end(graph, text) for text in end] or [
        Selection(name, (graph.maker[name],), name) for name in graph.outputs if name in graph.maker
    ]
    if not starts or not ends:
        what = "reads an input" if not starts else "makes an output"
        raise NoRegion(f"no node {what} of {graph.path.name}", "name a node with --start and one with --end")
    seeds = {i for s in starts for i in s.nodes}
    floor = min((graph.rank[i] for i in seeds), default=0)  # nothing above the first start can lie below a start
    inside = _reached(graph, seeds, graph.ancestors((i for s in ends for i in s.nodes), floor))
    for s in starts if start or not inside else ():
        if not inside.intersection(s.nodes):
            raise _no_path(graph, s, ends[0])
    for e in ends if end or not inside else ():
        if not inside.intersection(e.nodes):
            raise _no_path(graph, starts[0], e)
    starts, ends = ([s for s in chosen if inside.intersection(s.nodes)] for chosen in (starts, ends))
    region = of_nodes(graph, inside, [_asked(graph, e) for e in ends])
    return Region(
        tuple(_shown(graph, s) for s in starts),
        tuple(_shown(graph, e) for e in ends),
        *(getattr(region, name) for name in list(Region.__dataclass_fields__)[2:]),
    )


def _shown(graph: Graph, s: Selection) -> str:
    if s.tensor in graph.inputs or len(s.nodes) != 1:
        return s.text
    return graph.label(s.nodes[0])


def _end(graph: Graph, text: str) -> Selection:
    selection = graph.select(text)
    if selection.tensor in graph.inputs:
        raise NoRegion(f"end '{text}' is an input of the model: nothing comes before it", "did you mean it as --start?")
    return selection


def _asked(graph: Graph, end: Selection) -> tuple[str, ...]:
    """Tensors that the region must give because of this end."""
    return (end.tensor,) if end.tensor else tuple(name for i in end.nodes for name in graph.makes[i])


def _reached(graph: Graph, seeds: set[int], within: set[int]) -> set[int]:
    """Nodes of `within` that are a seed or read what such a node makes."""
    reached = seeds & within
    for i in graph.in_order(within):
        if i not in reached and any(b in reached for b in graph.predecessors(i)):
            reached.add(i)
    return reached


def above(graph: Graph, tensors: Iterable[str]) -> Region:
    """All that it takes to compute `tensors` from the model's inputs, random nodes included."""
    made = tuple(name for name in tensors if name in graph.maker)
    nodes = graph.ancestors(graph.maker[name] for name in made)
    return of_nodes(graph, nodes, [(name,) for name in made], keep_random=True)


def of_nodes(
    graph: Graph, nodes: Iterable[int], asked: Iterable[tuple[str, ...]] = (), *, keep_random: bool = False
) -> Region:
    """The region that consists of these nodes; it need not be connected or convex.

    `asked` are groups of tensors made inside that must leave even if nobody outside reads them: of each group those
    that are read at all, or all where none is (a Dropout's unused mask is left out, a lone end's outputs are not).

    Raises:
        ModelError: a tensor that a node reads is made by nobody.
        NoRegion: only random nodes are left.
    """
    inside = set(nodes)
    random = inside & graph.random_nodes if not keep_random else set()
    inside -= random
    if random and not inside:
        raise NoRegion(
            "nothing to cut: every node between draws random numbers, which are captured, never copied",
            "move --end further down",
        )
    made = {name for i in inside for name in graph.makes[i]}
    entering = dict.fromkeys(name for i in graph.in_order(inside) for name in graph.reads[i] if name not in made)
    inputs: list[str] = []
    shapes: list[str] = []
    weights: dict[str, None] = {}
    makers: set[int] = set()  # of constants
    kinds = graph.kinds(name for name in entering if name in graph.maker)
    for name in entering:
        if graph.is_weight(name):
            weights[name] = None
        elif name in graph.inputs:
            inputs.append(name)
        elif name not in graph.maker:
            raise _from_nowhere(graph, name)
        elif kinds[name] == CONSTANT:
            makers.add(graph.maker[name])
        else:
            (shapes if kinds[name] == SHAPE else inputs).append(name)
    pulled = graph.ancestors(makers)
    for i in pulled:
        weights.update(dict.fromkeys(n for n in graph.reads[i] if n not in graph.maker))
    return Region(
        start=(),
        end=(),
        nodes=tuple(graph.in_order(inside)),
        pulled=tuple(graph.in_order(pulled - inside)),
        random=tuple(graph.in_order(random)),
        inputs=tuple(inputs),
        shapes=tuple(shapes),
        outputs=_leaving(graph, inside, made, asked),
        weights=tuple(sorted(weights)),
    )


def _leaving(graph: Graph, inside: set[int], made: set[str], asked: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    leaving = made.intersection(graph.outputs)
    if (readers := graph.index_if_built("readers")) is not None:
        leaving.update(n for n in made if any(i not in inside for i in readers.get(n, ())))
    else:
        for i, names in enumerate(graph.reads):
            if not made.isdisjoint(names) and i not in inside:
                leaving |= made.intersection(names)
    read = leaving.union(*(graph.reads[i] for i in inside))
    for group in asked:
        leaving.update([name for name in group if name in read] or group)
    return tuple(name for i in graph.in_order(inside) for name in graph.makes[i] if name in leaving)


def _from_nowhere(graph: Graph, name: str) -> ModelError:
    reader = graph.label(graph.readers_of((name,))[name][0])
    return ModelError(
        f"tensor '{name}', read by {reader}, is made by no node and is no input or weight",
        f"subcut inspect {graph.path.name}",
    )


def _no_path(graph: Graph, start: Selection, end: Selection) -> NoRegion:
    """How the two stand to each other, where no path leads from start to end."""
    below_end = graph.descendants(end.nodes)
    if below_end.intersection(start.nodes):
        between_them = below_end & graph.ancestors(start.nodes)
        away = len(between_them) - 1
        return NoRegion(
            f"end '{end.text}' is not downstream of start '{start.text}' "
            f"(it comes {away} node{'s' * (away != 1)} earlier; swap them?)",
            f"--start {end.text} --end {start.text}",
        )
    meet = below_end & graph.descendants(start.nodes)
    what = f"no path leads from start '{start.text}' to end '{end.text}'"
    if meet:
        first = graph.label(min(meet, key=graph.rank.__getitem__))
        return NoRegion(f"{what}; both lead to '{first}'", f"--start {start.text} --end {first} holds that join")
    return NoRegion(f"{what}, and they meet nowhere below", "name two nodes of one branch")
