"""Chains of nodes as models on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NAMES = [f"n{i}" for i in range(24)]
UNARY = (("Abs",), ("Neg",), ("Elu",))


def chain(
    path: Path,
    names: Sequence[str],
    tensors: Sequence[str] | None = None,
    source: str = "in",
    sink: str = "out",
) -> Path:
    """Save named unary nodes in a row on (1, 3); `tensors` are the outputs of all but the last."""
    return _save(path, names, UNARY, {}, 3, [source, *_inner(names, tensors), sink])


def line(
    path: Path, names: Sequence[str], tensors: Sequence[str] | None = None, width: int = 3
) -> None:
    """Save named nodes in a row on (1, width), alternately x · 1.1 and x + 0.1.

    Each node passes an error of its input on. `tensors` are the outputs of all but the last.
    """
    weights = {"c1": np.float32(1.1), "c0": np.float32(0.1)}
    operators = (("Mul", "c1"), ("Add", "c0"))
    _save(path, names, operators, weights, width, ["in", *_inner(names, tensors), "out"])


def products(path: Path, count: int, width: int = 64) -> Any:
    """Save `count` nodes n0, n1, … in a row on (1, width), each times a weight near 1.

    In float16 each node rounds, and all of these roundings reach the output.

    Returns:
        An input.
    """
    dice = np.random.default_rng(0)
    names = [f"n{i}" for i in range(count)]
    weights = {f"w{i}": dice.uniform(0.9, 1.1, width).astype(np.float32) for i in range(count)}
    operators = [("Mul", weight) for weight in weights]
    _save(path, names, operators, weights, width, ["in", *_inner(names, None), "out"])
    return dice.standard_normal((1, width)).astype(np.float32)


def _inner(names: Sequence[str], tensors: Sequence[str] | None) -> Sequence[str]:
    return tensors or [f"t{i}" for i in range(len(names) - 1)]


def _save(
    path: Path,
    names: Sequence[str],
    operators: Sequence[tuple[str, ...]],
    weights: Mapping[str, Any],
    width: int,
    tensors: Sequence[str],
) -> Path:
    """Save a chain; `operators` are op types with their weights, which nodes take in turns."""
    nodes = []
    for i, name in enumerate(names):
        operator, *constants = operators[i % len(operators)]
        inputs = [tensors[i], *constants]
        nodes.append(helper.make_node(operator, inputs, [tensors[i + 1]], name=name))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])
        for name in (tensors[0], tensors[-1])
    ]
    initializers = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], initializers)
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path
