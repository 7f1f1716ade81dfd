"""A full model, some of whose nodes are written in another form, kept apart or computed ahead.

All of these keep the values of the model. A barrier stands on an edge, so that no optimizer sees
the two nodes together. A form computes a node by other operators. A value replaces what a node
computes, which is still computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from onnx import ModelProto, NodeProto, helper

from subgraph import plugins
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import all_nodes, all_tensors
from subgraph.graph.onnx_process import OnnxProcess
from subgraph.rewrites._barriers import STRONGEST, Barrier
from subgraph.rewrites._region_model import FLOATS, Form, RegionModel, Substitution
from subgraph.types import Array, StringMap

OUTPUT = -1  # instead of a node: the barrier stands before an output of the model
VALUE = -2  # instead of a node: the tensor is replaced by the reference's value


class NodeChange(NamedTuple):
    """A change of a full model that keeps its values.

    Attributes:
        tensor: The tensor that has a barrier on its way to a node; "" for the form of a node.
        node: The index of the node, `OUTPUT` or `VALUE`.
    """

    tensor: str
    node: int


@dataclass
class FullModel:
    """A model that is rewritten as a whole.

    Attributes:
        source: The model with its weights, and the types of its tensors.
        value: Returns the value by which a tensor is replaced.
        barrier: The position of the barrier in `STRONGEST`; a later one is taken where it does not
            fit.
        copies: Whether each reader of a tensor has a barrier to itself.
        forms: The form of each node that has one, by index.
    """

    source: RegionModel
    value: Callable[[str], Array]
    barrier: int = 0
    copies: bool = False
    forms: dict[int, Form] = field(default_factory=dict)

    def takes_barrier(self, tensor: str) -> bool:
        """Return whether a barrier can be put on edges of a tensor."""
        return bool(self.source.element(tensor)) and self._barrier(tensor) is not None

    def is_weight(self, tensor: str) -> bool:
        """Return whether a tensor is a floating constant."""
        return tensor in self.source.constants and self.source.element(tensor) in FLOATS

    def _barrier(self, tensor: str) -> Barrier | None:
        kinds = STRONGEST[self.barrier :]
        return next((make for _, make, fits in kinds if fits(self.source, tensor)), None)

    def make(self, changes: Collection[NodeChange]) -> ModelProto:
        """Return the model with these changes.

        Each barrier stands where its tensor is computed: what is read late is then another tensor.
        """
        new = _Making(self.source)
        nodes = self.source.nodes
        readers = defaultdict[str, list[int]](list)
        ends = dict[str, int]()
        for tensor, node in sorted(changes):
            if node < 0:
                ends[tensor] = node
            elif tensor:
                readers[tensor].append(node)
        names = defaultdict[int, dict[str, str]](dict)
        made = set(chain.from_iterable(node.output for node in nodes))
        for name in sorted(readers.keys() - made):
            self._split(new, name, readers[name], names)
        for i, node in enumerate(nodes):
            new.at(i)
            form = self.forms[i] if NodeChange("", i) in changes else _keep
            form(self.source, node, new)
            inner = {name: new.name("inner") for name in node.output if name in ends}
            new.rename({**names[i], **inner})
            for name, x in inner.items():
                if ends[name] == VALUE:
                    new.always(new.weight(self.value(name), self.source.element(name)), x, name)
                else:
                    self._keep_apart(new, name, x, name)
            for name in filter(readers.__contains__, node.output):
                self._split(new, name, readers[name], names)
        return new.model()

    def _split(
        self, new: Substitution, tensor: str, readers: list[int], names: dict[int, dict[str, str]]
    ) -> None:
        """Let the readers of a tensor read it from behind a barrier."""
        for group in [[reader] for reader in readers] if self.copies else [readers]:
            name = new.name("apart")
            self._keep_apart(new, tensor, tensor, name)
            for reader in group:
                names[reader][tensor] = name

    def _keep_apart(self, new: Substitution, tensor: str, x: str, y: str) -> None:
        barrier = self._barrier(tensor)
        assert barrier
        barrier(new, x, y, self.source.element(tensor))

    def describe(self, change: NodeChange, label: Callable[[int], str]) -> str:
        """Return a change in words; `label`: returns that of a node."""
        tensor, i = change
        if not tensor:
            new = Substitution(self.source, i)
            return f"{self.forms[i](self.source, self.source.nodes[i], new)} {label(i)}"
        if i == VALUE:
            return f"{tensor} as the reference computes it"
        return (
            f"a barrier on {tensor}" if i == OUTPUT else f"a barrier on {tensor} before {label(i)}"
        )


class _Making(Substitution):
    """A full model in the making."""

    def rename(self, names: StringMap) -> None:
        """Let the nodes in the present place read and compute tensors of other names."""
        for node in all_nodes(self.present):
            for tensors in (node.input, node.output):
                tensors[:] = [names.get(name, name) for name in tensors]

    @property
    def present(self) -> Sequence[NodeProto]:
        """The nodes that stand in the present place."""
        return self._new[self._at]


def _keep(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    new.copy(node)
    return ""


def _hide(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    """Put a node into both branches of an If, where no pass over the graph sees it."""
    outputs = [name for name in node.output if name]
    if not new.never() or not all(map(source.element, outputs)):
        return ""
    branches = {}
    for branch in ("then_branch", "else_branch"):
        making = _Making(source)
        making.copy(node)
        names = {name: new.name(branch) for name in outputs}
        making.rename(names)
        infos = [helper.make_value_info(names[n], source.types[n]) for n in outputs]
        branches[branch] = helper.make_graph(making.present, branch, [], infos)
    new.copy(helper.make_node("If", [new.never()], outputs, new.name("If"), **branches))
    return "an If around"


def find_forms(source: RegionModel, nodes: Collection[int]) -> Iterator[tuple[Form, list[int]]]:
    """Yield each form that writes nodes without their own operator, with those nodes; at last, an
    If around each.

    A node may come more than once: the first form that keeps the values is the one to use.
    """
    modules = [plugins.load("rewrites", name) for name in plugins.names("rewrites")]
    forms = (getattr(module, "FORMS", ()) for module in modules)
    for form in chain(*forms, [_hide]):
        found = []
        for i in nodes:
            new = _Making(source, i)
            node = source.nodes[i]
            if form(source, node, new) and node.op_type not in {n.op_type for n in new.present}:
                found.append(i)
        if found:
            yield form, found


@contextmanager
def open_full_model(graph: Graph, value: Callable[[str], Array]) -> Iterator[FullModel]:
    """A model that can be rewritten, until the block ends.

    Args:
        graph: The model.
        value: Returns the reference's value of a tensor.

    Raises:
        ModelError: Onnx cannot infer its types, or the process dies.
        DataError: The bytes of a weight cannot be read.
    """
    model = protobuf.to_onnx(graph.model, graph.path)
    for holder in (model.graph, *model.functions):
        protobuf.load_all(all_tensors(holder), graph.path)
    with OnnxProcess(graph.path) as onnx:
        yield FullModel(RegionModel(model, onnx), value)
