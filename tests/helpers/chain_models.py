"""Chains of nodes as models on disk; every node passes an error of its input on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NAMES = [f"n{i}" for i in range(24)]


def line(
    path: Path, names: Sequence[str], tensors: Sequence[str] | None = None, width: int = 3
) -> None:
    """Named nodes in a row on (1, width), alternately x · 1.1 and x + 0.1; `tensors`: outputs of
    all but the last."""
    made = [*(tensors or [f"t{i}" for i in range(len(names) - 1)]), "out"]
    weights = {"c1": np.float32(1.1), "c0": np.float32(0.1)}
    nodes = [
        helper.make_node(("Mul", "Add")[i % 2], [read, ("c1", "c0")[i % 2]], [make], name=name)
        for i, (name, read, make) in enumerate(zip(names, ["in", *made], made, strict=False))
    ]
    _save(path, nodes, weights, width)


def products(path: Path, count: int, width: int = 64) -> Any:
    """`count` nodes n0, n1, … in a row on (1, width), each times a weight of its own near 1.
    Returns an input.

    In float16 each node rounds, and all of these roundings reach the output.
    """
    dice = np.random.default_rng(0)
    made = [*(f"t{i}" for i in range(count - 1)), "out"]
    weights = {f"w{i}": dice.uniform(0.9, 1.1, width).astype(np.float32) for i in range(count)}
    nodes = [
        helper.make_node("Mul", [read, f"w{i}"], [make], name=f"n{i}")
        for i, (read, make) in enumerate(zip(["in", *made], made, strict=False))
    ]
    _save(path, nodes, weights, width)
    return dice.standard_normal((1, width)).astype(np.float32)


def _save(path: Path, nodes: list[Any], weights: Mapping[str, Any], width: int) -> None:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name in ("in", "out")
    ]
    constants = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()
    ]
    graph = helper.make_graph(nodes, "line", ends[:1], ends[1:], constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
