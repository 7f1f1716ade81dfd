"""`Graph`: a read-only index of the producer and the consumers of each tensor of an ONNX model.

A node is identified by its index in the file, a tensor by its name. Bodies of If, Loop and Scan
read tensors of the graph around them without listing them as inputs; such *captured* tensors count
as read by the node that holds the body. Weights stay on disk (see `graph.protobuf`).
"""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any

from subgraph.errors import ArgumentTypeError, ModelError, UnknownName, UsageError
from subgraph.graph import protobuf
from subgraph.graph.nested import (
    BODILESS,
    FunctionKey,
    all_nodes,
    bodies,
    find_called,
    functions_of,
    list_captured,
    operator,
)
from subgraph.graph.opsets import STANDARD, require_expandable
from subgraph.graph.properties import RANDOM_OPS, SHAPE_OPS
from subgraph.reach import flatten, group_values, index_by_name, invert, pick, reach
from subgraph.text import list_some, nearest
from subgraph.types import Array, JsonObject, Strings

if TYPE_CHECKING:
    from subgraph.graph.protobuf import (
        GraphProto,
        NodeProto,
        TensorProto,
        TypeProto,
        ValueInfoProto,
    )

# The dependencies of a tensor's value, from least to most: nothing, shapes of model inputs, values
# of model inputs.
CONSTANT = 0
SHAPE = 1
VALUE = 2

ConstantLookup = Callable[[str], Any]  # tensor name → its TensorProto; None if it is computed


@dataclass(frozen=True, slots=True)
class Selection:
    """The nodes of a selector, and its tensor if it names one."""

    text: str
    nodes: tuple[int, ...]
    tensor: str | None = None


