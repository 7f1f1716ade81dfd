"""A model -> all graphs in it, to be looked at: the model's own, and the bodies and called
functions, at any depth."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from subgraph.bodies.model import look_into
from subgraph.bodies.name import FIRST, BodyName, attributes, calls_function, holds_bodies
from subgraph.errors import DataError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.log import log
from subgraph.text import clean

MAX_NODES = 20_000  # in bodies: what is called a thousand times is there a thousand times


@dataclass
class Part:
    """A graph, and where it is.

    Attributes:
        prefix: what the selectors of its nodes begin with; empty for the model.
        word: its name at its node, `then_branch`; `function` for what a node calls.
        first: the number of its first node, when those of the model and of its bodies are counted
            on.
        inside: the bodies of its nodes, by the nodes' indices. size: nodes in it and in these.
    """

    graph: Graph
    prefix: str = ""
    word: str = ""
    first: int = 0
    inside: dict[int, list[Part]] = field(default_factory=dict)
    size: int = 0

    def all(self) -> Iterator[Part]:
        """This part, and all inside of it, in the order of their numbers."""
        yield self
        for row in self.inside.values():
            for part in row:
                yield from part.all()

    def below(self, nodes: Iterable[int]) -> Iterator[int]:
        """The numbers of all nodes in the bodies of these nodes."""
        for i in nodes:
            for part in self.inside.get(i, ()):
                yield from range(part.first, part.first + part.size)


def parts(graph: Graph) -> Part:
    """The model with all that is inside. Nothing is run or written.

    Left out are bodies beyond `MAX_NODES` nodes, and, with a warning, one with a constant that
    cannot be read.
    """
    return _fill(Part(graph), len(graph.nodes) + MAX_NODES)


def find_part(known: Sequence[Part], name: str) -> tuple[Part, str]:
    """The part that a selector of the model is about, and how its graph calls what is selected.

    An iteration in the name (`loop1/body@3/conv`) makes no difference here.
    """
    top = known[0].graph
    if name not in top.maker and name not in top.inputs and name not in top.node_names:
        plain = re.sub(r"@(\d+|last|all)(?=/)", "", name)
        found = max((p for p in known if plain.startswith(p.prefix)), key=lambda p: len(p.prefix))
        if found.prefix:
            return found, plain if plain in found.graph.names else plain.removeprefix(found.prefix)
    return known[0], name


def _fill(part: Part, most: int) -> Part:
    graph = part.graph
    part.size = len(graph.nodes)
    if not graph.functions and not {"If", "Loop", "Scan"}.intersection(graph.ops):
        return part
    for i in range(len(graph.nodes)):
        for name in _names(graph, i) if holds_bodies(graph, i) else ():
            body = look_into(graph, name)
            if part.first + part.size + len(body.proto.node) > most:
                continue
            try:
                model = body.model(graph.declared_types(body.outer))
            except DataError as e:
                log.warning("what is inside %s is not shown: %s", clean(graph.label(i)), e.what)
                continue
            inner = Graph(protobuf.Skeleton(graph.path, model, 0, ""))
            found = Part(
                inner,
                f"{name.text.rstrip('/')}/",
                name.attribute or "function",
                part.first + part.size,
            )
            part.inside.setdefault(i, []).append(_fill(found, most))
            part.size += found.size
    return part


def _names(graph: Graph, i: int) -> list[BodyName]:
    label = graph.label(i)
    if calls_function(graph, i):
        return [BodyName(i, "", FIRST, label)]
    return [
        BodyName(i, attribute, FIRST, f"{label}/{attribute}") for attribute in attributes(graph, i)
    ]
