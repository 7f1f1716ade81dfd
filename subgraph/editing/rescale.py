"""A model whose tensors are scaled by powers of two, with the values of its outputs unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from onnx import helper, numpy_helper

from subgraph.editing.draft import Draft
from subgraph.graph import protobuf
from subgraph.graph.nested import assign, attribute
from subgraph.inspection.overflow import RULE_OF, Scaling

EPSILON = 1e-5  # of a norm that names none


@dataclass
class Rescaled:
    """A model that was scaled.

    Attributes:
        draft: The model, to be saved.
        weights: Names of the constants that took a factor.
        factors: Names of the tensors after which a Mul was put.
    """

    draft: Draft
    weights: list[str] = field(default_factory=list)
    factors: list[str] = field(default_factory=list)

    def scale(self, name: str, exponent: int, output: str) -> None:
        """Add a tensor divided by 2 to the power of an exponent."""
        proto = self.draft.model.graph
        tensor = self.draft.graph.constant(name)
        factor = np.float32(2.0**-exponent)
        if tensor is not None:
            self.weights.append(name)
            value = protobuf.to_array(tensor, self.draft.graph.path) * factor
            proto.initializer.append(numpy_helper.from_array(np.asarray(value), output))
            return
        self.factors.append(name)
        proto.initializer.append(numpy_helper.from_array(np.asarray(factor), f"{output}_factor"))
        reads = [name, f"{output}_factor"]
        proto.node.append(helper.make_node("Mul", reads, [output], f"{output}_mul"))


def rescale(scaling: Scaling, exponents: Mapping[str, int]) -> Rescaled:
    """Scale each tensor by 2 to the power of minus its exponent.

    Args:
        scaling: The equations of the model, which is not changed.
        exponents: By tensor, as `Scaling.solve` returns them.
    """
    graph = scaling.graph
    made = Rescaled(Draft(graph))
    proto = made.draft.model.graph
    nodes = list(proto.node)
    names = set[str]()
    for i, k, name, exponent in scaling.iter_demands(exponents):
        more = exponent - exponents.get(name, 0)
        scaled = f"{name}_e{-more}"
        if scaled not in names:
            made.scale(name, more, scaled)
            names.add(scaled)
        nodes[i].input[k] = scaled
    for node in nodes:
        power = exponents.get(node.input[0], 0) if "epsilon" in RULE_OF.get(node.op_type, ()) else 0
        if power:
            value = attribute(node, "epsilon", EPSILON) * 4.0**-power
            others = [a for a in node.attribute if a.name != "epsilon"]
            assign(node.attribute, [*others, helper.make_attribute("epsilon", value)])
    for name in filter(exponents.get, graph.outputs):
        inner = f"{name}_scaled"
        for names_of in chain.from_iterable((node.input, node.output) for node in proto.node):
            names_of[:] = [inner if n == name else n for n in names_of]
        made.scale(inner, -exponents[name], name)
    made.draft.drop_unread()
    made.draft.sort()
    return made
