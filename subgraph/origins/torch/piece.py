"""The part of an exported program between tensors of an ONNX graph, run on values of these tensors.

Insight: the graph's tensors are values of the program, so a region of one is a region of the other:
all that its outputs need, back to fed tensors and to weights. A part that needs the model's own
inputs is no such region. Nodes that compute the same of the same have one value, since the exporter
keeps one of them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any

from subgraph.errors import Refused
from subgraph.graph.graph import Graph
from subgraph.origins.torch import program as programs
from subgraph.origins.torch.program import Node, Place, Program
from subgraph.reach import reach
from subgraph.types import Fields, JsonObject, frozen

INNER = re.compile(r"val_\d+")  # how the exporter names what only ONNX has


@frozen
class ProgramPart:
    """Part of a program: tensors that enter and leave, and the names of the nodes to run."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    steps: frozenset[str]


class ExportedModel:
    """A program, and where it makes the tensors of an ONNX graph.

    Attributes:
        places: by tensor of the graph that is a value of the program.
    """

    def __init__(self, program: Program, graph: Graph, *, whole: bool) -> None:
        """`whole`: the graph is all that was exported, as far as is known. Its inputs and outputs
        may have other names than the program's; those of a cut do not."""
        self._program = program
        self._nodes = {node.name: node for node in program.graph.nodes}
        self._weights = programs.find_weights(program)
        self._known: dict[str, int] = {}  # numbers of values, by how they are computed
        self._number: dict[str, int] = {}  # of each node's value
        for name, node in self._nodes.items():
            self._number[name] = self._known.setdefault(self._describe(node), len(self._known))
        signature = program.graph_signature  # through which the user's tensors enter and leave
        inputs = [n for n in signature.user_inputs if isinstance(n, str)]
        outputs = [n for n in signature.user_outputs if isinstance(n, str)]
        self.places: dict[str, Place] = {}
        if any(programs.read_statement(graph, i) for i in range(len(graph.nodes))):
            named = {name: programs.find_place(name, self._nodes) for name in graph.inputs}
            self.places = programs.find_places(graph, program) | {
                name: place for name, place in named.items() if place
            }
        if whole:
            for names, own in ((list(graph.inputs), inputs), (list(graph.outputs), outputs)):
                others = not any(name in self.places or INNER.fullmatch(name) for name in names)
                if others and len(names) == len(own):
                    self.places |= {
                        name: (node, None) for name, node in zip(names, own, strict=True)
                    }

    def piece(self, inputs: Sequence[str], outputs: Sequence[str]) -> ProgramPart:
        """Return the part of the program between these tensors.

        Raises:
            Refused: the program does not have one of them, or the outputs depend on others.
        """
        if missing := [name for name in (*outputs, *inputs) if name not in self.places]:
            raise Refused(
                f"'{missing[0]}' is not a value of the module: it is inside an operator's"
                " translation",
                code="torch.inside-operator",
            )
        fed = {self._number_value(name) for name in inputs}

        def select(names: Iterable[str]) -> list[str]:
            return [n for n in names if self._number[n] not in fed and n not in self._weights]

        steps = reach(
            select(self.places[name][0] for name in outputs if self._number_value(name) not in fed),
            lambda name: select(node.name for node in self._nodes[name].all_input_nodes),
        )
        if across := sorted(name for name in steps if self._nodes[name].op == "placeholder"):
            raise Refused(
                f"the module has no piece between the same tensors: '{across[0]}' lies across",
                code="pair.no-region",
            )
        return ProgramPart(inputs, outputs, frozenset(steps))

    def run(self, piece: ProgramPart, feeds: Fields) -> JsonObject:
        """Return the outputs of a piece: arrays, or numbers.

        Raises:
            Refused: a value has another type or shape than the program was exported for.
        """
        torch = programs.import_torch()
        fed = {
            self._number_value(name): self._convert(name, feeds.get(name)) for name in piece.inputs
        }
        interpreter = torch.fx.Interpreter(self._program.graph_module)
        with torch.no_grad():
            for name, node in self._nodes.items():
                if self._number[name] in fed:
                    interpreter.env[node] = fed[self._number[name]]
                elif name in self._weights:
                    interpreter.env[node] = self._weights[name]
                elif name in piece.steps:
                    interpreter.env[node] = interpreter.run_node(node)
        results = {}
        for output in piece.outputs:
            name, position = self.places[output]
            number = self._number_value(output)
            if number in fed:
                value = fed[number]
            else:
                value = programs.get_element(interpreter.env[self._nodes[name]], position)
            results[output] = programs.to_numpy(value) if isinstance(value, torch.Tensor) else value
        return results

    def _convert(self, name: str, array: Any) -> Any:
        """Return a fed value as the program takes it."""
        if not hasattr(array, "dtype"):
            raise Refused(
                f"'{name}' is not a tensor, which is all that the module is fed",
                code="tensor.not-tensor",
            )
        tensor = programs.to_tensor(array)
        node, position = self.places[name]
        known = programs.get_element(self._nodes[node].meta.get("val"), position)
        if not isinstance(known, programs.import_torch().Tensor):
            raise Refused(f"'{name}' is not a tensor in the module", code="tensor.not-tensor")
        fits = len(known.shape) == tensor.dim() and all(
            own == size or not isinstance(own, int)
            for own, size in zip(known.shape, tensor.shape, strict=True)
        )
        if not fits or known.dtype != tensor.dtype:
            has = f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")
            wants = f"{known.dtype} {list(known.shape)}".removeprefix("torch.")
            raise Refused(
                f"'{name}' is {has}, but {wants} in the exported module", code="torch.type-differs"
            )
        return tensor.to(known.device)

    def _number_value(self, tensor: str) -> int:
        """Return the number of a tensor's value."""
        name, position = self.places[tensor]
        number = self._number[name]
        if position is None:
            return number
        return self._known.setdefault(_name_item(number, position), len(self._known))

    def _describe(self, node: Node) -> str:
        """Return the computation of a node's value, which is equal for equal values."""
        random = programs.import_torch().Tag.nondeterministic_seeded
        if node.op != "call_function" or random in getattr(node.target, "tags", ()):
            return f"{node.op} {node.name}"
        if node.target is operator.getitem and isinstance(node.args[1], int):
            return _name_item(self._number[node.args[0].name], node.args[1])
        map_nodes = programs.import_torch().fx.node.map_arg
        arguments = map_nodes(
            (node.args, node.kwargs), lambda other: f"%{self._number[other.name]}"
        )
        return f"{node.target} {arguments!r}"


def _name_item(number: int, position: int) -> str:
    return f"item {number} {position}"
