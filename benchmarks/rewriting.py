"""Faults that no cut shows, planted where it is known, and whether `bisect` names their nodes.

    python -m benchmarks.rewriting [--only WORD] [--jobs 2]      in build/rewriting/

The candidates are `benchmarks/whole_faults.py`: a pass that runs on large graphs only, a buffer
that is used again too early, a fault that two branches far apart need, a runtime that takes full
models only, and real passes of onnxruntime whose fused operator is wrong. Of these the truth is
checked: with the pass in `disabled_optimizers` the model is right. Each scenario is one command.
`exact`: the nodes that are named are those that the fault needs. `wrong`: a node is named that it
does not need. Exit 1 if less than 90 % are exact, or one is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.report import table
from subgraph import bisect
from subgraph.search.oracle import FindingKind

BUILD = Path("build/rewriting")
CANDIDATE = Path(__file__).with_name("whole_faults.py")
WIDTH = 8
LEAST_EXACT = 0.9


class Network:
    """A model from `x` to `y` in the making."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, name: str, op: str, *inputs: str, **attributes: Any) -> str:
        made = helper.make_node(op, inputs, [f"{name}_out"], name, **attributes)
        self.nodes.append(made)
        return str(made.output[0])

    def weight(self, value: object) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def random(self, *shape: int) -> str:
        return self.weight(self.rng.standard_normal(shape) / np.sqrt(shape[0]))

    def dense(self, name: str, x: str, act: str = "Relu") -> str:
        """`NAME/mm`, `NAME/add`, `NAME/act`."""
        x = self.node(f"{name}.mm", "MatMul", x, self.random(WIDTH, WIDTH))
        x = self.node(f"{name}.add", "Add", x, self.random(WIDTH))
        return self.node(f"{name}.act", act, x)

    def save(self, path: Path, last: str, shape: Sequence[int] = (4, WIDTH)) -> None:
        maker = {name: node for node in self.nodes for name in node.output}
        maker[last].output[0] = "y"
        for node in self.nodes:
            node.input[:] = ["y" if name == last else name for name in node.input]
        x, y = (
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in (("x", shape), ("y", None))
        )
        graph = helper.make_graph(self.nodes, "g", [x], [y], self.weights)
        imports = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)


def chain(net: Network, x: str, name: str, length: int) -> str:
    acts = ("Tanh", "Relu", "Sigmoid")
    for k in range(length):
        x = net.dense(f"{name}{k}", x, acts[k % len(acts)])
    return x


def line(path: Path) -> None:
    net = Network()
    net.save(path, chain(net, "x", "d", 10))


def branches(path: Path) -> None:
    """A trunk, two long branches, a join and a tail; the first tensor of the trunk is read late."""
    net = Network(1)
    trunk = chain(net, "x", "t", 2)
    left = chain(net, trunk, "a", 4)
    right = chain(net, trunk, "b", 4)
    both = net.node("join", "Add", left, right)
    tail = chain(net, both, "e", 1)
    net.save(path, net.node("skip", "Add", tail, trunk))


