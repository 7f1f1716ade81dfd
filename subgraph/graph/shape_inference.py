"""Graph → types of its tensors without running it: as declared in the model, or as inferred by onnx.

The inference works on a copy of the model without its weights. There each node is named after its index (`#17`), so
that error messages identify it, and the nodes are in topological order, because onnx passes over them once.

Long tensors are hidden from it. To compute shapes, onnx tracks the values of 1-D tensors and stores each element as a
dimension message of 140 bytes, even where the value is unknown: a sound of 10⁹ samples would take 140 GB. It does so
only if it knows the length, so a Reshape to a shape of unknown values is put behind each long tensor. Values from which
shapes are computed are far shorter, so no type is lost.
"""

from __future__ import annotations

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
from subgraph.graph.walk import all_graphs, all_nodes, assign
from subgraph.storage import dtypes

ROUNDS = 8  # inferences; each finds the lengths that depend on lengths found in the one before

LONG_TENSOR = 1 << 14  # elements; 2 MB while tracked. Values from which shapes are computed are a few dozen
HIDDEN_SUFFIX = "#raw"  # of a tensor's name while it is hidden
HIDING_NODE = "#hides"  # name of the Reshape nodes that hide
RANK_ONE, ANY_RANK = "#one", "#any"  # target shapes of these Reshapes: inputs of unknown value, one element or open
# Operators whose values onnx tracks: those with a data propagation function, 1.18 to 1.22.
TRACKED_OPS = frozenset("Add Cast Concat Gather Mul Slice Squeeze Sub Unsqueeze".split())
# Operators whose output may be a long 1-D tensor whose length is known only while values are tracked → position of the
# input that holds its shape, -1 for none.
LENGTHENING_OPS = {"Range": -1, "ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1, "Squeeze": -1, "Pad": -1}
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
    """Declared and inferred types; weights stay on disk. Complexity: linear in the nodes, times at most `ROUNDS`.

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
    plain, certain = _infer(onnx, model, track=False)
    tracks = opset_of(model, 0) >= FIRST_TRACKED_OPSET
    inferred, errors = _infer_tracking(onnx, model, plain) if tracks else (plain, certain)
    return inferred, [Complaint(i, text, (i, text) in certain) for i, text in errors]


def _infer_tracking(
    onnx: OnnxProcess, model: protobuf.ModelProto, plain: protobuf.ModelProto
) -> tuple[protobuf.ModelProto, Errors]:
    """Inference that tracks values, but of no long tensor; `plain`: the model with types inferred without tracking."""
    hidden = possibly_long(plain) | dict.fromkeys(long_tensors(plain), RANK_ONE)
    for _ in range(ROUNDS):
        if not hidden:
            return _infer(onnx, model, track=True)
        inferred, errors = _infer(onnx, _hide(model, hidden), track=True)
        before, hidden = hidden, _still_hidden(inferred, hidden)
        if before == hidden:
            break
    _restore(inferred, plain)
    return inferred, errors


def _infer(onnx: OnnxProcess, model: protobuf.ModelProto, *, track: bool) -> tuple[protobuf.ModelProto, Errors]:
    """One inference; if it stops at an error, a second one that ignores errors."""
    try:
        return onnx.infer_shapes(model, strict=True, track=track), {}
    except OnnxError as e:
        errors = _parse_errors(str(e).replace(HIDDEN_SUFFIX, ""))
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


# ---------------------------------------------------------------------------------------------------- long tensors


def long_tensors(plain: protobuf.ModelProto) -> set[str]:
    """Tracked tensors that are known to be long, in a model with inferred types. Linear in its nodes."""
    names: set[str] = set()
    for graph in all_graphs(plain.graph):
        names.update(v.name for v in _infos(graph) if _length(v.type) > LONG_TENSOR)
        names.update(t.name for t in graph.initializer if len(t.dims) == 1 and t.dims[0] > LONG_TENSOR)
    return names & _tracked(plain.graph)


def possibly_long(plain: protobuf.ModelProto) -> dict[str, str]:
    """Tracked tensors whose length is not known yet → RANK_ONE or ANY_RANK, to hide them by. Linear in the nodes."""
    types = {v.name: v.type for graph in all_graphs(plain.graph) for v in _infos(graph)}
    sizes = {t.name: t.dims[0] for graph in all_graphs(plain.graph) for t in graph.initializer if len(t.dims) == 1}
    hidden: dict[str, str] = {}
    tracked = _tracked(plain.graph)
    for node in (n for n in all_nodes(plain.graph.node) if n.op_type in LENGTHENING_OPS):
        position = LENGTHENING_OPS[node.op_type]
        shape = node.input[position] if 0 <= position < len(node.input) else ""
        rank = sizes.get(shape, _length(types[shape]) if shape in types else -1)
        name = node.output[0] if node.output else ""
        if rank < 2 and name in tracked and (target := _open_shape(types.get(name))):
            hidden[name] = target
    return hidden


def _infos(graph: protobuf.GraphProto) -> tuple[protobuf.ValueInfoProto, ...]:
    return (*graph.input, *graph.value_info, *graph.output)


def _open_shape(proto: protobuf.TypeProto | None) -> str:
    """RANK_ONE for a 1-D tensor of open length, ANY_RANK for one of unknown rank, "" for any other type."""
    if proto is None or not proto.tensor_type.HasField("shape"):
        return ANY_RANK
    dims = proto.tensor_type.shape.dim
    return RANK_ONE if len(dims) == 1 and not dims[0].HasField("dim_value") else ""


def _length(proto: protobuf.TypeProto) -> int:
    """Length of a 1-D tensor; -1 for other ranks or an open length."""
    dims = proto.tensor_type.shape.dim
    return int(dims[0].dim_value) if len(dims) == 1 and dims[0].HasField("dim_value") else -1


def _tracked(graph: protobuf.GraphProto) -> set[str]:
    return {n for node in all_nodes(graph.node) if node.op_type in TRACKED_OPS for n in node.input if n}


def _hide(model: protobuf.ModelProto, shapes: dict[str, str]) -> protobuf.ModelProto:
    """A copy in which the lengths of these tensors are unknown; name → RANK_ONE or ANY_RANK. Linear in the model."""
    copy = type(model)()
    copy.CopyFrom(model)
    for graph in list(all_graphs(copy.graph)):
        _hide_in(graph, shapes)
    for name in (RANK_ONE, ANY_RANK):
        tensor = copy.graph.input.add(name=name).type.tensor_type
        tensor.elem_type = dtypes.TYPE_NUMBERS["int64"]
        dim = tensor.shape.dim.add()
        if name == RANK_ONE:
            dim.dim_value = 1
    return copy


def _hide_in(graph: protobuf.GraphProto, shapes: dict[str, str]) -> None:
    """Rename these tensors at their source, and Reshape each to its old name, which its readers keep."""
    made = [[v.name for v in (*graph.input, *graph.initializer)], *(list(node.output) for node in graph.node)]
    made = [[name for name in dict.fromkeys(names) if name in shapes] for names in made]
    hidden = {name for names in made for name in names}
    if not hidden:
        return
    for value in (*graph.input, *graph.initializer):
        value.name += HIDDEN_SUFFIX if value.name in hidden else ""
    for info in (*graph.value_info, *graph.output):
        if info.name in hidden:
            info.type.tensor_type.ClearField("shape")
    nodes = list(graph.node)
    graph.ClearField("node")
    for node, names in zip((None, *nodes), made, strict=True):
        if node is not None:
            node.output[:] = [name + HIDDEN_SUFFIX if name in shapes else name for name in node.output]
            graph.node.append(node)
        for name in names:
            inputs = [name + HIDDEN_SUFFIX, shapes[name]]
            graph.node.add(op_type="Reshape", name=HIDING_NODE, input=inputs, output=[name])


def _still_hidden(inferred: protobuf.ModelProto, hidden: dict[str, str]) -> dict[str, str]:
    """The part of `hidden` to hide in the next round as well, by the types inferred in this one."""
    types = {v.name: v.type for graph in all_graphs(inferred.graph) for v in _infos(graph)}
    remaining = {}
    for name, shape in hidden.items():
        proto = types.get(name + HIDDEN_SUFFIX)
        if proto is None:  # of an initializer, or without inferred type
            remaining[name] = shape
        elif target := RANK_ONE if _length(proto) > LONG_TENSOR else _open_shape(proto):
            remaining[name] = target
    return remaining


def _restore(inferred: protobuf.ModelProto, plain: protobuf.ModelProto) -> None:
    """Undo `_hide`; types that could not be inferred meanwhile are taken from `plain`."""
    assign(inferred.graph.input, [v for v in inferred.graph.input if v.name not in (RANK_ONE, ANY_RANK)])
    for graph in all_graphs(inferred.graph):
        _restore_in(graph)
    for graph, twin in zip(all_graphs(inferred.graph), all_graphs(plain.graph), strict=True):
        infos = {v.name: v for v in (*graph.value_info, *graph.output)}
        for info in (*twin.value_info, *twin.output):
            if info.name in infos:
                _complete(infos[info.name].type, info.type)
            else:
                graph.value_info.add().CopyFrom(info)


def _restore_in(graph: protobuf.GraphProto) -> None:
    hidden = {node.output[0] for node in graph.node if node.name == HIDING_NODE}
    assign(graph.node, [node for node in graph.node if node.name != HIDING_NODE])
    for node in graph.node:
        node.output[:] = [name.removesuffix(HIDDEN_SUFFIX) for name in node.output]
    for value in (*graph.input, *graph.initializer):
        value.name = value.name.removesuffix(HIDDEN_SUFFIX)
    raw = {v.name.removesuffix(HIDDEN_SUFFIX): v for v in graph.value_info if v.name.endswith(HIDDEN_SUFFIX)}
    for info in graph.output:
        if info.name in raw:
            _complete(info.type, raw[info.name].type)
    outputs = {v.name for v in graph.output}
    kept = [v for v in graph.value_info if v.name not in hidden and not v.name.endswith(HIDDEN_SUFFIX)]
    assign(graph.value_info, kept)
    for name, info in raw.items():
        if name not in outputs:
            graph.value_info.add(name=name, type=info.type)


def _complete(proto: protobuf.TypeProto, other: protobuf.TypeProto) -> None:
    """Add to the type of a tensor what another type of the same tensor knows."""
    lacks_shape = proto.HasField("tensor_type") and not proto.tensor_type.HasField("shape")
    if not proto.WhichOneof("value") or (lacks_shape and other.tensor_type.HasField("shape")):
        proto.CopyFrom(other)
    dims, other_dims = proto.tensor_type.shape.dim, other.tensor_type.shape.dim
    for dim, other_dim in zip(dims, other_dims, strict=False) if len(dims) == len(other_dims) else ():
        if other_dim.HasField("dim_value") and not dim.HasField("dim_value"):
            dim.dim_value = other_dim.dim_value
