"""Models whose guilty nodes are known: chains, and two branches that join. Nothing in them hides an
error.

A chain goes round x · 1.25, − 0.3, · 0.8, + 0.25: its values, and an error in them, keep their
scale at any length.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

STEPS = (("Mul", "c125"), ("Sub", "c03"), ("Mul", "c08"), ("Add", "c025"))
CONSTANTS = {"c125": 1.25, "c03": 0.3, "c08": 0.8, "c025": 0.25}
WIDTH = 16
NODES = 256  # of the chain
PART = 12  # nodes of the trunk and of each branch; with the one that joins them 37


@dataclass(frozen=True)
class Case:
    """A model and which of its nodes are wrong together.

    Attributes:
        kind: row of the table. model: file name.
        sets: nodes that are wrong where they are together; none: a healthy model.
        samples: how many inputs.
    """

    kind: str
    model: str
    sets: tuple[tuple[str, ...], ...]
    samples: int = 1

    @property
    def truth(self) -> frozenset[frozenset[str]]:
        """The smallest failing regions."""
        return frozenset(map(frozenset, self.sets))

    @property
    def faults(self) -> str:
        """As the candidate takes them."""
        return "/".join("+".join(names) for names in self.sets)


def chain(path: Path, nodes: int) -> None:
    """`n0`, `n1`, … in a row."""
    _save(path, _line("x", [f"n{i}" for i in range(nodes)], "y"))


def join(path: Path) -> None:
    """A trunk `t0` …, two branches `a0` … and `b0` …, and `join`, which adds them."""
    nodes = _line("x", [f"t{i}" for i in range(PART)], "split")
    nodes += _line("split", [f"a{i}" for i in range(PART)], "left")
    nodes += _line("split", [f"b{i}" for i in range(PART)], "right")
    _save(path, [*nodes, helper.make_node("Add", ["left", "right"], ["y"], name="join")])


def _line(first: str, names: Sequence[str], last: str) -> list[onnx.NodeProto]:
    """Nodes in a row from tensor to tensor."""
    tensors = [first, *(f"{name}_out" for name in names[:-1]), last]
    made = []
    for i, name in enumerate(names):
        op, constant = STEPS[i % len(STEPS)]
        made.append(helper.make_node(op, [tensors[i], constant], [tensors[i + 1]], name=name))
    return made


def _save(path: Path, nodes: Iterable[onnx.NodeProto]) -> None:
    """A model of these nodes from `x` to `y`."""
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, WIDTH]) for n in ("x", "y")]
    weights = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in CONSTANTS.items()]
    graph = helper.make_graph(list(nodes), "suspects", ends[:1], ends[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )


def sample(number: int) -> Array:
    """A seeded input."""
    return np.random.default_rng(number).standard_normal((1, WIDTH)).astype(np.float32)


def together(kind: str, length: int, count: int) -> list[Case]:
    """Runs of so many consecutive nodes of the chain that are wrong together: one, seeded, in each
    of `count` equal parts of the chain, since what a search compiles depends on the place."""
    rng = random.Random(length)
    room = (NODES - length) / count
    starts = [max(1, int((part + rng.random()) * room)) for part in range(count)]
    return [
        Case(kind, "chain.onnx", (tuple(f"n{i}" for i in range(s, s + length)),)) for s in starts
    ]


def apart(kind: str, number: int, count: int) -> list[Case]:
    """Seeded choices of so many nodes of the chain that are wrong each by itself."""
    choices = [sorted(random.Random(seed).sample(range(1, NODES), number)) for seed in range(count)]
    return [Case(kind, "chain.onnx", tuple((f"n{i}",) for i in some)) for some in choices]


def joined() -> Case:
    """The last node of each branch and the join, together."""
    last = PART - 1
    return Case("two branches join", "join.onnx", ((f"a{last}", f"b{last}", "join"),))


def first() -> Case:
    return Case("first node", "chain.onnx", (("n0",),))


def healthy() -> Case:
    return Case("healthy model", "chain.onnx", ())


def sampled() -> Case:
    """The end of a branch and the join, together; two inputs."""
    return Case("two inputs", "join.onnx", ((f"a{PART - 1}", "join"),), samples=2)
