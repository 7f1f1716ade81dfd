"""Tensors that leave the range of a float type or vanish below it, and the powers of two that bring
them back.

A tensor overflows if a value is beyond the largest number of the type. It vanishes if all its
values are zero in the type, or if one of them is and a node divides by it. A sum is the exception:
values that vanish next to larger ones are not missed. A mask is a large constant that only a
Softmax or the like reads: it overflows on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.inspection.ranges import MeasuredTensors, Range, measure_weight
from subgraph.inspection.scaling import RULE_OF, Scaling
from subgraph.precision import Precision

# A scaled tensor stays below the largest number by this factor: other inputs differ, and a mean may
# be summed in the type.
HEADROOM = 16
MAX_TRIES = 16  # exponents of one tensor
# Operators that map infinity and 65504 to the same value.
BOUNDED = ("Clip", "Erf", "HardSigmoid", "Sigmoid", "Tanh")
DIVIDES = ("Log", "Reciprocal")
WIDE = "float32"
SUMS = frozenset(op for op, rule in RULE_OF.items() if rule == ["*"])
CARRIERS = frozenset(op for op, rule in RULE_OF.items() if rule[0].isdigit() or rule == ["*"])
MASK_PATH = CARRIERS | {"Mul", "Div", "Cast"}  # between a mask's constant and its Softmax
MASK_ENDS = frozenset("ArgMax ArgMin LogSoftmax Sigmoid Softmax TopK".split())


class TroubleKind(StrEnum):
    """The way in which a tensor leaves the type."""

    OVERFLOW = "overflow"
    VANISHES = "vanishes"
    MASK = "mask"


@dataclass(frozen=True)
class Trouble:
    """A tensor that leaves the type.

    Attributes:
        tensor: Its name.
        kind: The way in which it does.
        measured: Its values.
        exponent: The tensor divided by 2 to this power is inside. None without a cure.
    """

    tensor: str
    kind: TroubleKind
    measured: Range
    exponent: int | None


class Overflow:
    """The troubles of a model in a precision, on measured values, and their cure.

    Attributes:
        scaling: The equations of the model.
    """

    def __init__(self, graph: Graph, measured: MeasuredTensors, precision: Precision) -> None:
        self._graph = graph
        self._precision = precision
        self._ranges = {
            name: m.range
            for name, m in measured.tensors.items()
            if m.range and m.dtype == WIDE and graph.constant(name) is None
        }
        self.scaling = Scaling(graph, self._ranges)
        self._order = graph.in_order(range(len(graph.nodes)))

    @cached_property
    def troubles(self) -> list[Trouble]:
        """The tensors that leave the type, in the order in which they were measured."""
        kinds = {name: self._judge(name) for name in self._ranges}
        return [
            Trouble(name, kind, self._ranges[name], self.exponents.get(name))
            for name, kind in kinds.items()
            if kind
        ]

    def _judge(self, name: str, exponent: int = 0) -> TroubleKind | None:
        """Return how a tensor leaves the type, divided by 2 to the power of an exponent."""
        measured = self._ranges[name]
        ops = [self._graph.ops[i] for i in self._graph.readers.get(name, [])]
        largest = _divide(measured.largest, exponent)
        if largest > self._precision.largest:
            if ops and all(op in BOUNDED for op in ops):
                return None
            is_mask = self.is_mask(name) and name in self._made_of_large
            return TroubleKind.MASK if is_mask else TroubleKind.OVERFLOW
        is_lost = 0 < _divide(measured.least or 0.0, exponent) <= self._precision.half_step
        is_added = bool(ops) and name not in self._graph.outputs
        if not is_lost or (is_added and all(op in SUMS for op in ops)):
            return None
        vanishes = largest <= self._precision.half_step or self._is_divisor(name)
        return TroubleKind.VANISHES if vanishes else None

    def _is_divisor(self, name: str) -> bool:
        """Return whether a node divides by a tensor, by its root, or takes its logarithm."""
        nodes = self._graph.nodes
        return any(
            nodes[i].op_type in DIVIDES
            or (nodes[i].op_type == "Div" and nodes[i].input[1] == name)
            or (nodes[i].op_type == "Sqrt" and self._is_divisor(nodes[i].output[0]))
            for i in self._graph.readers.get(name, [])
        )

    # ------------------------------------------------------------ masks

    def is_mask(self, name: str) -> bool:
        """Return whether only a Softmax or the like reads a tensor, so that all that counts of its
        large values is that they are large."""
        return name not in self._read_as_values

    @cached_property
    def _read_as_values(self) -> set[str]:
        """The tensors that are read by more than a Softmax or the like."""
        graph = self._graph
        found = set(graph.outputs)
        for i in reversed(self._order):
            is_path = graph.ops[i] in MASK_PATH and found.isdisjoint(graph.makes[i])
            if graph.ops[i] not in MASK_ENDS and not is_path:
                found.update(graph.reads[i])
        return found

    @cached_property
    def _made_of_large(self) -> set[str]:
        """The tensors that are made from a constant that is out of range itself."""
        graph = self._graph
        found = set[str]()
        for i in self._order:
            is_path = graph.ops[i] in MASK_PATH
            if is_path and any(n in found or self._is_large(n) for n in graph.reads[i]):
                found.update(graph.makes[i])
        return found

    def _is_large(self, name: str) -> bool:
        weight = measure_weight(self._graph, name)
        if weight is None or weight.range is None or weight.dtype != WIDE:
            return False
        return weight.range.largest > self._precision.largest

    # ------------------------------------------------------------ exponents

    @cached_property
    def exponents(self) -> Mapping[str, int]:
        """The exponent of each tensor that is scaled: all troubles that have a cure are cured."""
        exponents: dict[str, int] = {}
        for name in filter(self.scaling.is_free, self._ranges):
            if self._is_wrong(name, exponents.get(name, 0)):
                solved = map(self.scaling.solve, ({name: k} for k in self._iter_needed(name)))
                tried = (exponents | found for found in solved if found)
                exponents = next(filter(self._is_cure, tried), exponents)
        return exponents

    def _is_wrong(self, name: str, exponent: int) -> bool:
        kind = self._judge(name, exponent) if name in self._ranges else None
        return kind not in (None, TroubleKind.MASK)

    def _is_cure(self, exponents: Mapping[str, int]) -> bool:
        """Return whether the scaled tensors are in range: in place, as outputs, and where a node
        needs another exponent."""
        outputs = [(name, 0) for name in exponents if name in self._graph.outputs]
        read = [(name, k) for _, _, name, k in self.scaling.iter_demands(exponents)]
        if any(self._is_beyond(name, k) for name, k in read):
            return False
        return not any(self._is_wrong(name, k) for name, k in (*exponents.items(), *outputs, *read))

    def _is_beyond(self, name: str, exponent: int) -> bool:
        """Return whether a constant leaves float32 when it takes the factor."""
        tensor = self._graph.constant(name)
        if tensor is None:
            return False
        values = np.abs(protobuf.to_array(tensor, self._graph.path).astype(np.float64))
        return _divide(float(values.max(initial=0.0)), exponent) > float(np.finfo(np.float32).max)

    def _iter_needed(self, name: str) -> Iterator[int]:
        """Yield the exponents that bring a tensor into range, and further ones for the tensors that
        have its exponent, or a multiple of it."""
        measured = self._ranges[name]
        first = math.ceil(math.log2(measured.largest * HEADROOM / self._precision.largest))
        if self._judge(name) is TroubleKind.VANISHES:
            first = round(math.log2(measured.largest * (measured.least or 1)) / 2)
        sign = 1 if first > 0 else -1
        return (first + sign * k for k in range(MAX_TRIES))


def _divide(value: float, exponent: int) -> float:
    """Return a value divided by 2 to the power of an exponent; infinite beyond float64."""
    with np.errstate(over="ignore"):
        return float(np.ldexp(value, max(min(-exponent, 4096), -4096)))
