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

if TYPE_CHECKING:
    from subgraph.types import Array

BINS = 24
MOST = 2  # constants in a box


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


def small_constants(graph: Graph) -> dict[int, str]:
    """Node → its constants of one element, as text: `1.41421`, or `0, 6`; nodes with more than
    `MOST` are left out."""
    found: dict[int, str] = {}
    for i, reads in enumerate(graph.reads):
        names = [name for name in reads if _is_single(graph.constant(name))]
        if 0 < len(names) <= MOST:
            row = [_text(graph, name, 6 if len(names) == 1 else 3) for name in names]
            found |= {i: ", ".join(row)} if all(row) else {}
    return found


def _is_single(tensor: protobuf.TensorProto | None) -> bool:
    return (
        tensor is not None
        and math.prod(tensor.dims) == 1
        and bool(dtypes.TYPES.get(tensor.data_type, ("", 0))[1])
    )


def _text(graph: Graph, name: str, digits: int) -> str:
    """Empty where the bytes are missing."""
    tensor = graph.constant(name)
    assert tensor is not None
    try:
        value = protobuf.to_array(tensor, graph.path).reshape(-1)[0].item()
    except (ModelError, OSError, ValueError, TypeError):  # `inspection.validate` reports why
        return ""
    if isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return ""
