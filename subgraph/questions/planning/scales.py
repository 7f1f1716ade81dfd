"""A float model before it is lowered: powers of two bring its values into the range of a float
type, or its channels to similar sizes for an integer type; each BatchNormalization after a Conv is
folded into its weights.

Quantizers fold them, too, before they quantize. The outputs of the model keep their values.

With one scale for all channels, int8 has few codes for those that are much smaller than the largest
one. Each channel is divided by a power of two where it is computed, and the weights that read it
are multiplied by it. This costs codes of these weights, of which each row has one scale.

Symbols: x, the largest magnitude of a channel; w, that of the weights that read it. The power is
sqrt(x / w): then both have equal shares of their codes. It is x if a row reads one channel only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from onnx import helper, numpy_helper

from subgraph.editing.draft import Draft
from subgraph.graph.graph import Graph, load
from subgraph.graph.nested import assign, get_attribute
from subgraph.graph.properties import CHANNEL_AXES, FEATURE_AXES
from subgraph.graph.region import prepare_graph
from subgraph.graph.shape_inference import infer_types
from subgraph.inspection.overflow import (
    RULE_OF,
    Exponent,
    Overflow,
    Scaling,
    TroubleKind,
)
from subgraph.inspection.ranges import measure
from subgraph.iterables import flatten
from subgraph.precision import Precision
from subgraph.questions.planning.find_plan import compare_outputs
from subgraph.questions.planning.lower import quantize_model
from subgraph.results.plan import PlanScales, ScaledTensor
from subgraph.runtime.deadline import Deadline
from subgraph.runtime.inputs import Feeding
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.trials.matching.as_quantized import find_fold
from subgraph.trials.matching.match_tensors import list_value_tensors
from subgraph.types import Array

EPSILON = 1e-5  # of a normalization that names none
MIN_SIZE = 2.0**-12  # of the largest channel; smaller ones are not distinguished
MIN_EXPONENT = 2  # of a channel; of 7 networks with equal channels, no scale was larger than 2^1
MAX_NOISE = 0.9  # of that without scales: they are kept for a clear gain only
BIAS = "bias"
PARTS = ("weight", BIAS)  # of a Conv into which a BatchNormalization is folded


def scale_model(
    graph: Graph, feeding: Feeding, precision: Precision, folder: Path
) -> tuple[Graph, PlanScales]:
    """Scale the tensors of a float model that exceed a float type.

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
    return _save_scaled(found.scaling, found.exponents, scales, folder)


def _save_scaled(
    scaling: Scaling, exponents: Mapping[str, Exponent], scales: PlanScales, folder: Path
) -> tuple[Graph, PlanScales]:
    """Write the scaled model; the given one if nothing is scaled."""
    if not exponents:
        return scaling.graph, scales
    made = rescale(scaling, exponents)
    path = folder / "scaled" / scaling.graph.path.name
    made.draft.save(path)
    return load(path), replace(scales, weights=made.weights, factors=made.factors)


def scale_channels(
    values: ReferenceValues, to: str, folder: Path, deadline: Deadline
) -> tuple[Graph, PlanScales]:
    """Even out the channels of each tensor, for an integer type.

    The model is quantized and run with and without the scales, which are kept if its outputs are
    better with them.

    Args:
        values: Those of the float model.
        to: The type.
        folder: The folder for the models.
        deadline: The end of the time.

    Returns:
        The scaled model, or the given one, and the tensors that are scaled.

    Raises:
        ModelError: onnxruntime cannot quantize a model.
        OutOfTime: The time is used up.
    """
    graph = values.graph
    values.need(list_value_tensors(graph))
    shapes = {
        name: record.shapes[0]
        for name, record in values.records[0].items()
        if record.dtype == "float32" and name not in graph.outputs
    }
    scaling = Scaling(graph, shapes)
    exponents = find_channel_exponents(values, scaling)
    if max((each.max() for each in exponents.values()), default=0) < MIN_EXPONENT:
        return graph, PlanScales([])
    tensors = [
        ScaledTensor(
            name,
            "unequal channels",
            float(_measure_channels(values, name, each).max()),
            int(each.max()),
            each.ravel().tolist(),
        )
        for name, each in exponents.items()
    ]
    scaled, scales = _save_scaled(scaling, exponents, PlanScales(tensors), folder)
    noise = []
    for word, model in (("without", graph), ("with", scaled)):
        made = quantize(model, values, to, folder / word, deadline)
        outputs = ReferenceValues(made, values.reference, values.samples, folder / f"{word}-values")
        noise.append(max(compare_outputs(values, outputs).values()))
    before, after = noise
    if after < MAX_NOISE * before:
        return scaled, replace(scales, noise=(before, after))
    return graph, PlanScales([], noise=(before, after))


def quantize(
    graph: Graph, values: ReferenceValues, to: str, folder: Path, deadline: Deadline
) -> Graph:
    """Return the model quantized by onnxruntime, calibrated on the inputs, in a new folder."""
    folder.mkdir()
    return prepare_graph(load(quantize_model(graph, values.records, to, None, folder, deadline)))


