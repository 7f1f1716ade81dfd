"""Powers of two by which tensors of a model can be scaled so that its outputs keep their values.

A tensor t with exponent k is stored as t / 2^k; such factors are exact in float32. The rule of an
operator has one equation per word: of the exponents of its inputs, by position, and of its output.

    0      input 0 has the exponent of the output; `*`: every input has it
    0+1    the exponents add up: a product. A constant operand takes the difference
    0-1    a quotient
    0:2    twice the exponent of input 0 is that of the output: a power
    3=0    input 3 has the exponent of input 0

An input without an equation has exponent 0. With `any` and `epsilon`, input 0 has any exponent; an
epsilon follows its square. A demand that is not met becomes a Mul by a power of two.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import list_captured
from subgraph.graph.opsets import STANDARD

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
RULE_OF = {
    op: words.split(",") for words, *ops in map(str.split, RULES.strip().splitlines()) for op in ops
}
FREE = frozenset(op for op, rule in RULE_OF.items() if rule[0] in ("any", "epsilon"))
WITH_OLD_ATTRIBUTES = ("Clip", "Pad")  # limits of older opsets, which are not scaled
Equation = tuple[dict[int, float], int]  # factors of inputs, by position, and of the output


class Scaling:
    """The equations of a model.

    Attributes:
        graph: The model.
    """

    def __init__(self, graph: Graph, floats: Collection[str]) -> None:
        """Read the equations.

        Args:
            graph: The model.
            floats: Names of its float32 tensors.
        """
        self.graph = graph
        self._floats = set(floats) - graph.inputs.keys()
        self._captured = set(chain.from_iterable(map(list_captured, graph.nodes)))
        self._rules = list(map(self._find_rule, graph.nodes))
        self._equations = list(map(self._read_equations, graph.nodes, self._rules))

    def _find_rule(self, node: protobuf.NodeProto) -> list[str]:
        rule = RULE_OF.get(node.op_type, []) if node.domain in STANDARD else []
        is_old = node.op_type in WITH_OLD_ATTRIBUTES and len(node.input) == 1
        has_statistics = node.op_type in FREE and any(node.output[1:])
        is_fixed = is_old or has_statistics or not self._captured.isdisjoint(node.output)
        return [] if is_fixed else rule

    def _read_equations(self, node: protobuf.NodeProto, rule: Sequence[str]) -> list[Equation]:
        found: list[Equation] = []
        for word in rule:
            first, *other = re.split("[:+=-]", word, maxsplit=1)
            if word == "*":
                found += [({k: 1.0}, 1) for k in range(len(node.input))]
            elif ":" in word:
                power = self._read_power(node) if other == ["p"] else float(other[0])
                found += [({0: power}, 1)] if power else []
            elif first.isdigit():
                factors = {int(k): 1.0 if "+" in word else -1.0 for k in other} | {int(first): 1.0}
                found += [(factors, int("=" not in word))] if max(factors) < len(node.input) else []
        return found

    def _read_power(self, node: protobuf.NodeProto) -> float:
        tensor = self.graph.constant(node.input[1])
        if tensor is None or protobuf.element_count(tensor) != 1:
            return 0.0
        return float(protobuf.to_array(tensor, self.graph.path).reshape(()))

    def _is_constant(self, name: str) -> bool:
        return self.graph.constant(name) is not None

    def is_free(self, name: str) -> bool:
        """Return whether the tensor can have another exponent than 0."""
        i = self.graph.maker.get(name)
        return name in self._floats and i is not None and bool(self._rules[i])

    @cached_property
    def _links(self) -> dict[str, list[tuple[str, float]]]:
        """By tensor, other tensors and their exponents for an exponent of 1: those that one node
        reads and outputs. Of a product, the first factor has the exponent of the output, unless it
        is squared."""
        found: dict[str, list[tuple[str, float]]] = {}
        for node, equations in zip(self.graph.nodes, self._equations, strict=True):
            for factors, output in equations:
                names = [node.input[k] for k in factors]
                if not output or min(factors.values()) < 0 < len(names) - 1:
                    continue
                power = sum(factors.values()) if len(set(names)) == 1 else 1.0
                for made in node.output:
                    pair = (node.input[min(factors)], made)
                    if all(map(self.is_free, pair)) and not any(map(self._is_constant, names)):
                        found.setdefault(pair[0], []).append((made, power))
                        found.setdefault(made, []).append((pair[0], 1 / power))
        return found

    def solve(self, seeds: Mapping[str, int]) -> dict[str, int] | None:
        """Return the exponents that follow from those of some tensors; None if one is a
        fraction."""
        known: dict[str, float] = dict(seeds)
        pending = list(seeds)
        while pending:
            name = pending.pop()
            for other, factor in self._links.get(name, ()):
                if other not in known:
                    known[other] = known[name] * factor
                    pending.append(other)
        if any(value % 1 for value in known.values()):
            return None
        return {name: int(value) for name, value in known.items()}

    def iter_demands(self, exponents: Mapping[str, int]) -> Iterator[tuple[int, int, str, int]]:
        """Yield what is to be scaled: node, position of the input, tensor, and its exponent there,
        where it is not the tensor's own."""
        for i, node in enumerate(self.graph.nodes):
            own = {k: exponents.get(name, 0) for k, name in enumerate(node.input)}
            wanted = dict.fromkeys(own, 0)
            if node.op_type in FREE and self._rules[i]:
                wanted[0] = own[0]
            for factors, output in self._equations[i]:
                by_kind = sorted(factors, key=lambda k: self._is_constant(node.input[k]))
                total = float(output * exponents.get(node.output[0], 0))
                for k in by_kind[:-1]:
                    wanted[k] = own[k]
                    total -= factors[k] * own[k]
                wanted[by_kind[-1]] = int(total / factors[by_kind[-1]])
            for k, exponent in wanted.items():
                if node.input[k] and exponent != own[k]:
                    yield i, k, node.input[k], exponent
