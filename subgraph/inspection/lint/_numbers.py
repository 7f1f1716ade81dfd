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
FLOATS = frozenset(("float32", "float64", "bfloat16", "float16"))


@dataclass
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

    def count(self, tensor: protobuf.TensorProto, graph: Graph, precision: Precision) -> bool:
        """Count the elements of the constant; return whether it can be read."""
        try:
            for values in protobuf.pieces(tensor, graph.path, PIECE):
                self._add(values, precision)
        except UNREADABLE:
            return False
        return True

    def _add(self, values: Array, precision: Precision) -> None:
        size = np.abs(values if values.dtype.itemsize > 2 else values.astype(np.float32))
        if not np.isfinite(size.max(initial=0)):  # not the fault of a conversion
            self.nan += int(np.isnan(size).sum())
            self.infinite += int(np.isinf(size).sum())
            size = size[np.isfinite(size)]
        self.largest = max(self.largest, float(size.max(initial=0)))
        self.nonzero += int(np.count_nonzero(size))
        self.over += int(np.count_nonzero(size > precision.largest))
        small = size[size <= max(precision.half_step, SMALLEST_NORMAL)]
        tiny = small[small > 0]
        self.lost += int(np.count_nonzero(tiny <= precision.half_step))
        if values.dtype.itemsize == 4:
            self.denormal += int(np.count_nonzero(tiny < SMALLEST_NORMAL))


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
        numbers = Numbers(name, dtype, readers)
        if dtype in FLOATS and readers and numbers.count(tensor, graph, precision):
            yield numbers


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
