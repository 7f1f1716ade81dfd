"""Graph → `LintNode`: every node, also in bodies and local functions, with the values in its scope.

Unknown values (a shape, a constant, an attribute that a function takes from its caller) are None,
and the rule that reads them is silent. `iter_numbers` measures the values of constants."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import get_attribute, iter_named_bodies, list_bodies, list_captured
from subgraph.graph.opsets import STANDARD, canonicalize_domain, find_schema, read_imports
from subgraph.graph.shape_inference import InferredTypes
from subgraph.graph.value_types import get_tensor_type
from subgraph.inspection.ranges import Range, measure_tensor
from subgraph.iterables import index_by_name, invert
from subgraph.storage import dtypes
from subgraph.types import Array, frozen

if TYPE_CHECKING:
    from subgraph.graph.protobuf import NodeProto, TensorProto, TypeProto


Shape = list[Any]  # a dimension is a size, a symbol's name, or None
Types: TypeAlias = "Mapping[str, TypeProto]"

# Elements; a larger constant is a weight, whose values no rule about a node reads.
MAX_CONSTANT = 1 << 16
# Attributes of Constant → element type of the value.
VALUES = {
    "value_float": "float32",
    "value_int": "int64",
    "value_floats": "float32",
    "value_ints": "int64",
}
# Raised by damaged tensors; see rule `invalid`.
UNREADABLE = (
    ModelError,
    OSError,
    ValueError,
    TypeError,
    KeyError,
)
# Index of a top-level node, of a body in it, of a node in that, of a body in that ….
NodePath = tuple[int, ...]
FLOATS = frozenset(("float32", "float64", "bfloat16", "float16"))


def _name_of(declared: Any) -> str:
    """Return the name of an input or output, which a FunctionProto lists as a text."""
    if isinstance(declared, str):
        return declared
    return str(declared.name)


@dataclass(eq=False)
class Scope:
    """A graph, body or local function, and the names that its nodes see.

    Attributes:
        graph: The model.
        proto: The GraphProto or FunctionProto.
        title: The place, for users; empty for the model's own graph.
        opsets: The version of each domain.
        outer: The scope around a body.
        load_types: Computes the types of its tensors on first use, by a shape inference.
        nodes: Its nodes.
        weights: Its dense initializers by name.
        inputs: The names of its inputs.
        outputs: The names of its outputs.
    """

    graph: Graph
    proto: Any
    title: str
    opsets: Mapping[str, int]
    outer: Scope | None = None
    load_types: Callable[[], Types] = dict
    nodes: list[LintNode] = field(default_factory=list)
    weights: dict[str, TensorProto] = field(init=False)
    inputs: frozenset[str] = field(init=False)
    outputs: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.weights = index_by_name(getattr(self.proto, "initializer", ()))
        self.inputs = frozenset(map(_name_of, self.proto.input))
        self.outputs = frozenset(map(_name_of, self.proto.output))

    @cached_property
    def makers(self) -> dict[str, LintNode]:
        """The producer of each tensor in this scope."""
        return invert((node, filter(None, node.proto.output)) for node in self.nodes)

    @cached_property
    def shared_names(self) -> frozenset[str]:
        """Names that several nodes have."""
        counts = Counter(node.proto.name for node in self.nodes)
        return frozenset(name for name, count in counts.items() if name and count > 1)

    @cached_property
    def readers(self) -> dict[str, list[LintNode]]:
        """The nodes of this scope that read each tensor, also in their bodies."""
        readers = defaultdict[str, list[LintNode]](list)
        for node in self.nodes:
            for name in dict.fromkeys((*node.proto.input, *list_captured(node.proto))):
                readers[name].append(node)
        return readers

    def _shadows(self, name: str) -> bool:
        """Return whether this scope has a tensor of that name, which hides an outer one."""
        return name in self.makers or name in self.weights or name in self.inputs

    def type_of(self, name: str) -> TypeProto | None:
        """Return the type of a tensor as nodes of this scope see it."""
        if (proto := self.load_types().get(name)) is not None:
            return proto
        if self.outer and not self._shadows(name):
            return self.outer.type_of(name)
        return None

    def weight(self, name: str) -> TensorProto | None:
        """Return the initializer of that name as nodes of this scope see it."""
        if name in self.weights and name not in self.makers:
            return self.weights[name]
        if self.outer and not self._shadows(name):
            return self.outer.weight(name)
        return None

    def constant(self, name: str) -> Array | None:
        """Return the value of a small weight, or of a Constant node."""
        if maker := self.makers.get(name):
            return _read_small_array(
                _get_value(maker) if maker.is_op("Constant") else None, self.graph
            )
        if name in self.weights:
            return _read_small_array(self.weights[name], self.graph)
        if self.outer and name not in self.inputs:
            return self.outer.constant(name)
        return None


@dataclass(frozen=True, eq=False, slots=True)
class LintNode:
    """A node in its scope.

    Attributes:
        proto: its NodeProto.
        position: index among the nodes of its scope.
        top: index of the top-level node that it is or that contains it; None in a local function.
    """

    proto: NodeProto
    scope: Scope
    position: int
    top: int | None

    @property
    def op(self) -> str:
        return str(self.proto.op_type)

    @property
    def domain(self) -> str:
        return canonicalize_domain(self.proto.domain)

    @property
    def version(self) -> int | None:
        """The opset of its domain."""
        return self.scope.opsets.get(self.domain)

    @property
    def label(self) -> str:
        """The node's name; `#17` if it has none or shares it; in a body `loop1 > body > name`."""
        if not self.scope.title and self.top is not None:
            return self.scope.graph.label(self.top)
        own = self.proto.name
        own = own if own and own not in self.scope.shared_names else f"#{self.position}"
        return f"{self.scope.title} > {own}"

    def is_op(self, *ops: str) -> bool:
        """Return whether the node is one of these standard operators."""
        return self.proto.op_type in ops and self.proto.domain in STANDARD

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute; None also if the operator does not take its type."""
        own = [a for a in self.proto.attribute if a.name == name]
        if not own:
            return default
        schema = find_schema(self.op, self.version or 0, self.domain)
        formal = schema.attributes.get(name) if schema else None
        if formal and any(a.type != formal.type.value for a in own):
            return None
        return get_attribute(self.proto, name, default)

    def input(self, k: int) -> str:
        """Return the name of the k-th input, counted from 0; empty without one."""
        return str(names[k]) if k < len(names := self.proto.input) else ""

    def output(self, k: int) -> str:
        """Return the name of the k-th output, counted from 0; empty without one."""
        return str(names[k]) if k < len(names := self.proto.output) else ""

    def constant(self, k: int) -> Array | None:
        """Value of the k-th input if it is a constant of at most `MAX_CONSTANT` elements."""
        name = self.input(k)
        return self.scope.constant(name) if name else None

    def dtype(self, name: str) -> str:
        """Return the element type of a tensor as this node sees it; empty if unknown, or for a
        sequence."""
        if (weight := self.scope.weight(name)) is not None:
            return dtypes.name_of(weight.data_type)
        declared = get_tensor_type(self.scope.type_of(name))
        return declared.dtype if declared else ""

    def shape(self, name: str) -> Shape | None:
        """Return the shape of a tensor as this node sees it; None if its rank is unknown."""
        if (weight := self.scope.weight(name)) is not None:
            return [int(d) for d in weight.dims]
        declared = get_tensor_type(self.scope.type_of(name))
        return declared.dims if declared else None


# ------------------------------------------------------------ constants


def _read_small_array(tensor: TensorProto | None, graph: Graph) -> Array | None:
    """Return the numbers of a tensor; None if it has none, more than `MAX_CONSTANT`, or cannot be
    read."""
    if tensor is None or not dtypes.count_number_bits(tensor.data_type):
        return None
    try:
        is_small = protobuf.count_elements(tensor) <= MAX_CONSTANT
        if is_small:
            return protobuf.to_array(tensor, graph.path)
        return None
    except UNREADABLE:
        return None


# ------------------------------------------------------------ scopes


def list_scopes(graph: Graph, load_types: Callable[[], InferredTypes]) -> list[Scope]:
    """Return the model's own graph, the bodies in it, and each local function, in linear time."""
    opsets = read_imports(graph.model)
    typed_nodes = cache(lambda: index_by_name(load_types().graph.node))

    def find_body_types(path: NodePath) -> Types:
        node = typed_nodes()[f"#{path[0]}"]
        for k, j in zip(path[1:-1:2], path[2::2], strict=True):
            node = list(list_bodies(node))[k].node[j]
        body = list(list_bodies(node))[path[-1]]
        return {
            v.name: v.type
            for v in (*body.value_info, *body.output, *body.input)
            if v.type.WhichOneof("value")
        }

    main = Scope(
        graph,
        graph.model.graph,
        "",
        opsets,
        None,
        cache(lambda: load_types().declared | load_types().inferred),
    )
    scopes = [*_iter_scopes(main, (), find_body_types)]
    for f in graph.functions.values():
        scope = Scope(
            graph,
            f,
            ".".join(filter(None, (f.domain, f.name, f.overload))),
            opsets | read_imports(f),
        )
        scopes += _iter_scopes(scope, None, find_body_types)
    return scopes


