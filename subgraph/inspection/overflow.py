"""Tensors that leave the range of a number type or vanish below it, and the powers of two that
bring them back.

A tensor overflows if a value is beyond the largest number of the type. It vanishes if all its
values are zero in the type, or if one of them is and a node divides by it. A sum is the exception:
values that vanish next to larger ones are not missed. A quantizer clips if values are outside of
its range. A mask is a large constant that only a Softmax or the like reads: it overflows on
purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.properties import OUTPUT_SCALES
from subgraph.graph.quantization import constant_scale
from subgraph.inspection.ranges import Limits, MeasuredTensors, Range
from subgraph.inspection.scaling import RULE_OF, Scaling
from subgraph.lazy import np
from subgraph.precision import Precision
from subgraph.storage.scale import Scale

# A scaled tensor stays below the largest number by this factor: other inputs differ, and a mean may
# be summed in the type.
HEADROOM = 16
MAX_TRIES = 16  # exponents of one tensor
CLIPPED = 1e-3  # share of a tensor's values that calibration by percentiles leaves out
LEVEL = ("Clip", "Erf", "HardSigmoid", "Sigmoid", "Tanh")  # as right for infinity as for 65504
DIVIDES = ("Log", "Reciprocal")
RELU6 = 6.0  # a range that ends here is an activation that was folded into the quantizer
WIDER = frozenset(("float32", "float64", "bfloat16"))
SUMS = frozenset(op for op, rule in RULE_OF.items() if rule == ["*"])
CARRIERS = frozenset(op for op, rule in RULE_OF.items() if rule[0].isdigit() or rule == ["*"])
MASK_PATH = CARRIERS | {"Mul", "Div", "Cast"}  # between a mask's constant and its Softmax
MASK_ENDS = frozenset("ArgMax ArgMin LogSoftmax Sigmoid Softmax TopK".split())


class TroubleKind(StrEnum):
    """The way in which a tensor leaves the type."""

    OVERFLOW = "overflow"
    VANISHES = "vanishes"
    CLIPS = "clips"
    MASK = "mask"


CURABLE = (TroubleKind.OVERFLOW, TroubleKind.VANISHES)


@dataclass(frozen=True)
class Trouble:
    """A tensor that leaves the type.

    Attributes:
        tensor: Its name.
        kind: The way in which it does.
        measured: Its values.
        exponent: The tensor divided by 2 to this power is inside; of a quantizer, its scale times
            that. None without a cure.
    """

    tensor: str
    kind: TroubleKind
    measured: Range
    exponent: int | None = None


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
            if m.range and m.dtype in WIDER and graph.constant(name) is None
        }
        own = [name for name in self._ranges if measured.tensors[name].dtype == "float32"]
        self.scaling = Scaling(graph, own)
        self._masks: dict[str, bool] = {}

    @cached_property
    def troubles(self) -> list[Trouble]:
        """The tensors that leave the type, in the order in which they were measured."""
        found = []
        limits = find_limits(self._graph, self._precision)
        for name, measured in self._ranges.items():
            if kind := self._judge(name):
                exponent = self.exponents.get(name) if kind is not TroubleKind.MASK else None
                found.append(Trouble(name, kind, measured, exponent))
            elif name in limits and (trouble := find_clipped(name, measured, limits[name])):
                found.append(trouble)
        return found

    def _judge(self, name: str, exponent: int = 0) -> TroubleKind | None:
        """Return how a tensor leaves a float type, divided by 2 to the power of an exponent."""
        measured = self._ranges[name]
        largest = math.ldexp(measured.largest, -exponent)
        readers = self._graph.readers.get(name, [])
        if largest > self._precision.largest:
            ends = LEVEL if (measured.high or 0) > self._precision.largest else (*LEVEL, "Relu")
            if readers and all(self._graph.ops[i] in ends for i in readers):
                return None
            is_mask = self.is_mask(name) and self._has_large_source(name)
            return TroubleKind.MASK if is_mask else TroubleKind.OVERFLOW
        is_lost = 0 < math.ldexp(measured.least or 0.0, -exponent) <= self._precision.half_step
        if not is_lost or all(self._graph.ops[i] in SUMS for i in readers):
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

    def is_mask(self, name: str) -> bool:
        """Return whether only a Softmax or the like reads a tensor, so that all that counts of its
        large values is that they are large."""
        if name not in self._masks:
            graph = self._graph
            readers = graph.readers.get(name, [])
            self._masks[name] = bool(readers) and name not in graph.outputs
            self._masks[name] &= all(
                graph.ops[i] in MASK_ENDS
                or (graph.ops[i] in MASK_PATH and self.is_mask(graph.nodes[i].output[0]))
                for i in readers
            )
        return self._masks[name]

    def _has_large_source(self, name: str) -> bool:
        """Return whether a mask is made from a constant that is out of range itself."""
        graph = self._graph
        ends = graph.ancestors_until([graph.maker[name]], self._is_no_mask)
        constants = filter(None, map(graph.constant, graph.iter_inputs(ends)))
        arrays = (protobuf.to_array(tensor, graph.path) for tensor in constants)
        return any(
            float(np.abs(array).max(initial=0)) > self._precision.largest
            for array in arrays
            if array.dtype.kind == "f"
        )

    def _is_no_mask(self, name: str) -> bool:
        maker = self._graph.maker.get(name)
        return maker is not None and self._graph.ops[maker] not in MASK_PATH

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

    def _is_wrong(self, name: str, exponent: int = 0) -> bool:
        is_known = name in self._ranges
        return is_known and self._judge(name, exponent) in (
            TroubleKind.OVERFLOW,
            TroubleKind.VANISHES,
        )

    def _is_cure(self, exponents: Mapping[str, int]) -> bool:
        """Return whether the scaled tensors are in range: in place, as outputs, and where a node
        needs another exponent."""
        outputs = [(name, 0) for name in exponents if name in self._graph.outputs]
        read = [(name, k) for _, _, name, k in self.scaling.iter_demands(exponents)]
        return not any(self._is_wrong(name, k) for name, k in (*exponents.items(), *outputs, *read))

    def _iter_needed(self, name: str) -> Iterator[int]:
        """Yield the exponents that bring a tensor into range, and further ones for the tensors that
        have its exponent, or a multiple of it."""
        measured = self._ranges[name]
        first = math.ceil(math.log2(measured.largest * HEADROOM / self._precision.largest))
        if self._judge(name) is TroubleKind.VANISHES:
            first = round(math.log2(measured.largest * (measured.least or 1)) / 2)
        sign = 1 if first > 0 else -1
        return (first + sign * k for k in range(MAX_TRIES))


def find_limits(graph: Graph, precision: Precision) -> dict[str, Limits]:
    """Return the range of the quantizer of each computed tensor that has one with one constant
    scale; nothing for a float type."""
    found: dict[str, Limits] = {}
    for i, node in enumerate(graph.nodes):
        if graph.ops[i] != "QuantizeLinear" or precision is not Precision.INT8:
            continue
        scale = constant_scale(graph, node, *OUTPUT_SCALES["QuantizeLinear"])
        if scale is None or len(scale.step) > 1 or graph.is_weight(node.input[0]):
            continue
        zero = graph.constant(node.input[2]) if len(node.input) > 2 else None
        dtype = "uint8" if zero is None else str(protobuf.to_array(zero, graph.path).dtype)
        if dtype.startswith(("int", "uint")):
            found[node.input[0]] = limits_of(scale, dtype)
    return found


def limits_of(scale: Scale, dtype: str) -> Limits:
    """Return the range of a quantizer with one scale.

    A range that ends at 0 or at 6 is an activation that was folded into the quantizer: it has no
    limit at this end.
    """
    info = np.iinfo(dtype)
    low, high = ((code - scale.zero[0]) * scale.step[0] for code in (int(info.min), int(info.max)))
    half = scale.step[0] / 2
    is_folded = abs(high - RELU6) <= 2 * half
    return low - half if low else -math.inf, math.inf if is_folded else high + half


def find_clipped(name: str, measured: Range, limits: Limits) -> Trouble | None:
    """Return the trouble of a quantizer that clips more values than calibration leaves out.

    Args:
        name: The tensor.
        measured: Its values, measured with these limits.
        limits: The range of its quantizer.
    """
    if measured.outside <= CLIPPED * measured.elements:
        return None
    low, high = limits
    ratio = max((measured.low or 0) / low, (measured.high or 0) / high)
    return Trouble(name, TroubleKind.CLIPS, measured, max(1, math.ceil(math.log2(ratio))))
