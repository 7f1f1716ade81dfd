"""Statistics of constants: how many values are too large or too small for a precision, or denormal. Read in pieces."""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.inspection.lint._places import UNREADABLE, LintNode, Scope
from subgraph.precision import Precision
from subgraph.storage import dtypes

if TYPE_CHECKING:
    from subgraph.types import Array

SMALLEST_NORMAL = 2.0**-126  # of float32; smaller magnitudes above zero are denormal
PIECE = 1 << 20  # elements read at a time
Counts = tuple[int, int, int, int, float, int, int]  # the fields of `Numbers` from `nonzero` on
FLOATS = frozenset(("float32", "float64", "bfloat16", "float16"))


@dataclass(frozen=True)
class Numbers:
    """Statistics of one constant.

    Attributes:
        readers: the nodes of its scope that read it; at least one.
        nonzero: number of elements that are finite and not zero.
        over, lost, denormal: number of those that are infinite or zero in the precision, denormal in float32.
        largest: magnitude of the largest finite element.
        nan, infinite: number of those.
    """  # noqa: E501

    name: str
    dtype: str
    readers: tuple[LintNode, ...]
    nonzero: int = 0
    over: int = 0
    lost: int = 0
    denormal: int = 0
    largest: float = 0.0
    nan: int = 0
    infinite: int = 0


def numbers_of(scope: Scope, precision: Precision) -> Iterator[Numbers]:
    """The constants of a scope that are floats: initializers, Constant and ConstantOfShape."""
    graph = scope.graph
    tensors = [(t.name, t) for t in scope.weights.values()]
    tensors += [(s.values.name, s.values) for s in getattr(scope.proto, "sparse_initializer", ())]
    tensors += [
        (node.output(0), tensor)
        for node in scope.nodes
        if node.is_op("Constant", "ConstantOfShape")
        and node.output(0)
        and (tensor := _value(node)) is not None
    ]
    for name, tensor in tensors:
        dtype = dtypes.name_of(tensor.data_type)
        readers = tuple(scope.readers.get(name, ()))
        if dtype in FLOATS and readers and (counts := _count(tensor, graph, precision)):
            yield Numbers(name, dtype, readers, *counts)


def _value(node: LintNode) -> protobuf.TensorProto | None:
    """The value of a Constant, or the element of a ConstantOfShape."""
    attributes: Iterable[protobuf.AttributeProto] = node.proto.attribute
    for a in attributes:
        if a.name == "value":
            return a.t
        if a.name in ("value_float", "value_floats"):
            tensor = protobuf.protos().TensorProto(data_type=dtypes.TYPE_NUMBERS["float32"])
            tensor.float_data.extend([a.f] if a.name == "value_float" else a.floats)
            tensor.dims.append(len(tensor.float_data))
            return tensor
    return None


def _count(tensor: protobuf.TensorProto, graph: Graph, precision: Precision) -> Counts | None:
    """Of a tensor; None if it cannot be read."""
    try:
        read = protobuf.pieces(tensor, graph.path, PIECE)
        pieces = [_count_piece(values, precision) for values in read]
    except UNREADABLE:
        return None
    nonzero, over, lost, denormal, largest, nan, infinite = (
        zip(*pieces, strict=True) if pieces else [()] * 7
    )
    return (
        sum(nonzero),
        sum(over),
        sum(lost),
        sum(denormal),
        max(largest, default=0.0),
        sum(nan),
        sum(infinite),
    )


def _count_piece(values: Array, precision: Precision) -> Counts:
    wide = (
        values
        if values.dtype.kind == "f" and values.dtype.itemsize > 2
        else values.astype(np.float32)
    )
    size = np.abs(wide)
    largest = float(size.max(initial=0))
    nan = 0
    infinite = 0
    if not np.isfinite(
        largest
    ):  # elements that are infinite or NaN already are not the fault of a conversion
        nan = int(np.isnan(size).sum())
        infinite = int(np.isinf(size).sum())
        size = size[np.isfinite(size)]
        largest = float(size.max(initial=0))
    over = int(np.count_nonzero(size > precision.largest)) if largest > precision.largest else 0
    nonzero = int(np.count_nonzero(size))
    small = size[size <= max(precision.half_step, SMALLEST_NORMAL)]
    tiny = small[small > 0]
    lost = int(np.count_nonzero(tiny <= precision.half_step))
    denormal = int(np.count_nonzero(tiny < SMALLEST_NORMAL)) if values.dtype.itemsize == 4 else 0
    return nonzero, over, lost, denormal, largest, nan, infinite
