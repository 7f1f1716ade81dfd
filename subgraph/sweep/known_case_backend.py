"""The case of an entry of `known` as a backend: it is parsed, and run on onnx's evaluator, in a process of its own.

The "model" is a file in onnx's text form. `load` writes it as protobuf to the path in option `into`; a run is fed
nothing, draws the inputs and gives them as `i/NAME`, the outputs as `o/NAME`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.errors import InputError
from subgraph.graph.types import declared_type
from subgraph.runtime.load_inputs import MAX_RANDOM
from subgraph.storage.tensors import np_dtype

IN, OUT = "i/", "o/"  # how the names of values begin


def load(model: Path, options: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Parse the model and write it; the function that draws its inputs and runs it."""
    from onnx import parser
    from onnx.reference import ReferenceEvaluator

    parsed = parser.parse_model(Path(model).read_text(encoding="utf-8"))
    Path(options["into"]).write_bytes(parsed.SerializeToString(deterministic=True))
    evaluator = ReferenceEvaluator(parsed)
    names = [value.name for value in parsed.graph.output]

    def run(_feeds: Mapping[str, Any]) -> dict[str, Any]:
        feeds = drawn(parsed.graph, **{key: options[key] for key in ("low", "high", "seed")})
        values = dict(zip(names, evaluator.run(None, feeds), strict=True))
        return {**{IN + name: v for name, v in feeds.items()}, **{OUT + name: v for name, v in values.items()}}

    return run


def drawn(graph: Any, low: float, high: float, seed: int) -> dict[str, Any]:
    """A value for each input of a GraphProto, of the shape and the type that it declares.

    Raises:
        InputError: a size is not known, or too large.
    """
    random, feeds = np.random.default_rng(seed), {}
    weights = {weight.name for weight in graph.initializer}
    for one in graph.input:
        if one.name in weights:
            continue
        _, dtype, dims = declared_type(one.type)
        if dims is None or not all(isinstance(d, int) for d in dims) or 8 * math.prod(dims) > MAX_RANDOM:
            raise InputError(f"input '{one.name}' has a size that is not known, or too large")
        feeds[one.name] = random.uniform(low, high, dims).astype(np_dtype(dtype))
    return feeds