def _iter_scopes(
    scope: Scope, path: NodePath | None, find_body_types: Callable[[NodePath], Types]
) -> Iterator[Scope]:
    """Yield a scope, with its nodes, and those of its bodies; `path` is None in a function."""
    yield scope
    for j, proto in enumerate(scope.proto.node):
        scope.nodes.append(LintNode(proto, scope, j, None if path is None else (*path, j)[0]))
    for node in scope.nodes:  # labels, which name the bodies, depend on all nodes
        for k, (name, body) in enumerate(iter_named_bodies(node.proto)):
            body_path = None if path is None else (*path, node.position, k)
            load_types = cache(partial(find_body_types, body_path)) if body_path else dict
            inner = Scope(
                scope.graph, body, f"{node.label} > {name}", scope.opsets, scope, load_types
            )
            yield from _iter_scopes(inner, body_path, find_body_types)


@frozen
class Numbers:
    """The values of one constant.

    Attributes:
        name: The name of the constant.
        dtype: The element type.
        readers: The nodes of its scope that read it; at least one.
        values: The range of its elements.
    """

    name: str
    dtype: str
    readers: tuple[LintNode, ...]
    values: Range


def iter_numbers(scope: Scope) -> Iterator[Numbers]:
    """Yield the constants of a scope that are floats: initializers, Constant and
    ConstantOfShape."""
    tensors = [(t.name, t) for t in scope.weights.values()]
    tensors += [(s.values.name, s.values) for s in getattr(scope.proto, "sparse_initializer", ())]
    tensors += [
        (node.output(0), tensor)
        for node in scope.nodes
        if node.is_op("Constant", "ConstantOfShape")
        and node.output(0)
        and (tensor := _get_value(node)) is not None
    ]
    for name, tensor in tensors:
        dtype = dtypes.name_of(tensor.data_type)
        readers = tuple(scope.readers.get(name, ()))
        if dtype in FLOATS and readers:
            with suppress(*UNREADABLE):
                yield Numbers(name, dtype, readers, measure_tensor(tensor, scope.graph.path))


def _get_value(node: LintNode) -> protobuf.TensorProto | None:
    """Return the value of a Constant, or the element of a ConstantOfShape."""
    attributes: Iterable[protobuf.AttributeProto] = node.proto.attribute
    for a in attributes:
        if a.name == "value" and not a.ref_attr_name:
            return a.t
        if a.name in VALUES and not a.ref_attr_name:
            value = np.asarray(node.attribute(a.name), VALUES[a.name])
            number = dtypes.TYPE_NUMBERS[VALUES[a.name]]
            return protobuf.load_protos().TensorProto(
                data_type=number, dims=value.shape, raw_data=value.tobytes()
            )
    return None
