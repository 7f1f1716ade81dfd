"""Graph: a read-only index over an ONNX model. Who makes and who reads each tensor, nested bodies counted.

A node is named by its index in the file, a tensor by its name. Bodies of If, Loop and Scan read tensors of the graph
around them without listing them as inputs: these *captured* tensors count as inputs of the node that holds the body.
Weights stay on disk (`wire`).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any

from subgraph.errors import ModelError, UnknownName, UsageError
from subgraph.graph import protobuf
from subgraph.text import nearest

if TYPE_CHECKING:
    import networkx

GRAPH_ATTRIBUTE, GRAPHS_ATTRIBUTE = 5, 10  # AttributeProto.AttributeType
RANDOM_OPS = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
)
SHAPE_OPS = frozenset(("Shape", "Size"))
STANDARD = ("", "ai.onnx")  # names of the domain of ONNX's own ops
# Ops of every second graph that hold no body: their attributes need no look. Others get one.
BODILESS = frozenset(
    "Add And ArgMax AveragePool BatchNormalization Cast Clip Concat Constant Conv ConvTranspose DequantizeLinear Div "
    "Dropout Equal Erf Exp Expand Flatten Gather Gelu Gemm GlobalAveragePool Identity LayerNormalization LeakyRelu "
    "MatMul MaxPool Mul Neg Not Pad Pow QuantizeLinear ReduceMean Relu Reshape Resize Shape Sigmoid Slice Softmax "
    "Split Sqrt Squeeze Sub Sum Tanh Transpose Unsqueeze Where".split()
)


# What a tensor's value depends on, from least to most: nothing, only shapes of model inputs, values of model inputs.
CONSTANT, SHAPE, VALUE = 0, 1, 2

Lookup = Callable[[str], Any]  # name → the TensorProto that it stands for, or None


@dataclass(frozen=True, slots=True)
class Selection:
    """What a selector means: nodes, and the one tensor of them if it was named."""

    text: str
    nodes: tuple[int, ...]
    tensor: str | None = None


class Graph:
    """A read-only index over one model.

    Attributes:
        path: the model file.
        model: the ModelProto; large weights are husks (`wire`). Treat as read-only.
        nodes: the top-level nodes, in file order.
        reads: per node, the names that it reads, explicit and captured, without "".
        makes: per node, the names that it makes, without "".
        maker: tensor → index of the node that makes it.
        ops: per node, its op type.
        node_names: per node, its name, which may be empty.
        weights: dense initializers by name.
        sparse: sparse initializers by name.
        inputs: graph inputs that are no initializers, by name, in order.
        outputs: names of the graph outputs, in order.

    Building it is linear in nodes and edges. It never raises for an invalid graph: `inspect` looks at those.
    """

    def __init__(self, skeleton: protobuf.Skeleton) -> None:
        self.path: Path = skeleton.path
        self.skeleton = skeleton
        self.model = skeleton.model
        self._index(self.model.graph)

    def _index(self, graph: protobuf.GraphProto) -> None:
        # Every line here runs once per node: 80,000 nodes are to be indexed in a fifth of a second.
        self.nodes: Sequence[protobuf.NodeProto] = graph.node
        self.weights: dict[str, protobuf.TensorProto] = {t.name: t for t in graph.initializer}
        self.sparse: dict[str, Any] = {s.values.name: s for s in graph.sparse_initializer}
        self.inputs: dict[str, protobuf.ValueInfoProto] = {
            v.name: v for v in graph.input if v.name not in self.weights and v.name not in self.sparse
        }
        self.outputs: list[str] = [v.name for v in graph.output]
        reads_of, makes_of, ops, names = [], [], [], []
        for node in self.nodes:
            reads = tuple(node.input[:])  # a slice is copied in one call: a third faster than iterating
            op = node.op_type
            if op not in BODILESS and node.attribute:
                reads += tuple(captured(node))
            if "" in reads:
                reads = tuple(filter(None, reads))
            makes = tuple(node.output[:])
            if "" in makes:
                makes = tuple(filter(None, makes))
            reads_of.append(reads)
            makes_of.append(makes)
            ops.append(intern(op))
            names.append(node.name)
        self.reads: list[tuple[str, ...]] = reads_of
        self.makes: list[tuple[str, ...]] = makes_of
        self.ops: list[str] = ops
        self.node_names: list[str] = names
        self.maker: dict[str, int] = {name: i for i, makes in enumerate(makes_of) for name in makes}

    @cached_property
    def names(self) -> dict[str, int]:
        """Node name → index (of the last, where several share it: `repeated`)."""
        return {name: i for i, name in enumerate(self.node_names) if name}

    @cached_property
    def repeated(self) -> dict[str, list[int]]:
        """Node name → its nodes, where there are several."""
        if len(set(self.node_names)) == len(self.node_names):
            return {}
        same: dict[str, list[int]] = {}
        for i, name in enumerate(self.node_names):
            same.setdefault(name, []).append(i)
        return {name: nodes for name, nodes in same.items() if name and len(nodes) > 1}

    @cached_property
    def made_twice(self) -> list[tuple[str, int, int]]:
        """(tensor, node, node) for each tensor that is made more than once: an invalid graph."""
        if len(self.maker) == sum(map(len, self.makes)):
            return []
        first: dict[str, int] = {}
        return [
            (name, first[name], i)
            for i, makes in enumerate(self.makes)
            for name in makes
            if first.setdefault(name, i) != i
        ]

    # ------------------------------------------------------------------------------------------------ order

    @cached_property
    def rank(self) -> Sequence[int]:
        """Position of each node in a topological order: the file's order, where that is one.

        Raises:
            ModelError: the graph has a cycle; names its nodes.
        """
        if self._is_sorted():
            return range(len(self.nodes))
        from graphlib import CycleError, TopologicalSorter

        sorter: TopologicalSorter[int] = TopologicalSorter()
        for i in range(len(self.nodes)):
            sorter.add(i, *self.predecessors(i))
        try:
            order = list(sorter.static_order())
        except CycleError as e:
            circle = " → ".join(self.label(i) for i in e.args[1])
            raise ModelError(f"{self.path.name} has a cycle: {circle}", "an ONNX graph must have none") from e
        rank = [0] * len(order)
        for position, node in enumerate(order):
            rank[node] = position
        return rank

    def _is_sorted(self) -> bool:
        made_by = self.maker.get
        for i, names in enumerate(self.reads):
            for name in names:
                if made_by(name, -1) >= i:
                    return False
        return True

    def in_order(self, nodes: Iterable[int]) -> list[int]:
        """The nodes in topological order."""
        return sorted(nodes, key=self.rank.__getitem__)

    def predecessors(self, i: int) -> Iterator[int]:
        """Nodes that make what node `i` reads."""
        for name in self.reads[i]:
            maker = self.maker.get(name)
            if maker is not None:
                yield maker

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Tensor → the nodes that read it, in file order."""
        readers: dict[str, list[int]] = {}
        for i, names in enumerate(self.reads):
            for name in dict.fromkeys(names):
                readers.setdefault(name, []).append(i)
        return readers

    def prepare(self) -> Graph:
        """Index what many regions ask for again and again, so that each costs as much as it holds; returns itself.

        One region alone is had sooner without.

        Raises:
            ModelError: the graph has a cycle, or a value_info is damaged.
        """
        _ = self.readers, self._all_kinds, self._all_infos
        return self

    def prepared(self, what: str) -> Any:
        """An index (`readers`, `_all_kinds`, `_all_infos`) if it was built already, else None."""
        return self.__dict__.get(what)

    @cached_property
    def _all_kinds(self) -> dict[str, int]:
        return self.kinds(self.maker)

    @cached_property
    def _all_infos(self) -> dict[str, protobuf.ValueInfoProto]:
        return self.infos()

    def readers_of(self, names: Collection[str]) -> dict[str, list[int]]:
        """The nodes that read each of a few tensors; one pass, without the index of all (`readers`)."""
        wanted = set(names)
        found: dict[str, list[int]] = {}
        for i, reads in enumerate(self.reads):
            if not wanted.isdisjoint(reads):
                for name in wanted.intersection(reads):
                    found.setdefault(name, []).append(i)
        return found

    def successors(self, i: int) -> Iterator[int]:
        """Nodes that read what node `i` makes."""
        for name in self.makes[i]:
            yield from self.readers.get(name, ())

    def ancestors(self, nodes: Iterable[int], floor: int = -1) -> set[int]:
        """`nodes` and all nodes that they depend on; those that rank below `floor` are left out."""
        rank, reads, maker = self.rank, self.reads, self.maker
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
        """`nodes` and all nodes that depend on them."""
        seen = set(nodes)
        stack = list(seen)
        while stack:
            for other in self.successors(stack.pop()):
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        return seen

    def to_networkx(self) -> networkx.MultiDiGraph:
        """The nodes (by index, with `name` and `op`) and, per tensor between two of them, an edge with `tensor`."""
        import networkx

        out = networkx.MultiDiGraph()
        for i, node in enumerate(self.nodes):
            out.add_node(i, name=node.name, op=node.op_type)
        for i, names in enumerate(self.reads):
            out.add_edges_from((self.maker[n], i, {"tensor": n}) for n in names if n in self.maker)
        return out

    # ------------------------------------------------------------------------------------------------ kinds

    @cached_property
    def functions(self) -> dict[tuple[str, str, str], Any]:
        """Local functions by (domain, name, overload)."""
        return {(f.domain, f.name, f.overload): f for f in self.model.functions}

    def _draws(self, node: protobuf.NodeProto, functions: Collection[tuple[str, str, str]], known: Lookup) -> bool:
        """Does it, a body inside it, or a local function that it calls (one of `functions`) draw random numbers?

        `known` gives the value of a name that is constant where the node stands.
        """
        standard = node.domain in STANDARD
        if standard and node.op_type in RANDOM_OPS:
            return True
        if standard and node.op_type == "Dropout" and _trains(node, known):
            return True
        for body in bodies(node) if node.attribute else ():
            inner = _scope(body.node, body.initializer, known)
            if any(self._draws(n, functions, inner) for n in body.node):
                return True
        return (node.domain, node.op_type, node.overload) in functions

    def constant(self, name: str) -> protobuf.TensorProto | None:
        """The weight, or the value of the Constant node, of that name; None for what is computed."""
        maker = self.maker.get(name)
        return self.weights.get(name) if maker is None else _value(self.nodes[maker])

    @cached_property
    def _random_functions(self) -> set[tuple[str, str, str]]:
        """Local functions that draw random numbers, by themselves or through others: a fixed point."""
        found: set[tuple[str, str, str]] = set()
        scopes = {k: _scope(f.node, (), lambda name: None) for k, f in self.functions.items()}
        while True:
            todo = [(k, f) for k, f in self.functions.items() if k not in found]
            more = {k for k, f in todo if any(self._draws(n, found, scopes[k]) for n in f.node)}
            if not more:
                return found
            found |= more

    def kinds(self, tensors: Iterable[str]) -> dict[str, int]:
        """CONSTANT, SHAPE or VALUE for each tensor: what its value depends on.

        SHAPE: every path from a model input to it passes Shape or Size. A random tensor is a VALUE.
        Complexity: linear in the nodes above; of a prepared graph, in the tensors.
        """
        asked = list(tensors)
        if (known := self.prepared("_all_kinds")) is not None:
            return {n: known[n] if n in known else self._unmade(n) for n in asked}
        made_by, reads, ops = self.maker.get, self.reads, self.ops
        suspects = self.random_nodes
        found: dict[int, int] = {}

        def kind(name: str) -> int:
            maker = made_by(name)
            return found[maker] if maker is not None else self._unmade(name)

        for i in self.in_order(self.ancestors(m for name in asked if (m := made_by(name)) is not None)):
            worst = max(map(kind, reads[i]), default=CONSTANT)
            if i in suspects:
                worst = VALUE
            elif worst == VALUE and ops[i] in SHAPE_OPS and self.nodes[i].domain in STANDARD:
                worst = SHAPE
            found[i] = worst
        return {name: kind(name) for name in asked}

    def _unmade(self, name: str) -> int:
        """The kind of a tensor that no node makes."""
        return CONSTANT if name in self.weights or name in self.sparse else VALUE

    @cached_property
    def random_nodes(self) -> set[int]:
        """Nodes that draw random numbers."""
        plain = BODILESS - {"Dropout", *(name for _, name, _ in self.functions)}
        functions = self._random_functions
        nodes, known = self.nodes, self.constant
        return {i for i, op in enumerate(self.ops) if op not in plain and self._draws(nodes[i], functions, known)}

    # ------------------------------------------------------------------------------------------------ types

    def infos(self, names: Iterable[str] | None = None) -> dict[str, protobuf.ValueInfoProto]:
        """Declared value infos (of inputs, outputs and value_info) by tensor: all, or those of `names`."""
        if names is not None and (known := self.prepared("_all_infos")) is not None:
            return {n: known[n] for n in names if n in known}
        graph, cls = self.model.graph, protobuf.protos().ValueInfoProto
        wanted = None if names is None else set(names)
        inner = protobuf.value_infos(self.skeleton, wanted)
        edge = (cls.FromString(v.SerializeToString()) for v in (*graph.output, *graph.input))
        return {v.name: v for v in (*inner, *edge) if wanted is None or v.name in wanted}

    def types(self, names: Iterable[str] | None = None) -> dict[str, protobuf.TypeProto]:
        """Declared types by tensor: all, or those of `names`; tensors without one are left out."""
        return {name: v.type for name, v in self.infos(names).items() if v.type.WhichOneof("value")}

    # ------------------------------------------------------------------------------------------------ names

    def label(self, i: int) -> str:
        """The node's name; `#17` where it has none or shares it. What this prints can be typed back."""
        name = self.node_names[i]
        return name if name and name not in self.repeated else f"#{i}"

    def select(self, text: str) -> Selection:
        """What a selector means.

        Tried in this order: exact node name; tensor name (the node that makes it, or, for a model input, the nodes that
        read it); `node:NAME`, `tensor:NAME`; `#17`, the node's index; `Conv@3`, the third Conv; a glob of node names
        that matches once.

        Raises:
            UnknownName: nothing answers to it; carries the three nearest names.
            UsageError: it is ambiguous; lists what it may mean.
        """
        return (
            self._node(text, text)
            or self._tensor(text, text)
            or self._prefixed(text)
            or self._index_or_nth(text)
            or self._glob(text)
            or self._unknown(text)
        )

    def _prefixed(self, text: str) -> Selection | None:
        kind, _, name = text.partition(":")
        if kind == "node":
            return self._node(text, name)
        return self._tensor(text, name) if kind == "tensor" else None

    def _node(self, text: str, name: str) -> Selection | None:
        if name in self.repeated:
            which = ", ".join(f"#{i}" for i in self.repeated[name][:8])
            raise UsageError(f"'{text}' is the name of {len(self.repeated[name])} nodes", f"say which: {which}")
        if not name or name not in self.node_names:  # a list: one look-up is cheaper than an index of all
            return None
        return Selection(text, (self.node_names.index(name),))

    def _tensor(self, text: str, name: str) -> Selection | None:
        if name in self.maker:
            return Selection(text, (self.maker[name],), name)
        if name in self.inputs:
            return Selection(text, tuple(self.readers_of((name,)).get(name, ())), name)
        if name in self.weights or name in self.sparse:
            raise UsageError(f"'{text}' is a weight: no node makes it", "name a node that reads or makes a tensor")
        return None

    def _index_or_nth(self, text: str) -> Selection | None:
        if m := re.fullmatch(r"#(\d{1,9})", text):
            i = int(m[1])
            if i >= len(self.nodes):
                raise UnknownName(f"no node '{text}'", f"the last node is #{len(self.nodes) - 1}")
            return Selection(text, (i,))
        if m := re.fullmatch(r"(\w+)@(\d{1,9})", text):
            same = [i for i, node in enumerate(self.nodes) if node.op_type == m[1]]
            if 0 < int(m[2]) <= len(same):
                return Selection(text, (same[int(m[2]) - 1],))
            if same:
                raise UnknownName(f"no node '{text}': the model has {len(same)} {m[1]}", "counting starts at 1")
        return None

    def _glob(self, text: str) -> Selection | None:
        if not any(c in text for c in "*?["):
            return None
        hits = [name for name in self.names if fnmatch.fnmatchcase(name, text)]
        if len(hits) > 1:
            some = ", ".join(hits[:8]) + (", …" if len(hits) > 8 else "")
            raise UsageError(f"'{text}' matches {len(hits)} nodes", f"say which: {some}")
        return self._node(text, hits[0]) if hits else None

    def tensor(self, text: str) -> str:
        """The name of a tensor: its own, or that of the node that makes exactly one.

        Raises:
            UnknownName, UsageError: as `select`; or the node makes several tensors.
        """
        if text in self.maker or text in self.inputs:
            return text
        selection = self.select(text)
        if selection.tensor:
            return selection.tensor
        made = self.makes[selection.nodes[0]]
        if len(made) != 1:
            raise UsageError(f"'{text}' makes {len(made)} tensors", f"say which: {', '.join(made)}")
        return made[0]

    def _unknown(self, text: str) -> Selection:
        raise UnknownName(
            f"no node or tensor '{text}' in {self.path.name}",
            nearest=nearest(text.removeprefix("node:").removeprefix("tensor:"), (*self.names, *self.maker)),
        )


