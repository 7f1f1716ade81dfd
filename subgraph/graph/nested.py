"""Nodes, graphs, tensors and names of a model at any depth.

If, Loop and Scan hold graphs as attributes: bodies. A holder comes before its content. Functions
are separate graphs, which the caller passes in addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from subgraph.graph.properties import BODY_OPS, HOLDS_TENSOR, PROPERTIES
from subgraph.iterables import drop_repeats, flatten

if TYPE_CHECKING:
    from subgraph.graph.protobuf import GraphProto, ModelProto, NodeProto, TensorProto

FunctionKey: TypeAlias = tuple[str, str, str]  # of a local function: domain, name, overload

# Values of AttributeProto.AttributeType.
GRAPH_ATTRIBUTE = 5
GRAPHS_ATTRIBUTE = 10
# Type → the field of the value.
VALUE_FIELDS = {
    1: "f",
    2: "i",
    3: "s",
    4: "t",
    6: "floats",
    7: "ints",
    8: "strings",
}
LIST_FIELDS = frozenset(("floats", "ints", "strings"))
# Operators that hold no body: their attributes are not looked at.
BODILESS = PROPERTIES.keys() - BODY_OPS


def iter_named_bodies(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield (attribute, graph) of each body of a node, not of those nested deeper; `name[1]` in an
    attribute of several."""
    if node.op_type in BODILESS:
        return
    for a in node.attribute:
        if a.type == GRAPH_ATTRIBUTE or a.HasField("g"):
            yield str(a.name), a.g
        elif a.type == GRAPHS_ATTRIBUTE:
            yield from ((f"{a.name}[{k}]", graph) for k, graph in enumerate(a.graphs))


def list_bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Return the graphs that a node holds as attributes, not those nested deeper."""
    return (graph for _, graph in iter_named_bodies(node))


def iter_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield these nodes, and those in their bodies."""
    for node in nodes:
        yield node
        for body in list_bodies(node):
            yield from iter_nodes(body.node)


def iter_model_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes of a model, also in bodies and local functions."""
    yield from iter_nodes(model.graph.node)
    for function in model.functions:
        yield from iter_nodes(function.node)


def iter_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield the graph, and the bodies in it."""
    yield graph
    for node in graph.node:
        for body in list_bodies(node):
            yield from iter_graphs(body)


def iter_tensors(graph: Any) -> Iterator[TensorProto]:
    """Yield the tensors that a graph or function holds: initializers, and those in attributes of
    its nodes; sparse ones as two."""
    yield from getattr(graph, "initializer", ())
    yield from _iter_parts(getattr(graph, "sparse_initializer", ()))
    yield from iter_attribute_tensors(graph.node)


