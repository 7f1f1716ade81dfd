"""The operators of a model: domains and versions that it imports, onnx's schemas of them, why a
node does not fit its schema, and the opset from which on it does; names of types.

Operators that the model itself defines, its local functions, are inlined at loading by onnx and by
most runtimes. Forty functions that each call the one before twice fit into 3 kB and expand to 10¹²
nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from subgraph.errors import InputError, ModelError
from subgraph.graph import protobuf
from subgraph.graph.nested import (
    FunctionKey,
    assign,
    get_attribute,
    iter_model_nodes,
    list_functions,
)
from subgraph.lazy import onnx
from subgraph.storage import dtypes
from subgraph.storage.tensors import format_tensor_type, parse_type
from subgraph.text import count
from subgraph.types import StringMap

MIN_OPSET = 7  # onnx converts no further back
STANDARD = ("", "ai.onnx")  # names of the domain of ONNX's own operators
# Nodes, with local functions inlined; the largest models that anyone runs have 10⁵.
MAX_EXPANDED = 10_000_000
# Attributes of newer opsets → value that means the behavior of older opsets; exporters write it
# down.
DEFAULTS = {
    "ceil_mode": 0,
    "dilations": 1,
    "count_include_pad": 0,
    "storage_order": 0,
    "training_mode": 0,
    "allowzero": 0,
    "antialias": 0,
    "batch_dims": 0,
    "reduction": "none",
}
UNLIMITED = 1 << 16  # inputs; a schema without a limit has 2³¹ − 1


def canonicalize_domain(name: str) -> str:
    """Return a domain by its usual name: `ai.onnx` is another name of ""."""
    return "" if name in STANDARD else str(name)


def read_imports(model: Any) -> dict[str, int]:
    """Return the version of each domain that a model or function imports."""
    return {canonicalize_domain(entry.domain): int(entry.version) for entry in model.opset_import}


def get_opset(model: protobuf.ModelProto | protobuf.FunctionProto, default: int = 1) -> int:
    """Return the version of ONNX's own operators that a model or function imports."""
    return max(
        (int(entry.version) for entry in model.opset_import if entry.domain in STANDARD),
        default=default,
    )


@cache
def list_newest_opsets() -> dict[str, int]:
    """Return the newest opset that onnx knows of each domain."""
    newest = {"": int(onnx.defs.onnx_opset_version())}
    for schema in onnx.defs.get_all_schemas_with_history():
        newest[schema.domain] = max(newest.get(schema.domain, 1), int(schema.since_version))
    return newest


@cache
def find_schema(op: str, version: int, domain: str = "") -> Any:
    """Return onnx's schema of an operator as of a version of its domain; None if it has none."""
    try:
        return onnx.defs.get_schema(op, version, domain)
    except (
        onnx.defs.SchemaError,
        ValueError,
        OverflowError,
        TypeError,
    ):
        # The version may be any number.
        return None


@cache
def list_schema_versions(op: str, domain: str) -> list[Any]:
    """Return all versions of an operator's schema, oldest first."""
    versions = [
        s for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain and s.name == op
    ]
    return sorted(versions, key=lambda s: int(s.since_version))


def find_newer_nodes(
    model: protobuf.ModelProto, version: int
) -> list[tuple[protobuf.NodeProto, int]]:
    """Return the nodes, also in bodies and functions, whose meaning comes from a later version than
    this one, each with that version."""
    opset = get_opset(model)
    standard = (node for node in iter_model_nodes(model) if node.domain in STANDARD)
    meant = ((node, _find_since(node.op_type, opset)) for node in standard)
    return [(node, since) for node, since in meant if since is not None and since > version]


def list_changed(model: protobuf.ModelProto, domain: str, first: int, second: int) -> list[str]:
    """Return the operators of a domain in use that two of its versions define differently, or that
    onnx does not know."""
    if first == second:
        return []
    domain = canonicalize_domain(domain)
    used = {
        str(node.op_type)
        for node in iter_model_nodes(model)
        if canonicalize_domain(node.domain) == domain
    }
    local_names = {
        name
        for function_domain, name, _ in list_functions(model)
        if canonicalize_domain(function_domain) == domain
    }
    versions = {
        op: (_find_since(op, first, domain), _find_since(op, second, domain))
        for op in sorted(used - local_names)
    }
    return [op for op, (before, after) in versions.items() if not before or before != after]


def _find_since(op: str, version: int, domain: str = "") -> int | None:
    """Return the version that defines what an operator means in this one; None if onnx does not
    know it."""
    schema = find_schema(op, version, domain)
    if schema is None:
        return None
    return int(schema.since_version)


def drop_defaults(node: protobuf.NodeProto) -> protobuf.NodeProto:
    """Return the node without attributes whose values mean what older opsets, which lack them, do
    anyway."""
    bare = protobuf.clone(node)
    attributes = []
    for a in node.attribute:
        value = get_attribute(node, a.name)
        values = value if isinstance(value, list) else [value]
        if a.name not in DEFAULTS or any(v != DEFAULTS[a.name] for v in values):
            attributes.append(a)
    assign(bare.attribute, attributes)
    return bare


