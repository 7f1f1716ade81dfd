"""Selectors of nodes in a body -> the graph of the body and its inputs, for use as any model."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from subgraph.bodies.iterations import Iteration, run_iterations
from subgraph.bodies.model import Body, BodyName, iterates, open_body, split
from subgraph.errors import UsageError
from subgraph.graph import graph as graphs, protobuf
from subgraph.graph.cut import list_boundary_types
from subgraph.graph.graph import Graph
from subgraph.graph.selection import is_tensor
from subgraph.graph.value_types import find_common_type, find_declared_types, find_value_infos
from subgraph.log import log
from subgraph.origins.converted import convert_once
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference import Reference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage.digest import Part
from subgraph.text import clean, count
from subgraph.types import Strings, frozen


@frozen
class Inside:
    """A body as a graph.

    Attributes:
        names: The selectors, in the names of its graph; "" for all of it.
        feeding: A sample per iteration and sample of the model; None if nothing was run.
        runs: The iterations of these samples.
    """

    graph: Graph
    names: Strings
    feeding: Feeding | None
    runs: tuple[Iteration, ...] = ()


def descend(
    graph: Graph, names: Sequence[str], feeding: Feeding, reference: Reference | None, scratch: Path
) -> Inside | None:
    """Return the body that selectors are about; None if they are about `graph` itself.

    Args:
        graph: The graph.
        names: The selectors.
        feeding: The inputs of the graph.
        reference: The reference; without one, nothing is run.
        scratch: A folder for values.

    Raises:
        UnknownName: no such body.
        UsageError: no such iteration, or the selectors are about several graphs.
        InputError: the body does not run for the inputs.
        ModelError: the reference cannot run it.
    """
    inside: Inside | None = None
    while found := _split_common_body(graph, names):
        body = open_body(graph, found[0])
        text = found[0].text
        if reference is None:
            inside = Inside(_make_declared_graph(body), (), None)
        else:
            values = ReferenceValues(
                graph, reference, feeding.plan(graph, graph.inputs), _make_folder(scratch)
            )
            inside = run_body(body, values, _make_folder(scratch), feeding)
        inside = replace(
            inside, names=tuple(_strip_body(body, inside.graph, rest) for rest in found[1])
        )
        graph = inside.graph
        names = inside.names
        feeding = inside.feeding or feeding
        log.info("inside %s: %s", clean(text), count(graph.nodes, "node"))
    return inside


def enter_body(graph: Graph, names: Sequence[str]) -> tuple[Body, Inside] | None:
    """Return the body of `graph` that selectors are about, which is not run; None for `graph`.

    Raises: as `descend`.
    """
    found = _split_common_body(graph, names)
    if found is None:
        return None
    body = open_body(graph, found[0])
    inner = _make_declared_graph(body)
    return body, Inside(inner, tuple(_strip_body(body, inner, rest) for rest in found[1]), None)


def run_body(
    body: Body,
    values: ReferenceValues,
    scratch: Path,
    feeding: Feeding,
    samples: Sequence[int] | None = None,
) -> Inside:
    """Return a body with its inputs in the iterations that its name selects.

    Args:
        body: The body.
        values: The values of the graph around it.
        scratch: A folder for values.
        feeding: The feeding of that graph.
        samples: Indices of its samples; None for all.

    Raises:
        InputError: the body does not run for the inputs.
        ModelError: the reference cannot run it.
    """
    runs = run_iterations(body, values, body.name.iteration, scratch, samples)
    feeds = [run.feeds for run in runs]
    ends = [{**run.results, **run.feeds} for run in runs]
    types = {name: find_common_type([records[name] for records in ends]) for name in ends[0]}
    inside = write_body(body.model(types), body.graph)
    origins = tuple(_describe_origin(body, run) for run in runs)
    labels = []
    for run in runs if len(runs) > 1 else ():
        # iteration_3, or cat_iteration_3 for one sample of several
        own = values.labels[run.sample] if len(values.labels) > 1 else ""
        number = f"iteration_{run.number}" if iterates(body.graph, body.name.node) else ""
        labels.append("_".join(filter(None, (own, number))))
    feeding = replace(feeding, records=tuple(feeds), origins=origins, labels=tuple(labels))
    return Inside(inside, (), feeding, tuple(runs))


def _describe_origin(body: Body, run: Iteration) -> str:
    name = body.name.text.removesuffix(f"@{body.name.iteration}")
    fed = f"what {name} is fed"
    return f"{fed} in iteration {run.number}" if iterates(body.graph, body.name.node) else fed


def _split_common_body(graph: Graph, names: Sequence[str]) -> tuple[BodyName, Strings] | None:
    """Return the body that starts all selectors, and the rest of each.

    Raises:
        UsageError: they are about several graphs.
    """
    found = [split(graph, name) for name in names]
    bodies = {f[0].text if f else "" for f in found}
    if not bodies - {""}:
        return None
    if len(bodies) > 1:
        one, other = sorted(bodies)[:2]
        where = f"in {one}" if one else "in the graph around"
        raise UsageError(
            f"one node is {where}, another in {other}: a piece is in one graph",
            "name nodes of one body",
            code="region.two-graphs",
        )
    (name, _), *_ = filter(None, found)
    return name, tuple(f[1] for f in found if f)


def _strip_body(body: Body, graph: Graph, rest: str) -> str:
    """Return a selector in the names of the body's own graph: the full name of a node, or a tensor.

    `#3` and `Conv@2` count the nodes of the body, to which its graph may add constants of the graph
    around it. "" selects all.
    """
    nodes = body.proto.node
    place = None
    if m := re.fullmatch(r"#(\d{1,9})", rest):
        place = int(m[1])
    elif m := re.fullmatch(r"(\w+)@([1-9]\d{0,8})", rest):
        same = [k for k, node in enumerate(nodes) if node.op_type == m[1]]
        place = same[int(m[2]) - 1] if int(m[2]) <= len(same) else None
    if place is not None and place < len(nodes):
        return graph.label(len(graph.nodes) - len(nodes) + place)
    whole = f"{body.name.text}/{rest}" if rest else ""
    has_tensor = whole not in graph.node_names and is_tensor(graph, rest)
    return rest if has_tensor or rest.startswith("tensor:") else whole


def _make_declared_graph(body: Body) -> Graph:
    """Return the body as a graph with the declared types."""
    graph = body.graph
    outer = [n for n in body.outer if n not in graph.inputs]
    types = list_boundary_types(graph, outer, [], find_value_infos(graph, outer))
    return write_body(body.model(types | find_declared_types(graph, body.outer)), graph)


def write_body(model: protobuf.ModelProto, graph: Graph) -> Graph:
    """Write a part of `graph` into the user's cache, under the name of its file, and load it.

    Raises:
        DataError: the bytes of a weight cannot be read.
        OutputError: nothing can be written.
    """
    large = list(filter(protobuf.is_on_disk, model.graph.initializer))
    weights = protobuf.digest_weights(large, graph.path)
    name = graph.path.name
    depends: list[Part] = ["body/1", name, model.SerializeToString(deterministic=True), weights]

    def write(path: Path) -> None:
        protobuf.write(model, graph.path, path, external=False)

    return graphs.load(convert_once(depends, name, write))


def _make_folder(scratch: Path) -> Path:
    scratch.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=scratch))
