"""Graph -> Places: every node where it stands, in bodies and local functions too, with what is known around it.

A rule that asks for what nobody knows (a shape, a constant, an attribute that a function takes from its caller) gets
None, and is silent: a false alarm costs more than a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

from subgraph.errors import InputError, ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import BODILESS, GRAPH_ATTRIBUTE, GRAPHS_ATTRIBUTE, STANDARD, Graph, captured_names
from subgraph.graph.operators import canonical_domain
from subgraph.graph.shape_inference import InferredTypes
from subgraph.graph.types import declared_type
from subgraph.storage import dtypes

if TYPE_CHECKING:
    from subgraph.types import Array

Shape = list[Any]  # a dimension is a number, a symbol's name, or None
Types = Mapping[str, protobuf.TypeProto]

SMALL = 1 << 16  # elements; a larger constant is a weight, whose values no rule about a node asks for
# AttributeProto.AttributeType -> the field that holds the value.
FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings"}
VALUES = {
    "value_float": "float32",
    "value_int": "int64",
    "value_floats": "float32",
    "value_ints": "int64",
}  # Constant's


@dataclass(eq=False)
class Scope:
    """What the nodes of one graph, body or function see.

    Attributes:
        proto: GraphProto or FunctionProto.
        title: where it is; empty for the model's own graph.
        opsets: version by domain.
        types: asked for late: they take a shape inference.
    """

    graph: Graph
    proto: Any
    title: str
    opsets: Mapping[str, int]
    outer: Scope | None = None
    types: Callable[[], Types] = dict
    places: list[LintNode] = field(default_factory=list)

    @cached_property
    def weights(self) -> dict[str, protobuf.TensorProto]:
        """Its own dense initializers."""
        return {t.name: t for t in getattr(self.proto, "initializer", ())}

    @cached_property
    def makers(self) -> dict[str, LintNode]:
        """Tensor → the node of this scope that makes it."""
        return {name: place for place in self.places for name in place.node.output if name}

    @cached_property
    def given(self) -> frozenset[str]:
        """The names of its inputs. A function's are plain texts."""
        return frozenset(v if isinstance(v, str) else v.name for v in self.proto.input)

    @cached_property
    def repeated(self) -> frozenset[str]:
        """Names that several of its nodes have."""
        counted = Counter(place.node.name for place in self.places)
        return frozenset(name for name, number in counted.items() if name and number > 1)

    @cached_property
    def readers(self) -> dict[str, list[LintNode]]:
        """Tensor → the nodes of this scope that read it, also through their bodies."""
        found: dict[str, list[LintNode]] = {}
        for place in self.places:
            inner = captured_names(place.node) if place.holds else ()
            for name in dict.fromkeys((*place.node.input, *inner)):
                found.setdefault(name, []).append(place)
        return found

    @cached_property
    def known(self) -> Types:
        return self.types()

    def hides(self, name: str) -> bool:
        """Does it have a tensor of its own of that name?"""
        return name in self.makers or name in self.weights or name in self.given

    def type_of(self, name: str) -> protobuf.TypeProto | None:
        """The type of a tensor as the nodes here see it."""
        if (found := self.known.get(name)) is not None:
            return found
        return self.outer.type_of(name) if self.outer and not self.hides(name) else None

    def tensor(self, name: str) -> protobuf.TensorProto | None:
        """The weight of that name."""
        if name in self.weights and name not in self.makers:
            return self.weights[name]
        return self.outer.tensor(name) if self.outer and not self.hides(name) else None

    def constant(self, name: str) -> Array | None:
        """The value of a small weight, or of a Constant node."""
        if maker := self.makers.get(name):
            return held(maker) if maker.is_op("Constant") else None
        if name in self.weights:
            return read(self.weights[name], self.graph)
        return self.outer.constant(name) if self.outer and name not in self.given else None


@dataclass(frozen=True, eq=False, slots=True)
class LintNode:
    """A node where it stands.

    Attributes:
        position: among the nodes of its scope.
        top: index of the model's node that it is, or is inside of; None in a local function.
    """

    node: protobuf.NodeProto
    scope: Scope
    position: int
    top: int | None

    @property
    def op(self) -> str:
        return str(self.node.op_type)

    @property
    def domain(self) -> str:
        return canonical_domain(self.node.domain)

    @property
    def version(self) -> int | None:
        """The opset of its domain."""
        return self.scope.opsets.get(self.domain)

    @property
    def label(self) -> str:
        """Its name, `#17` where it has none or shares it; inside of another, `loop1 > body > name`."""
        if not self.scope.title and self.top is not None:
            return self.scope.graph.label(self.top)
        own = self.node.name
        own = own if own and own not in self.scope.repeated else f"#{self.position}"
        return f"{self.scope.title} > {own}"

    @property
    def holds(self) -> bool:
        """May it hold bodies?"""
        return bool(self.node.attribute) and self.node.op_type not in BODILESS

    def is_op(self, *ops: str) -> bool:
        """Is it one of these standard operators?"""
        return self.node.op_type in ops and self.node.domain in STANDARD

    def attribute(self, name: str, default: Any = None) -> Any:
        """Its value: number, text, list or TensorProto; None where a function takes it from its caller."""
        for a in self.node.attribute:
            if a.name == name:
                if a.ref_attr_name:
                    return None
                value = getattr(a, FIELDS.get(a.type, "i"))
                if isinstance(value, bytes):
                    return value.decode(errors="replace")
                return list(value) if a.type in (6, 7, 8) else value
        return default

    def input(self, k: int) -> str:
        """The name of its k-th input; empty where it has none."""
        return str(self.node.input[k]) if k < len(self.node.input) else ""

    def constant(self, k: int) -> Array | None:
        """The value of its k-th input, where that is a small constant."""
        name = self.input(k)
        return self.scope.constant(name) if name else None

    def dtype(self, name: str) -> str:
        """The element type of a tensor; empty where nobody knows."""
        if (weight := self.scope.tensor(name)) is not None:
            return dtypes.name_of(weight.data_type)
        return _declared(self.scope.type_of(name))[0]

    def shape(self, name: str) -> Shape | None:
        """The shape of a tensor; None where not even its rank is known."""
        if (weight := self.scope.tensor(name)) is not None:
            return [int(d) for d in weight.dims]
        return _declared(self.scope.type_of(name))[1]


