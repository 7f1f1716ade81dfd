"""A body, or a function at one of its calls, as a model; the names of bodies; and all graphs in a
model.

The inputs of a body are the values from the node in each iteration (`formals`) and the tensors from
the graph around it; weights and constants from there come along. Its nodes have the names by which
the user selects them: `loop1/body/conv`.

`loop1/body@3` is the body of node `loop1` in its iteration 3, `if1/then_branch` a branch. Next
comes a node or tensor of that body, which may hold bodies itself:
`loop1/body@3/if1/then_branch/conv`. A local function is named by a node that calls it:
`call1/conv`. Iterations count from 0; without one it is the first that runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from subgraph.errors import DataError, ModelError, UnknownName, UsageError
from subgraph.graph import protobuf
from subgraph.graph.cut import (
    GRAPH_PARTS,
    MODEL_PARTS,
    add_functions,
    add_weight,
    copy_without,
    declare,
)
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import CONSTANT, find_kinds
from subgraph.graph.nested import (
    assign,
    find_free_names,
    find_function_key,
    iter_attribute_tensors,
    iter_named_bodies,
    iter_nodes,
)
from subgraph.graph.opsets import STANDARD
from subgraph.graph.selection import is_name
from subgraph.graph.value_types import find_declared_types
from subgraph.graph.walks import find_ancestors
from subgraph.iterables import flatten, index_by_name
from subgraph.log import log
from subgraph.text import clean, find_nearest
from subgraph.types import Strings, frozen

if TYPE_CHECKING:
    from subgraph.graph.protobuf import GraphProto, ModelProto, NodeProto, TypeProto


# First version of the file format in which a weight need not be an input, too.
MIN_UNLISTED_WEIGHTS_VERSION = 4
# words after `@`, besides numbers
FIRST = ""
LAST = "last"
ALL = "all"
MAX_NODES = 20_000  # in bodies: what is called a thousand times is there a thousand times


@frozen
class Body:
    """The graph inside a node.

    Attributes:
        proto: The graph; for a function, its nodes with the attributes of the call.
        formals: Names of its inputs, in order.
        outer: Tensors that it reads from the graph around it and that are computed there, in order.
        results: Names of its outputs, in order; some may be equal.
        constants: Weights and constants that it reads from the graph around it.
    """

    graph: Graph
    name: BodyName
    proto: GraphProto
    formals: Strings
    outer: Strings
    results: Strings
    constants: Strings

    def model(self, types: Mapping[str, TypeProto]) -> ModelProto:
        """Return the body as a model of `protobuf.find_reading_class()`; large weights are stubs.

        Complexity: linear in the body.

        Args:
            types: The known types of its inputs and outputs.

        Raises:
            DataError: the bytes of a weight cannot be read.
        """
        graph = self.graph
        model = copy_without(graph.model, MODEL_PARTS)
        model.ir_version = max(model.ir_version, MIN_UNLISTED_WEIGHTS_VERSION)
        out = model.graph
        proto = self.proto
        out.MergeFrom(copy_without(proto, GRAPH_PARTS))
        # nodes around the body that compute its constants, and the weights of both
        makers = find_ancestors(graph, graph.producers(self.constants))
        read = [n for n in graph.iter_inputs(makers) if n not in graph.maker]
        weights = dict.fromkeys(filter(graph.is_weight, (*self.constants, *read)))
        pulled = graph.in_order(makers)
        own = {t.name for t in proto.initializer}
        for name in weights:
            if name not in own:
                add_weight(graph, name, out)
        out.initializer.extend(t for t in proto.initializer if t.name not in self.formals)
        out.sparse_initializer.extend(proto.sparse_initializer)
        out.node.extend(graph.nodes[i] for i in pulled)
        out.node.extend(proto.node)
        _name_nodes(out.node[len(pulled) :], self.name.text)
        sparse = flatten((s.values, s.indices) for s in out.sparse_initializer)
        protobuf.load_all((*sparse, *iter_attribute_tensors(out.node)), graph.path)
        self._declare(out, types)
        out.quantization_annotation.extend(proto.quantization_annotation)
        add_functions(graph, out.node, model)
        self._import_opsets(model)
        return model

    def _declare(self, out: GraphProto, types: Mapping[str, TypeProto]) -> None:
        declared = index_by_name(self.proto.input)
        for name in dict.fromkeys((*self.formals, *self.outer)):
            declare(out.input, name, declared.get(name), types.get(name))
        ends = index_by_name(self.proto.output)
        typed = {name for name, info in ends.items() if info.type.WhichOneof("value")}
        for name in dict.fromkeys(self.results):
            known = None if name in typed else types.get(name)
            declare(out.output, name, ends.get(name), known)
        out.value_info.extend(self.proto.value_info)

    def _import_opsets(self, model: ModelProto) -> None:
        """Import the opsets of a function, which may differ from the model's."""
        function = self.graph.functions.get(find_function_key(self.graph.nodes[self.name.node]))
        if self.name.attribute or function is None:  # a damaged file's body may have no name
            return
        versions = {o.domain: o.version for o in (*model.opset_import, *function.opset_import)}
        del model.opset_import[:]
        for domain, version in versions.items():
            model.opset_import.add(domain=domain, version=version)


