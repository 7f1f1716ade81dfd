"""A runtime whose faults show in full models only: for `-c benchmarks/whole_faults.py:fault=…`.

    fault    faults, by `/`, each KIND~NODES, the names of its nodes joined by `+`
    least    nodes that a graph must have before any fault shows: a pass that is worth its time
    shy      1: no fault shows if more tensors are outputs than the model has
    whole    1: models whose inputs or outputs are not `x` and `y` are refused
    refuses  operators that are refused, joined by `+`
    fused    an operator of onnxruntime's optimized graph, `OP` or `DOMAIN:OP`: it is wrong
    off      passes of onnxruntime that do not run, joined by `+`

Kinds of faults, which look at operators, edges and constants as a pass does:

    pair     the first node feeds the second: the second is wrong
    op       the node has its operator: it is wrong
    far      both nodes have their operators and stand in the graph: the second is wrong
    reuse    the third node reads what the first computes, later than the second does: it gets what
             the second computes
    long     the second node reads what the first computes, which others have read much earlier: it
             gets what the node before it computes
    same     both nodes read the same tensor: the second computes what the first does
    fold     the node reads a constant: the constant is wrong
    kind     all nodes with this operator are wrong
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

AMOUNT = 0.5  # what is wrong is multiplied by it, and it is added
LONG = 6  # nodes between two readers, after which a buffer is used again

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


def version() -> str:
    """Return a version: runtimes have one."""
    return "1"


class Graph:
    """A graph in which faults are planted."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.nodes = list(graph.node)
        self.named = {node.name: node for node in self.nodes}
        self.maker = {name: node for node in self.nodes for name in node.output}
        self.place = {node.name: k for k, node in enumerate(self.nodes)}
        self.constants = {t.name for t in graph.initializer}
        self.added: dict[str, list[onnx.NodeProto]] = {}

    def spoil(self, node: onnx.NodeProto, k: int = 0) -> None:
        """Make what a node computes wrong."""
        y = node.output[k]
        node.output[k] = f"{y}/right"
        amount = f"{y}/amount"
        self.graph.initializer.append(numpy_helper.from_array(np.array(AMOUNT, np.float32), amount))
        self.added[node.name] = [
            helper.make_node("Mul", [node.output[k], amount], [f"{y}/part"], f"{y}/mul"),
            helper.make_node("Add", [f"{y}/part", amount], [y], f"{y}/wrong"),
        ]

    def write(self) -> None:
        """Put the nodes that were added behind those that they belong to."""
        del self.graph.node[:]
        for node in self.nodes:
            self.graph.node.append(node)
            self.graph.node.extend(self.added.get(node.name, ()))

    def feeds(self, first: onnx.NodeProto, second: onnx.NodeProto) -> bool:
        return bool(set(first.output) & set(second.input))

    def readers(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return [other for other in self.nodes if self.feeds(node, other)]


def pair(g: Graph, a: onnx.NodeProto, b: onnx.NodeProto) -> None:
    if g.feeds(a, b):
        g.spoil(b)


def op(g: Graph, a: onnx.NodeProto) -> None:
    g.spoil(a)


def far(g: Graph, a: onnx.NodeProto, b: onnx.NodeProto) -> None:
    g.spoil(b)


def reuse(g: Graph, a: onnx.NodeProto, b: onnx.NodeProto, c: onnx.NodeProto) -> None:
    if g.feeds(a, b) and g.feeds(a, c) and g.place[b.name] < g.place[c.name]:
        c.input[:] = [b.output[0] if n in a.output else n for n in c.input]


def long(g: Graph, a: onnx.NodeProto, b: onnx.NodeProto) -> None:
    early = [r for r in g.readers(a) if g.place[r.name] < g.place[b.name] - LONG]
    if g.feeds(a, b) and early:
        before = g.nodes[g.place[b.name] - 1]
        b.input[:] = [before.output[0] if n in a.output else n for n in b.input]


def same(g: Graph, a: onnx.NodeProto, b: onnx.NodeProto) -> None:
    if a.input[0] == b.input[0]:
        b.input[1:] = a.input[1:]


def fold(g: Graph, a: onnx.NodeProto) -> None:
    if set(a.input) & g.constants:
        g.spoil(a)


def kind(g: Graph, op_type: str) -> None:
    for node in g.nodes:
        if node.op_type == op_type:
            g.spoil(node)


KINDS: Mapping[str, Callable[..., None]] = {
    f.__name__: f for f in (pair, op, far, reuse, long, same, fold)
}


def plant(graph: onnx.GraphProto, fault: str) -> None:
    """Plant faults, whose nodes keep their names as long as they keep their operators."""
    g = Graph(graph)
    for one in filter(None, fault.split("/")):
        name, _, nodes = one.partition("~")
        found = [g.named.get(n) for n in nodes.split("+")]
        if name == "kind":
            kind(g, nodes)
        elif all(found):
            KINDS[name](g, *found)
    g.write()


def optimized(model: onnx.ModelProto, off: str) -> onnx.ModelProto:
    """Return the model as onnxruntime optimizes it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = session_settings()
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        settings.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        onnxruntime.InferenceSession(
            model.SerializeToString(),
            settings,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(filter(None, off.split("+"))),
        )
        return onnx.load(settings.optimized_model_filepath)


def session_settings() -> Any:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return settings


def load(model: Path, options: Mapping[str, str]) -> Run:
    """A session on the model with the faults in it."""
    made = onnx.load(model)
    graph = made.graph
    if options.get("whole") and ([v.name for v in graph.input], [v.name for v in graph.output]) != (
        ["x"],
        ["y"],
    ):
        raise ValueError("only the model itself can be built: it has the input x and the output y")
    refused = set(options.get("refuses", "").split("+"))
    if found := sorted(refused & {node.op_type for node in graph.node}):
        raise ValueError(f"operators that are not supported: {', '.join(found)}")
    is_shy = options.get("shy") and len(graph.output) > 1
    if len(graph.node) >= int(options.get("least", 0)) and not is_shy:
        plant(graph, options.get("fault", ""))
        if fused := options.get("fused"):
            made = optimized(made, options.get("off", ""))
            g = Graph(made.graph)
            for node in g.nodes:
                if fused == ":".join(filter(None, (node.domain, node.op_type))):
                    g.spoil(node)
            g.write()
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), session_settings(), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    return run