def load(path: str | Path) -> Graph:
    """Read a model file into a Graph.

    >>> graph = load("resnet50.onnx")                                                           # doctest: +SKIP
    >>> graph.label(graph.maker["prob"])                                                        # doctest: +SKIP
    'prob'

    Raises:
        ModelError: the file cannot be read or is no ONNX model.
    """
    return Graph(protobuf.read(Path(path)))


def _trains(dropout: protobuf.NodeProto, known: Lookup) -> bool:
    """Is its third input, `training_mode`, true, or is nothing known about it before a run?"""
    name = dropout.input[2] if len(dropout.input) > 2 else ""
    if not name:
        return False
    mode = known(name)
    return mode is None or any(mode.raw_data) or any(mode.int32_data)


def _value(node: protobuf.NodeProto) -> protobuf.TensorProto | None:
    """What a Constant holds as a tensor; None for any other node."""
    if node.op_type != "Constant":
        return None
    return next((a.t for a in node.attribute if a.name == "value"), None)


def _scope(nodes: Iterable[protobuf.NodeProto], weights: Iterable[protobuf.TensorProto], outer: Lookup) -> Lookup:
    """Constants as seen inside a body or function: its own names hide those around it."""
    own: dict[str, Any] = {name: _value(n) for n in nodes for name in n.output}
    own |= {t.name: t for t in weights}
    return lambda name: own[name] if name in own else outer(name)


def bodies(node: protobuf.NodeProto) -> Iterator[protobuf.GraphProto]:
    """The graphs that a node holds as attributes."""
    for attribute in node.attribute:
        if attribute.type == GRAPH_ATTRIBUTE or attribute.HasField("g"):
            yield attribute.g
        elif attribute.type == GRAPHS_ATTRIBUTE:
            yield from attribute.graphs


def captured(node: protobuf.NodeProto) -> list[str]:
    """Names that the node's bodies, at any depth, read from the graph around them, in order, without repeats."""
    free: dict[str, None] = {}
    for body in bodies(node):
        own = {v.name for v in body.input} | {t.name for t in body.initializer}
        own |= {s.values.name for s in body.sparse_initializer}
        own |= {name for inner in body.node for name in inner.output}
        for inner in body.node:
            free.update(dict.fromkeys(n for n in (*inner.input, *captured(inner)) if n and n not in own))
        free.update(dict.fromkeys(v.name for v in body.output if v.name and v.name not in own))
    return list(free)
