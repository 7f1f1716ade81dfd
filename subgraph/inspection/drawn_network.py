"""A graph -> the network that is drawn: names, tensors, their types as text, and the scopes of
PyTorch's exporter."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from subgraph.bodies.parts import Part
from subgraph.drawing.inner import Inner
from subgraph.drawing.network import Network
from subgraph.errors import InputError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.value_types import read_type
from subgraph.inspection.sizes import known_dims
from subgraph.inspection.weights import weight_notes
from subgraph.storage.tensors import shape_text
from subgraph.types import Strings

# metadata of a node: a list of the scopes around it, its own name last
SCOPES = "pkg.torch.onnx.name_scopes"


def network(graph: Graph, prefix: str = "", sizes: Mapping[str, int] | None = None) -> Network:
    """Return what a drawing shows of a model; bodies of If, Loop and Scan count to their node.

    Args:
        graph: The model.
        prefix: The start of its nodes' names, which is left out.
        sizes: The sizes of symbols in shapes, as far as they are known.
    """
    types = graph.declared_types()
    return Network(
        names=(
            [name.removeprefix(prefix) for name in graph.node_names] if prefix else graph.node_names
        ),
        ops=graph.ops,
        reads=graph.reads,
        makes=graph.makes,
        inputs=tuple(graph.inputs),
        outputs=tuple(graph.outputs),
        types={name: type_text(proto, sizes or {}) for name, proto in types.items()},
        scopes=_scopes(graph.nodes) if not any("/" in n for n in graph.node_names) else (),
    )


def labeled(graph: Graph) -> Network:
    """The same, each node by its label, and without weights, which are not drawn: as small as a
    document needs it."""
    whole = network(graph)
    seen = {*whole.inputs, *chain.from_iterable(whole.makes)}
    return replace(
        whole,
        names=[graph.label(i) for i in range(len(graph.nodes))],
        reads=[[name for name in row if name in seen] for row in whole.reads],
    )


def inner_networks(part: Part) -> dict[int, list[Inner]]:
    """Return the drawn bodies of a part's nodes, by the nodes' indices."""
    return {
        i: [
            Inner(
                found.word,
                found.prefix.removeprefix(part.prefix),
                found.first - part.first,
                found.size,
                network(found.graph, found.prefix),
                inner_networks(found),
                weight_notes(found.graph),
            )
            for found in row
        ]
        for i, row in part.inside.items()
    }


def type_text(proto: protobuf.TypeProto, sizes: Mapping[str, int]) -> str:
    """Return a type as `float32 1×3×?`: a dimension that is computed, or has a generated name, is
    unknown unless the sizes give it."""
    try:
        declared = read_type(proto)
    except InputError:
        return str(proto.WhichOneof("value") or "")
    dims = declared.known_dims
    if dims is None:
        return declared.text
    shape = [None if _is_computed(dim) else dim for dim in known_dims(dims, sizes)]
    return f"{declared.text} {shape_text(shape)}"


def _is_computed(dim: object) -> bool:
    return isinstance(dim, str) and not dim.isidentifier()


def _scopes(nodes: Sequence[protobuf.NodeProto]) -> list[Strings]:
    """Per node, its scopes; empty if no node says any."""
    found = [_scope(node) for node in nodes]
    return found if any(found) else []


def _scope(node: protobuf.NodeProto) -> Strings:
    text = next((p.value for p in node.metadata_props if p.key == SCOPES), "")
    try:
        parts = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    if not isinstance(parts, list):
        return ()
    scopes = []
    before = ""
    for part in map(
        str, parts[:-1]
    ):  # each begins with the one around it: "", "layer1", "layer1.0"
        scopes.append(part.removeprefix(f"{before}.") if before else part)
        before = part
    return tuple(filter(None, scopes))
