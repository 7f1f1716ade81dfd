"""Weights beyond their range: how their values spread, and those that are small enough to stand in
a node's box."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.inspection.ranges import PIECE, RangeSummary
from subgraph.storage import dtypes
from subgraph.storage.tensors import shape_text

if TYPE_CHECKING:
    from subgraph.types import Array

BINS = 24
MAX_NOTES = 3  # weights that are told in a box


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the finite values, and how many of them are in each of `BINS` equal
    parts of the range."""

    deviation: float
    counts: list[int]


def spread(graph: Graph, name: str, measured: RangeSummary) -> Spread | None:
    """How the values of a constant spread; None where all are equal or none is finite. Reads it
    once, in pieces.

    Raises:
        ModelError: its bytes cannot be read.
    """
    tensor = graph.constant(name)
    low = measured.min
    high = measured.max
    mean = measured.mean
    if (
        tensor is None
        or low is None
        or high is None
        or mean is None
        or not high - low < math.inf
        or low == high
    ):
        return None
    counts = np.zeros(BINS, np.int64)
    squares = 0.0
    number = 0
    for piece in _numbers(tensor, graph):
        counts += np.histogram(piece, BINS, (low, high))[0]
        squares += float(np.square(piece - mean).sum())
        number += piece.size
    return Spread(math.sqrt(squares / number), counts.tolist())


def _numbers(tensor: protobuf.TensorProto, graph: Graph) -> Iterator[Array]:
    for piece in protobuf.pieces(tensor, graph.path, PIECE):
        values = (np.abs(piece) if piece.dtype.kind == "c" else piece).astype(np.float64)
        yield values[np.isfinite(values)]


def weight_notes(graph: Graph) -> dict[int, str]:
    """Return the weights of each node in a few words: shapes, and constants of one element.

    `⟨64×3×7×7⟩ ⟨64⟩`, `1.41421`, `0, 6`; nodes without weights are left out.
    """
    found: dict[int, str] = {}
    for i, reads in enumerate(graph.reads):
        tensors = filter(None, map(graph.constant, reads))
        notes = list(dict.fromkeys(filter(None, (_note(graph, tensor) for tensor in tensors))))
        if notes:
            more = ["…"] if len(notes) > MAX_NOTES else []
            found[i] = ", ".join([*notes[:MAX_NOTES], *more])
    return found


def _note(graph: Graph, tensor: protobuf.TensorProto) -> str:
    """Return the shape of a constant, or its value if it has one element; "" without its bytes."""
    if math.prod(tensor.dims) != 1:
        return f"⟨{shape_text(tuple(tensor.dims))}⟩"
    if not dtypes.TYPES.get(tensor.data_type, ("", 0))[1]:
        return ""
    try:
        value = protobuf.to_array(tensor, graph.path).reshape(-1)[0].item()
    except (ModelError, OSError, ValueError, TypeError):  # `inspection.validate` reports why
        return ""
    if isinstance(value, (float, int)) and not isinstance(value, bool):
        return f"{value:.6g}"
    return str(value) if isinstance(value, bool) else ""
