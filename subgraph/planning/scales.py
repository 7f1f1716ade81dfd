"""Powers of two that bring the values of a model into the range of a float type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from subgraph.editing.rescale import rescale
from subgraph.graph.graph import Graph, load
from subgraph.graph.shape_inference import infer_types
from subgraph.inspection.overflow import Overflow, TroubleKind
from subgraph.inspection.ranges import measure
from subgraph.precision import Precision
from subgraph.results.plan import PlanScales, ScaledTensor
from subgraph.runtime.inputs import Feeding


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
    names = list(graph.iter_outputs(graph.in_order(range(len(graph.nodes)))))
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
