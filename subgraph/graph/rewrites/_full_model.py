"""A full model, some of whose nodes are hidden, kept apart or computed ahead.

All of these keep the values of the model. A barrier is on an edge, so that no optimizer sees the
two nodes together. An If around a node hides it from passes over the graph. A value replaces the
output of a node, which is still computed.

A barrier changes no bit. Optimizers remove some of them. Measured after Pad, Conv and Mul, of four
dimensions:

    onnxruntime 1.31.1, all optimizations: Reshape, Max and Sub survive. It removes Identity,
        Dropout, Expand, Cast there and back, two Transposes, Pad by nothing, Mul by 1, Sub of 0,
        Slice of all.
    OpenVINO 2026.4.1: only Max and Sub survive.
    MNN 3.6.1: Identity and Concat do not keep a Conv from the Add after it.

A Where, whose condition is computed from an input and is never true, survives in onnxruntime and
OpenVINO at all levels. OpenVINO compiles it together with elementwise neighbors, and keeps these
from a Conv or a MatMul.

Cheapest first: a Reshape copies nothing in most runtimes, a Sub of zeros reads all values three
times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from onnx import ModelProto, NodeProto, TensorProto, helper

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import iter_nodes, iter_tensors
from subgraph.graph.onnx_process import OnnxProcess
from subgraph.graph.rewrites._region_model import (
    FLOATS,
    INTEGERS,
    RegionModel,
    Substitution,
)
from subgraph.iterables import flatten
from subgraph.types import Array, StringMap

VALUE = -1  # instead of a node: the tensor is replaced by the reference's value
NUMBERS = (*FLOATS, *INTEGERS)
SIGNED = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.INT32,
    TensorProto.INT64,
)
# A function that appends a barrier between two tensors of an element type.
Barrier = Callable[[Substitution, str, str, int], object]


class NodeChange(NamedTuple):
    """A change of a full model that keeps its values.

    Attributes:
        tensor: The tensor that has a barrier on its way to a node; "" for an If around the node.
        node: The index of the node, or `VALUE`.
    """

    tensor: str
    node: int


@dataclass
class FullModel:
    """A model that is rewritten as a whole.

    Attributes:
        source: The model with its weights, and the types of its tensors.
        value: Returns the value by which a tensor is replaced.
        barrier: The position of the barrier in `STRONGEST`; a later one is taken if it does not
            fit.
        copies: Whether each reader of a tensor has a barrier to itself.
        word: The beginning of the names of inserted tensors.
    """

    source: RegionModel
    value: Callable[[str], Array]
    barrier: int = 0
    copies: bool = False
    word: str = "apart"

    def takes_barrier(self, tensor: str) -> bool:
        """Return whether a barrier can be put on edges of a tensor."""
        return bool(self.source.element(tensor)) and self._find_barrier(tensor) is not None

    def is_weight(self, tensor: str) -> bool:
        """Return whether a tensor is a floating constant."""
        return tensor in self.source.constants and self.source.element(tensor) in FLOATS

    def can_hide(self, node: int) -> bool:
        """Return whether a node can be put into an If."""
        outputs = filter(None, self.source.nodes[node].output)
        return bool(Substitution(self.source).never()) and all(map(self.source.element, outputs))

    def _find_barrier(self, tensor: str) -> Barrier | None:
        kinds = STRONGEST[self.barrier :]
        return next((make for _, make, fits in kinds if fits(self.source, tensor)), None)

    def make(self, changes: Collection[NodeChange]) -> ModelProto:
        """Return the model with these changes.

        Each barrier is next to the producer of its tensor: late consumers then read another tensor.
        """
        new = _Making(self.source)
        nodes = self.source.nodes
        readers = defaultdict[str, list[int]](list)
        for tensor, node in sorted(changes):
            if tensor and node != VALUE:
                readers[tensor].append(node)
        names = defaultdict[int, dict[str, str]](dict)

        produced = set(flatten(node.output for node in nodes))
        for name in sorted(readers.keys() - produced):
            self._split(new, name, readers[name], names)
        for i, node in enumerate(nodes):
            new.move_to(i)
            if NodeChange("", i) in changes:
                new.hide(node)
            else:
                new.copy(node)
            values = [name for name in node.output if NodeChange(name, VALUE) in changes]
            inner = {name: new.name(f"inner_{self.word}") for name in values}
            new.rename({**names[i], **inner})
            for name, x in inner.items():
                new.always(new.weight(self.value(name), self.source.element(name)), x, name)
            for name in filter(readers.__contains__, node.output):
                self._split(new, name, readers[name], names)
        return new.model()

    def _split(
        self, new: Substitution, tensor: str, readers: list[int], names: dict[int, dict[str, str]]
    ) -> None:
        """Let the readers of a tensor read it after a barrier."""
        barrier = self._find_barrier(tensor)
        assert barrier
        for group in [[reader] for reader in readers] if self.copies else [readers]:
            name = new.name(self.word)
            barrier(new, tensor, name, self.source.element(tensor))
            for reader in group:
                names[reader][tensor] = name

    def describe(self, change: NodeChange, label: Callable[[int], str]) -> str:
        """Return a change in words; `label`: returns that of a node."""
        tensor, i = change
        if not tensor:
            return f"an If around {label(i)}"
        if i == VALUE:
            return f"{tensor} as the reference computes it for these inputs"
        return f"a barrier on {tensor} before {label(i)}"


class _Making(Substitution):
    """A full model in the making."""

    def rename(self, names: StringMap) -> None:
        """Let the nodes in the present place read and compute tensors of other names."""
        for node in iter_nodes(self._present):
            for tensors in (node.input, node.output):
                tensors[:] = [names.get(name, name) for name in tensors]

    def hide(self, node: NodeProto) -> None:
        """Put a node into both branches of an If, where no pass over the graph sees it."""
        outputs = [name for name in node.output if name]
        branches = {}
        for branch in ("then_branch", "else_branch"):
            making = _Making(self.source)
            making.copy(node)
            names = {name: self.name(branch) for name in outputs}
            making.rename(names)
            infos = [helper.make_value_info(names[n], self.source.types[n]) for n in outputs]
            branches[branch] = helper.make_graph(making._present, branch, [], infos)
        self.copy(helper.make_node("If", [self.never()], outputs, self.name("If"), **branches))

    @property
    def _present(self) -> list[NodeProto]:
        return self._new[self._at]


@contextmanager
def open_full_model(graph: Graph, value: Callable[[str], Array]) -> Iterator[FullModel]:
    """Provide a model that can be rewritten, until the block ends.

    Args:
        graph: The model.
        value: Returns the reference's value of a tensor.

    Raises:
        ModelError: Onnx cannot infer its types, or the process dies.
        DataError: The bytes of a weight cannot be read.
    """
    model = protobuf.to_onnx(graph.model, graph.path)
    for holder in (model.graph, *model.functions):
        protobuf.load_all(iter_tensors(holder), graph.path)
    with OnnxProcess(graph.path) as onnx:
        yield FullModel(RegionModel(model, onnx), value)


def _subtract(new: Substitution, x: str, y: str, element: int) -> None:
    # The zeros are computed at run time: no value is less than itself.
    zeros = new.node("Cast", [new.node("Less", [x, x])], to=element)
    new.node("Sub", [x, zeros], y)


def _takes_where(source: RegionModel, name: str) -> bool:
    is_number = source.element(name) in NUMBERS
    return is_number and source.opset >= 9 and bool(Substitution(source).never())


BARRIERS: tuple[tuple[str, Barrier, Callable[[RegionModel, str], bool]], ...] = (
    ("an Identity", lambda new, x, y, _: new.node("Identity", [x], y), lambda s, n: True),
    (
        "a Reshape to its own shape",
        lambda new, x, y, _: new.node("Reshape", [x, new.node("Shape", [x])], y),
        lambda s, n: s.rank(n) != 0,
    ),
    (
        "a Max of twice the same",
        lambda new, x, y, _: new.node("Max", [x, x], y),
        lambda s, n: s.element(n) in NUMBERS,
    ),
    ("a Sub of zeros", _subtract, lambda s, n: s.element(n) in SIGNED),
    (
        "a Cast to integers and back",
        lambda new, x, y, element: new.node(
            "Cast", [new.node("Cast", [x], to=TensorProto.INT32)], y, to=element
        ),
        lambda s, n: s.element(n) == TensorProto.BOOL,
    ),
    (
        "a Where that always takes it",
        lambda new, x, y, element: new.always(x, new.other(element), y),
        _takes_where,
    ),
)
STRONGEST = BARRIERS[:0:-1]  # those that most optimizers keep first; none keeps an Identity
