"""Graph → plain data about its file, operators, functions and weights. No tensor is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import LIST_FIELDS, VALUE_FIELDS, find_function_key
from subgraph.iterables import group_values
from subgraph.storage import dtypes
from subgraph.storage.tensors import format_shape
from subgraph.text import count
from subgraph.types import frozen

CONSTANT = "Constant"  # the operator whose value is a weight
MAX_TEXT = 60  # characters of an attribute's value
MAX_LISTED = 8  # elements of a list or tensor in an attribute


@frozen
class FileSummary:
    """The model file; sizes are in bytes."""

    path: str
    bytes: int
    external_bytes: int
    ir_version: int
    opsets: dict[str, int]
    producer: str
    graph: str
    metadata: dict[str, str]


@frozen
class OpCount:
    """Number of top-level nodes of an operator."""

    op: str
    domain: str
    count: int


@frozen
class FunctionSummary:
    """A local function: number of its nodes, and of the top-level nodes that call it."""

    domain: str
    name: str
    overload: str
    nodes: int
    calls: int


@frozen
class TypeTotals:
    """The dense weights of one element type together."""

    type: str
    count: int
    parameters: int
    bytes: int


@frozen
class WeightTotals:
    """The dense weights together, and the number of sparse ones."""

    count: int
    parameters: int
    bytes: int
    sparse: int
    by_type: list[TypeTotals]


@frozen
class WeightSummary:
    """One initializer. Of a sparse one: its full shape, but only the stored values in `parameters`
    and `bytes`."""

    name: str
    type: str
    shape: list[int]
    parameters: int
    bytes: int


def summarize_file(graph: Graph) -> FileSummary:
    """Return file, versions, producer and metadata."""
    model = graph.model
    return FileSummary(
        path=str(graph.path),
        bytes=graph.skeleton.size,
        external_bytes=sum(
            _format_bytes(t) for t in graph.weights.values() if protobuf.is_in_other_file(t)
        ),
        ir_version=int(model.ir_version),
        opsets={o.domain or "ai.onnx": int(o.version) for o in model.opset_import},
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        graph=str(model.graph.name),
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


def count_operators(graph: Graph) -> list[OpCount]:
    """Return the operators of the top-level nodes, most frequent first."""
    counts = Counter(
        (op, str(node.domain)) for op, node in zip(graph.ops, graph.nodes, strict=True)
    )
    return [OpCount(op, domain, count) for (op, domain), count in counts.most_common()]


def list_functions(graph: Graph) -> list[FunctionSummary]:
    """Return the local functions, in file order."""
    calls = Counter(map(find_function_key, graph.nodes)) if graph.functions else Counter()
    return [FunctionSummary(*key, len(f.node), calls[key]) for key, f in graph.functions.items()]


def sum_weights(graph: Graph) -> WeightTotals:
    """Return the number, parameters and bytes of the weights, those that Constant nodes hold
    included; the element type with most bytes first."""
    weights = [summarize_weight(graph, name) for name in graph.weights]
    for outputs, op in zip(graph.makes, graph.ops, strict=True):
        tensor = graph.constant(outputs[0]) if op == CONSTANT and outputs else None
        if tensor is not None:
            weights.append(_summarize(outputs[0], tensor, tensor.dims))
    totals = [
        TypeTotals(dtype, len(same), sum(w.parameters for w in same), sum(w.bytes for w in same))
        for dtype, same in group_values((w.type, w) for w in weights).items()
    ]
    totals.sort(key=lambda t: -t.bytes)
    parameters = sum(t.parameters for t in totals)
    size = sum(t.bytes for t in totals)
    return WeightTotals(len(weights), parameters, size, len(graph.sparse), totals)


def summarize_weight(graph: Graph, name: str) -> WeightSummary:
    """Return one initializer, dense or sparse."""
    sparse = graph.sparse.get(name)
    tensor = sparse.values if sparse else graph.weights[name]
    return _summarize(name, tensor, (sparse or tensor).dims)


def _summarize(name: str, tensor: protobuf.TensorProto, shape: Iterable[int]) -> WeightSummary:
    dtype = dtypes.name_of(tensor.data_type, "unknown")
    parameters = max(math.prod(tensor.dims), 0)
    return WeightSummary(name, dtype, [int(d) for d in shape], parameters, _format_bytes(tensor))


def _format_bytes(tensor: protobuf.TensorProto) -> int:
    if tensor.data_type == protobuf.STRING:
        return sum(map(len, tensor.string_data))
    try:
        return protobuf.count_bytes(tensor)
    except ModelError:  # `inspection.validate` reports it
        return 0


def format_attribute(attribute: Any) -> str:
    """Return an attribute's value, short: `[3, 3]`, `'linear'`, `float32 8×8`, `graph of 5
    nodes`."""
    pb = protobuf.load_protos().AttributeProto
    kind = attribute.type
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    if kind == pb.TENSOR:
        return _format_tensor(attribute.t)
    if kind == pb.GRAPH:
        return f"graph of {count(attribute.g.node, 'node')}"
    if kind not in VALUE_FIELDS:
        return str(pb.AttributeType.Name(kind)).lower()
    value = getattr(attribute, VALUE_FIELDS[kind])
    if VALUE_FIELDS[kind] not in LIST_FIELDS:
        return _shorten(_format_plain(value))
    items = [_format_plain(v) for v in value[:MAX_LISTED]]
    items += [f"… {len(value)} in all"] if len(value) > MAX_LISTED else []
    return _shorten(f"[{', '.join(items)}]")


def _format_tensor(tensor: protobuf.TensorProto) -> str:
    name = dtypes.name_of(tensor.data_type, "unknown")
    text = f"{name} {format_shape(tuple(tensor.dims))}"
    if protobuf.is_on_disk(tensor) or math.prod(tensor.dims) > MAX_LISTED:
        return text
    try:
        values = protobuf.to_array(tensor, Path()).tolist()
    except (ValueError, TypeError):  # it has fewer bytes than its type and shape need
        return text
    return _shorten(f"{text} = {values}")


def _format_plain(value: Any) -> str:
    if isinstance(value, bytes):
        return repr(value.decode(errors="replace"))
    if isinstance(value, float):
        return f"{value:.7g}"
    return str(value)


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[: MAX_TEXT - 1]}…"
