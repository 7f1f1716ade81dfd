"""Which operators a model means: domains and versions that it imports, and onnx's schemas of
them."""

from __future__ import annotations

from functools import cache
from typing import Any

from subgraph.graph import protobuf
from subgraph.graph.nested import functions_of, model_nodes

MIN_OPSET = 7  # onnx converts no further back
STANDARD = ("", "ai.onnx")  # names of the domain of ONNX's own operators


def canonical_domain(name: str) -> str:
    """`ai.onnx` is another name of the standard domain, ""."""
    return "" if name in STANDARD else str(name)


def read_imports(model: Any) -> dict[str, int]:
    """The version of each domain that a model or function imports."""
    return {canonical_domain(entry.domain): int(entry.version) for entry in model.opset_import}


def opset_of(model: protobuf.ModelProto, default: int = 1) -> int:
    """The version of ONNX's own operators that a model imports."""
    return max(
        (int(entry.version) for entry in model.opset_import if entry.domain in STANDARD),
        default=default,
    )


@cache
def newest_opsets() -> dict[str, int]:
    """Domain of which onnx has schemas → newest opset that it knows."""
    import onnx.defs

    newest = {"": int(onnx.defs.onnx_opset_version())}
    for known in onnx.defs.get_all_schemas_with_history():
        newest[known.domain] = max(newest.get(known.domain, 1), int(known.since_version))
    return newest


@cache
def schema(op: str, version: int, domain: str = "") -> Any:
    """onnx's schema of an operator as of a version of its domain; None if it has none."""
    import onnx.defs

    try:
        return onnx.defs.get_schema(op, version, domain)
    except (
        onnx.defs.SchemaError,
        ValueError,
        OverflowError,
        TypeError,
    ):  # the version may be any number
        return None


@cache
def history(op: str, domain: str) -> list[Any]:
    """All versions of an operator's schema, oldest first."""
    import onnx.defs

    versions = [
        s for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain and s.name == op
    ]
    return sorted(versions, key=lambda s: int(s.since_version))


def newer_than(model: protobuf.ModelProto, version: int) -> list[tuple[protobuf.NodeProto, int]]:
    """The nodes, also in bodies and functions, that mean what a later version than this one
    defines; and which."""
    opset = opset_of(model)
    standard = (
        (node, _since(node.op_type, opset))
        for node in model_nodes(model)
        if node.domain in STANDARD
    )
    return [(node, since) for node, since in standard if since is not None and since > version]


def list_changed(model: protobuf.ModelProto, domain: str, one: int, other: int) -> list[str]:
    """The operators of a domain in use that two of its versions define differently, or that onnx
    does not know."""
    if one == other:
        return []
    domain = canonical_domain(domain)
    used = {
        str(node.op_type) for node in model_nodes(model) if canonical_domain(node.domain) == domain
    }
    own = {name for of, name, _ in functions_of(model) if canonical_domain(of) == domain}
    versions = {
        op: (_since(op, one, domain), _since(op, other, domain)) for op in sorted(used - own)
    }
    return [op for op, (before, after) in versions.items() if not before or before != after]


def _since(op: str, version: int, domain: str = "") -> int | None:
    """The version that defines what an operator means in this one; None if onnx does not know
    it."""
    found = schema(op, version, domain)
    return None if found is None else int(found.since_version)
