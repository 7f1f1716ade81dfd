"""A weight -> what its numbers are like, read in pieces, one weight at a time: large and tiny values are counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.inspection.lint._places import UNREADABLE, LintNode, Scope, inside
from subgraph.storage import dtypes

if TYPE_CHECKING:
    from subgraph.types import Array

LARGEST_FP16 = 65504.0
ZERO_IN_FP16 = 2.0**-25  # this and less is rounded to zero; the smallest float16 is twice as large
SMALLEST_NORMAL = 2.0**-126  # of float32; what is less, and not zero, is denormal
PIECE = 1 << 20  # elements looked at at a time
WIDE = frozenset(("float32", "float64", "bfloat16"))  # types that hold more than float16 does


@dataclass(frozen=True)
class Numbers:
    """One constant.

    Attributes:
        readers: the nodes that read it, in its own graph; at least one.
        nonzero, over, lost, denormal: elements that are finite and not zero; of those, beyond float16's largest, zero
            in float16, denormal in float32.
        largest: magnitude of the largest finite element.
    """

    name: str
    dtype: str
    readers: tuple[LintNode, ...]
    nonzero: int = 0
    over: int = 0
    lost: int = 0
    denormal: int = 0
    largest: float = 0.0


def of_scope(scope: Scope) -> Iterator[Numbers]:
    """The constants of one graph that hold more than float16 could: initializers, Constant and ConstantOfShape."""
    graph = scope.graph
    tensors = [(t.name, t) for t in scope.weights.values()]
    tensors += [(s.values.name, s.values) for s in getattr(scope.proto, "sparse_initializer", ())]
    tensors += [
        (str(p.node.output[0]), tensor)
        for p in scope.places
        if p.is_op("Constant", "ConstantOfShape") and p.node.output and (tensor := _value(p)) is not None
    ]
    for name, tensor in tensors:
        dtype, readers = dtypes.name_of(tensor.data_type), tuple(scope.readers.get(name, ()))
        if dtype in WIDE and readers and (found := _measured(tensor, graph)):
            yield Numbers(name, dtype, readers, *found)


def _value(place: LintNode) -> protobuf.TensorProto | None:
    """The tensor that a Constant makes, or that a ConstantOfShape repeats."""
    for a in place.node.attribute:
        if a.name == "value":
            return a.t
        if a.name in ("value_float", "value_floats"):
            made = protobuf.protos().TensorProto(data_type=dtypes.TYPE_NUMBERS["float32"])
            made.float_data.extend([a.f] if a.name == "value_float" else a.floats)
            made.dims.append(len(made.float_data))
            return made
    return None


def _measured(tensor: protobuf.TensorProto, graph: Graph) -> tuple[int, int, int, int, float] | None:
    nonzero = over = lost = denormal = 0
    largest = 0.0
    try:
        for values in _pieces(tensor, graph):
            piece = _piece(values)
            nonzero, over, lost, denormal = nonzero + piece[0], over + piece[1], lost + piece[2], denormal + piece[3]
            largest = max(largest, piece[4])
    except UNREADABLE:
        return None
    return nonzero, over, lost, denormal, largest


def _pieces(tensor: protobuf.TensorProto, graph: Graph) -> Iterator[Array]:
    """The numbers, not more at a time than a piece where they lie on disk. Not a map: its pages count as memory."""
    import numpy as np

    from subgraph.storage.tensors import np_dtype

    if not protobuf.on_disk(tensor):
        flat = inside(tensor, graph).ravel("K")
        yield from (flat[k : k + PIECE] for k in range(0, flat.size, PIECE))
        return
    dtype, blob = np_dtype(dtypes.TYPES[tensor.data_type][0]), protobuf.locate(tensor, graph.path)
    with blob.file.open("rb") as file:
        file.seek(blob.offset)
        for k in range(0, blob.length, PIECE * dtype.itemsize):
            yield np.frombuffer(file.read(min(PIECE * dtype.itemsize, blob.length - k)), dtype)


def _piece(values: Array) -> tuple[int, int, int, int, float]:
    """(nonzero, over, lost, denormal, largest) of some elements."""
    import numpy as np

    wide = values if values.dtype.kind == "f" and values.dtype.itemsize > 2 else values.astype(np.float32)
    size = np.abs(wide)
    largest = float(size.max(initial=0))
    if not np.isfinite(largest):  # what is infinite or NaN already is nothing that a conversion did
        size = size[np.isfinite(size)]
        largest = float(size.max(initial=0))
    over = int(np.count_nonzero(size > LARGEST_FP16)) if largest > LARGEST_FP16 else 0
    small = size[size <= ZERO_IN_FP16]
    tiny = small[small > 0]
    denormal = int(np.count_nonzero(tiny < SMALLEST_NORMAL)) if values.dtype.itemsize == 4 else 0
    return size.size - (small.size - tiny.size), over, tiny.size, denormal, largest