def iter_attribute_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Yield the tensors in attributes of these nodes, and in their bodies."""
    for node in nodes:
        if node.op_type in BODILESS and node.op_type not in HOLDS_TENSOR:
            continue
        for a in node.attribute:
            yield from (a.t,) if a.HasField("t") else ()
            yield from a.tensors
            yield from _iter_parts((a.sparse_tensor,) if a.HasField("sparse_tensor") else ())
            yield from _iter_parts(a.sparse_tensors)
        for body in list_bodies(node):
            yield from iter_tensors(body)


def _iter_parts(sparse: Iterable[Any]) -> Iterator[TensorProto]:
    for tensor in sparse:
        yield from (tensor.values, tensor.indices)


def get_attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """Value of an attribute: number, text, list or TensorProto; the default if the node has none of
    that name.

    The default, too, for a value of another kind than the default's: no runtime loads such a model.
    None if a function takes it from its caller, or if it has no type.
    """
    for a in node.attribute:
        if a.name == name:
            field = "" if a.ref_attr_name else VALUE_FIELDS.get(a.type, "")
            value: Any = getattr(a, field) if field else None
            value = value.decode(errors="replace") if isinstance(value, bytes) else value
            value = list(value) if field in LIST_FIELDS else value
            if _is_of_another_kind(value, default):
                return default
            return value
    return default


def _is_of_another_kind(value: Any, default: Any) -> bool:
    if value is None or default is None:
        return False
    if isinstance(value, list) and isinstance(default, (list, tuple)):
        return bool(default) and any(_is_of_another_kind(v, default[0]) for v in value)
    return not isinstance(value, type(default))


# ------------------------------------------------------------ functions


def find_function_key(node: NodeProto) -> FunctionKey:
    """Return the key of the local function that a node calls, if the model has it."""
    return node.domain, node.op_type, node.overload


def get_constant_value(node: NodeProto) -> TensorProto | None:
    """Return the attribute `value` of a Constant; None for any other node."""
    if node.op_type != "Constant":
        return None
    return next((a.t for a in node.attribute if a.name == "value"), None)


def list_functions(model: ModelProto) -> dict[FunctionKey, Any]:
    """Return the local functions, in file order."""
    return {(f.domain, f.name, f.overload): f for f in model.functions}


def find_called(
    nodes: Iterable[NodeProto], functions: Mapping[FunctionKey, Any]
) -> set[FunctionKey]:
    """Return the functions that these nodes call, also from bodies and through other functions."""
    called: set[FunctionKey] = set()
    waiting = list(iter_nodes(nodes)) if functions else []
    for node in waiting:  # it grows meanwhile
        key = find_function_key(node)
        if key in functions and key not in called:
            called.add(key)
            waiting += iter_nodes(functions[key].node)
    return called


# ------------------------------------------------------------ names


def list_captured(node: NodeProto) -> list[str]:
    """List the tensors that a node's bodies, at any depth, read from the graph around the node.

    They are in order, each once.
    """
    return drop_repeats(flatten(map(find_free_names, list_bodies(node))))


def find_free_names(body: GraphProto) -> list[str]:
    """Return the tensors that a body, at any depth, reads from the graph around it.

    They are in order, each once.
    """
    own = {v.name for v in (*body.input, *body.initializer)} | {
        s.values.name for s in body.sparse_initializer
    }
    own |= set(flatten(inner.output for inner in body.node))
    return [name for name in dict.fromkeys(iter_read_names(body)) if name and name not in own]


def iter_read_names(graph: GraphProto) -> Iterator[str]:
    """Yield the names that a graph's nodes, with their bodies, and its outputs read; with
    repetitions."""
    for node in graph.node:
        yield from (*node.input, *list_captured(node))
    yield from (v.name for v in graph.output)


def iter_tensor_names(graph: GraphProto) -> Iterator[str]:
    """Yield the names of a graph's own tensors, with repetitions; not those in its bodies."""
    for node in graph.node:
        yield from filter(None, (*node.input, *node.output))
    yield from (part.name for part in _iter_named(graph))


def _iter_named(graph: GraphProto) -> Iterator[Any]:
    """Yield the parts of a graph, except nodes, that have the name of a tensor."""
    yield from (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    yield from (sparse.values for sparse in graph.sparse_initializer)


def rename(graph: GraphProto, tensor: Callable[[str], str], node: Callable[[str], str]) -> None:
    """Rename every tensor and node in a graph and in its bodies; the empty name stays.

    Args:
        graph: The graph.
        tensor: Returns the new name of a tensor; it must be injective.
        node: Returns the new name of a node.
    """
    for each in graph.node:
        if each.name:
            each.name = node(each.name)
        each.input[:] = [name and tensor(name) for name in each.input]
        each.output[:] = [name and tensor(name) for name in each.output]
        for body in list_bodies(each):
            rename(body, tensor, node)
    for part in _iter_named(graph):
        part.name = part.name and tensor(part.name)
    for annotation in graph.quantization_annotation:
        annotation.tensor_name = tensor(annotation.tensor_name)
        for entry in annotation.quant_parameter_tensor_names:
            entry.value = tensor(entry.value)


# ------------------------------------------------------------ changes


def assign(field: Any, elements: Iterable[Any]) -> None:
    """Give a repeated field of messages these elements, some of which it may hold now."""
    copies = [type(e).FromString(e.SerializeToString()) for e in elements]
    del field[:]
    field.extend(copies)
