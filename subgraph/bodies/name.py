"""Names of bodies: `loop1/body@3` is the body of node `loop1` in its iteration 3, `if1/then_branch`
a branch.

Behind it comes a node or tensor of that body, which may hold bodies itself:
`loop1/body@3/if1/then_branch/conv`. A local function is named by a node that calls it:
`call1/conv`. Iterations count from 0; without one it is the first that runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from subgraph.errors import UnknownName, UsageError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import iter_named_bodies, operator
from subgraph.graph.opsets import STANDARD
from subgraph.text import nearest

FIRST, LAST, ALL = "", "last", "all"  # beside numbers, what may stand behind `@`


@dataclass(frozen=True)
class BodyName:
    """A body of a node, or the function that it calls.

    Attributes:
        node: its index in the graph.
        attribute: the attribute that holds the body; "" for a function.
        iteration: a number, `LAST`, `ALL` or `FIRST`.
        text: as the user wrote it.
    """

    node: int
    attribute: str
    iteration: str
    text: str


def split(graph: Graph, text: str) -> tuple[BodyName, str] | None:
    """The body that a selector begins with, and what is left behind it; None for a selector of the
    graph itself.

    Raises:
        UnknownName: the node has no body of that name.
        UsageError: the iteration is no number, or the node does not iterate.
    """
    if "/" not in text or text in graph.maker or text in graph.inputs or text in graph.node_names:
        return None
    ends = [m.start() for m in re.finditer("/", text)]
    for end in reversed(ends):  # names of nodes hold slashes, too: the longest that is a node's
        i = _holder(graph, text[:end])
        if i is not None:
            return _split_at(graph, i, text, end)
    return None


def _holder(graph: Graph, name: str) -> int | None:
    """The node of that name, if it holds bodies or calls a local function."""
    i = graph.names.get(name) if name not in graph.shared_names else None
    if m := re.fullmatch(r"#(\d{1,9})", name):
        i = int(m[1]) if int(m[1]) < len(graph.nodes) else None
    return i if i is not None and holds_bodies(graph, i) else None


def _split_at(graph: Graph, i: int, text: str, end: int) -> tuple[BodyName, str]:
    """`text[:end]` names node `i`; behind it stand a body, or what is in a function."""
    own = attributes(graph, i)
    if not own:
        return BodyName(i, "", FIRST, text[:end]), text[end + 1 :]
    word, _, rest = text[end + 1 :].partition("/")
    name, at, iteration = word.partition("@")
    node = text[:end]
    if name not in own:
        known = ", ".join(f"{node}/{n}" for n in own)
        raise UnknownName(
            f"node '{node}' has no body '{name}'",
            f"it has {known}",
            nearest=nearest(name, own),
            code="body.unknown",
        )
    if at and not re.fullmatch(rf"\d{{1,9}}|{LAST}|{ALL}", iteration):
        raise UsageError(
            f"{text}: no iteration '{iteration}'",
            f"{node}/{name}@0 is the first; or @last, @all",
            code="body.unknown-iteration",
        )
    if at and not iterates(graph, i):
        raise UsageError(
            f"{text}: node '{node}' ({graph.ops[i]}) does not iterate",
            f"{node}/{name}",
            code="body.no-iterations",
        )
    return BodyName(i, name, iteration, f"{text[:end]}/{word}"), rest


def attributes(graph: Graph, i: int) -> dict[str, protobuf.GraphProto]:
    """The bodies of a node by the attribute that holds each."""
    return dict(iter_named_bodies(graph.nodes[i]))


def iterates(graph: Graph, i: int) -> bool:
    """Return whether node `i` is a Loop or a Scan."""
    return graph.ops[i] in ("Loop", "Scan") and graph.nodes[i].domain in STANDARD


def calls_function(graph: Graph, i: int) -> bool:
    """Return whether node `i` is a call of a local function."""
    return operator(graph.nodes[i]) in graph.functions


def holds_bodies(graph: Graph, i: int) -> bool:
    """Return whether node `i` is an If, Loop or Scan, or a call of a local function."""
    if calls_function(graph, i):
        return True
    return (
        graph.ops[i] in ("If", "Loop", "Scan")
        and graph.nodes[i].domain in STANDARD
        and bool(attributes(graph, i))
    )


def bodies_of(graph: Graph, i: int) -> Iterator[str]:
    """The names of a node's bodies as `split` reads them: `loop1/body`; for a call of a function
    `call1/`."""
    label = graph.label(i)
    names = [f"{label}/{name}" for name in attributes(graph, i)]
    yield from names or [f"{label}/"]
