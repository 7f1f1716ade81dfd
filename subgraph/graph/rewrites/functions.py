"""An operator as the smaller operators by which the ONNX standard defines it."""

from __future__ import annotations

from typing import Any

from onnx import FunctionProto, NodeProto

from subgraph.graph import protobuf
from subgraph.graph.nested import list_bodies
from subgraph.graph.opsets import STANDARD, find_schema, get_opset, list_newest_opsets
from subgraph.graph.rewrites._region_model import RegionModel, Substitution
from subgraph.iterables import index_by_name
from subgraph.types import JsonObject


def _rewrite_as_body(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    if (
        node.domain not in STANDARD
        or node.op_type in ("Constant", "CastLike")
        or any(list_bodies(node))
    ):
        return ""
    version = _find_version(node.op_type, source.opset)
    body = source.function_body(node, version) if version else None
    if (
        body is None
        or any(any(list_bodies(inner)) for inner in body.node)
        or not _means_the_same(body, source.opset)
    ):
        return ""
    values = index_by_name(node.attribute)
    defaults = index_by_name(body.attribute_proto)
    defined = find_schema(node.op_type, version).attributes
    defaults |= {n: a.default_value for n, a in defined.items() if a.default_value.name}
    names = {
        inside: node.input[k] if k < len(node.input) else "" for k, inside in enumerate(body.input)
    }
    names |= {
        inside: node.output[k]
        for k, inside in enumerate(body.output)
        if k < len(node.output) and node.output[k]
    }
    for inner in body.node:
        copied = new.copy(inner)
        copied.name = new.name(f"{node.op_type}_{inner.op_type}")
        for field in (copied.input, copied.output):
            for k, inside in enumerate(field):
                if inside and inside not in names:
                    names[inside] = new.name(inside)
                field[k] = names[inside] if inside else ""
        for k in reversed(range(len(copied.attribute))):
            attribute = copied.attribute[k]
            if reference := attribute.ref_attr_name:
                value = values.get(reference, defaults.get(reference))
                if value is None:
                    del copied.attribute[k]
                else:
                    name = attribute.name
                    attribute.CopyFrom(
                        protobuf.load_protos().AttributeProto.FromString(value.SerializeToString())
                    )
                    attribute.name = name
    return f"the {len(body.node)} operators that define it in the standard, instead of"


def _find_version(op: str, opset: int) -> int:
    """Return the opset in which the operator has a function and means the same as in ours; 0
    without one.

    Many got their function in a version that only takes more element types.
    """
    own = find_schema(op, opset)
    for version in range(opset, list_newest_opsets()[""] + 1) if own is not None else ():
        later = find_schema(op, version)
        if later is None or not _are_alike(own, later):
            break
        if later.has_function or later.has_context_dependent_function:
            return version
    return 0


def _means_the_same(body: FunctionProto, opset: int) -> bool:
    """Return whether the operators of a body mean in our opset what they mean in the body's."""
    versions = sorted((get_opset(body, opset), opset))
    pairs = [[find_schema(n.op_type, v, n.domain) for v in versions] for n in body.node]
    return all(
        a is not None and b is not None and (_are_alike(a, b) or _extends(a, b)) for a, b in pairs
    )


def _are_alike(first: Any, second: Any) -> bool:
    """Return whether two versions have equal inputs, outputs and attributes; types may differ."""
    if first.since_version == second.since_version:
        return True
    return _describe_form(first) == _describe_form(second)


def _extends(older: Any, newer: Any) -> bool:
    """Return whether the newer version only adds attributes that may be omitted."""
    inputs, outputs, before = _describe_form(older)
    more, others, after = _describe_form(newer)
    added = [newer.attributes[name] for name in after.keys() - before.keys()]
    same = inputs == more and outputs == others and before.items() <= after.items()
    return same and not any(a.required for a in added)


def _describe_form(defined: Any) -> tuple[list[str], list[str], JsonObject]:
    attributes = {
        n: (str(a.type), a.required, a.default_value.SerializeToString())
        for n, a in defined.attributes.items()
    }
    return [i.name for i in defined.inputs], [o.name for o in defined.outputs], attributes


FORMS = [_rewrite_as_body]
