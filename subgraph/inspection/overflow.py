"""Tensors that leave the range of a float type or vanish below it, and the powers of two that bring
them back.

A tensor overflows if a value is beyond the largest number of the type. It vanishes if all its
values are zero in the type, or if one of them is and a node divides by it. A sum is the exception:
values that vanish next to larger ones are not missed. A mask is a large constant that only a
Softmax or the like reads: it overflows on purpose.

Tensors are scaled by powers of two so that the outputs of the model keep their values. A tensor t
with exponent k is stored as t / 2^k; such factors are exact in float32. The rule of an operator has
one equation per word: of the exponents of its inputs, by position, and of its output.

    0      input 0 has the exponent of the output; `*`: every input has it
    0+1    the exponents add up: a product. A constant operand takes the difference
    0-1    a quotient
    0:2    twice the exponent of input 0 is that of the output: a power
    3=0    input 3 has the exponent of input 0

An input without an equation has exponent 0. With `any` and `epsilon`, input 0 has any exponent; an
epsilon follows its square. A demand that is not met becomes a Mul by a power of two.

The channels of a tensor may have different exponents: an array that is broadcast to the tensor.
Operators pass it on axis by axis; weights take it by row and column.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import get_attribute, list_captured
from subgraph.graph.opsets import STANDARD
from subgraph.graph.properties import (
    AXIS_WISE,
    BROADCASTS,
    CHANNEL_AXES,
    FEATURE_AXES,
    KEEPS_SHAPE,
    NESTS,
    POOLS,
    REARRANGES,
    SHAPE_OPS,
    WINDOWS,
)
from subgraph.inspection.ranges import MeasuredTensors, Range, measure_weight
from subgraph.iterables import flatten, invert
from subgraph.precision import Precision
from subgraph.types import Array, frozen

RULES = """
0         Abs AveragePool CumSum DepthToSpace Dropout Expand Flatten Gather GatherElements GatherND
0         GlobalAveragePool GlobalMaxPool Identity LeakyRelu LpPool MaxPool Neg PRelu ReduceL1
0         ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Resize ReverseSequence
0         Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Upsample
*         Add Clip Concat Max Mean Min Sub Sum
0,2       Pad ScatterElements ScatterND
1,2       Where
0+1,2     Conv ConvTranspose Gemm MatMul Mul
0-1       Div
0:.5      Sqrt
0:-1      Reciprocal
0:2       ReduceSumSquare
0:p       Pow
any       ArgMax ArgMin Shape Sign Size
epsilon,1,2       GroupNormalization InstanceNormalization LayerNormalization RMSNormalization
any,0+1,2,3=0     BatchNormalization
"""
RULE_OF = invert(
    (words.split(","), ops) for words, *ops in map(str.split, RULES.strip().splitlines())
)
FREE = frozenset(op for op, rule in RULE_OF.items() if rule[0] in ("any", "epsilon"))
# Operators that pass the exponents of channels on.
PASSES_AXES = AXIS_WISE | KEEPS_SHAPE | BROADCASTS | POOLS | NESTS | REARRANGES
WITH_OLD_ATTRIBUTES = ("Clip", "Pad")  # limits of older opsets, which are not scaled
Equation = tuple[dict[int, float], int]  # factors of inputs, by position, and of the output
Exponent: TypeAlias = Any  # an int, or an array of those of channels
# A scaled tensor stays below the largest number by this factor: other inputs differ, and a mean may
# be summed in the type.
HEADROOM_FACTOR = 16
MAX_TRIES = 16  # exponents of one tensor
# Operators that map infinity and 65504 to the same value.
BOUNDED = ("Clip", "Erf", "HardSigmoid", "Sigmoid", "Tanh")
DIVIDES = ("Log", "Reciprocal")
WIDE = "float32"
LARGEST = float(np.finfo(np.float32).max)
SUMS = frozenset(op for op, rule in RULE_OF.items() if rule == ["*"])
CARRIERS = frozenset(op for op, rule in RULE_OF.items() if rule[0].isdigit() or rule == ["*"])
MASK_PATH = CARRIERS | {"Mul", "Div", "Cast"}  # between a mask's constant and its Softmax
MASK_ENDS = frozenset("ArgMax ArgMin LogSoftmax Sigmoid Softmax TopK".split())


class TroubleKind(StrEnum):
    """The way in which a tensor leaves the type."""

    OVERFLOW = "overflow"
    VANISHES = "vanishes"
    MASK = "mask"


@frozen
class Trouble:
    """A tensor that leaves the type.

    Attributes:
        tensor: Its name.
        kind: The way in which it leaves the type.
        measured: The range of its values.
        exponent: The tensor divided by 2 to this power is in range. None without a cure.
    """

    tensor: str
    kind: TroubleKind
    measured: Range
    exponent: int | None


class Overflow:
    """The troubles of a model in a precision, on measured values, and their cure.

    Attributes:
        scaling: The equations of the model.
        exponents: The exponent of each tensor that is scaled.
        troubles: The tensors that leave the type, in the order in which they were measured.
    """

    def __init__(self, graph: Graph, measured: MeasuredTensors, precision: Precision) -> None:
        self._graph = graph
        self._precision = precision
        self._ranges = {
            name: m.range
            for name, m in measured.tensors.items()
            if m.range and m.dtype == WIDE and graph.constant(name) is None
        }
        self.scaling = Scaling(graph, dict.fromkeys(self._ranges, ()))
        self._read_as_values = _find_read_values(graph)
        self._made_of_large = self._find_made_of_large() if self._ranges else set()
        kinds = {name: self._judge(name) for name in self._ranges}
        self.exponents = self._solve()
        self.troubles = [
            Trouble(name, kind, self._ranges[name], self.exponents.get(name))
            for name, kind in kinds.items()
            if kind
        ]

    def _judge(self, name: str, exponent: int = 0) -> TroubleKind | None:
        """Return how a tensor leaves the type, after a division by 2 to the power of an exponent;
        None if it does not."""
        measured = self._ranges[name]
        ops = {self._graph.ops[i] for i in self._graph.readers.get(name, [])}
        largest = _divide(measured.largest, exponent)
        if largest > self._precision.largest:
            if ops and ops.issubset(BOUNDED):
                return None
            if self.is_mask(name) and name in self._made_of_large:
                return TroubleKind.MASK
            return TroubleKind.OVERFLOW
        is_lost = 0 < _divide(measured.least, exponent) <= self._precision.half_step
        is_added = bool(ops) and ops <= SUMS and name not in self._graph.outputs
        if not is_lost or is_added:
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
        """Return whether only a Softmax or the like reads a tensor.

        Its large values then only have to stay large.
        """
        return name not in self._read_as_values

    def _find_made_of_large(self) -> set[str]:
        """Return the tensors that are made from a constant that is out of range itself."""
        graph = self._graph
        tensors = set[str]()
        for i in graph.order:
            is_path = graph.ops[i] in MASK_PATH
            largest = self._precision.largest
            reads = graph.reads[i] if is_path else ()
            if any(n in tensors or self._measure_constant(n) > largest for n in reads):
                tensors.update(graph.makes[i])
        return tensors

    def _measure_constant(self, name: str) -> float:
        """Return the largest finite magnitude of a float32 constant; 0 for other tensors."""
        weight = measure_weight(self._graph, name)
        is_float = weight is not None and weight.dtype == WIDE
        if weight and weight.range and is_float:
            return weight.range.largest
        return 0.0

    # ------------------------------------------------------------ exponents

    def _solve(self) -> Mapping[str, int]:
        """Return the exponents that cure all troubles that have a cure.

        A second round cures a factor of a product that itself had to be scaled first.
        """
        exponents: dict[str, int] = {}
        for name in 2 * list(filter(self.scaling.is_free, self._ranges)):
            if self._is_wrong(name, exponents.get(name, 0)):
                solved = map(self.scaling.solve, ({name: k} for k in self._iter_needed(name)))
                tried = (exponents | solution for solution in solved if solution)
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
        if any(_divide(self._measure_constant(name), k) > LARGEST for name, k in read):
            return False
        return not any(self._is_wrong(name, k) for name, k in (*exponents.items(), *outputs, *read))

    def _iter_needed(self, name: str) -> Iterator[int]:
        """Yield the exponents that bring a tensor into range, and further ones for the tensors that
        have its exponent, or a multiple of it."""
        measured = self._ranges[name]
        first = math.ceil(math.log2(measured.largest * HEADROOM_FACTOR / self._precision.largest))
        if self._judge(name) is TroubleKind.VANISHES:
            first = round(math.log2(measured.largest * measured.least) / 2)
        sign = 1 if first > 0 else -1
        return (first + sign * k for k in range(MAX_TRIES))


def _find_read_values(graph: Graph) -> set[str]:
    """Return the tensors that are read by more than a Softmax or the like."""
    tensors = set(graph.outputs)
    for i in reversed(graph.order):
        is_path = graph.ops[i] in MASK_PATH and tensors.isdisjoint(graph.makes[i])
        if graph.ops[i] not in MASK_ENDS and not is_path:
            tensors.update(graph.reads[i])
    return tensors


def _divide(value: float, exponent: int) -> float:
    """Return a value divided by 2 to the power of an exponent; infinite beyond float64."""
    with np.errstate(over="ignore"):
        return float(np.ldexp(value, max(min(-exponent, 4096), -4096)))


class Scaling:
    """The equations of a model.

    Attributes:
        graph: The model.
        shapes: By name of its float32 tensors.
    """

    def __init__(self, graph: Graph, shapes: Mapping[str, Sequence[int]]) -> None:
        """Read the equations.

        Args:
            graph: The model.
            shapes: By name of its float32 tensors; () if only tensors are scaled, and no channels.
        """
        self.graph = graph
        self.shapes = shapes
        self._floats = shapes.keys() - graph.inputs.keys()
        self._captured = set(flatten(map(list_captured, graph.nodes)))
        self._rules = list(map(self._find_rule, graph.nodes))
        self._equations = list(map(self._read_equations, graph.nodes, self._rules))
        self._links = self._find_links()

    def _find_rule(self, node: protobuf.NodeProto) -> list[str]:
        rule = RULE_OF.get(node.op_type, []) if node.domain in STANDARD else []
        is_old = node.op_type in WITH_OLD_ATTRIBUTES and len(node.input) == 1
        has_statistics = node.op_type in FREE and any(node.output[1:])
        is_fixed = is_old or has_statistics or not self._captured.isdisjoint(node.output)
        return [] if is_fixed else rule

    def _read_equations(self, node: protobuf.NodeProto, rule: Sequence[str]) -> list[Equation]:
        equations = []
        for word in rule:
            first, *other = re.split("[:+=-]", word, maxsplit=1)
            if word == "*":
                equations += [({k: 1.0}, 1) for k in range(len(node.input))]
            elif ":" in word:
                value = self.graph.array(node.input[1]) if other == ["p"] else np.float64(other[0])
                if value is not None and value.size == 1 and value.any():
                    equations.append(({0: float(value.item())}, 1))
            elif first.isdigit():
                factors = {int(k): 1.0 if "+" in word else -1.0 for k in other} | {int(first): 1.0}
                equations.append((factors, int("=" not in word)))
        reads = dict(enumerate(node.input))
        return [equation for equation in equations if all(map(reads.get, equation[0]))]

    def is_constant(self, name: str) -> bool:
        """Return whether the values of a tensor are stored in the model."""
        return self.graph.constant(name) is not None

    def is_free(self, name: str) -> bool:
        """Return whether the tensor can have another exponent than 0."""
        i = self.graph.maker.get(name)
        return name in self._floats and i is not None and bool(self._rules[i])

    def _find_links(self) -> dict[str, list[tuple[int, str, float]]]:
        """Return the tensors whose exponent follows from that of a tensor, by the latter.

        Each has the node that reads one of the two and outputs the other, and its exponent if that
        of the tensor is 1. Of a product, the first factor has the
        exponent of the output, unless it is squared.
        """
        links = defaultdict[str, list[tuple[int, str, float]]](list)
        for i, node in enumerate(self.graph.nodes):
            for factors, output in self._equations[i]:
                names = [node.input[k] for k in factors]
                if not output or min(factors.values()) < 0 < len(names) - 1:
                    continue
                power = sum(factors.values()) if len(set(names)) == 1 else 1.0
                for produced in node.output:
                    pair = (node.input[min(factors)], produced)
                    if all(map(self.is_free, pair)) and not any(map(self.is_constant, names)):
                        links[pair[0]].append((i, produced, power))
                        links[produced].append((i, pair[0], 1 / power))
        return links

    def solve(self, seeds: Mapping[str, Exponent]) -> dict[str, Exponent] | None:
        """Return the exponents that follow from those of some tensors; None if one of them is a
        fraction.

        Raises:
            ValueError: A node does not pass the exponents of channels on.
        """
        exponents = dict(seeds)
        pending = list(seeds)
        while pending:
            name = pending.pop()
            for i, neighbor, factor in self._links.get(name, ()):
                if neighbor not in exponents:
                    if factor != 1 and isinstance(exponents[name], np.ndarray):
                        raise ValueError(self.graph.ops[i])
                    exponents[neighbor] = self.lay(i, exponents[name] * factor, name, neighbor)
                    pending.append(neighbor)
        if any(np.any(value % 1) for value in exponents.values()):
            return None
        return {name: _round(value) for name, value in exponents.items()}

    def iter_demands(
        self, exponents: Mapping[str, Exponent]
    ) -> Iterator[tuple[int, int, str, Exponent]]:
        """Yield the inputs that need another exponent than their tensor has: the node, the position
        of the input, the tensor and the exponent.

        Raises:
            ValueError: A node does not pass the exponents of channels on.
        """
        for i, node in enumerate(self.graph.nodes):
            own = {k: exponents.get(name, 0) for k, name in enumerate(node.input)}
            wanted = dict.fromkeys(own, 0)
            free = FREE if isinstance(own.get(0), int) else ("BatchNormalization", *SHAPE_OPS)
            if node.op_type in free and self._rules[i]:
                wanted[0] = own[0]
            for factors, output in self._equations[i]:
                # The remaining exponent goes to a constant, or to the tensor with the largest one.
                *others, last = sorted(
                    factors, key=lambda k: (self.is_constant(node.input[k]), np.max(own[k]))
                )
                produced = node.output[0]
                total = output * self.lay(i, exponents.get(produced, 0), produced, node.input[last])
                for k in others:
                    wanted[k] = own[k]
                    total = total - factors[k] * self.lay(
                        i, own[k], node.input[k], node.input[last]
                    )
                wanted[last] = _round(total / factors[last])
            for k, exponent in wanted.items():
                if np.any(exponent != own[k]):
                    yield i, k, node.input[k], exponent

    def lay(self, i: int, exponent: Exponent, source: str, target: str) -> Exponent:
        """Return the exponent of a tensor of a node as another tensor of the node has it.

        Raises:
            ValueError: The node does not pass the exponents of channels on.
        """
        if not isinstance(exponent, np.ndarray) or source == target:
            return exponent
        node = self.graph.nodes[i]
        op = node.op_type
        value = self.graph.array(target)
        if value is not None and op in FEATURE_AXES and op not in BROADCASTS:
            return _fold(node, exponent, value.shape, source, target)
        if value is not None and not value.any():
            return 0
        shape = self.shapes.get(target, ()) if value is None else value.shape
        laid = self._move(node, exponent, source, shape)
        if value is not None and op in BROADCASTS:
            return laid
        is_batch = len(shape) > 1 and len(laid) > 1
        if is_batch or np.broadcast_shapes(laid.shape, shape) != tuple(shape):
            raise ValueError(op)
        return laid

    def _move(
        self, node: protobuf.NodeProto, exponent: Array, source: str, shape: Sequence[int]
    ) -> Array:
        """Return exponents along the axes of another tensor of a node, which has a shape."""
        op = node.op_type
        own = self.shapes[source]
        is_output = source in node.output
        is_window = op in POOLS and exponent.size != exponent.shape[1]
        if is_window or op not in PASSES_AXES:
            raise ValueError(op)
        if op == "Transpose":
            order = get_attribute(node, "perm", [*range(len(own))[::-1]])
            return exponent.transpose(np.argsort(order) if is_output else order)
        if op in REARRANGES:
            exponent = np.broadcast_to(exponent, own).reshape(shape)
            for axis in range(exponent.ndim):
                first = exponent.take([0], axis)
                exponent = first if (exponent == first).all() else exponent
            return exponent
        if op not in BROADCASTS and len(own) != len(shape):
            named = get_attribute(node, "axes", [get_attribute(node, "axis", 0)])
            axes_input = self.graph.array(node.input[-1]) if op in NESTS else None
            axes = tuple(named if axes_input is None else axes_input)
            if is_output:
                return np.expand_dims(exponent, axes)
            return exponent.squeeze(axes)
        tail = exponent.shape[int(np.argmax(np.asarray(exponent.shape) > 1)) :]
        return exponent.reshape((1,) * (len(shape) - len(tail)) + tail)


def _fold(
    node: protobuf.NodeProto, exponent: Array, dims: Sequence[int], source: str, target: str
) -> Array:
    """Return the exponents of the channels of a node's input or output by row and column of its
    weights; by channel for its bias and the like.

    Raises:
        ValueError: The weights have no such channels.
    """
    op = node.op_type
    is_matrix = op in CHANNEL_AXES and target == node.input[1]
    channels = exponent.ravel()
    has_rows = exponent.shape[FEATURE_AXES[op][0]] == len(channels)
    is_vector = target != node.input[0] and list(dims) == [len(channels)]
    if not has_rows or get_attribute(node, "transA", 0) or not (is_matrix or is_vector):
        raise ValueError(op)
    if not is_matrix:
        return channels
    # The channels of the input, and not of the output, are along the first axis.
    is_transposed = (CHANNEL_AXES[op] != (0,)) != bool(get_attribute(node, "transB", 0))
    laid = channels.reshape(-1, 1)
    if is_transposed != (source == node.input[0]):
        groups = get_attribute(node, "group", 1)
        laid = np.repeat(channels.reshape(groups, -1), dims[0] // groups, 0)
    return laid.reshape(*laid.shape, *[1] * (len(dims) - 2 if op in WINDOWS else 0))


def _round(value: Any) -> Exponent:
    if isinstance(value, np.ndarray):
        return value.astype(int)
    return int(value)
