"""Graph → types of its tensors without running it: as declared in the model, or as inferred by onnx.

The inference works on a copy of the model without its weights. There each node is named after its index (`#17`), so
that error messages identify it, and the nodes are in topological order, because onnx passes over them once.

To compute shapes, onnx can track the values of 1-D tensors (data propagation), 140 bytes per element: where that
takes too much time or memory, as for a sound of 10⁹ samples, the types are those that need no values.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.onnx_process import OnnxError, OnnxProcess
from subgraph.graph.operators import type_text
from subgraph.graph.opsets import canonical_domain, imported, opset_of, schema
from subgraph.graph.walk import all_nodes, assign

FIRST_TRACKED_OPSET = 5  # before it Reshape had no shape input, and no operator's output shape depended on values

Errors: TypeAlias = dict[tuple[int, str], None]  # ordered set of (node, message) of one inference


@dataclass(frozen=True)
class Complaint:
    """An error that shape inference reports at a node; `certain` if also without tracking values."""

    node: int
    text: str
    certain: bool


@dataclass(frozen=True)
class InferredTypes:
    """Types of a model's tensors as far as they are known without running it.

    Attributes:
        declared: types in the model: of inputs, outputs and value_info.
        inferred: types of node outputs that shape inference found or completed.
        graph: a sorted copy of the graph in onnx's own classes, with inferred types in its bodies as well; each node,
            also in a body, is named after the index of its top-level node: `#17`.
        complaints: errors that the inference reported.
    """

    declared: dict[str, protobuf.TypeProto]
    inferred: dict[str, protobuf.TypeProto]
    graph: protobuf.GraphProto
    complaints: list[Complaint]

    def type_of(self, tensor: str) -> protobuf.TypeProto | None:
        """The inferred type, which completes the declared one; else the declared type; None if unknown."""
        return self.inferred.get(tensor, self.declared.get(tensor))


def infer_types(graph: Graph) -> InferredTypes:
    """Declared and inferred types; weights stay on disk. Complexity: linear in the nodes.

    Raises:
        ModelError: onnx takes too much time or memory for it, or crashes.
    """
    model = protobuf.to_onnx(graph.model, graph.path)
    for i, node in enumerate(model.graph.node):
        for inner in all_nodes([node]):
            inner.name = f"#{i}"
    _sort(graph, model.graph)
    known = imported(model)
    for domain in first_users(graph):
        if domain not in known:  # otherwise inference gives up on the whole model
            model.opset_import.add(domain=domain, version=1)
    for sparse in model.graph.sparse_initializer:  # inference mistakes the list of values for the tensor
        tensor = model.graph.input.add(name=sparse.values.name).type.tensor_type
        tensor.elem_type = sparse.values.data_type
        for size in sparse.dims:
            tensor.shape.dim.add(dim_value=size)
    model.graph.ClearField("sparse_initializer")
    declared = graph.declared_types()
    _write_defaults(model)
    with OnnxProcess(graph.path) as onnx:
        model, complaints = infer_model(model, onnx)
    inferred = {v.name: v.type for v in (*model.graph.value_info, *model.graph.output) if type_text(v.type)}
    return InferredTypes(declared, inferred, model.graph, complaints)


def first_users(graph: Graph) -> dict[str, int]:
    """Domain → index of the first node that uses it, itself or in a body."""
    first: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for inner in all_nodes([node]):
            first.setdefault(canonical_domain(inner.domain), i)
    return first


def _sort(graph: Graph, copy: protobuf.GraphProto) -> None:
    """Sort the nodes of the copy topologically. Those of a graph with a cycle stay as they are."""
    try:
        order = graph.in_order(range(len(graph.nodes)))
    except ModelError:
        return
    if order != list(range(len(order))):
        assign(copy.node, [copy.node[i] for i in order])


def _write_defaults(model: protobuf.ModelProto) -> None:
    """Add omitted attributes to nodes whose types onnx infers through the function body of their operator.

    There onnx does not apply defaults: MeanVarianceNormalization without axes would be an error.
    """
    versions = imported(model)
    for node in all_nodes(model.graph.node):
        domain = canonical_domain(node.domain)
        if defaults := _defaults(domain, node.op_type, versions.get(domain, 0)):
            present = {a.name for a in node.attribute}
            node.attribute.extend(default for default in defaults if default.name not in present)


@cache
def _defaults(domain: str, op: str, version: int) -> tuple[Any, ...]:
    """Default attributes, as AttributeProtos, of an operator that has a function body and no inference of its own."""
    known = schema(op, version, domain)
    if known is None or not known.has_function or known.has_type_and_shape_inference_function:
        return ()
    return tuple(a.default_value for a in known.attributes.values() if a.default_value.name)


def infer_model(model: protobuf.ModelProto, onnx: OnnxProcess) -> tuple[protobuf.ModelProto, list[Complaint]]:
    """The model with inferred types, as far as onnx finds them, and the errors that it reports.

    An error that appears only while values are tracked (`data_prop`) does not count against the model: runtimes load
    it, and a run will show.
    """
    inferred, certain = _infer(onnx, model, track=False)
    errors = certain
    if opset_of(model, 0) >= FIRST_TRACKED_OPSET:
        with contextlib.suppress(ModelError):
            inferred, errors = _infer(onnx, model, track=True)
    return inferred, [Complaint(i, text, (i, text) in certain) for i, text in errors]


def _infer(onnx: OnnxProcess, model: protobuf.ModelProto, *, track: bool) -> tuple[protobuf.ModelProto, Errors]:
    """One inference; if it stops at an error, a second one that ignores errors."""
    try:
        return onnx.infer_shapes(model, strict=True, track=track), {}
    except OnnxError as e:
        errors = _parse_errors(str(e))
    try:
        return onnx.infer_shapes(model, track=track), errors
    except OnnxError:
        return model, errors


def _parse_errors(message: str) -> Errors:
    """(node, text) per line of an inference error, without the prefixes of enclosing nodes."""
    errors: Errors = {}
    for line in message.splitlines():
        if at := re.search(r"node name: #(\d+)\)", line):
            errors[int(at[1]), re.split(r"\(op_type:[^()]*\): ", line)[-1].strip()] = None
    return errors
