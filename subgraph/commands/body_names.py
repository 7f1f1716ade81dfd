"""Names of nodes in bodies, as they are typed -> the graph that a command works on, and what it is
fed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from subgraph.errors import UsageError
from subgraph.graph.graph import Graph
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.text import clean, count
from subgraph.types import Strings


@contextmanager
def opened(
    graph: Graph,
    names: Sequence[str],
    feeding: Feeding,
    reference: Reference | None,
    output: Path,
    score: object = None,
) -> Iterator[tuple[Graph, Feeding, Strings]]:
    """(graph, feeding, names) for this block: of the body that the names are in, else as they are.

    Raises: as `bodies.descend.descend`; UsageError: there is a body, and a `score`, which judges
    the model's outputs.
    """
    if not any("/" in name for name in names):
        yield graph, feeding, tuple(names)
        return
    from subgraph.bodies.descend import descend
    from subgraph.storage import folders

    with folders.scratch(output) as scratch:
        inside = descend(graph, names, feeding, reference, scratch)
        if inside is None:
            yield graph, feeding, tuple(names)
        elif score:
            raise UsageError(
                "a score judges the model's outputs, and these nodes are inside a body",
                "without --score",
                code="body.score",
            )
        else:
            yield inside.graph, inside.feeding or feeding, inside.names


def bodies(graph: Graph) -> list[str]:
    """Each body of the graph's nodes, as it is named, with its size."""
    from subgraph.bodies.name import attributes, holds_bodies

    named = list[str]()
    for i in range(len(graph.nodes)):
        if holds_bodies(graph, i):
            named += [
                f"{clean(graph.label(i))}/{clean(name)} ({count(len(body.node), 'node')})"
                for name, body in attributes(graph, i).items()
            ]
    return named
