"""Nodes like those that the candidate's runtime is known to compute wrongly (with -c)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from subgraph.graph.nested import VALUE_FIELDS
from subgraph.graph.opsets import find_schema
from subgraph.inspection import known
from subgraph.inspection.lint import Issues, LintContext, note
from subgraph.inspection.lint._places import LintNode
from subgraph.iterables import group_values
from subgraph.types import StringMap

ABSENT = object()
# Defaults that onnx's schema has only in its texts.
ALONG_AXES = {
    "dilations": "1",
    "strides": "1",
    "pads": "0",
}


def check(context: LintContext) -> Issues:
    """Yield a note for each node that an entry fits; only a run shows whether it fails here."""
    if not context.runtime:
        return
    by_operator = {}
    for entry in known.list_entries(context.known, context.runtime, context.operators):
        if entry.is_over(context.release):
            continue
        if entry.operator not in by_operator:
            by_operator[entry.operator] = Alike(context.nodes(entry.operator))
        alike = by_operator[entry.operator]
        cure = f"{entry.cure}; " if entry.cure else ""
        reason = f"{entry.says}: known of {entry.runtime}, {entry.format_releases(context.release)}"
        thread = f"; reported in {entry.thread}" if entry.thread else ""
        fix = f"{cure}`subcut known {entry.path}` shows how it was found{thread}"
        harmless = alike.find_fitting(entry.unless) if entry.unless else ()
        for node in alike.find_fitting(entry.when):
            if node not in harmless:
                yield note(node, reason, fix)


class Alike:
    """The nodes of an operator by their facts, which are computed on first use."""

    def __init__(self, nodes: Sequence[LintNode]) -> None:
        self._nodes = dict.fromkeys(nodes)
        self._by_value: dict[str, Mapping[str | None, set[LintNode]]] = {}

    def find_fitting(self, when: StringMap) -> Mapping[LintNode, None]:
        """Return the nodes that have all these facts, in order; an unknown fact does not count."""
        left = self._nodes
        kinds = ["", *FACTS]
        for key in sorted(when, key=lambda key: kinds.index(_find_kind(key))):
            if not left:
                break
            if key not in self._by_value:
                by_fact = group_values((_find_fact(node, key), node) for node in self._nodes)
                self._by_value[key] = {fact: set(nodes) for fact, nodes in by_fact.items()}
            having = self._by_value[key].get(when[key], ())
            left = {node: None for node in left if node in having}
        return left


def _find_kind(key: str) -> str:
    """Return the kind of a fact; "" for an attribute."""
    kind, _, word = key.partition(" ")
    if kind in FACTS and (word or kind == "outputs"):
        return kind
    return ""


def _find_fact(node: LintNode, key: str) -> str | None:
    """Return the fact of a node under a key of `known`, as text; None if it is not known."""
    if kind := _find_kind(key):
        return FACTS[kind](node, key.removeprefix(kind).strip())
    value = node.attribute(key, ABSENT)
    return (_format_default(node, key) if value is ABSENT else _format_value(value)) or None


def _is_set(node: LintNode, name: str) -> str | None:
    text = _format_value(node.attribute(name))  # one that is absent is its default
    is_usual = text == _format_default(node, name) or {*text.split(",")} == {ALONG_AXES.get(name)}
    return "yes" if text and not is_usual else None


def _describe_input(node: LintNode, place: str) -> str:
    name = node.input(int(place))
    if not name:
        return "none"
    maker = node.scope.makers.get(name)
    is_constant = maker.is_op("Constant") if maker else node.scope.weight(name) is not None
    return "constant" if is_constant else "variable"


def _is_read(node: LintNode, name: str) -> bool:
    return name in node.scope.outputs or name in node.scope.readers


def _describe_output(node: LintNode, place: str) -> str:
    name = node.output(int(place))
    if not name:
        return "none"
    return "read" if _is_read(node, name) else "unread"


def _find_maker(node: LintNode, place: str) -> str | None:
    name = node.input(int(place))
    maker = node.scope.makers.get(name)
    if maker:
        return maker.op
    return "input" if name in node.scope.inputs else None


def _find_in_maker(node: LintNode, word: str) -> str | None:
    place, _, key = word.partition(" ")
    maker = node.scope.makers.get(node.input(int(place)))
    return _find_fact(maker, key) if maker else None


def _find_rank(node: LintNode, place: str) -> str | None:
    name = node.input(int(place))
    shape = node.shape(name) if name else None
    return None if shape is None else str(len(shape))


def _find_type(node: LintNode, place: str) -> str | None:
    name = node.input(int(place))
    return (node.dtype(name) or None) if name else None


# Kinds of facts that cost more than attributes do, the cheapest first. The last two infer shapes.
FACTS: dict[str, Callable[[LintNode, str], str | None]] = {
    "set": _is_set,
    "given": lambda node, name: "no" if node.attribute(name, ABSENT) is ABSENT else "yes",
    "opset": lambda node, rest: (
        "yes" if (node.version or 0) < int(rest.removeprefix("below ")) else None
    ),
    "input": _describe_input,
    "outputs": lambda node, _: str(sum(_is_read(node, n) for n in node.proto.output if n)),
    "output": _describe_output,
    "maker": _find_maker,
    "of": _find_in_maker,
    "rank": _find_rank,
    "type": _find_type,
}


def _format_default(node: LintNode, name: str) -> str:
    """Return the default of an attribute, as text; "" if it has none."""
    return _find_default(node.op, node.version or 0, node.domain, name)


@cache
def _find_default(op: str, version: int, domain: str, name: str) -> str:
    formal = find_schema(op, version, domain)
    if not formal or name not in formal.attributes:
        return ""
    default = formal.attributes[name].default_value
    field = VALUE_FIELDS.get(default.type, "")
    if field:
        return _format_value(getattr(default, field))
    return ""


def _format_value(value: object) -> str:
    """Return an attribute's value; "" of a tensor, a graph, or none."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_format_value, value))
    if isinstance(value, (int, str)):
        return str(value)
    return ""
