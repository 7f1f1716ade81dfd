"""A body, or a function at one of its calls, as a model of its own.

Its inputs are what the node hands it in each iteration (`formals`) and what it reads from the graph
around it; weights and constants from there come along. Its nodes are called as the user selects
them: `loop1/body/conv`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from subgraph.bodies.name import BodyName, attributes, calls_function
from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.cut import GRAPH_PARTS, MODEL_PARTS, add_functions, add_weight, copy_without
from subgraph.graph.graph import CONSTANT, Graph
from subgraph.graph.nested import all_nodes, assign, free_names, operator, tensors_in
from subgraph.types import Fields, Strings

if TYPE_CHECKING:
    from subgraph.graph.protobuf import GraphProto, ModelProto, NodeProto, TypeProto

LISTED = 4  # first version of the file format in which a weight need not be an input, too


@dataclass(frozen=True)
class Body:
    """The graph inside a node.

    Attributes:
        proto: the graph; of a function, its nodes with the attributes of the call.
        formals: names of its inputs, in order.
        outer: tensors that it reads from the graph around it and that are computed there, in order.
        results: names of its outputs, in order; some may be equal.
    """

    graph: Graph
    name: BodyName
    proto: GraphProto
    formals: Strings
    outer: Strings
    results: Strings
    constants: Strings

    def model(self, types: Mapping[str, TypeProto]) -> ModelProto:
        """The body as a model in the class `protobuf.reading_class()`, with large weights as stubs
        into the source.

        `types`: of its inputs and outputs, as far as they are known. Complexity: linear in the
        body.

        Raises:
            DataError: the bytes of a weight cannot be read.
        """
        graph = self.graph
        model = copy_without(graph.model, MODEL_PARTS)
        model.ir_version = max(model.ir_version, LISTED)
        out = model.graph
        out.MergeFrom(copy_without(self.proto, GRAPH_PARTS))
        pulled, weights = self._constants()
        own = {t.name for t in self.proto.initializer}
        for name in weights:
            if name not in own:
                add_weight(graph, name, out)
        out.initializer.extend(t for t in self.proto.initializer if t.name not in self.formals)
        out.sparse_initializer.extend(self.proto.sparse_initializer)
        out.node.extend(graph.nodes[i] for i in pulled)
        out.node.extend(self.proto.node)
        _name_nodes(out.node[len(pulled) :], self.name.text)
        sparse = (part for s in out.sparse_initializer for part in (s.values, s.indices))
        protobuf.load_all((*sparse, *tensors_in(out.node)), graph.path)
        self._declare(out, types)
        out.quantization_annotation.extend(self.proto.quantization_annotation)
        add_functions(graph, out.node, model)
        self._import_opsets(model)
        return model

    def _constants(self) -> tuple[list[int], list[str]]:
        """Nodes of the graph around that make constants which are read here; the weights that these
        and we read."""
        graph = self.graph
        makers = graph.ancestors(graph.maker[n] for n in self.constants if n in graph.maker)
        read = [n for n in graph.iter_inputs(makers) if n not in graph.maker]
        weights = dict.fromkeys(n for n in (*self.constants, *read) if graph.is_weight(n))
        return graph.in_order(makers), list(weights)

    def _declare(self, out: GraphProto, types: Mapping[str, TypeProto]) -> None:
        declared = {v.name: v for v in self.proto.input}
        for name in dict.fromkeys((*self.formals, *self.outer)):
            info = out.input.add(name=name)
            if name in declared:
                info.CopyFrom(declared[name])
            if name in types:
                info.ClearField("type")
                info.type.MergeFromString(types[name].SerializeToString())
        ends = {v.name: v for v in self.proto.output}
        for name in dict.fromkeys(self.results):
            info = out.output.add(name=name)
            if name in ends:
                info.CopyFrom(ends[name])
            if name in types and not info.type.WhichOneof("value"):
                info.type.MergeFromString(types[name].SerializeToString())
        out.value_info.extend(self.proto.value_info)

    def _import_opsets(self, model: ModelProto) -> None:
        """A function has versions of operators of its own."""
        function = self.graph.functions.get(operator(self.graph.nodes[self.name.node]))
        if self.name.attribute or function is None:  # a damaged file's body may have no name
            return
        versions = {o.domain: o.version for o in (*model.opset_import, *function.opset_import)}
        del model.opset_import[:]
        for domain, version in versions.items():
            model.opset_import.add(domain=domain, version=version)


def open_body(graph: Graph, name: BodyName) -> Body:
    """The body of that name, to be run.

    Raises:
        ModelError: a node in it draws random numbers, so that no run repeats it.
    """
    i = name.node
    if i in graph.random_nodes:
        raise ModelError(
            f"{graph.label(i)} ({graph.ops[i]}) draws random numbers inside: no run repeats its"
            " values",
            f"cut around it: --start {graph.label(i)} --end {graph.label(i)}",
            code="body.random",
        )
    return look_into(graph, name)


def look_into(graph: Graph, name: BodyName) -> Body:
    """The body of that name, to be looked at: no run may repeat its values."""
    i = name.node
    proto = (
        _expand_call(graph, i) if calls_function(graph, i) else attributes(graph, i)[name.attribute]
    )
    read = free_names(proto) if name.attribute else []
    made = [n for n in read if n in graph.maker]
    constant = {n for n, kind in graph.kinds(made).items() if kind == CONSTANT}
    constant |= {n for n in read if graph.is_weight(n) and n not in graph.maker}
    own = {n for node in proto.node for n in node.output} | {v.name for v in proto.input}
    clash = set(
        graph.iter_outputs(graph.ancestors(graph.maker[n] for n in constant if n in graph.maker))
    )
    if own & clash:  # a constant is computed from one that is called as a tensor in here
        constant -= set(made)
    return Body(
        graph,
        name,
        proto,
        tuple(v.name for v in proto.input),
        tuple(n for n in read if n not in constant),
        tuple(v.name for v in proto.output),
        tuple(n for n in read if n in constant),
    )


def _name_nodes(nodes: Iterable[NodeProto], prefix: str) -> None:
    """Call each node as it is selected from outside: by name, or by number where it has none of its
    own."""
    prefix = prefix if prefix.endswith("/") else f"{prefix}/"
    seen: set[str] = set()
    for k, node in enumerate(nodes):
        label = node.name if node.name and node.name not in seen else f"#{k}"
        seen.add(node.name)
        node.name = prefix + label


# ------------------------------------------------------------ functions


def _expand_call(graph: Graph, i: int) -> GraphProto:
    """The nodes of the function that node `i` calls, with the attributes and the inputs of that
    call."""
    call = graph.nodes[i]
    function = graph.functions[operator(call)]
    proto: GraphProto = protobuf.reading_class("GraphProto")(name=function.name)
    proto.node.extend(function.node)
    given = {a.name: a for a in (*function.attribute_proto, *call.attribute)}
    omitted = {f for k, f in enumerate(function.input) if k >= len(call.input) or not call.input[k]}
    for node in all_nodes(proto.node):
        node.input[:] = ["" if name in omitted else name for name in node.input]
        _bind(node, given)
    for name in function.input:
        if name not in omitted:
            proto.input.add(name=name)
    for name in function.output:
        proto.output.add(name=name)
    declarations: Any = proto.value_info  # bytes in the class that reads models
    declarations.extend(v.SerializeToString() for v in function.value_info)
    return proto


def _bind(node: NodeProto, given: Fields) -> None:
    """Replace references to attributes of the function by their values; one that has none is left
    out."""
    kept = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in given:
                continue
            name = attribute.name
            attribute.CopyFrom(given[attribute.ref_attr_name])
            attribute.name = name
        kept.append(attribute)
    assign(node.attribute, kept)
