"""Graphs in ONNX's text form → models on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from subgraph.graph import graph
from subgraph.graph.graph import Graph

# A model that draws random numbers.
RANDOM = """g (float[1,8] x) => (float[1,8] y) {
    [drawn] r = RandomNormalLike(x) [add] a = Add(x, r) [neg] y = Neg(a)
}"""


def model(
    text: str, *, opset: int = 17, ir: int = 8, domains: tuple[str, ...] = (), **weights: Any
) -> onnx.ModelProto:
    """`g (float[2] x) => (float[2] y) { … }` as a model; `weights` are arrays that become
    initializers."""
    imports = ", ".join([f'"" : {opset}', *(f'"{domain}" : 1' for domain in domains)])
    made = parser.parse_model(f"<ir_version: {ir}, opset_import: [{imports}]>\n{text}")
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()
    )
    return made


def written_out(text: str, label: str = "") -> str:
    """Return the text form of a graph whose short form is given.

    "float[2] -> float[1]: ReduceSum(x)" is short for one node that reads `x` and makes `y`; without
    an arrow, the output has the type of the input.

    Args:
        text: The short form, or a text form, which is returned as it is.
        label: The name of the node.
    """
    if text.startswith("g "):
        return text
    types, _, op = text.partition(": ")
    read, _, made = types.partition(" -> ")
    name = f"[{label}] " if label else ""
    return f"g ({read} x) => ({made or read} y) {{ {name}y = {op} }}"


def save(path: Path | str, text: str, **more: Any) -> Path:
    """Write the model of `text`, with the arguments of `model`, to a file, and return its path."""
    path = Path(path)
    path.write_bytes(model(text, **more).SerializeToString())
    return path


def load(
    folder: Path, text: str, change: Callable[[onnx.ModelProto], Any] = lambda m: None, **more: Any
) -> Graph:
    """As `model`, with a `change` that the text form cannot express, written to `folder` and read
    by subcut."""
    made = model(text, **more)
    change(made)
    return read(folder, made)


def read(folder: Path, made: onnx.ModelProto) -> Graph:
    """Write a model to a file and read it."""
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return graph.load(path)


def labels(g: Graph, nodes: Mapping[int, Any] | Any) -> list[str]:
    """Labels of nodes given by index."""
    return [g.label(i) for i in nodes]