class Graph:
    """A read-only index over one model.

    It is built in a time linear in nodes and edges, also for an invalid graph.

    Attributes:
        path: The model file.
        model: Its ModelProto, whose large weights are stubs (see `graph.protobuf`). It must not be
            changed.
        nodes: The top-level nodes, in file order.
        reads: Per node, names of its input tensors, explicit and captured, without omitted ones.
        makes: Per node, names of its output tensors, without omitted ones.
        maker: Tensor → index of its producer.
        ops: Per node, its op type.
        node_names: Per node, its name, which can be empty.
        names: Node name → index; of the last node if several share the name (`shared_names`).
        functions: Local functions by (domain, name, overload), in file order.
        weights: Dense initializers by name.
        sparse: Sparse initializers by name.
        inputs: Graph inputs that are not initializers, by name, in order.
        outputs: Names of the graph outputs, in order.

    >>> graph = load("resnet50.onnx")
    >>> pool1 = graph.maker["pool1"]
    >>> graph.ops[pool1], graph.reads[pool1], graph.makes[pool1]
    ('MaxPool', ('conv1',), ('pool1',))
    """

    def __init__(self, skeleton: protobuf.Skeleton) -> None:
        self.path: Path = skeleton.path
        self.skeleton = skeleton
        self.model = skeleton.model
        self.functions: dict[FunctionKey, Any] = functions_of(self.model)
        self._index(self.model.graph)
        # built when they are first needed (readers), or by `prepare`
        self._readers: dict[str, list[int]] | None = None
        self._kinds: dict[str, int] | None = None
        self._infos: dict[str, tuple[int, ValueInfoProto]] | None = None

    def __repr__(self) -> str:
        return f"Graph({self.path.name!r}, {len(self.nodes)} nodes)"

    def _index(self, graph: GraphProto) -> None:
        # The loop is written for speed: 80,000 nodes are indexed in 0.2 s.
        self.nodes: Sequence[NodeProto] = graph.node
        self.weights: dict[str, TensorProto] = index_by_name(graph.initializer)
        self.sparse: JsonObject = {s.values.name: s for s in graph.sparse_initializer}
        self.inputs: dict[str, ValueInfoProto] = {
            v.name: v
            for v in graph.input
            if v.name not in self.weights and v.name not in self.sparse
        }
        self.outputs: list[str] = [v.name for v in graph.output]
        reads_of = []
        makes_of = []
        ops = []
        names = []
        for node in self.nodes:
            # A slice is copied in one call: a third faster than iterating.
            reads = tuple(node.input[:])
            makes = tuple(node.output[:])
            op = node.op_type
            if op not in BODILESS:
                reads += tuple(list_captured(node))
            if "" in reads:
                reads = tuple(filter(None, reads))
            if "" in makes:
                makes = tuple(filter(None, makes))
            reads_of.append(reads)
            makes_of.append(makes)
            ops.append(intern(op))
            names.append(node.name)
        self.reads: list[Strings] = reads_of
        self.makes: list[Strings] = makes_of
        self.ops: list[str] = ops
        self.node_names: list[str] = names
        self.names: dict[str, int] = {name: i for i, name in enumerate(names) if name}
        self.maker: dict[str, int] = {}
        for i, makes in enumerate(makes_of):
            self.maker.update(dict.fromkeys(makes, i))

    @cached_property
    def shared_names(self) -> dict[str, list[int]]:
        """Name that several nodes have → their indices."""
        if len(set(self.node_names)) == len(self.node_names):
            return {}
        same = group_values((name, i) for i, name in enumerate(self.node_names))
        return {name: nodes for name, nodes in same.items() if name and len(nodes) > 1}

    # ------------------------------------------------------------ order

    @cached_property
    def rank(self) -> Sequence[int]:
        """Position of each node in a topological order: the order of the file if it is topological.

        Raises:
            ModelError: the graph has a cycle; names its nodes.
        """
        if self._is_sorted:
            return range(len(self.nodes))
        from graphlib import CycleError, TopologicalSorter

        sorter: TopologicalSorter[int] = TopologicalSorter()
        for i in range(len(self.nodes)):
            sorter.add(i, *self.predecessors(i))
        try:
            order = list(sorter.static_order())
        except CycleError as e:
            cycle = " → ".join(map(self.label, e.args[1]))
            raise ModelError(
                f"{self.path.name} has a cycle: {cycle}",
                "an ONNX graph must have none",
                code="graph.cycle",
            ) from e
        rank = [0] * len(order)
        for position, node in enumerate(order):
            rank[node] = position
        return rank

    @cached_property
    def _is_sorted(self) -> bool:
        """Whether every tensor is produced before it is read."""
        made_by = self.maker.get
        for i, names in enumerate(self.reads):
            for name in names:
                if made_by(name, -1) >= i:
                    return False
        return True

    def iter_outputs(self, nodes: Iterable[int]) -> Iterator[str]:
        """Yield the tensors that these nodes output."""
        return flatten(map(self.makes.__getitem__, nodes))

    def iter_inputs(self, nodes: Iterable[int]) -> Iterator[str]:
        """Yield the tensors that these nodes read, explicit and captured."""
        return flatten(map(self.reads.__getitem__, nodes))

    def in_order(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes in topological order."""
        return sorted(nodes, key=self.rank.__getitem__)

    @cached_property
    def order(self) -> list[int]:
        """All nodes in topological order.

        Raises:
            ModelError: as `rank`.
        """
        return self.in_order(range(len(self.nodes)))

    def producers(self, tensors: Iterable[str]) -> Iterator[int]:
        """Yield the nodes that output these tensors; inputs and weights have none."""
        return (self.maker[name] for name in tensors if name in self.maker)

    def predecessors(self, i: int) -> Iterator[int]:
        """Return the producers of the inputs of node `i`, with repetitions."""
        return self.producers(self.reads[i])

    @property
    def readers(self) -> dict[str, list[int]]:
        """Tensor → indices of the nodes that read it, in file order."""
        if self._readers is None:
            readers: dict[str, list[int]] = {}
            for i, names in enumerate(self.reads):
                for name in dict.fromkeys(names):
                    readers.setdefault(name, []).append(i)
            self._readers = readers
        return self._readers

    def prepare(self) -> Graph:
        """Index readers, kinds and value infos of all tensors; returns the graph itself.

        Deriving a region then costs time linear in the region rather than in the model. For a
        single region the index costs more than it saves.

        Raises:
            ModelError: the graph has a cycle, or a value_info is damaged.
        """
        if self._kinds is None or self._infos is None:
            _ = self.readers
            self._kinds = self.kinds(self.maker)
            infos = enumerate(self.value_infos().items())
            self._infos = {name: (k, info) for k, (name, info) in infos}
        return self

    def readers_of(self, names: Collection[str]) -> dict[str, list[int]]:
        """Return the consumers of a few tensors in one pass over the nodes, without an index."""
        tensors = set(names)
        if (known := self._readers) is not None:
            return pick(known, tensors)
        first = (
            min((self.maker.get(name, 0) for name in tensors), default=0) if self._is_sorted else 0
        )
        readers: dict[str, list[int]] = {}
        for i in range(first, len(self.reads)):
            if not tensors.isdisjoint(self.reads[i]):
                for name in tensors.intersection(self.reads[i]):
                    readers.setdefault(name, []).append(i)
        return readers

    def successors(self, i: int) -> Iterator[int]:
        """Yield nodes that read a tensor that node `i` produces, with repetitions."""
        for name in self.makes[i]:
            yield from self.readers.get(name, ())

    def ancestors(self, nodes: Iterable[int], floor: int = -1) -> set[int]:
        """`nodes` and all nodes that they depend on, except those of a rank below `floor`. Linear
        in the result."""
        rank = self.rank
        reads = self.reads
        maker = self.maker
        seen = set(nodes)
        stack = list(seen)
        while stack:
            for name in reads[stack.pop()]:
                other = maker.get(name)
                if other is not None and other not in seen and rank[other] >= floor:
                    seen.add(other)
                    stack.append(other)
        return seen

    def descendants(self, nodes: Iterable[int]) -> set[int]:
        """`nodes` and all nodes that depend on them. Linear in the result, once `readers` is
        built."""
        return reach(nodes, self.successors)

    def ancestors_until(self, nodes: Iterable[int], stops: Callable[[str], bool]) -> set[int]:
        """Return nodes, and all nodes that they depend on through tensors for which `stops` is
        false."""
        return reach(
            nodes, lambda i: self.producers(name for name in self.reads[i] if not stops(name))
        )

    # ------------------------------------------------------------ kinds

    def is_weight(self, name: str) -> bool:
        """Return whether this is the name of a dense or sparse initializer."""
        return name in self.weights or name in self.sparse

    def constant(self, name: str) -> TensorProto | None:
        """Return the weight of that name, or the `value` of its Constant node; None for a computed
        tensor."""
        maker = self.maker.get(name)
        return self.weights.get(name) if maker is None else _value(self.nodes[maker])

    def array(self, name: str) -> Array | None:
        """Return the values of a constant; None for a computed tensor.

        Raises:
            DataError, ValueError, TypeError: as `protobuf.to_array`.
        """
        tensor = self.constant(name)
        return None if tensor is None else protobuf.to_array(tensor, self.path)

    def kinds(self, tensors: Iterable[str]) -> dict[str, int]:
        """Return the kind of each tensor by its dependencies: CONSTANT, SHAPE or VALUE.

        SHAPE: every path from a model input to the tensor passes Shape or Size. Random tensors are
        VALUE. Complexity: linear in the nodes upstream; in a prepared graph, linear in the
        tensors.
        """
        names = list(tensors)
        if (known := self._kinds) is not None:
            return {n: known[n] if n in known else _find_kind_of_source(self, n) for n in names}
        made_by = self.maker.get
        reads = self.reads
        ops = self.ops
        random_nodes = self.random_nodes
        kind_of_node: dict[int, int] = {}

        def kind(name: str) -> int:
            maker = made_by(name)
            return kind_of_node[maker] if maker is not None else _find_kind_of_source(self, name)

        for i in self.in_order(self.ancestors(self.producers(names))):
            highest = max(map(kind, reads[i]), default=CONSTANT)
            if i in random_nodes:
                highest = VALUE
            elif highest == VALUE and ops[i] in SHAPE_OPS and self.nodes[i].domain in STANDARD:
                highest = SHAPE
            kind_of_node[i] = highest
        return {name: kind(name) for name in names}

    @cached_property
    def random_nodes(self) -> set[int]:
        """Indices of the nodes that draw random numbers."""
        functions = self.functions
        nodes = self.nodes
        certain = BODILESS - RANDOM_OPS - {"Dropout", *(name for _, name, _ in functions)}
        drawing = {
            key
            for key, f in functions.items()
            if _draw(f.node, _scope(f.node, (), lambda name: None))
        }
        doubtful = [i for i, op in enumerate(self.ops) if op not in certain]
        return {
            i
            for i in doubtful
            if _draw([nodes[i]], self.constant)
            or (drawing and drawing & find_called([nodes[i]], functions))
        }

    # ------------------------------------------------------------ types

    def value_infos(self, names: Iterable[str] | None = None) -> dict[str, ValueInfoProto]:
        """Return declarations of graph inputs, outputs and value_info by tensor, in file order:
        all, or of `names`.

        Raises:
            ModelError: a value_info is damaged.
        """
        if names is not None and (known := self._infos) is not None:
            found = sorted((known[name] for name in set(names) if name in known), key=itemgetter(0))
            return {info.name: info for _, info in found}
        graph = self.model.graph
        cls = protobuf.protos().ValueInfoProto
        selected = None if names is None else set(names)
        inner = protobuf.value_infos(self.skeleton, selected)
        ends = (cls.FromString(v.SerializeToString()) for v in (*graph.output, *graph.input))
        return {v.name: v for v in (*inner, *ends) if selected is None or v.name in selected}

    def find_declared_types(self, names: Iterable[str] | None = None) -> dict[str, TypeProto]:
        """Find the declared types by tensor: all of them, or those of `names`.

        Tensors without a declared type are omitted.
        """
        return {
            name: v.type
            for name, v in self.value_infos(names).items()
            if v.type.WhichOneof("value")
        }

    # ------------------------------------------------------------ names

    def producer_label(self, name: str) -> str | None:
        """Return the label of a tensor's producer; None for an input of the model."""
        maker = self.maker.get(name)
        return None if maker is None else self.label(maker)

    def operator(self, name: str) -> str:
        """Return the operator that computes a tensor; "" if no node does."""
        maker = self.maker.get(name)
        return "" if maker is None else self.ops[maker]

    def skip(self, name: str, operators: Collection[str]) -> str:
        """Return the tensor upstream of nodes of these operators, along their first inputs."""
        while self.operator(name) in operators and self.reads[self.maker[name]]:
            name = self.reads[self.maker[name]][0]
        return name

    def label(self, i: int) -> str:
        """Return the node's name; `#17` if it has none or shares it. `select` maps a label back to
        its node."""
        name = self.node_names[i]
        return name if name and name not in self.shared_names else f"#{i}"

    def select(self, text: str) -> Selection:
        """Resolve a selector.

        Tried in this order: exact node name; tensor name (its producer, or, for a model input, its
        consumers); `node:NAME`, `tensor:NAME`; `#17`, the node's index;
        `Conv@3`, the third Conv; a glob that matches one node name; a name without its middle, as
        tables show it.

        Raises:
            UnknownName: no node or tensor matches; carries the three nearest names.
            UsageError: several match; lists them. Or the selector names a weight.
        """
        kind, _, name = text.partition(":")
        return (
            _select_node(self, text, text)
            or _select_tensor(self, text, text)
            or (_select_node(self, text, name) if kind == "node" else None)
            or (_select_tensor(self, text, name) if kind == "tensor" else None)
            or _select_by_number(self, text)
            or _select_by_glob(self, text)
            or _raise_unknown(self, text)
        )

    def select_all(self, text: str) -> tuple[int, ...]:
        """Return the nodes of a selector; of a glob all that it matches. Errors as of `select`, but
        for several matches."""
        exact = text in self.node_names or text in self.maker or text in self.inputs
        globbed = not exact and any(c in text for c in "*?[")
        hits = [
            i
            for i, name in enumerate(self.node_names)
            if globbed and fnmatch.fnmatchcase(name, text)
        ]
        return tuple(hits) or self.select(text).nodes

    def tensor(self, text: str) -> str:
        """Return the tensor of a selector: named itself, or the only output of its node.

        Raises:
            UnknownName: As `select`.
            UsageError: As `select`; or the node has several outputs.
        """
        if text in self.maker or text in self.inputs:
            return text
        selection = self.select(text)
        if selection.tensor:
            return selection.tensor
        made = self.makes[selection.nodes[0]]
        if len(made) != 1:
            raise UsageError(
                f"'{text}' makes {len(made)} tensors",
                f"say which: {', '.join(made)}",
                code="tensor.ambiguous",
            )
        return made[0]


def find_made_twice(graph: Graph) -> list[tuple[str, int, int]]:
    """Return (tensor, first producer, other producer) per tensor with several producers."""
    if len(graph.maker) == sum(map(len, graph.makes)):
        return []
    first: dict[str, int] = {}
    found = []
    for i, makes in enumerate(graph.makes):
        found += [(name, first[name], i) for name in makes if first.setdefault(name, i) != i]
    return found


def _find_kind_of_source(graph: Graph, name: str) -> int:
    """Return the kind of a tensor that no node produces."""
    return CONSTANT if graph.is_weight(name) else VALUE


def _raise_unknown(graph: Graph, text: str) -> Selection:
    ends = [m.start() for m in re.finditer("/", text)]
    for name in (text[:end] for end in ends if text[:end] in graph.names):
        node = graph.nodes[graph.names[name]]
        if any(bodies(node)) or operator(node) in graph.functions:
            raise UnknownName(
                f"'{text}' is inside node '{name}', where this command does not look",
                f"name '{name}' itself; cut, inspect, dump, compare --at and bisect --within"
                " look inside",
                code="node.inside-body",
            )
    raise UnknownName(
        f"no node or tensor '{text}' in {graph.path.name}",
        nearest=nearest(
            text.removeprefix("node:").removeprefix("tensor:"), (*graph.names, *graph.maker)
        ),
        code="node.unknown",
    )


def _select_by_glob(graph: Graph, text: str) -> Selection | None:
    if not any(c in text for c in "*?[…"):
        return None
    pattern = text if "…" not in text else "*".join(map(glob.escape, text.split("…")))
    hits = [name for name in graph.names if fnmatch.fnmatchcase(name, pattern)]
    if len(hits) > 1:
        hint = f"say which: {list_some(hits, 8)}"
        raise UsageError(f"'{text}' matches {len(hits)} nodes", hint, code="node.ambiguous")
    return _select_node(graph, text, hits[0]) if hits else None


def _select_by_number(graph: Graph, text: str) -> Selection | None:
    if m := re.fullmatch(r"#(\d{1,9})", text):
        i = int(m[1])
        if i >= len(graph.nodes):
            raise UnknownName(
                f"no node '{text}'",
                f"the last node is #{len(graph.nodes) - 1}",
                code="node.unknown",
            )
        return Selection(text, (i,))
    if m := re.fullmatch(r"(\w+)@(\d{1,9})", text):
        same = [i for i, node in enumerate(graph.nodes) if node.op_type == m[1]]
        if 0 < int(m[2]) <= len(same):
            return Selection(text, (same[int(m[2]) - 1],))
        if same:
            raise UnknownName(
                f"no node '{text}': the model has {len(same)} {m[1]}",
                "counting starts at 1",
                code="node.unknown",
            )
    return None


def _select_tensor(graph: Graph, text: str, name: str) -> Selection | None:
    if name in graph.maker:
        return Selection(text, (graph.maker[name],), name)
    if name in graph.inputs:
        return Selection(text, tuple(graph.readers_of((name,)).get(name, ())), name)
    if graph.is_weight(name):
        raise UsageError(
            f"'{text}' is a weight: no node makes it",
            "name a node that reads or makes a tensor",
            code="node.is-weight",
        )
    return None


def _select_node(graph: Graph, text: str, name: str) -> Selection | None:
    if same := graph.shared_names.get(name):
        which = ", ".join(f"#{i}" for i in same[:8])
        raise UsageError(
            f"'{text}' is the name of {len(same)} nodes",
            f"say which: {which}",
            code="node.ambiguous",
        )
    return Selection(text, (graph.names[name],)) if name in graph.names else None


def as_graph(model: object, function: str) -> Graph:
    """Return the graph that a function of the Python API is given; read it from an .onnx file.

    Raises:
        UsageError: The argument is neither.
        ModelError: The file cannot be read, or is not ONNX.
    """
    if isinstance(model, Graph):
        return model
    is_path = isinstance(model, (str, Path))
    if is_path and Path(str(model)).suffix == ".onnx":
        return load(str(model))
    hint = f"subgraph.{function}(subgraph.load(model), …)"
    expected = f"{function} takes a graph or the path of an .onnx file"
    if is_path:
        raise UsageError(f"{expected}, not {str(model)!r}", hint, code="api.not-onnx")
    raise ArgumentTypeError.from_value(model, expected, hint)


def load(path: str | Path) -> Graph:
    """Index a model file. Large weights stay on disk.

    >>> graph = load("resnet50.onnx")
    >>> len(graph.nodes), graph.outputs
    (229, ['prob'])

    Raises:
        ModelError: the file cannot be read, is not an ONNX model, or its local functions cannot be
            inlined.
    """
    graph = Graph(protobuf.read(Path(path)))
    if graph.functions:
        functions = {
            key: [operator(n) for n in all_nodes(f.node)] for key, f in graph.functions.items()
        }
        require_expandable(
            graph.path.name, [operator(n) for n in all_nodes(graph.nodes)], functions
        )
    return graph


def _draw(nodes: Iterable[NodeProto], constant_of: ConstantLookup) -> bool:
    """Return whether a node, or a node in its bodies, draws random numbers.

    Args:
        nodes: The nodes.
        constant_of: Returns a constant in the scope of the nodes.
    """
    for node in nodes:
        if node.domain in STANDARD and (node.op_type in RANDOM_OPS or _trains(node, constant_of)):
            return True
        if any(
            _draw(body.node, _scope(body.node, body.initializer, constant_of))
            for body in bodies(node)
        ):
            return True
    return False


def _trains(node: NodeProto, constant_of: ConstantLookup) -> bool:
    """Return whether a Dropout can be in training mode: its third input is true or computed."""
    name = node.input[2] if node.op_type == "Dropout" and len(node.input) > 2 else ""
    if not name:
        return False
    mode = constant_of(name)
    return mode is None or any(mode.raw_data) or any(mode.int32_data)


def _value(node: NodeProto) -> TensorProto | None:
    """Return the attribute `value` of a Constant; None for any other node."""
    if node.op_type != "Constant":
        return None
    return next((a.t for a in node.attribute if a.name == "value"), None)


def _scope(
    nodes: Iterable[NodeProto],
    weights: Iterable[TensorProto],
    outer: ConstantLookup,
) -> ConstantLookup:
    """Constants as seen inside a body or function, whose own names shadow those of the outer
    scope."""
    own: JsonObject = invert((_value(n), n.output) for n in nodes)
    own |= index_by_name(weights)
    return lambda name: own[name] if name in own else outer(name)