def convolutions(path: Path) -> None:
    net = Network(2)
    x = "x"
    for k in range(5):
        w = net.weight(net.rng.standard_normal((4, 4, 3, 3)) / 6)
        y = net.node(f"c{k}.conv", "Conv", x, w, net.random(4), pads=[1, 1, 1, 1])
        y = net.node(f"c{k}.act", "Relu", y)
        y = net.node(f"c{k}.add", "Add", y, x)
        x = net.node(f"c{k}.pool", "AveragePool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    net.save(path, x, (1, 4, 8, 8))


def transformer(path: Path) -> None:
    """Gelu, normalization by hand, Softmax, a transposed product."""
    net = Network(3)
    x = net.dense("in", "x", "Tanh")
    for k in range(3):
        mean = net.node(f"n{k}.mean", "ReduceMean", x, axes=[-1])
        centered = net.node(f"n{k}.sub", "Sub", x, mean)
        square = net.node(f"n{k}.pow", "Pow", centered, net.weight(2.0))
        var = net.node(f"n{k}.var", "ReduceMean", square, axes=[-1])
        eps = net.node(f"n{k}.eps", "Add", var, net.weight(1e-5))
        root = net.node(f"n{k}.sqrt", "Sqrt", eps)
        normal = net.node(f"n{k}.div", "Div", centered, root)
        scaled = net.node(f"n{k}.mul", "Mul", normal, net.weight(1 + net.rng.random(WIDTH)))
        x = net.node(f"n{k}.add", "Add", scaled, net.random(WIDTH))
        if k == 1:
            turned = net.node("at.turn", "Transpose", x, perm=[1, 0])
            product = net.node("at.mm", "MatMul", x, turned)
            weights = net.node("at.softmax", "Softmax", product, axis=-1)
            x = net.node("at.out", "MatMul", weights, x)
        x = net.dense(f"f{k}", x, "Relu" if k != 1 else "Sigmoid")
        if k == 2:
            half = net.node("g.div", "Div", x, net.weight(np.sqrt(2.0)))
            erf = net.node("g.erf", "Erf", half)
            one = net.node("g.one", "Add", erf, net.weight(1.0))
            both = net.node("g.mul", "Mul", x, one)
            x = net.node("g.half", "Mul", both, net.weight(0.5))
            x = net.dense("out", x, "Tanh")
    net.save(path, x)


@dataclass(frozen=True)
class Scenario:
    """Attributes:
    name: What is tried.
    network: Writes the model.
    options: The candidate's.
    truth: Names of nodes, by culprit.
    by: How the search is asked for.
    """

    name: str
    network: Callable[[Path], None]
    options: str
    truth: tuple[str, ...]
    by: str = "cuts"
    off: str = ""


def planted() -> list[Scenario]:
    """Faults of our own."""
    line_, both = line, branches
    made = [
        Scenario(f"pass above 25 nodes, {a}", line_, f"least=25,fault=pair~{a}+{b}", (f"{a} {b}",))
        for a, b in (
            ("d5.add", "d5.act"),
            ("d2.mm", "d2.add"),
            ("d8.act", "d9.mm"),
            ("d0.add", "d0.act"),
        )
    ]
    made += [
        Scenario(
            "pass above 25 nodes, two pairs",
            line_,
            "least=25,fault=pair~d1.add+d1.act/pair~d7.mm+d7.add",
            ("d1.add d1.act", "d7.mm d7.add"),
        ),
        Scenario(
            "shy pass, a pair", both, "least=20,shy=1,fault=pair~a2.add+a2.act", ("a2.add a2.act",)
        ),
        Scenario("one node above 25, Relu", line_, "least=25,fault=op~d4.act", ("d4.act",)),
        Scenario("one node above 25, MatMul", line_, "least=25,fault=op~d6.mm", ("d6.mm",)),
        Scenario("one node above 25, Sigmoid", line_, "least=25,fault=op~d5.act", ("d5.act",)),
        Scenario(
            "one node above 15, pool", convolutions, "least=15,fault=op~c2.pool", ("c2.pool",)
        ),
        Scenario(
            "one node above 15, no If",
            convolutions,
            "least=15,refuses=If,fault=op~c2.pool",
            ("c2.pool",),
        ),
        Scenario(
            "a kind above 15: Conv",
            convolutions,
            "least=15,fault=kind~Conv",
            tuple(f"c{k}.conv" for k in range(5)),
        ),
        Scenario(
            "constant folded wrong above 25", line_, "least=25,fault=fold~d3.add", ("d3.add",)
        ),
        Scenario(
            "buffer used again",
            both,
            "least=25,fault=reuse~t1.act+a0.mm+skip",
            ("t1.act a0.mm skip",),
        ),
        Scenario(
            "buffer of a long life", both, "least=25,fault=long~t1.act+skip", ("t1.act skip",)
        ),
        Scenario(
            "buffer, early reader",
            both,
            "least=25,fault=reuse~t1.act+a0.mm+b0.mm",
            ("t1.act a0.mm b0.mm",),
        ),
        Scenario(
            "two branches far apart", both, "least=25,fault=far~a1.act+b2.act", ("a1.act b2.act",)
        ),
        Scenario(
            "two branches far apart, MatMul",
            both,
            "least=25,fault=far~a0.mm+b3.mm",
            ("a0.mm b3.mm",),
        ),
        Scenario(
            "same input merged", both, "least=25,fault=same~a0.mm+b0.mm", ("t1.act a0.mm b0.mm",)
        ),
        Scenario(
            "whole models only, a pair",
            line_,
            "whole=1,fault=pair~d5.add+d5.act",
            ("d5.add d5.act",),
        ),
        Scenario("whole models only, a node", line_, "whole=1,fault=op~d5.act", ("d5.act",)),
        Scenario(
            "whole models only, pool",
            convolutions,
            "whole=1,refuses=If,fault=op~c3.pool",
            ("c3.pool",),
        ),
        Scenario(
            "whole models only, far apart",
            both,
            "whole=1,fault=far~a1.act+b2.act",
            ("a1.act b2.act",),
        ),
        Scenario(
            "whole models only, two pairs",
            both,
            "whole=1,fault=pair~a1.mm+a1.add/pair~e0.add+e0.act",
            ("a1.mm a1.add", "e0.add e0.act"),
        ),
        Scenario(
            "whole models only, no Where",
            line_,
            "whole=1,refuses=Where+If,fault=pair~d4.mm+d4.add",
            ("d4.mm d4.add",),
        ),
        Scenario(
            "whole models only, no Where, Less",
            both,
            "whole=1,refuses=Where+If+Less,fault=pair~b2.mm+b2.add",
            ("b2.mm b2.add",),
        ),
        Scenario(
            "by rewriting at once, a pair",
            line_,
            "fault=pair~d3.mm+d3.add",
            ("d3.mm d3.add",),
            "rewriting",
        ),
        Scenario("by rewriting at once, right", line_, "fault=", (), "rewriting"),
    ]
    return made


def real() -> list[Scenario]:
    """Operators that passes of onnxruntime make; each is checked with the pass off."""
    ms = "com.microsoft"
    gelu = "g.div g.erf g.one g.mul g.half"
    norm = "mean sub pow var eps sqrt div mul add"
    norms = tuple(" ".join(f"n{k}.{part}" for part in norm.split()) for k in range(3))
    rows = (
        (
            "GeluFusion",
            transformer,
            "Gelu",
            f"least=50,fused={ms}:Gelu",
            (gelu,),
            "GeluFusionL1+GeluFusionL2+GeluFusion+BiasGeluFusion",
        ),
        (
            "LayerNormFusion",
            transformer,
            "LayerNormalization",
            "least=50,fused=LayerNormalization",
            norms,
            "LayerNormFusion+LayerNormFusionL1+LayerNormFusionL2",
        ),
        (
            "MatMulAddFusion",
            line,
            "Gemm",
            f"least=25,fused={ms}:FusedGemm",
            tuple(f"d{k}.mm d{k}.add d{k}.act" for k in range(10)),
            "MatMulAddFusion",
        ),
        (
            "ConvActivationFusion",
            convolutions,
            "FusedConv",
            f"least=15,fused={ms}:FusedConv",
            tuple(f"c{k}.conv c{k}.act" for k in range(5)),
            "ConvActivationFusion",
        ),
        (
            "MatmulTransposeFusion",
            transformer,
            "FusedMatMul",
            f"least=50,fused={ms}:FusedMatMul",
            ("at.turn at.mm",),
            "MatmulTransposeFusion",
        ),
    )
    return [
        Scenario(f"{name}, {words}", network, f"{options}{more}", truth, "cuts", off)
        for name, network, _, options, truth, off in rows
        for words, more in (("a large graph", ""), ("whole models only", ",whole=1"))
    ]


@dataclass(frozen=True)
class Result:
    scenario: Scenario
    named: frozenset[frozenset[str]]
    says: str
    runs: int
    seconds: float

    @property
    def truth(self) -> frozenset[frozenset[str]]:
        return frozenset(frozenset(one.split()) for one in self.scenario.truth)

    @property
    def is_exact(self) -> bool:
        return self.named == self.truth

    @property
    def is_wrong(self) -> bool:
        needed = frozenset().union(*self.truth)
        return any(not names <= needed for names in self.named)


def search(scenario: Scenario, folder: Path) -> Result:
    """One scenario as a user would search it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model.onnx"
    scenario.network(model)
    spec = f"{CANDIDATE}:{scenario.options}"
    begin = time.monotonic()
    if scenario.off:
        right = bisect(model, f"{spec},off={scenario.off}", output=folder / "off").result
        assert right.agree, f"{scenario.name}: wrong without the pass as well"
    found = bisect(
        model, spec, by_rewriting=scenario.by == "rewriting", output=folder / "out", force=True
    ).result
    culprits = [f for f in found.findings if f.kind is FindingKind.CULPRIT]
    named = {frozenset(f.nodes) for f in culprits}
    named |= {frozenset(r.nodes) for f in culprits for r in f.place.repeats or ()}
    return Result(
        scenario, frozenset(named), found.says, found.cost.trials, time.monotonic() - begin
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    chosen = [s for s in [*planted(), *real()] if asked.only in s.name]
    results = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for k, result in enumerate(pool.map(partial(_search, BUILD), enumerate(chosen))):
            results.append(result)
            state = "exact" if result.is_exact else "WRONG" if result.is_wrong else "not exact"
            line_ = f"{k + 1:3} {state:9} {result.runs:4} {result.seconds:5.0f} s"
            print(f"{line_}  {result.scenario.name}: {result.says}", file=sys.stderr, flush=True)
    exact = sum(r.is_exact for r in results)
    wrong = sum(r.is_wrong for r in results)
    rows = [
        [r.scenario.name, "exact" if r.is_exact else "no", str(r.runs), f"{r.seconds:.0f} s"]
        for r in results
    ]
    print(table(["scenario", "nodes", "runs", "time"], rows))
    print(f"{exact} of {len(results)} exact, {wrong} wrong")
    return int(exact < LEAST_EXACT * len(results) or wrong > 0)


def _search(build: Path, numbered: tuple[int, Scenario]) -> Result:
    k, scenario = numbered
    return search(scenario, build / f"{k}-{scenario.name.replace(' ', '-').replace(',', '')}")


if __name__ == "__main__":
    sys.exit(main())
