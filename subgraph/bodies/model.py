"""The body of a node, or the function that a node calls, as a model.

This module also has the names of bodies, and the tree of all graphs in a model.

The model of a body has two kinds of inputs: the body's own inputs (`formals`), and the tensors that
the body reads from the graph around it (`outer`). It contains the weights and constants that the
body reads from that graph. Its nodes have the names with which a user selects them:
`loop1/body/conv`.

`loop1/body@3` is the body of node `loop1` in iteration 3, `if1/then_branch` is a branch. The name
of a node or tensor in the body follows: `loop1/body@3/conv`. The node may have a body itself:
`loop1/body@3/if1/then_branch/conv`. A local function has the name of a node that calls it:
`call1/conv`. Iterations count from 0. A name without an iteration selects the first that runs.
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


# The first version of the file format in which a weight need not be an input as well.
MIN_UNLISTED_WEIGHTS_VERSION = 4
# The words that a user may write after `@` instead of a number; FIRST if there is no `@`.
FIRST = ""
LAST = "last"
ALL = "all"
MAX_NODES = 20_000  # in all bodies; a function that 1,000 nodes call counts 1,000 times


@frozen
class Body:
    """The body of a node, or the function that a node calls.

    Attributes:
        graph: The graph around the body, which has the node.
        name: The name of the body.
        proto: The graph in the node; for a function, its nodes with the attributes of the call.
        formals: The names of the body's inputs, in order.
        outer: The tensors that the body reads and that the graph around it computes, in order.
        results: The names of the body's outputs, in order; some may be equal.
        constants: The weights and constants that the body reads from the graph around it.
    """

    graph: Graph
    name: BodyName
    proto: GraphProto
    formals: Strings
    outer: Strings
    results: Strings
    constants: Strings

    def make_model(self, types: Mapping[str, TypeProto]) -> ModelProto:
        """Return a model of the body, in which large weights are stubs.

        The class of the model is that of `protobuf.find_reading_class()`. Complexity: linear in the
        body.

        Args:
            types: The known types of the body's inputs and outputs.

        Raises:
            DataError: The bytes of a weight cannot be read.
        """
        graph = self.graph
        model = copy_without(graph.model, MODEL_PARTS)
        model.ir_version = max(model.ir_version, MIN_UNLISTED_WEIGHTS_VERSION)
        out = model.graph
        proto = self.proto
        out.MergeFrom(copy_without(proto, GRAPH_PARTS))
        # The model needs the nodes that compute the body's constants, and all weights.
        producers = find_ancestors(graph, graph.producers(self.constants))
        sources = [n for n in graph.iter_inputs(producers) if n not in graph.maker]
        weights = dict.fromkeys(filter(graph.is_weight, (*self.constants, *sources)))
        constant_nodes = graph.in_order(producers)
        own = {t.name for t in proto.initializer}
        for name in weights:
            if name not in own:
                add_weight(graph, name, out)
        out.initializer.extend(t for t in proto.initializer if t.name not in self.formals)
        out.sparse_initializer.extend(proto.sparse_initializer)
        out.node.extend(graph.nodes[i] for i in constant_nodes)
        out.node.extend(proto.node)
        _name_nodes(out.node[len(constant_nodes) :], self.name.text)
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
        """Import the opsets of a function, which may differ from those of the full model."""
        function = self.graph.functions.get(find_function_key(self.graph.nodes[self.name.node]))
        if self.name.attribute or function is None:  # a damaged file's body may have no name
            return
        versions = {o.domain: o.version for o in (*model.opset_import, *function.opset_import)}
        del model.opset_import[:]
        for domain, version in versions.items():
            model.opset_import.add(domain=domain, version=version)


def open_body(graph: Graph, name: BodyName) -> Body:
    """Return the body of that name, whose values any run repeats.

    Raises:
        ModelError: A node in the body draws random numbers.
    """
    i = name.node
    if i in graph.random_nodes:
        raise ModelError(
            f"{graph.label(i)} ({graph.ops[i]}) draws random numbers inside: no run repeats its"
            " values",
            f"cut around it: --start {graph.label(i)} --end {graph.label(i)}",
            code="body.random",
        )
    return build_body(graph, name)


def build_body(graph: Graph, name: BodyName) -> Body:
    """Return the body of that name, which may draw random numbers."""
    i = name.node
    if is_function_call(graph, i):
        proto = _expand_call(graph, i)
    else:
        proto = index_bodies(graph, i)[name.attribute]
    captured = find_free_names(proto) if name.attribute else []
    computed = [n for n in captured if n in graph.maker]
    constants = {n for n, kind in find_kinds(graph, computed).items() if kind == CONSTANT}
    constants |= {n for n in captured if graph.is_weight(n) and n not in graph.maker}
    own = set(flatten(node.output for node in proto.node)) | {v.name for v in proto.input}
    copied = graph.iter_outputs(find_ancestors(graph, graph.producers(constants)))
    # A copied tensor must not have the name of a tensor of the body.
    if not own.isdisjoint(copied):
        constants -= set(computed)
    return Body(
        graph,
        name,
        proto,
        tuple(v.name for v in proto.input),
        tuple(n for n in captured if n not in constants),
        tuple(v.name for v in proto.output),
        tuple(n for n in captured if n in constants),
    )


def _name_nodes(nodes: Iterable[NodeProto], prefix: str) -> None:
    """Give each node the name with which a user selects it: `prefix`, then its name or number.

    The number is used if the node has no name, or if an earlier node has the same name.
    """
    prefix = prefix if prefix.endswith("/") else f"{prefix}/"
    seen = set()
    for k, node in enumerate(nodes):
        label = node.name if node.name and node.name not in seen else f"#{k}"
        seen.add(node.name)
        node.name = prefix + label


# ------------------------------------------------------------ functions


def _expand_call(graph: Graph, i: int) -> GraphProto:
    """Return the function that node `i` calls as a graph, with the attributes of that call.

    The graph has no input for an omitted input of the call.
    """
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
    declarations: Any = proto.value_info  # a list of bytes in the class that reads models
    declarations.extend(v.SerializeToString() for v in function.value_info)
    return proto


@frozen
class BodyName:
    """The name of a body of a node, or of the function that the node calls.

    Attributes:
        node: The index of the node in the graph.
        attribute: The attribute that has the body; "" for a function.
        iteration: A number as text, `LAST`, `ALL` or `FIRST`.
        text: The name as the user wrote it.
    """

    node: int
    attribute: str
    iteration: str
    text: str


def split_selector(graph: Graph, text: str) -> tuple[BodyName, str] | None:
    """Return the body whose name a selector starts with, and the remaining text of the selector.

    Return None if the selector names a node or tensor of `graph` itself.

    Raises:
        UnknownName: The node has no body of that name.
        UsageError: The iteration is not a number, or the node does not iterate.
    """
    if "/" not in text or is_name(graph, text):
        return None
    ends = [m.start() for m in re.finditer("/", text)]
    for end in reversed(ends):  # the longest node name counts: node names have slashes, too
        name = text[:end]
        i = graph.names.get(name) if name not in graph.shared_names else None
        if m := re.fullmatch(r"#(\d{1,9})", name):
            i = int(m[1])
        if i is not None and i < len(graph.nodes) and has_bodies(graph, i):
            return _split_selector_at(graph, i, text, end)
    return None


def _split_selector_at(graph: Graph, i: int, text: str, end: int) -> tuple[BodyName, str]:
    """Return the body of node `i`, whose name is `text[:end]`, and the remaining text."""
    own = index_bodies(graph, i)
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
    if at and not is_loop_or_scan(graph, i):
        raise UsageError(
            f"{text}: node '{node}' ({graph.ops[i]}) does not iterate",
            f"{node}/{name}",
            code="body.no-iterations",
        )
    return BodyName(i, name, iteration, f"{text[:end]}/{word}"), rest


def index_bodies(graph: Graph, i: int) -> dict[str, protobuf.GraphProto]:
    """Return the bodies of a node by the name of the attribute that has each."""
    return dict(iter_named_bodies(graph.nodes[i]))


def is_loop_or_scan(graph: Graph, i: int) -> bool:
    """Return whether node `i` is a Loop or a Scan."""
    return graph.ops[i] in ("Loop", "Scan") and graph.nodes[i].domain in STANDARD


def is_function_call(graph: Graph, i: int) -> bool:
    """Return whether node `i` is a call of a local function."""
    return find_function_key(graph.nodes[i]) in graph.functions


def has_bodies(graph: Graph, i: int) -> bool:
    """Return whether node `i` is an If, Loop or Scan, or a call of a local function."""
    if is_function_call(graph, i):
        return True
    is_standard = graph.ops[i] in ("If", "Loop", "Scan") and graph.nodes[i].domain in STANDARD
    return is_standard and bool(index_bodies(graph, i))


def iter_body_names(graph: Graph, i: int) -> Iterator[str]:
    """Yield the names of a node's bodies, as `split_selector` reads them.

    Examples are `loop1/body`, and `call1/` for a call.
    """
    label = graph.label(i)
    names = [f"{label}/{name}" for name in index_bodies(graph, i)]
    yield from names or [f"{label}/"]


@dataclass
class Part:
    """The graph of a model or of a body, and its place in the tree of these graphs.

    Attributes:
        graph: The graph.
        prefix: The text that selectors of its nodes start with; "" for the model.
        word: The attribute that has the body, like `then_branch`; `function` for a called function.
        first: The number of its first node. One numbering covers the nodes of the model and then
            those of all bodies.
        inside: The bodies of its nodes, by the index of the node.
        size: The number of nodes in it and in its bodies.
    """

    graph: Graph
    prefix: str = ""
    word: str = ""
    first: int = 0
    inside: dict[int, list[Part]] = field(default_factory=dict)
    size: int = 0

    def all(self) -> Iterator[Part]:
        """Yield this part and all parts inside it, in the order of their node numbers."""
        yield self
        for row in self.inside.values():
            for part in row:
                yield from part.all()

    def iter_inner(self, nodes: Iterable[int]) -> Iterator[int]:
        """Yield the number of each node in the bodies of these nodes."""
        for i in nodes:
            for part in self.inside.get(i, ()):
                yield from range(part.first, part.first + part.size)


def build_part_tree(graph: Graph) -> Part:
    """Return the tree of a model and its bodies. Nothing is run or written.

    Bodies that would exceed `MAX_NODES` nodes are omitted. Bodies with an unreadable constant are
    omitted with a warning.
    """
    return _add_bodies(Part(graph), len(graph.nodes) + MAX_NODES)


def find_part(known: Sequence[Part], name: str) -> tuple[Part, str]:
    """Return the part that has the node of a selector, and the name of that node in the part.

    Iterations in the selector (`loop1/body@3/conv`) are ignored.
    """
    top = known[0].graph
    if not is_name(top, name):
        plain = re.sub(r"@(\d+|last|all)(?=/)", "", name)
        found = max((p for p in known if plain.startswith(p.prefix)), key=lambda p: len(p.prefix))
        if found.prefix:
            return found, plain if plain in found.graph.names else plain.removeprefix(found.prefix)
    return known[0], name


def _add_bodies(part: Part, most: int) -> Part:
    """Add the bodies of its nodes to a part, up to the node number `most`, and return the part."""
    graph = part.graph
    part.size = len(graph.nodes)
    if not graph.functions and not {"If", "Loop", "Scan"}.intersection(graph.ops):
        return part
    for i in range(len(graph.nodes)):
        for text in iter_body_names(graph, i) if has_bodies(graph, i) else ():
            attribute = text.removeprefix(f"{graph.label(i)}/")
            name = BodyName(i, attribute, FIRST, text.removesuffix("/"))
            body = build_body(graph, name)
            if part.first + part.size + len(body.proto.node) > most:
                continue
            try:
                model = body.make_model(find_declared_types(graph, body.outer))
            except DataError as e:
                log.warning("what is inside %s is not shown: %s", clean(graph.label(i)), e.what)
                continue
            inner = Graph(protobuf.Skeleton(graph.path, model, 0, ""))
            prefix = f"{name.text.rstrip('/')}/"
            found = Part(inner, prefix, name.attribute or "function", part.first + part.size)
            part.inside.setdefault(i, []).append(_add_bodies(found, most))
            part.size += found.size
    return part