def find_misfit(node: protobuf.NodeProto, version: int, types: StringMap, domain: str = "") -> str:
    """Return the first reason why a node does not fit its operator at a version; "" if it fits.

    The node is the subject of the sentence: "reads 'x' as int64 …". `types`: tensor →
    `tensor(float)`, as far as known.
    """
    schema = find_schema(str(node.op_type), version, domain)
    if schema is None:
        versions = list_schema_versions(str(node.op_type), domain)
        first = f": it comes with opset {versions[0].since_version}" if versions else ""
        return f"is not part of opset {version}{first}"
    if schema.deprecated:
        return f"is no longer part of opset {version} (since {schema.since_version})"
    if reason := next(_iter_wrong_attributes(node, schema, version), ""):
        return reason
    for role, names, low, high in (
        ("input", node.input, schema.min_input, schema.max_input),
        ("output", node.output, schema.min_output, schema.max_output),
    ):
        if not low <= len(names) <= high:
            if low == high:
                limits = f"{low}"
            elif high > UNLIMITED:
                limits = f"{low} or more"
            else:
                limits = f"{low} to {high}"
            return f"has {count(names, role)}; at opset {version} it has {limits}"
    for position, name in enumerate(node.input):
        formal = _find_formal(schema.inputs, position)
        actual = types.get(name) if name and formal else None
        if actual and actual not in formal.types:
            # Only tensor types are named, if there are any.
            tensors = {t for t in formal.types if t.startswith("tensor(")}
            *others, last = sorted(map(format_type, tensors or formal.types))
            allowed = f"{', '.join(others)} or {last}" if others else last
            return f"reads '{name}' as {format_type(actual)}; at opset {version} it takes {allowed}"
    return ""


def _iter_wrong_attributes(node: protobuf.NodeProto, schema: Any, version: int) -> Iterator[str]:
    # Tools reserve names with two underscores.
    present = {str(a.name): a.type for a in node.attribute if not a.name.startswith("__")}
    for name, kind in present.items():
        if name not in schema.attributes:
            yield f"has the attribute '{name}', which opset {version} does not know"
        elif kind != (formal := schema.attributes[name].type).value:
            actual = protobuf.load_protos().AttributeProto.AttributeType.Name(kind)
            yield f"has the attribute '{name}' of type {actual}, but it is {formal.name}"
    for name, needed in schema.attributes.items():
        if needed.required and name not in present:
            yield f"lacks the attribute '{name}', which it needs at opset {version}"


def find_next_version(
    node: protobuf.NodeProto, version: int, types: StringMap, domain: str
) -> int | None:
    """Return the first later version of the domain in which a node fits its operator, or None."""
    versions = (int(s.since_version) for s in list_schema_versions(str(node.op_type), domain))
    return next(
        (v for v in versions if v > version and not find_misfit(node, v, types, domain)), None
    )


def _find_formal(formals: Any, position: int) -> Any:
    """Return the formal parameter at a position; the last one may be variadic. None without one."""
    if position < len(formals):
        return formals[position]
    if formals and formals[-1].option.name == "Variadic":
        return formals[-1]
    return None


# ------------------------------------------------------------ type names


def format_schema_type(proto: protobuf.TypeProto) -> str:
    """Return a type as schemas write it: `tensor(float)`, `seq(tensor(int64))`; empty if it is
    incomplete."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        text = format_element_type(getattr(proto, kind).elem_type)
        if text and kind == "sparse_tensor_type":
            return f"sparse_{text}"
        return text
    if kind == "map_type":
        key = format_element_type(proto.map_type.key_type)
        value = format_schema_type(proto.map_type.value_type)
        if key and value:
            return f"map({key[7:-1]},{value})"
        return ""
    if kind in ("sequence_type", "optional_type"):
        inner = format_schema_type(getattr(proto, kind).elem_type)
        word = "seq" if kind == "sequence_type" else "optional"
        return f"{word}({inner})" if inner else ""
    return ""


def format_element_type(number: int) -> str:
    """Return `tensor(float)` of a TensorProto.DataType; empty for an unknown one."""
    name = dtypes.name_of(number)
    return format_tensor_type(name) if name else ""


def format_type(text: str) -> str:
    """Return a type, written as by schemas, for users: `float32`, `sequence of int64`."""
    try:
        form, dtype = parse_type(text)
    except InputError:
        return text
    if form == "tensor":
        return dtype
    return f"{form} of {dtype}"


# ------------------------------------------------------------ local functions


def require_expandable(
    model: str, nodes: Sequence[FunctionKey], functions: Mapping[FunctionKey, Sequence[FunctionKey]]
) -> None:
    """Check that local functions can be inlined. Complexity: linear in the nodes of the model and
    of its functions.

    Args:
        model: its name, for messages.
        nodes: domain, operator and overload of each node of the model, also in bodies.
        functions: the same for each function.

    Raises:
        ModelError: a function calls itself, also through others; or there would be more than
            `MAX_EXPANDED` nodes.
    """
    calls = {key: [op for op in ops if op in functions] for key, ops in functions.items()}
    try:
        order = list(TopologicalSorter(calls).static_order())
    except CycleError as e:
        circle = " → ".join(map(_join_key, reversed(e.args[1])))
        raise ModelError(
            f"local functions of {model} call each other in a circle: {circle}",
            "ONNX allows no recursion: export the model again",
            code="model.recursion",
        ) from e
    sizes: dict[FunctionKey, int] = {}  # when inlined
    for key in order:
        sizes[key] = len(functions[key]) + sum(sizes[called] for called in calls[key])
    total = len(nodes) + sum(sizes.get(op, 0) for op in nodes)
    if total > MAX_EXPANDED:
        largest = max(sizes, key=lambda key: sizes[key])
        raise ModelError(
            f"{model} has {total:.1e} nodes once its local functions are inlined:"
            f" {_join_key(largest)} alone has {sizes[largest]:.1e}",
            "no runtime can load it: export the model again",
            code="model.expansion",
        )


def _join_key(key: FunctionKey) -> str:
    return "::".join(filter(None, key))
