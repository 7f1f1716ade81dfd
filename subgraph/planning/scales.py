"""A float model before it is lowered: its values are brought into the range of a float type by powers
of two, and each BatchNormalization after a Conv is folded into its weights.

Quantizers fold them, too, before they quantize. The outputs of the model keep their values."""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper

from subgraph.editing.draft import Draft
from subgraph.graph.graph import Graph, load
from subgraph.graph.nested import assign, attribute
from subgraph.graph.shape_inference import infer_types
from subgraph.inspection.overflow import RULE_OF, Overflow, Scaling, TroubleKind
from subgraph.inspection.ranges import measure
from subgraph.precision import Precision
from subgraph.results.plan import PlanScales, ScaledTensor
from subgraph.runtime.inputs import Feeding
from subgraph.trials.matching.as_quantized import find_fold

EPSILON = 1e-5  # of a normalization that names none
BIAS = "bias"
PARTS = ("weight", BIAS)  # of a Conv into which a BatchNormalization is folded


def scale_model(
    graph: Graph, feeding: Feeding, precision: Precision, folder: Path
) -> tuple[Graph, PlanScales]:
    """Scale the tensors of a float model that leave a float type.

    Args:
        graph: The float model.
        feeding: Its inputs.
        precision: The type.
        folder: The folder for the scaled model.

    Returns:
        The scaled model, or the given one if nothing was scaled, and the tensors that leave the
        type.

    Raises:
        InputError, UnknownName: the inputs do not fit the model.
    """
    names = list(graph.iter_outputs(graph.order))
    found = Overflow(graph, measure(graph, names, feeding, infer_types(graph)), precision)
    scales = PlanScales(
        [
            ScaledTensor(t.tensor, t.kind, t.measured.largest, t.exponent)
            for t in found.troubles
            if t.kind is not TroubleKind.MASK
        ]
    )
    if not found.exponents:
        return graph, scales
    made = rescale(found.scaling, found.exponents)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / graph.path.name
    made.draft.save(path)
    return load(path), replace(scales, weights=made.weights, factors=made.factors)


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
        value = self.draft.graph.array(name)
        factor = np.float32(2.0**-exponent)
        if value is not None:
            self.weights.append(name)
            proto.initializer.append(numpy_helper.from_array(np.asarray(value * factor), output))
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


def fold_batch_norms(graph: Graph, folder: Path) -> Graph:
    """Return the model without the BatchNormalizations that follow a Conv, a file in `folder`;
    itself without any."""
    draft = Draft(graph)
    norms = []
    for i, conv in enumerate(draft.model.graph.node):
        fold = find_fold(graph, i)
        constants = [graph.array(name) for name in conv.input[1:] if name]
        known = [values for values in constants if values is not None]
        if fold is None or not known or len(known) < len(constants):
            continue
        norms += graph.readers[conv.output[0]]
        conv.output[0] = graph.makes[norms[-1]][0]
        weight, *bias = known
        for part, values in zip(PARTS, (weight, *bias, np.zeros(len(weight))), strict=False):
            name = f"{conv.output[0]}:{part}"
            folded = fold.apply(values, is_bias=part == BIAS).astype(weight.dtype)
            draft.model.graph.initializer.append(numpy_helper.from_array(folded, name))
        conv.input[1:] = [f"{conv.output[0]}:{part}" for part in PARTS]
    if not norms:
        return graph
    draft.drop_nodes(norms)
    path = folder / graph.path.name
    draft.save(path)
    return load(path)
