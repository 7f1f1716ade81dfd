"""Nodes like those that the candidate's runtime is known to compute wrongly (with -c)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial

from subgraph import known
from subgraph.graph.nested import VALUE_FIELDS
from subgraph.graph.opsets import schema
from subgraph.inspection.lint import LintContext, LintIssue, note
from subgraph.inspection.lint._places import LintNode
from subgraph.types import StringMap

# Kinds of facts that cost more than attributes do, the cheapest first. The last two infer shapes.
COSTS = ("set", "given", "opset", "input", "outputs", "output", "maker", "of", "rank", "type")
INPUTS = ("input", "maker", "rank", "type")  # facts of an input, which is named by its place
ABSENT = object()
ALONG_AXES = {
    "dilations": "1",
    "strides": "1",
    "pads": "0",
}  # defaults that onnx's schema tells in words


def check(context: LintContext) -> Iterator[LintIssue]:
    """A note for each node that an entry fits; that it is wrong here is for a run to say."""
    if not context.runtime:
        return
    alike: dict[str, Alike] = {}
    for entry in known.entries(context.known, context.runtime, context.operators):
        if entry.is_over(context.release):
            continue
        if entry.operator not in alike:
            alike[entry.operator] = Alike(context.nodes(entry.operator))
        cure = f"{entry.cure}; " if entry.cure else ""
        reason = f"{entry.says}: known of {entry.runtime}, {entry.releases(context.release)}"
        thread = f"; told of in {entry.thread}" if entry.thread else ""
        fix = f"{cure}`subcut known {entry.path}` tells how it was seen{thread}"
        harmless = (
            {id(node) for node in alike[entry.operator].fitting(entry.unless)}
            if entry.unless
            else ()
        )
        for node in alike[entry.operator].fitting(entry.when):
            if id(node) not in harmless:
                yield note(node, reason, fix)


class Alike:
    """The nodes of an operator by their facts. A fact of all of them is found when an entry first asks for it."""  # noqa: E501

    def __init__(self, nodes: Sequence[LintNode]) -> None:
        self._nodes, self._all = nodes, frozenset(range(len(nodes)))
        self._by_value: dict[str, dict[str | None, set[int]]] = {}

    def fitting(self, when: StringMap) -> list[LintNode]:
        """The nodes of which all this holds, in their order. What is not known of a node does not hold."""  # noqa: E501
        left = self._all
        for key in sorted(when, key=_cost):
            if left:
                left &= self._having(key).get(when[key], set())
        return [self._nodes[k] for k in sorted(left)]

    def _having(self, key: str) -> Mapping[str | None, set[int]]:
        """Indices of the nodes by what `key` is of them."""
        if key not in self._by_value:
            self._by_value[key] = found = dict[str | None, set[int]]()
            for k, value in enumerate(map(_reader(key), self._nodes)):
                found.setdefault(value, set()).add(k)
        return self._by_value[key]


def _cost(key: str) -> int:
    kind = key.partition(" ")[0]
    return 1 + COSTS.index(kind) if kind in COSTS else 0


def facts(node: LintNode) -> dict[str, str]:
    """All that entries may ask of a node, by key; what is not known is left out."""
    formal = schema(node.op, node.version or 0, node.domain)
    attributes = {a.name for a in node.proto.attribute} | {*(formal.attributes if formal else ())}
    places = range(max(len(node.proto.input), len(formal.inputs) if formal else 0))
    several = range(len(formal.outputs)) if formal and len(formal.outputs) > 1 else ()
    keys = [
        "outputs",
        *(f"output {k}" for k in several),
        *attributes,
        *(f"set {name}" for name in attributes),
    ]
    keys += [f"given {name}" for name in ALONG_AXES if name in attributes]
    keys += [f"{kind} {k}" for k in places for kind in ("input", "type")]
    return {key: value for key in keys if (value := fact(node, key))}


def fact(node: LintNode, key: str) -> str | None:
    """What `known` says under this key of a node, as text; None where it is not known."""
    return _reader(key)(node)


@cache
def _reader(key: str) -> Callable[[LintNode], str | None]:
    """The function that finds the fact of a node; the key is taken apart once."""
    kind, _, rest = key.partition(" ")
    if key == "outputs":
        return _outputs
    if kind == "set" and rest:
        return partial(_set, name=rest)
    if kind == "given" and rest:
        return lambda node: "no" if node.attribute(rest, ABSENT) is ABSENT else "yes"
    if kind == "opset":
        below = int(rest.removeprefix("below "))
        return lambda node: "yes" if (node.version or 0) < below else None
    if kind == "of" and rest:
        place, _, inner = rest.partition(" ")
        return (
            partial(_of_maker, place=int(place), inner=_reader(inner))
            if place.isdecimal()
            else lambda node: None
        )
    if kind in INPUTS and rest.isdecimal():
        find = {"input": _fed, "type": _type, "rank": _rank, "maker": _maker}[kind]
        return lambda node: find(node, node.input(int(rest)))
    if kind == "output" and rest.isdecimal():
        return partial(_output, place=int(rest))
    return partial(_attribute, name=key)


def _attribute(node: LintNode, name: str) -> str | None:
    value = node.attribute(name, ABSENT)
    return (
        _default(node.op, node.version or 0, node.domain, name) if value is ABSENT else _text(value)
    ) or None


def _set(node: LintNode, name: str) -> str | None:
    text = _text(node.attribute(name))  # one that is absent is its default
    usual = _default(node.op, node.version or 0, node.domain, name)
    return (
        "yes" if text and text != usual and {*text.split(",")} != {ALONG_AXES.get(name)} else None
    )


def _outputs(node: LintNode) -> str:
    read = node.scope.read
    given = node.scope.outputs
    return str(sum(name in given or name in read for name in node.proto.output if name))


def _output(node: LintNode, place: int) -> str:
    name = node.output(place)
    is_read = name in node.scope.read or name in node.scope.outputs
    if not name:
        return "none"
    return "read" if is_read else "unread"


def _of_maker(node: LintNode, place: int, inner: Callable[[LintNode], str | None]) -> str | None:
    maker = node.scope.makers.get(node.input(place))
    return inner(maker) if maker else None


def _fed(node: LintNode, name: str) -> str:
    if not name:
        return "none"
    return "constant" if _is_constant(node, name) else "variable"


def _type(node: LintNode, name: str) -> str | None:
    return (node.dtype(name) or None) if name else None


def _rank(node: LintNode, name: str) -> str | None:
    shape = node.shape(name) if name else None
    return None if shape is None else str(len(shape))


def _maker(node: LintNode, name: str) -> str | None:
    maker = node.scope.makers.get(name)
    if maker:
        return maker.op
    if name in node.scope.inputs:
        return "input"
    return None


def _is_constant(node: LintNode, name: str) -> bool:
    maker = node.scope.makers.get(name)
    return maker.is_op("Constant") if maker else node.scope.weight(name) is not None


@cache
def _default(op: str, version: int, domain: str, name: str) -> str:
    """Of an attribute, as text; "" where it has none."""
    formal = schema(op, version, domain)
    default = (
        formal.attributes[name].default_value if formal and name in formal.attributes else None
    )
    field = VALUE_FIELDS.get(getattr(default, "type", 0), "")
    return _text(getattr(default, field)) if field else ""


def _text(value: object) -> str:
    """An attribute's value; "" of a tensor, a graph, or none."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return str(value) if isinstance(value, (int, str)) else ""
