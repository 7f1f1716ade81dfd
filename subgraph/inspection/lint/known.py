"""Nodes like those that the candidate's runtime is known to compute wrongly (with -c)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from subgraph import known
from subgraph.graph.opsets import schema
from subgraph.graph.walk import VALUE_FIELDS
from subgraph.inspection.lint import LintContext, LintIssue, note
from subgraph.inspection.lint._places import LintNode


def check(context: LintContext) -> Iterator[LintIssue]:
    """A note for each node that an entry fits; that it is wrong here is for a run to say."""
    if not context.runtime:
        return
    for entry in known.entries(context.known, context.runtime):
        if context.release in entry.right:
            continue
        for node in context.nodes(entry.operator):
            if entry.fits(partial(fact, node)):
                cure = f"{entry.cure}; " if entry.cure else ""
                reason = f"{entry.says}: known of {entry.runtime}, {entry.releases(context.release)}"
                fix = f"{cure}`subcut known {entry.path} --try -c {entry.runtime}` runs its tests here"
                yield note(node, reason, fix)


def facts(node: LintNode) -> dict[str, str]:
    """All that entries may ask of a node, by key; what is not known is left out."""
    formal = schema(node.op, node.version or 0, node.domain)
    attributes = {a.name for a in node.proto.attribute} | {*(formal.attributes if formal else ())}
    places = range(max(len(node.proto.input), len(formal.inputs) if formal else 0))
    keys = ["outputs", *attributes, *(f"set {name}" for name in attributes)]
    keys += [f"{kind} {k}" for k in places for kind in ("input", "type")]
    return {key: value for key in keys if (value := fact(node, key))}


def fact(node: LintNode, key: str) -> str | None:
    """What `known` says under this key of a node, as text; None where it is not known."""
    kind, _, rest = key.partition(" ")
    if key == "outputs":
        ends = {getattr(value, "name", value) for value in node.scope.proto.output}  # a function lists names
        return str(sum(name in ends or name in node.scope.readers for name in node.proto.output if name))
    if kind == "set" and rest:
        value = fact(node, rest)
        return "yes" if value is not None and value != _text(_default(node, rest)) else None
    if kind == "opset":
        return "yes" if (node.version or 0) < int(rest.removeprefix("below ")) else None
    if rest.isdecimal():
        return _of_input(node, kind, node.input(int(rest)))
    return _text(node.attribute(key, _default(node, key))) or None


def _of_input(node: LintNode, kind: str, name: str) -> str | None:
    if kind == "input":
        return ("constant" if _is_constant(node, name) else "variable") if name else "none"
    if kind == "type":
        return (node.dtype(name) or None) if name else None
    if kind == "rank":
        shape = node.shape(name) if name else None
        return None if shape is None else str(len(shape))
    maker = node.scope.makers.get(name)
    return maker.op if maker else "input" if name in node.scope.inputs else None


def _is_constant(node: LintNode, name: str) -> bool:
    maker = node.scope.makers.get(name)
    return maker.is_op("Constant") if maker else node.scope.weight(name) is not None


def _default(node: LintNode, name: str) -> object:
    """Of an attribute; None where it has none."""
    formal = schema(node.op, node.version or 0, node.domain)
    default = formal.attributes[name].default_value if formal and name in formal.attributes else None
    field = VALUE_FIELDS.get(getattr(default, "type", 0), "")
    return getattr(default, field) if field else None


def _text(value: object) -> str:
    """An attribute's value; "" of a tensor, a graph, or none."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return str(value) if isinstance(value, (int, str)) else ""
