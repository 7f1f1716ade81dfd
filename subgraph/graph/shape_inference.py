"""Graph -> the types of its tensors, as far as they can be known without running: declared, or inferred by onnx.

Nodes are renamed to their index for the inference, so that its messages tell which of them is meant; they are sorted,
because it goes through them once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from subgraph.errors import ModelError
from subgraph.graph import lengths, protobuf
from subgraph.graph.graph import Graph, bodies
from subgraph.graph.operators import type_text

ROUNDS = 8  # inferences; each learns the lengths that hang on those that the one before has learned

Said: TypeAlias = dict[tuple[int, str], None]  # (node, what is wrong) of one inference, in order


@dataclass(frozen=True)
class Complaint:
    """What shape inference says about a node; `certain` if it needs no computed shapes for that."""

    node: int
    text: str
    certain: bool


@dataclass(frozen=True)
class InferredTypes:
    """What is known of the tensors' types without running.

    Attributes:
        declared: types in the model: of inputs, outputs and value_info.
        inferred: types of all that nodes make, as onnx's shape inference finds or completes them.
        graph: a copy of the graph in onnx's own classes, in order, with the inferred types in its bodies as well;
            each node is called by its index, `#17`.
        complaints: of the inference.
    """

    declared: dict[str, protobuf.TypeProto]
    inferred: dict[str, protobuf.TypeProto]
    graph: protobuf.GraphProto
    complaints: list[Complaint]

    def type_of(self, tensor: str) -> protobuf.TypeProto | None:
        """The inferred type, which completes the declared one, else that; None if nobody knows."""
        return self.inferred.get(tensor, self.declared.get(tensor))


def infer_types(graph: Graph) -> InferredTypes:
    """Declared and inferred types; weights stay on disk. Complexity: linear in nodes."""
    model = protobuf.to_onnx(graph.model, graph.path)
    for i, node in enumerate(model.graph.node):
        _rename(node, f"#{i}")
    _sort(graph, model.graph)
    imported = {canonical(o.domain) for o in model.opset_import}
    for domain in first_users(graph):
        if domain not in imported:  # inference gives up on the whole model otherwise
            model.opset_import.add(domain=domain, version=1)
    for sparse in model.graph.sparse_initializer:  # inference takes the list of values for the tensor
        tensor = model.graph.input.add(name=sparse.values.name).type.tensor_type
        tensor.elem_type = sparse.values.data_type
        for size in sparse.dims:
            tensor.shape.dim.add(dim_value=size)
    model.graph.ClearField("sparse_initializer")
    declared = graph.types()
    _give_defaults(model)
    model, complaints = _infer(model)
    found = {v.name: v.type for v in (*model.graph.value_info, *model.graph.output) if type_text(v.type)}
    return InferredTypes(declared, found, model.graph, complaints)


def _rename(node: protobuf.NodeProto, name: str) -> None:
    node.name = name
    for body in bodies(node):
        for inner in body.node:
            _rename(inner, name)


def _sort(graph: Graph, copy: protobuf.GraphProto) -> None:
    """Put the nodes in order: inference goes through them once. Those of a graph with a cycle stay as they are."""
    try:
        order = graph.in_order(range(len(graph.nodes)))
    except ModelError:
        return
    if order != list(range(len(order))):
        nodes = [copy.node[i] for i in order]
        copy.ClearField("node")
        copy.node.extend(nodes)


def _give_defaults(model: protobuf.ModelProto) -> None:
    """Write down the attributes that were left out of nodes whose type is inferred through the body of their operator.

    onnx looks for them there and does not know their defaults: MeanVarianceNormalization without axes.
    """
    versions = {canonical(o.domain): int(o.version) for o in model.opset_import}
    for node in (node for graph in lengths.graphs(model.graph) for node in graph.node):
        missing = _defaults(canonical(node.domain), node.op_type, versions.get(canonical(node.domain), 0))
        if missing:
            given = {a.name for a in node.attribute}
            node.attribute.extend(default for default in missing if default.name not in given)


@cache
def _defaults(domain: str, op: str, version: int) -> tuple[Any, ...]:
    """The attributes that have a default, as protos, of an operator that has a body and no inference of its own."""
    import onnx.defs

    try:
        schema: Any = onnx.defs.get_schema(op, version, domain)
    except (onnx.defs.SchemaError, ValueError, OverflowError, TypeError):
        return ()
    if not schema.has_function or schema.has_type_and_shape_inference_function:
        return ()
    return tuple(a.default_value for a in schema.attributes.values() if a.default_value.name)


def _infer(model: protobuf.ModelProto) -> tuple[protobuf.ModelProto, list[Complaint]]:
    """The model with inferred types, as far as they can be had, and what the inference complains about.

    What it complains about only when it computes shapes as well (`data_prop`) is not held against the model: runtimes
    load it, and the run will tell.
    """
    plain, certain = _checked(model, values=False)
    versions = [o.version for o in model.opset_import if not canonical(o.domain)]
    found, seen = (plain, certain) if max(versions, default=0) < lengths.FIRST else _with_values(model, plain)
    return found, [Complaint(i, text, (i, text) in certain) for i, text in seen]


def _with_values(model: protobuf.ModelProto, plain: protobuf.ModelProto) -> tuple[protobuf.ModelProto, Said]:
    """The same where shapes are computed; `plain`: what is known without. No long tensor's values are followed."""
    hidden = lengths.unsure(plain) | dict.fromkeys(lengths.long(plain), lengths.ONE)
    for _ in range(ROUNDS):
        if not hidden:
            return _checked(model, values=True)
        found, seen = _checked(lengths.hide(model, hidden), values=True)
        before, hidden = hidden, lengths.learned(found, hidden)
        if before == hidden:
            break
    lengths.show(found, plain)
    return found, seen


def _checked(model: protobuf.ModelProto, values: bool) -> tuple[protobuf.ModelProto, Said]:
    """One inference; where it stops at a mistake, once more without looking for any."""
    from onnx.shape_inference import InferenceError, infer_shapes

    wrong = InferenceError, ValueError, RuntimeError
    try:
        return infer_shapes(model, strict_mode=True, data_prop=values), {}
    except wrong as e:
        said = dict.fromkeys(_complaints(str(e).replace(lengths.RAW, "")))
    try:
        return infer_shapes(model, data_prop=values), said
    except wrong:
        return model, said


def _complaints(message: str) -> list[tuple[int, str]]:
    """(node, what) per line of an inference error, the outer nodes' prefixes left out."""
    found = []
    for line in message.splitlines():
        at = re.search(r"node name: #(\d+)\)", line)
        if at:
            found.append((int(at[1]), re.split(r"\(op_type:[^()]*\): ", line)[-1].strip()))
    return found


def first_users(graph: Graph) -> dict[str, int]:
    """Domain → the first node that uses it, bodies included."""
    first: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        stack = [node]
        while stack:
            inner = stack.pop()
            first.setdefault(canonical(inner.domain), i)
            if inner.attribute:
                stack += [n for body in bodies(inner) for n in body.node]
    return first


def canonical(name: str) -> str:
    """`ai.onnx` is another name of the standard domain."""
    return "" if name == "ai.onnx" else name
