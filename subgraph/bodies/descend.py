"""Selectors of nodes in a body -> the graph of the body and its inputs.

Commands then use this graph like that of any other model.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from subgraph.bodies.iterations import Iteration, run_iterations
from subgraph.bodies.model import Body, BodyName, is_loop_or_scan, open_body, split_selector
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
class BodyGraph:
    """The graph of a body, with the selectors and the samples for it.

    Attributes:
        graph: The graph of the body.
        names: The selectors, with the node names of that graph; "" selects all nodes.
        feeding: A sample for each run of the body; None if no model was run.
        runs: The run of the body for each of these samples.
    """

    graph: Graph
    names: Strings
    feeding: Feeding | None
    runs: tuple[Iteration, ...] = ()


def descend(
    graph: Graph, names: Sequence[str], feeding: Feeding, reference: Reference | None, scratch: Path
) -> BodyGraph | None:
    """Return the innermost body whose nodes selectors name; None if they name nodes of `graph`.

    Args:
        graph: The graph of the model.
        names: The selectors.
        feeding: The inputs of the model.
        reference: The reference; None if no model is to be run.
        scratch: A folder for values.

    Raises:
        UnknownName: The node has no such body.
        UsageError: There is no such iteration, or the selectors name nodes of several graphs.
        InputError: The body does not run for the inputs.
        ModelError: The reference cannot run the model.
    """
    inside: BodyGraph | None = None
    while common := _split_common_body(graph, names):
        body_name, selectors = common
        body = open_body(graph, body_name)
        if reference is None:
            inside = BodyGraph(_make_declared_graph(body), (), None)
        else:
            values = ReferenceValues(
                graph, reference, feeding.plan(graph, graph.inputs), _make_folder(scratch)
            )
            inside = run_body(body, values, _make_folder(scratch), feeding)
        inside = replace(
            inside, names=tuple(_strip_body(body, inside.graph, rest) for rest in selectors)
        )
        graph = inside.graph
        names = inside.names
        feeding = inside.feeding or feeding
        log.info("inside %s: %s", clean(body_name.text), count(graph.nodes, "node"))
    return inside


def enter_body(graph: Graph, names: Sequence[str]) -> tuple[Body, BodyGraph] | None:
    """Return the body in `graph` whose nodes selectors name; None if they name nodes of `graph`.

    Nothing is run.

    Raises:
        UnknownName: The node has no such body.
        UsageError: There is no such iteration, or the selectors name nodes of several graphs.
        ModelError: A node in the body draws random numbers.
    """
    common = _split_common_body(graph, names)
    if common is None:
        return None
    body = open_body(graph, common[0])
    inner = _make_declared_graph(body)
    return body, BodyGraph(inner, tuple(_strip_body(body, inner, rest) for rest in common[1]), None)


def run_body(
    body: Body,
    values: ReferenceValues,
    scratch: Path,
    feeding: Feeding,
    samples: Sequence[int] | None = None,
) -> BodyGraph:
    """Run a model, and return a body with its inputs in the iterations that its name selects.

    Args:
        body: The body.
        values: The values of the graph around the body.
        scratch: A folder for values.
        feeding: The inputs of that graph.
        samples: Indices of the samples of that graph; None for all.

    Raises:
        InputError: The body does not run for the inputs.
        ModelError: The reference cannot run the model.
    """
    runs = run_iterations(body, values, body.name.iteration, scratch, samples)
    feeds = [run.feeds for run in runs]
    known = [{**run.results, **run.feeds} for run in runs]
    types = {name: find_common_type([records[name] for records in known]) for name in known[0]}
    inside = write_body(body.make_model(types), body.graph)
    origins = tuple(_describe_origin(body, run) for run in runs)
    labels = []
    for run in runs if len(runs) > 1 else ():
        # `iteration_3`; with several samples `cat_iteration_3`
        sample = values.labels[run.sample] if len(values.labels) > 1 else ""
        number = f"iteration_{run.number}" if is_loop_or_scan(body.graph, body.name.node) else ""
        labels.append("_".join(filter(None, (sample, number))))
    feeding = replace(feeding, records=tuple(feeds), origins=origins, labels=tuple(labels))
    return BodyGraph(inside, (), feeding, tuple(runs))


def _describe_origin(body: Body, run: Iteration) -> str:
    name = body.name.text.removesuffix(f"@{body.name.iteration}")
    origin = f"what {name} is fed"
    if is_loop_or_scan(body.graph, body.name.node):
        origin += f" in iteration {run.number}"
    return origin


def _split_common_body(graph: Graph, names: Sequence[str]) -> tuple[BodyName, Strings] | None:
    """Return the body whose name all selectors start with, and the remaining text of each.

    Return None if no selector starts with the name of a body.

    Raises:
        UsageError: The selectors name nodes of several graphs.
    """
    parts = [split_selector(graph, name) for name in names]
    bodies = {part[0].text if part else "" for part in parts}
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
    (name, _), *_ = filter(None, parts)
    return name, tuple(part[1] for part in parts if part)


def _strip_body(body: Body, graph: Graph, rest: str) -> str:
    """Return a selector for `graph`, the graph of a body: the full name of a node, or a tensor.

    `#3` and `Conv@2` in `rest` count the nodes of the body only. `graph` may also have nodes that
    compute constants, copied from the graph around the body. "" selects all nodes.
    """
    nodes = body.proto.node
    position = None
    if m := re.fullmatch(r"#(\d{1,9})", rest):
        position = int(m[1])
    elif m := re.fullmatch(r"(\w+)@([1-9]\d{0,8})", rest):
        positions = [k for k, node in enumerate(nodes) if node.op_type == m[1]]
        position = positions[int(m[2]) - 1] if int(m[2]) <= len(positions) else None
    if position is not None and position < len(nodes):
        return graph.label(len(graph.nodes) - len(nodes) + position)
    full_name = f"{body.name.text}/{rest}" if rest else ""
    has_tensor = full_name not in graph.node_names and is_tensor(graph, rest)
    if has_tensor or rest.startswith("tensor:"):
        return rest
    return full_name


def _make_declared_graph(body: Body) -> Graph:
    """Return the graph of a body that is not run, with the types that the model declares."""
    graph = body.graph
    outer = [n for n in body.outer if n not in graph.inputs]
    types = list_boundary_types(graph, outer, [], find_value_infos(graph, outer))
    return write_body(body.make_model(types | find_declared_types(graph, body.outer)), graph)


def write_body(model: protobuf.ModelProto, graph: Graph) -> Graph:
    """Write the model of a body of `graph` into the user's cache, and load it.

    The file in the cache has the name of the file of `graph`.

    Raises:
        DataError: The bytes of a weight cannot be read.
        OutputError: The file cannot be written.
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