def _declared(proto: protobuf.TypeProto | None) -> tuple[str, Shape | None]:
    if proto is None:
        return "", None
    try:
        form, dtype, dims = declared_type(proto)
    except InputError:
        return "", None
    return (dtype, dims) if form == "tensor" else ("", None)


# ---------------------------------------------------------------------------------------------------- constants


def held(place: LintNode) -> Array | None:
    """What a Constant holds, if it is small and no text."""
    import numpy as np

    for a in place.node.attribute:
        if a.ref_attr_name:
            return None
        if a.name == "value":
            return read(a.t, place.scope.graph)
        if a.name in VALUES:
            return np.asarray(place.attribute(a.name), VALUES[a.name])
    return None


def read(tensor: protobuf.TensorProto, graph: Graph) -> Array | None:
    """A small tensor's numbers; None where it has none, too many, or its bytes cannot be had."""
    try:
        return inside(tensor, graph) if protobuf.element_count(tensor) <= SMALL else None
    except UNREADABLE:
        return None


# What a damaged tensor raises; rule `invalid` says what is wrong with it.
UNREADABLE = (ModelError, OSError, ValueError, TypeError, KeyError)


def inside(tensor: protobuf.TensorProto, graph: Graph) -> Array:
    """A tensor's numbers, all in memory. Raises one of UNREADABLE."""
    import onnx.numpy_helper

    if not dtypes.TYPES.get(tensor.data_type, ("", 0))[1]:
        raise ValueError(tensor.data_type)
    full = protobuf.load_raw(tensor, graph.path) if protobuf.on_disk(tensor) else tensor
    plain: Array = onnx.numpy_helper.to_array(protobuf.protos().TensorProto.FromString(full.SerializeToString()))
    return plain


# ---------------------------------------------------------------------------------------------------- walk


def scopes(graph: Graph, known: Callable[[], InferredTypes]) -> list[Scope]:
    """The model's own graph, the bodies inside it, and each local function. Complexity: linear in all nodes."""
    opsets = {canonical_domain(o.domain): int(o.version) for o in graph.model.opset_import}
    twins = cache(lambda: {node.name: node for node in known().graph.node})
    main = Scope(graph, graph.model.graph, "", opsets, None, lambda: {**known().declared, **known().inferred})
    found = [main]
    for i, node in enumerate(graph.nodes):
        place = LintNode(node, main, i, i)
        main.places.append(place)
        if place.holds:
            found += _inside(place, partial(_named, twins, f"#{i}"))
    for f in graph.functions.values():
        own = {canonical_domain(o.domain): int(o.version) for o in f.opset_import}
        scope = Scope(graph, f, ".".join(filter(None, (f.domain, f.name, f.overload))), opsets | own)
        found.append(scope)
        for j, node in enumerate(f.node):
            place = LintNode(node, scope, j, None)
            scope.places.append(place)
            found += _inside(place, None) if place.holds else ()
    return found


def _named(twins: Callable[[], Mapping[str, Any]], name: str) -> Any:
    return twins()[name]


def _inside(holder: LintNode, twin: Callable[[], Any] | None) -> Iterator[Scope]:
    """The bodies of a node, at any depth; `twin` gives the same node with inferred types in its bodies."""
    for k, (name, body) in enumerate(named_bodies(holder.node)):
        same = partial(_body, twin, k) if twin else None
        title, types = f"{holder.label} > {name}", partial(_types, same) if same else dict
        scope = Scope(holder.scope.graph, body, title, holder.scope.opsets, holder.scope, types)
        yield scope
        for j, node in enumerate(body.node):
            place = LintNode(node, scope, j, holder.top)
            scope.places.append(place)
            if place.holds:
                yield from _inside(place, partial(_node, same, j) if same else None)


def _body(twin: Callable[[], Any], k: int) -> Any:
    return list(named_bodies(twin()))[k][1]


def _node(body: Callable[[], Any], j: int) -> Any:
    return body().node[j]


def named_bodies(node: protobuf.NodeProto) -> Iterator[tuple[str, protobuf.GraphProto]]:
    """(attribute's name, graph) of each body that a node holds itself."""
    for a in node.attribute:
        if a.type == GRAPH_ATTRIBUTE or a.HasField("g"):
            yield str(a.name), a.g
        elif a.type == GRAPHS_ATTRIBUTE:
            yield from ((f"{a.name}[{k}]", g) for k, g in enumerate(a.graphs))


def _types(body: Callable[[], Any]) -> Types:
    graph = body()
    return {v.name: v.type for v in (*graph.value_info, *graph.output, *graph.input) if v.type.WhichOneof("value")}
