"""Graph → types of its tensors without running it: as declared in the model, or as inferred by
onnx.

The inference works on a copy of the model without its weights. There each node is named after its
index (`#17`), so that error messages identify it, and the nodes are in topological order, because
onnx passes over them once.

To compute shapes, onnx can track the values of 1-D tensors (data propagation), 140 bytes per
element: if that takes too much time or memory, as for a sound of 10⁹ samples, the types are
those that need no values.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import assign, find_function_key, iter_nodes, list_functions
from subgraph.graph.onnx_process import OnnxError, OnnxProcess
from subgraph.graph.opsets import (
    STANDARD,
    canonicalize_domain,
    find_schema,
    format_schema_type,
    get_opset,
    list_newest_opsets,
    read_imports,
)
from subgraph.graph.value_types import declare_weights_on_disk, find_declared_types, set_tensor
from subgraph.log import log
from subgraph.types import frozen

if TYPE_CHECKING:
    from subgraph.graph.protobuf import GraphProto, ModelProto, TypeProto


# Operators of the standard domain that onnxruntime has (1.22 to 1.31, `get_all_operator_schema`)
# but onnx has not, or only in later opsets: onnxruntime's optimizer and old exporters write them.
RUNTIME_OWN = frozenset(
    "Affine Crop DynamicSlice GRUUnit GivenTensorFill ImageScaler LayerNormalization"
    " MeanVarianceNormalization ParametricSoftplus Scale ScaledTanh SimplifiedLayerNormalization"
    " ThresholdedRelu".split()
)
RUNTIME_DOMAIN = "#onnxruntime"
# Before it Reshape had no shape input, and no operator's output shape depended on values.
FIRST_TRACKED_OPSET = 5

# Ordered set of (node, message) of one inference.
Errors: TypeAlias = dict[tuple[int | None, str], None]


@frozen
class Complaint:
    """An error that onnx reports: its checker the first one, its shape inference one per node.

    Attributes:
        node: index of the top-level node; None if it concerns the model as a whole.
        certain: it makes the model invalid; without, shape inference finds it only while it tracks
            values.
        from_checker: the checker reports it.
    """

    node: int | None
    text: str
    certain: bool
    from_checker: bool = False


@frozen
class InferredTypes:
    """Types of a model's tensors as far as they are known without running it.

    Attributes:
        declared: types in the model: of inputs, outputs and value_info.
        inferred: types of node outputs that shape inference found or completed.
        graph: a sorted copy of the graph in onnx's own classes, with inferred types in its bodies
            as well; each node, also in a body, is named after the index of its top-level node:
            `#17`.
        complaints: errors that onnx's checker and its inference reported.
    """

    declared: dict[str, TypeProto]
    inferred: dict[str, TypeProto]
    graph: GraphProto
    complaints: list[Complaint]

    def type_of(self, tensor: str) -> TypeProto | None:
        """Return the inferred type, which completes the declared one; else the declared type; None
        if unknown."""
        return self.inferred.get(tensor, self.declared.get(tensor))


def infer_types(graph: Graph) -> InferredTypes:
    """Infer the types of tensors, those that are declared included; weights stay on disk.
    Complexity: linear in the nodes.

    Raises:
        ModelError: onnx takes too much time or memory for it, or crashes.
    """
    model = protobuf.to_onnx(graph.model, graph.path)
    for i, node in enumerate(model.graph.node):
        for inner in iter_nodes([node]):
            inner.name = f"#{i}"
    _sort(graph, model.graph)
    imports = read_imports(model)
    for domain in {canonicalize_domain(node.domain) for node in iter_nodes(graph.nodes)}:
        if domain and domain not in imports:  # otherwise inference stops for the full model
            model.opset_import.add(domain=domain, version=1)
    # Inference mistakes the list of values for the tensor.
    for sparse in model.graph.sparse_initializer:
        declared_type = model.graph.input.add(name=sparse.values.name).type
        set_tensor(declared_type, sparse.values.data_type, sparse.dims)
    model.graph.ClearField("sparse_initializer")
    declare_weights_on_disk(model.graph)
    # Operators that only onnxruntime has in the standard domain get another one, unchecked.
    opset = get_opset(model, 0)
    functions = list_functions(model)
    for node in iter_nodes(model.graph.node):
        apart = (
            node.op_type in RUNTIME_OWN
            and node.domain in STANDARD
            and find_function_key(node) not in functions
        )
        if apart and find_schema(node.op_type, opset) is None:
            node.domain = RUNTIME_DOMAIN
    model.opset_import.add(domain=RUNTIME_DOMAIN, version=1)
    declared = find_declared_types(graph)
    with OnnxProcess(graph.path) as onnx:
        refused = _check(model, onnx)
        # Onnx applies no defaults where it infers types through the function body of an operator:
        # MeanVarianceNormalization without axes would be an error
        versions = read_imports(model)
        for node in iter_nodes(model.graph.node):
            domain = canonicalize_domain(node.domain)
            if defaults := _list_defaults(domain, node.op_type, versions.get(domain, 0)):
                present = {a.name for a in node.attribute}
                node.attribute.extend(
                    default for default in defaults if default.name not in present
                )
        model, complaints = infer_model(model, onnx)
    inferred = {
        v.name: v.type
        for v in (*model.graph.value_info, *model.graph.output)
        if format_schema_type(v.type)
    }
    return InferredTypes(declared, inferred, model.graph, [*refused, *complaints])


def _check(model: ModelProto, onnx: OnnxProcess) -> list[Complaint]:
    """Return the first problem that onnx.checker finds; nothing for opsets newer than onnx."""
    newest = list_newest_opsets()
    imports = read_imports(model).items()
    if any(version > newest.get(domain, version) for domain, version in imports):
        return []
    try:
        onnx.check(model)
    except OnnxError as e:
        text, _, context = str(e).partition("==> Context:")
        name = re.compile(r"[Nn]ame: #(\d+) OpType")
        at = name.search(context) or name.search(text)
        fact = " ".join(text.split()).removeprefix("ValidationError: ")
        return [Complaint(int(at[1]) if at else None, fact, certain=True, from_checker=True)]
    return []


def _sort(graph: Graph, copy: GraphProto) -> None:
    """Sort the nodes of the copy topologically. Those of a graph with a cycle stay as they are."""
    try:
        order = graph.order
    except ModelError:
        return
    if order != list(range(len(order))):
        assign(copy.node, [copy.node[i] for i in order])


@cache
def _list_defaults(domain: str, op: str, version: int) -> tuple[Any, ...]:
    """Return default attributes of an operator with a function body and without inference."""
    known = find_schema(op, version, domain)
    if known is None or not known.has_function or known.has_type_and_shape_inference_function:
        return ()
    return tuple(a.default_value for a in known.attributes.values() if a.default_value.name)


def infer_model(model: ModelProto, onnx: OnnxProcess) -> tuple[ModelProto, list[Complaint]]:
    """Return the model with inferred types, as far as onnx finds them, and the errors that it
    reports.

    An error that appears only while values are tracked (`data_prop`) does not count against the
    model: runtimes load it, and a run will show.
    """
    inferred, certain = _infer(onnx, model, track=False)
    errors = certain
    if get_opset(model, 0) >= FIRST_TRACKED_OPSET:
        try:
            inferred, errors = _infer(onnx, model, track=True)
            errors = certain | errors
        except ModelError as e:
            log.warning("%s; types that depend on values are as declared", e.what)
    return inferred, [Complaint(i, text, (i, text) in certain) for i, text in errors]


def _infer(onnx: OnnxProcess, model: ModelProto, *, track: bool) -> tuple[ModelProto, Errors]:
    """Return one inference; if it stops at an error, a second one that ignores errors."""
    try:
        return onnx.infer_shapes(model, strict=True, track=track, check_types=not track), {}
    except OnnxError as e:
        message = str(e)
        errors: Errors = {}  # without the prefixes of outer nodes
        for line in message.splitlines():
            if at := re.search(r"node name: #(\d+)\)", line):
                errors[int(at[1]), re.split(r"\(op_type:[^()]*\): ", line)[-1].strip()] = None
        if not errors:
            errors[None, " ".join(message.removeprefix("InferenceError: ").split())] = None
    try:
        return onnx.infer_shapes(model, track=track), errors
    except OnnxError:
        return model, errors