def open_body(graph: Graph, name: BodyName) -> Body:
    """Return the body of that name, for a run.

    Raises:
        ModelError: a node in it draws random numbers, so that no run repeats it.
    """
    i = name.node
    if i in graph.random_nodes:
        raise ModelError(
            f"{graph.label(i)} ({graph.ops[i]}) draws random numbers inside: no run repeats its"
            " values",
            f"cut around it: --start {graph.label(i)} --end {graph.label(i)}",
            code="body.random",
        )
    return look_into(graph, name)


def look_into(graph: Graph, name: BodyName) -> Body:
    """Return the body of that name, also one whose values no run repeats."""
    i = name.node
    proto = (
        _expand_call(graph, i) if calls_function(graph, i) else attributes(graph, i)[name.attribute]
    )
    read = find_free_names(proto) if name.attribute else []
    made = [n for n in read if n in graph.maker]
    constant = {n for n, kind in find_kinds(graph, made).items() if kind == CONSTANT}
    constant |= {n for n in read if graph.is_weight(n) and n not in graph.maker}
    own = set(flatten(node.output for node in proto.node)) | {v.name for v in proto.input}
    made_before = graph.iter_outputs(find_ancestors(graph, graph.producers(constant)))
    # A constant is computed from one that is called as a tensor in here.
    if not own.isdisjoint(made_before):
        constant -= set(made)
    return Body(
        graph,
        name,
        proto,
        tuple(v.name for v in proto.input),
        tuple(n for n in read if n not in constant),
        tuple(v.name for v in proto.output),
        tuple(n for n in read if n in constant),
    )


def _name_nodes(nodes: Iterable[NodeProto], prefix: str) -> None:
    """Name each node as it is selected from outside: by its name if it is unique, or its number."""
    prefix = prefix if prefix.endswith("/") else f"{prefix}/"
    seen = set()
    for k, node in enumerate(nodes):
        label = node.name if node.name and node.name not in seen else f"#{k}"
        seen.add(node.name)
        node.name = prefix + label


# ------------------------------------------------------------ functions


def _expand_call(graph: Graph, i: int) -> GraphProto:
    """Return the function that node `i` calls, with the attributes and inputs of that call."""
    call = graph.nodes[i]
    function = graph.functions[find_function_key(call)]
    proto: GraphProto = protobuf.find_reading_class("GraphProto")(name=function.name)
    proto.node.extend(function.node)
    given = index_by_name((*function.attribute_proto, *call.attribute))
    omitted = {f for k, f in enumerate(function.input) if k >= len(call.input) or not call.input[k]}
    for node in iter_nodes(proto.node):
        node.input[:] = ["" if name in omitted else name for name in node.input]
        kept = []
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name not in given:
                    continue
                name = attribute.name
                attribute.CopyFrom(given[attribute.ref_attr_name])
                attribute.name = name
            kept.append(attribute)
        assign(node.attribute, kept)
    for name in function.input:
        if name not in omitted:
            proto.input.add(name=name)
    for name in function.output:
        proto.output.add(name=name)
    declarations: Any = proto.value_info  # bytes in the class that reads models
    declarations.extend(v.SerializeToString() for v in function.value_info)
    return proto


@frozen
class BodyName:
    """A body of a node, or the function that it calls.

    Attributes:
        node: The index of the node in the graph.
        attribute: The attribute that holds the body; "" for a function.
        iteration: A number, `LAST`, `ALL` or `FIRST`.
        text: The name that the user wrote.
    """

    node: int
    attribute: str
    iteration: str
    text: str


def split(graph: Graph, text: str) -> tuple[BodyName, str] | None:
    """Return the body that starts a selector, and the rest; None for one of the graph itself.

    Raises:
        UnknownName: the node has no body of that name.
        UsageError: the iteration is not a number, or the node does not iterate.
    """
    if "/" not in text or is_name(graph, text):
        return None
    ends = [m.start() for m in re.finditer("/", text)]
    for end in reversed(ends):  # names of nodes hold slashes, too: the longest that is a node's
        name = text[:end]
        i = graph.names.get(name) if name not in graph.shared_names else None
        if m := re.fullmatch(r"#(\d{1,9})", name):
            i = int(m[1])
        if i is not None and i < len(graph.nodes) and holds_bodies(graph, i):
            return _split_at(graph, i, text, end)
    return None


