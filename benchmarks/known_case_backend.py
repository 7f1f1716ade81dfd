"""The case of an entry of `known` as a backend: it is parsed, and run on onnx's evaluator, in a
process of its own.

The "model" is a file in onnx's text form. `load` draws the weights that it only declares, and
writes it as protobuf to the path in option `into`; a run is fed nothing, draws the inputs and gives
them as `i/NAME`, the outputs as `o/NAME`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.errors import InputError
from subgraph.graph.value_types import read_type
from subgraph.runtime.backends.onnx_reference import open_evaluator
from subgraph.runtime.load_inputs import MAX_RANDOM
from subgraph.storage.tensors import find_dtype
from subgraph.types import Array

IN, OUT = "i/", "o/"  # how the names of values begin


def load(model: Path, options: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Parse the model and write it; the function that draws its inputs and runs it."""
    from onnx import numpy_helper, parser

    parsed = parser.parse_model(Path(model).read_text(encoding="utf-8"))
    graph = parsed.graph
    weights = {weight.name for weight in parsed.graph.initializer}
    given = {
        *weights,
        *(value.name for value in graph.input),
        *(name for n in graph.node for name in n.output),
    }
    random = np.random.default_rng([options["seed"], 1])
    declared = [value for value in graph.value_info if value.name not in given]
    graph.initializer.extend(
        numpy_helper.from_array(drawn(w, random, options), w.name) for w in declared
    )
    file = Path(options["into"])
    file.write_bytes(parsed.SerializeToString(deterministic=True))
    evaluator = open_evaluator(file)
    names = [value.name for value in graph.output]

    def run(_feeds: Mapping[str, Any]) -> dict[str, Any]:
        random = np.random.default_rng(options["seed"])
        feeds = {
            value.name: drawn(value, random, options)
            for value in graph.input
            if value.name not in weights
        }
        values = dict(zip(names, evaluator.run(None, feeds), strict=True))
        return {
            **{IN + name: v for name, v in feeds.items()},
            **{OUT + name: v for name, v in values.items()},
        }

    return run


def drawn(value: Any, random: np.random.Generator, options: Mapping[str, Any]) -> Array:
    """The elements of a ValueInfoProto, of the shape and the type that it declares: those that are
    given, or drawn.

    Raises:
        InputError: a size is not known, or too large.
    """
    _, dtype, dims = read_type(value.type)
    if (
        dims is None
        or not all(isinstance(d, int) for d in dims)
        or 8 * math.prod(dims) > MAX_RANDOM
    ):
        raise InputError(
            f"'{value.name}' has a size that is not known, or too large", code="known.open-size"
        )
    if value.name in options["values"]:
        return np.array(options["values"][value.name]).astype(find_dtype(dtype)).reshape(dims)
    low, high = options["ranges"].get(value.name, (options["low"], options["high"]))
    return random.uniform(low, high, dims).astype(find_dtype(dtype))