def find_channel_exponents(values: ReferenceValues, scaling: Scaling) -> dict[str, Array]:
    """Return the exponents of the channels of each tensor that is scaled."""
    graph = values.graph
    found: dict[str, Array] = {}
    for i in graph.order:
        name = graph.nodes[i].output[0]
        shape = scaling.shapes[name] if scaling.is_free(name) else ()
        if graph.ops[i] in FEATURE_AXES and len(shape) > 1 and name not in found:
            axis = FEATURE_AXES[graph.ops[i]][0]
            numbers = np.arange(shape[axis])
            along = np.moveaxis(numbers.reshape(-1, *[1] * (len(shape) - 1)), 0, axis)
            members = _find_members(scaling, name, along)
            powers = _even_out(values, scaling, members, len(numbers))
            found |= {name: powers[its] for name, its in members.items() if powers.any()}
    return found


def _find_members(scaling: Scaling, name: str, numbers: Array) -> Mapping[str, Array]:
    """Return the tensors that have the channels of a tensor, each with the numbers of its channels;
    empty if a node needs their values as they are."""
    try:
        members = scaling.solve({name: numbers}) or {}
        is_folded = all(
            scaling.is_constant(read) for _, _, read, _ in scaling.iter_demands(members)
        )
    except ValueError:
        return {}
    return members if is_folded else {}


def _even_out(
    values: ReferenceValues, scaling: Scaling, members: Mapping[str, Array], number: int
) -> Array:
    """Return the exponents of the channels of tensors, by their numbers."""
    graph = values.graph
    sizes = np.full(number, MIN_SIZE)
    reads = np.zeros(number)
    for name, numbers in members.items():
        peaks = _measure_channels(values, name, numbers)
        np.maximum.at(sizes, numbers, peaks / (peaks.max() or 1))
        for i in graph.readers.get(name, ()):
            node = graph.nodes[i]
            weight = graph.array(node.input[1]) if node.op_type in CHANNEL_AXES else None
            if weight is not None and weight.shape[1] > 1:
                laid = scaling.lay(i, numbers, name, node.input[1])
                share = np.abs(weight) / (np.abs(weight).max() or 1)
                np.maximum.at(reads, np.broadcast_to(laid, weight.shape), share)
    powers = np.log2(sizes)
    shared = (powers - np.log2(np.maximum(reads, MIN_SIZE))) / 2
    powers = np.where(reads, shared, powers)
    return np.asarray(np.round(powers - powers.min()), int)


def _measure_channels(values: ReferenceValues, name: str, numbers: Array) -> Array:
    """Return the largest finite magnitude of each channel, along the axes of their numbers."""
    others = tuple(axis for axis, size in enumerate(numbers.shape) if size == 1)
    arrays = (records[name].array() for records in values.records)
    peaks = [np.abs(array).max(others, keepdims=True) for array in arrays]
    return np.asarray(np.nan_to_num(np.maximum.reduce(peaks)))


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

    def scale(self, name: str, exponent: Exponent, output: str) -> None:
        """Add a tensor divided by 2 to the power of an exponent."""
        proto = self.draft.model.graph
        value = self.draft.graph.array(name)
        factor = np.asarray(np.exp2(-exponent), np.float32)
        if value is not None:
            self.weights.append(name)
            proto.initializer.append(numpy_helper.from_array(np.asarray(value * factor), output))
            return
        self.factors.append(name)
        proto.initializer.append(numpy_helper.from_array(factor, f"{output}_factor"))
        reads = [name, f"{output}_factor"]
        proto.node.append(helper.make_node("Mul", reads, [output], f"{output}_mul"))


def rescale(scaling: Scaling, exponents: Mapping[str, Exponent]) -> Rescaled:
    """Scale each tensor, or each of its channels, by 2 to the power of minus its exponent.

    Args:
        scaling: The equations of the model, which is not changed.
        exponents: By tensor, as `Scaling.solve` returns them.
    """
    graph = scaling.graph
    made = Rescaled(Draft(graph))
    proto = made.draft.model.graph
    nodes = list(proto.node)
    names: dict[tuple[str, bytes], str] = {}
    for i, k, name, exponent in scaling.iter_demands(exponents):
        more = np.asarray(exponent - exponents.get(name, 0))
        key = (name, more.tobytes())
        if key not in names:
            names[key] = f"{name}_scaled{len(names)}"
            made.scale(name, more, names[key])
        nodes[i].input[k] = names[key]
    for node in nodes:
        power = exponents.get(node.input[0], 0) if "epsilon" in RULE_OF.get(node.op_type, ()) else 0
        if power:
            value = get_attribute(node, "epsilon", EPSILON) * 4.0**-power
            others = [a for a in node.attribute if a.name != "epsilon"]
            assign(node.attribute, [*others, helper.make_attribute("epsilon", value)])
    for name in filter(exponents.get, graph.outputs):
        inner = f"{name}_scaled"
        for names_of in flatten((node.input, node.output) for node in proto.node):
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
