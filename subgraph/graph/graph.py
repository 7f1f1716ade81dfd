"""`Graph`: a read-only index of the producer and the consumers of each tensor of an ONNX model.

A node is identified by its index in the file, a tensor by its name. Bodies of If, Loop and Scan
read tensors of the graph around them without listing them as inputs; such *captured* tensors count
as read by the node that holds the body. Weights stay on disk (see `graph.protobuf`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any

from subgraph.errors import ArgumentTypeError, ModelError, UsageError
from subgraph.graph import protobuf
from subgraph.graph.nested import (
    BODILESS,
    FunctionKey,
    find_function_key,
    get_constant_value,
    iter_nodes,
    list_captured,
    list_functions,
)
from subgraph.graph.opsets import require_expandable
from subgraph.graph.random_nodes import find_random_nodes
from subgraph.iterables import flatten, group_values, index_by_name, pick
from subgraph.types import Array, JsonObject, Strings

if TYPE_CHECKING:
    from subgraph.graph.protobuf import NodeProto, TensorProto, ValueInfoProto


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
        shared_names: Name that several nodes have → their indices.
        functions: Local functions by (domain, name, overload), in file order.
        weights: Dense initializers by name.
        sparse: Sparse initializers by name.
        inputs: Graph inputs that are not initializers, by name, in order.
        outputs: Names of the graph outputs, in order.
        known_kinds: Tensor → its kind (`graph.kinds`), if the graph is prepared (`prepare_graph`).
        known_infos: Tensor → position and value info, if the graph is prepared.

    >>> graph = load("resnet50.onnx")
    >>> pool1 = graph.maker["pool1"]
    >>> graph.ops[pool1], graph.reads[pool1], graph.makes[pool1]
    ('MaxPool', ('conv1',), ('pool1',))
    """

    def __init__(self, skeleton: protobuf.Skeleton) -> None:
        self.path: Path = skeleton.path
        self.skeleton = skeleton
        self.model = skeleton.model
        self.functions: dict[FunctionKey, Any] = list_functions(self.model)
        graph = self.model.graph
        # The loop is written for speed: 80,000 nodes are indexed in 0.2 s.
        self.nodes: Sequence[NodeProto] = graph.node
        self.weights: dict[str, TensorProto] = index_by_name(graph.initializer)
        self.sparse: JsonObject = {s.values.name: s for s in graph.sparse_initializer}
        self.inputs: dict[str, ValueInfoProto] = {
            v.name: v for v in graph.input if not self.is_weight(v.name)
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
        self.names: dict[str, int] = {}
        self.maker: dict[str, int] = {}
        # One loop for both: they share the number of a node, which takes 28 bytes.
        for i, name in enumerate(names):
            if name:
                self.names[name] = i
            for tensor in makes_of[i]:
                self.maker[tensor] = i
        self.shared_names: dict[str, list[int]] = {}
        if len(self.names) + names.count("") < len(names):
            same = group_values((name, i) for i, name in enumerate(names) if name)
            self.shared_names = {name: nodes for name, nodes in same.items() if len(nodes) > 1}
        self._readers: dict[str, list[int]] | None = None  # built when they are first needed
        self.known_kinds: dict[str, int] | None = None
        self.known_infos: dict[str, tuple[int, ValueInfoProto]] | None = None

    def __repr__(self) -> str:
        return f"Graph({self.path.name!r}, {len(self.nodes)} nodes)"

    # ------------------------------------------------------------ order

    @cached_property
    def rank(self) -> Sequence[int]:
        """Position of each node in a topological order: the order of the file if it is topological.

        Raises:
            ModelError: the graph has a cycle; names its nodes.
        """
        if _is_sorted(self):
            return range(len(self.nodes))
        sorter: TopologicalSorter[int] = TopologicalSorter()
        for i in range(len(self.nodes)):
            sorter.add(i, *self.producers(self.reads[i]))
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

    def readers_of(self, names: Iterable[str]) -> dict[str, list[int]]:
        """Return the consumers of a few tensors in one pass over the nodes, without an index."""
        tensors = set(names)
        if (cached_readers := self._readers) is not None:
            return pick(cached_readers, tensors)
        readers: dict[str, list[int]] = {}
        for i, names in enumerate(self.reads):
            if not tensors.isdisjoint(names):
                for name in tensors.intersection(names):
                    readers.setdefault(name, []).append(i)
        return readers

    # ------------------------------------------------------------ names

    def label(self, i: int) -> str:
        """Return the node's name; `#17` if it has none or shares it.

        `selection.select` maps a label back to its node.
        """
        name = self.node_names[i]
        return name if name and name not in self.shared_names else f"#{i}"

    # ------------------------------------------------------------ constants

    def is_weight(self, name: str) -> bool:
        """Return whether this is the name of a dense or sparse initializer."""
        return name in self.weights or name in self.sparse

    def constant(self, name: str) -> TensorProto | None:
        """Return the weight of that name, or the `value` of its Constant node; None for a computed
        tensor."""
        maker = self.maker.get(name)
        if maker is None:
            return self.weights.get(name)
        return get_constant_value(self.nodes[maker])

    def array(self, name: str) -> Array | None:
        """Return the values of a constant; None for a computed tensor.

        Raises:
            DataError, ValueError, TypeError: as `protobuf.to_array`.
        """
        tensor = self.constant(name)
        if tensor is None:
            return None
        return protobuf.to_array(tensor, self.path)

    @cached_property
    def random_nodes(self) -> set[int]:
        """Indices of the nodes that draw random numbers."""
        return find_random_nodes(self.nodes, self.functions, self.constant)


def _is_sorted(graph: Graph) -> bool:
    """Return whether every tensor is produced before it is read."""
    made_by = graph.maker.get
    for i, names in enumerate(graph.reads):
        for name in names:
            if made_by(name, -1) >= i:
                return False
    return True


def find_made_twice(graph: Graph) -> list[tuple[str, int, int]]:
    """Return (tensor, first producer, other producer) per tensor with several producers."""
    if len(graph.maker) == sum(map(len, graph.makes)):
        return []
    first: dict[str, int] = {}
    repeats = []
    for i, makes in enumerate(graph.makes):
        repeats += [(name, first[name], i) for name in makes if first.setdefault(name, i) != i]
    return repeats


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
            key: [find_function_key(n) for n in iter_nodes(f.node)]
            for key, f in graph.functions.items()
        }
        require_expandable(
            graph.path.name, [find_function_key(n) for n in iter_nodes(graph.nodes)], functions
        )
    return graph
