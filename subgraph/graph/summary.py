"""What a model consists of, without its tensors: Graph -> plain data about file, ops, functions, weights."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.storage import dtypes

SHORT = 60  # characters of an attribute's value
LISTED = 8  # elements of a list in an attribute

Document = dict[str, Any]


def model(graph: Graph) -> Document:
    """File, sizes in bytes, versions, producer, metadata."""
    m = graph.model
    outside = [t for t in graph.weights.values() if protobuf.in_other_file(t)]
    return {
        "path": str(graph.path),
        "bytes": graph.skeleton.size,
        "external_bytes": sum(_bytes(t) for t in outside),
        "ir_version": int(m.ir_version),
        "opsets": {o.domain or "ai.onnx": int(o.version) for o in m.opset_import},
        "producer": " ".join(filter(None, (m.producer_name, m.producer_version))),
        "graph": str(m.graph.name),
        "metadata": {entry.key: entry.value for entry in m.metadata_props},
    }


def ops(graph: Graph) -> list[Document]:
    """Number of top-level nodes by op type and domain, most first."""
    counted = Counter((op, str(node.domain)) for op, node in zip(graph.ops, graph.nodes, strict=True))
    return [{"op": op, "domain": domain, "count": number} for (op, domain), number in counted.most_common()]


def functions(graph: Graph) -> list[Document]:
    """Local functions, and how many top-level nodes call each."""
    calls = Counter((n.domain, n.op_type, n.overload) for n in graph.nodes) if graph.functions else Counter()
    return [
        {"domain": key[0], "name": key[1], "overload": key[2], "nodes": len(f.node), "calls": calls[key]}
        for key, f in graph.functions.items()
    ]


def weights(graph: Graph) -> Document:
    """Number, parameters and bytes of the dense weights, by element type; of sparse ones only the number."""
    rows: dict[str, Document] = {}
    for name in graph.weights:
        w = weight(graph, name)
        row = rows.setdefault(w["type"], {"type": w["type"], "count": 0, "parameters": 0, "bytes": 0})
        row["count"] += 1
        row["parameters"] += w["parameters"]
        row["bytes"] += w["bytes"]
    by_type = sorted(rows.values(), key=lambda row: -int(row["bytes"]))
    totals = {key: sum(row[key] for row in by_type) for key in ("count", "parameters", "bytes")}
    return totals | {"sparse": len(graph.sparse), "by_type": by_type}


def weight(graph: Graph, name: str) -> Document:
    """One initializer. Of a sparse one: its full shape, and the values that it stores."""
    sparse = graph.sparse.get(name)
    tensor = sparse.values if sparse else graph.weights[name]
    return {
        "name": name,
        "type": dtypes.name_of(tensor.data_type, "unknown"),
        "shape": [int(d) for d in (sparse or tensor).dims],
        "parameters": max(math.prod(tensor.dims), 0),
        "bytes": _bytes(tensor),
    }


def _bytes(tensor: protobuf.TensorProto) -> int:
    if tensor.data_type == protobuf.STRING:
        return sum(map(len, tensor.string_data))
    try:
        return protobuf.nbytes(tensor)
    except ModelError:  # `problems` names it
        return 0


def attribute_text(attribute: Any) -> str:
    """An attribute's value, short: `[3, 3]`, `'linear'`, `float32 8×8`, `graph of 5 nodes`."""
    pb = protobuf.protos().AttributeProto
    kind = attribute.type
    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    if kind == pb.TENSOR:
        return _tensor_text(attribute.t)
    if kind == pb.GRAPH:
        return f"graph of {len(attribute.g.node)} nodes"
    plain = {pb.FLOAT: "f", pb.INT: "i", pb.STRING: "s", pb.FLOATS: "floats", pb.INTS: "ints", pb.STRINGS: "strings"}
    if kind not in plain:
        return str(pb.AttributeType.Name(kind)).lower()
    value = getattr(attribute, plain[kind])
    if kind in (pb.FLOAT, pb.INT, pb.STRING):
        return _short(_plain(value))
    words = [_plain(v) for v in value[:LISTED]] + ([f"… {len(value)} in all"] if len(value) > LISTED else [])
    return _short(f"[{', '.join(words)}]")


def _tensor_text(tensor: protobuf.TensorProto) -> str:
    from onnx.numpy_helper import to_array

    from subgraph.storage.tensors import shape_text

    name = dtypes.name_of(tensor.data_type, "unknown")
    text = f"{name} {shape_text(tuple(tensor.dims))}"
    if protobuf.on_disk(tensor) or math.prod(tensor.dims) > LISTED:
        return text
    try:
        values = to_array(protobuf.protos().TensorProto.FromString(tensor.SerializeToString())).tolist()
    except (ValueError, TypeError):  # as many bytes as it should have it has not
        return text
    return _short(f"{text} = {values}")


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return repr(value.decode(errors="replace"))
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"