def _split_at(graph: Graph, i: int, text: str, end: int) -> tuple[BodyName, str]:
    """Return the body of node `i`, which `text[:end]` names, and the rest of the text."""
    own = attributes(graph, i)
    if not own:
        return BodyName(i, "", FIRST, text[:end]), text[end + 1 :]
    word, _, rest = text[end + 1 :].partition("/")
    name, at, iteration = word.partition("@")
    node = text[:end]
    if name not in own:
        known = ", ".join(f"{node}/{n}" for n in own)
        raise UnknownName(
            f"node '{node}' has no body '{name}'",
            f"it has {known}",
            nearest=find_nearest(name, own),
            code="body.unknown",
        )
    if at and not re.fullmatch(rf"\d{{1,9}}|{LAST}|{ALL}", iteration):
        raise UsageError(
            f"{text}: no iteration '{iteration}'",
            f"{node}/{name}@0 is the first; or @last, @all",
            code="body.unknown-iteration",
        )
    if at and not iterates(graph, i):
        raise UsageError(
            f"{text}: node '{node}' ({graph.ops[i]}) does not iterate",
            f"{node}/{name}",
            code="body.no-iterations",
        )
    return BodyName(i, name, iteration, f"{text[:end]}/{word}"), rest


def attributes(graph: Graph, i: int) -> dict[str, protobuf.GraphProto]:
    """Return the bodies of a node by the attribute that holds each."""
    return dict(iter_named_bodies(graph.nodes[i]))


def iterates(graph: Graph, i: int) -> bool:
    """Return whether node `i` is a Loop or a Scan."""
    return graph.ops[i] in ("Loop", "Scan") and graph.nodes[i].domain in STANDARD


def calls_function(graph: Graph, i: int) -> bool:
    """Return whether node `i` is a call of a local function."""
    return find_function_key(graph.nodes[i]) in graph.functions


def holds_bodies(graph: Graph, i: int) -> bool:
    """Return whether node `i` is an If, Loop or Scan, or a call of a local function."""
    if calls_function(graph, i):
        return True
    is_standard = graph.ops[i] in ("If", "Loop", "Scan") and graph.nodes[i].domain in STANDARD
    return is_standard and bool(attributes(graph, i))


def iter_body_names(graph: Graph, i: int) -> Iterator[str]:
    """Yield the names of a node's bodies for `split`: `loop1/body`, or `call1/` for a call."""
    label = graph.label(i)
    names = [f"{label}/{name}" for name in attributes(graph, i)]
    yield from names or [f"{label}/"]


@dataclass
class Part:
    """A graph and its place in the model.

    Attributes:
        prefix: The start of its nodes' selectors; "" for the model.
        word: Its name at its node, like `then_branch`; `function` for a called function.
        first: The number of its first node; numbers go on through the bodies of the model.
        inside: The bodies of its nodes, by the nodes' indices.
        size: The number of nodes in it and in its bodies.
    """

    graph: Graph
    prefix: str = ""
    word: str = ""
    first: int = 0
    inside: dict[int, list[Part]] = field(default_factory=dict)
    size: int = 0

    def all(self) -> Iterator[Part]:
        """Yield this part and all inside of it, in the order of their numbers."""
        yield self
        for row in self.inside.values():
            for part in row:
                yield from part.all()

    def iter_inner(self, nodes: Iterable[int]) -> Iterator[int]:
        """Yield the numbers of all nodes in the bodies of these nodes."""
        for i in nodes:
            for part in self.inside.get(i, ()):
                yield from range(part.first, part.first + part.size)


def parts(graph: Graph) -> Part:
    """Return the model with its bodies. Nothing is run or written.

    Bodies beyond `MAX_NODES` nodes are omitted, and with a warning those with an unreadable
    constant.
    """
    return _fill(Part(graph), len(graph.nodes) + MAX_NODES)


def find_part(known: Sequence[Part], name: str) -> tuple[Part, str]:
    """Return the part that a selector is about, and the selector in its own names.

    An iteration in the name (`loop1/body@3/conv`) makes no difference here.
    """
    top = known[0].graph
    if not is_name(top, name):
        plain = re.sub(r"@(\d+|last|all)(?=/)", "", name)
        found = max((p for p in known if plain.startswith(p.prefix)), key=lambda p: len(p.prefix))
        if found.prefix:
            return found, plain if plain in found.graph.names else plain.removeprefix(found.prefix)
    return known[0], name


def _fill(part: Part, most: int) -> Part:
    graph = part.graph
    part.size = len(graph.nodes)
    if not graph.functions and not {"If", "Loop", "Scan"}.intersection(graph.ops):
        return part
    for i in range(len(graph.nodes)):
        for text in iter_body_names(graph, i) if holds_bodies(graph, i) else ():
            attribute = text.removeprefix(f"{graph.label(i)}/")
            name = BodyName(i, attribute, FIRST, text.removesuffix("/"))
            body = look_into(graph, name)
            if part.first + part.size + len(body.proto.node) > most:
                continue
            try:
                model = body.model(find_declared_types(graph, body.outer))
            except DataError as e:
                log.warning("what is inside %s is not shown: %s", clean(graph.label(i)), e.what)
                continue
            inner = Graph(protobuf.Skeleton(graph.path, model, 0, ""))
            prefix = f"{name.text.rstrip('/')}/"
            found = Part(inner, prefix, name.attribute or "function", part.first + part.size)
            part.inside.setdefault(i, []).append(_fill(found, most))
            part.size += found.size
    return part
