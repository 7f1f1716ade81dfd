"""A region in two models -> its differences: operators, attributes, constants, and parameters of
quantizers.

The nodes of both sides are paired: by the tensor that they compute, else by their operator. A
difference has one row per part of a node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from subgraph.comparison.pair import compute_relative_l2
from subgraph.errors import SubcutError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.opsets import canonicalize_domain, find_schema, read_imports
from subgraph.graph.properties import COMMUTES, OUTPUT_SCALES, SQUASHES
from subgraph.graph.quantization import AXIS, TFLITE, read_constant_scale
from subgraph.graph.region import Region, find_upstream_until
from subgraph.graph.selection import is_tensor
from subgraph.graph.walks import find_ancestors_until, find_operator, iter_successors
from subgraph.inspection.lint.coarse_step import STEPS
from subgraph.inspection.summary import format_attribute
from subgraph.iterables import flatten
from subgraph.reach import reach
from subgraph.results.bisect import QUANTIZER, READS, ModelDifference
from subgraph.runtime.reference_values import ReferenceValues
from subgraph.storage.dtypes import Scale
from subgraph.storage.tensors import format_shape
from subgraph.text import clean
from subgraph.trials.candidate_model import CandidateModel, measure_saturation, translate_result
from subgraph.trials.matching.as_quantized import Fold, find_fold, iter_useless
from subgraph.trials.trial import Trials
from subgraph.types import Array, Arrays, StringMap, frozen

MAX_NODES = 512  # nodes of a side; larger regions are not compared
MAX_LISTED_VALUES = 8  # values of a constant that are listed; of larger ones the range is printed
CODED_PREFIX = "QLinear"  # before the name of an operator that reads and outputs codes
INPUTS_PART = "inputs"  # the part that is their number
MIN_FAR_DISTANCE = 0.3  # relative distance of constants that no quantization explains
MAX_ELEMENTS = 1 << 25  # of all weights; those of larger models are not read for notes
BIAS_INPUT = 2  # input of a Conv
MAX_FAR_CONSTANTS = 3  # constants that notes list
MAX_CODE_DISTANCE = 0.501  # steps between a constant and its nearest code
MIN_CLIPPED_SHARE = 0.005  # share of a tensor's values that a scale clips
MIN_ZERO_SHARE = 0.25  # share of the values other than 0 that a scale makes 0
# Operators that quantize all that they read with one scale, which they find as they run.
FINDS_RANGE = frozenset("DynamicQuantizeLinear DynamicQuantizeMatMul".split())
MAX_ROUNDING_DISTANCE = 1e-6  # relative distance of constants that are equal but for rounding
SCALE_INPUTS = {
    "DequantizeLinear": (1, 2),
    **OUTPUT_SCALES,
}  # operator -> inputs: scale, zero point


def find_differences(trials: Trials, region: Region) -> list[ModelDifference]:
    """Find what differs in a region between the reference's model and the candidate's.

    Args:
        trials: The candidate, which may run another model.
        region: The region, as one of the reference's model.

    Returns:
        The differences, those of paired nodes first: what they read, attributes, constants by how
        far they are apart. None if both run the same model, or the region is too large.
    """
    pairing = _pair_region(trials, region)
    other = trials.runtime.own_model
    if pairing is None or other is None:
        return []
    ours = pairing.ours
    theirs = pairing.theirs
    pairs = pairing.pairs
    paired = set(pairs.values())
    both = [(ours.node(i), theirs.node(j)) for i, j in pairs.items()]
    found = []
    for j in theirs.nodes:
        for name in theirs.graph.reads[j]:
            if not (is_tensor(theirs.graph, name) or theirs.graph.is_weight(name)):
                text = f"'{clean(name)}', which no node computes"
                found.append(ModelDifference(clean(theirs.graph.label(j)), "input", "", text))
    found += _iter_coarse(trials, other, pairing, region)
    if not found:  # else a node reads what none computes
        reads = _iter_reads(trials.graph, other, ours.nodes)
        found += [row for row in reads if not _are_equal(trials.values, row)]
    found += list(flatten(_iter_node(*pair) for pair in both))
    found += [row for _, row in _measure_constants(both)]
    found += _iter_outputs(trials, other, region)
    found += [ours.node(i).only("ours") for i in ours.nodes if i not in pairs]
    return found + [theirs.node(j).only("theirs") for j in theirs.nodes if j not in paired]


def iter_far_constants(trials: Trials) -> Iterator[str]:
    """Yield a note on the constants that are far from ours, of nodes whose outputs have our names.

    An input may not show them, for example a dropped bias next to large sums.
    """
    sizes = (math.prod(tensor.dims) for tensor in trials.graph.weights.values())
    pairing = _pair_region(trials, trials.full_model) if sum(sizes) <= MAX_ELEMENTS else None
    if pairing is None:
        return
    both = [
        (pairing.ours.node(i), pairing.theirs.node(j))
        for i, j in pairing.pairs.items()
        if {*pairing.ours.graph.makes[i]} & {*pairing.theirs.graph.makes[j]}
    ]
    rows = flatten(_iter_node(*pair) for pair in both)
    far = [row for row in rows if row.part == INPUTS_PART]
    far += [row for apart, row in _measure_constants(both) if MIN_FAR_DISTANCE <= apart < np.inf]
    for row in far[:MAX_FAR_CONSTANTS]:
        what = f"{row.node}, {row.part}: {row.ours} in ours, {row.theirs} in theirs"
        yield f"the outputs agree, but the models differ: {what}"


def iter_hidden_errors(trials: Trials) -> Iterator[str]:
    """Yield a note if the outputs agree, but not those of the other model without optimizations.

    An optimizer can overlook what its fused kernels do not read: the axis of a scale.
    """
    other = trials.runtime.own_model
    whole = trials.full_model
    result = trials.run(whole)
    names = [other.matches[name].name for name in whole.outputs] if other else []
    if not other or not other.values or not {*names} <= other.values.records[0].keys():
        return
    plain = replace(result, tensors=tuple(other.values.records), first=None)
    expected = trials.values.records
    plain = translate_result(other, whole, plain, expected, trials.model.new_folder)
    verdict = trials.judge.ignore_evidence().verdict(whole, plain)
    if verdict.fails:
        yield f"without optimizations, {other.graph.path.name} is wrong: {verdict.why}"


# ------------------------------------------------------------ sides


@frozen
class _Side:
    """The region in one of the two models.

    Attributes:
        graph: The model.
        nodes: Indices of the nodes, with those that compute its constants.
        constants: The values of tensors that do not depend on values of the model's inputs.
    """

    graph: Graph
    nodes: Sequence[int]
    constants: Arrays

    def node(self, i: int) -> _Node:
        return _Node(self, self.graph.nodes[i], clean(self.graph.label(i)))

    def list_numbers(self, i: int) -> set[bytes]:
        """List the sorted numbers of each constant that a node reads, if they are many."""
        read = (self.constants.get(name) for name in self.graph.reads[i])
        long = (value for value in read if value is not None and value.size > MAX_LISTED_VALUES)
        return {np.sort(value, axis=None).tobytes() for value in long}


def _make_side(graph: Graph, values: ReferenceValues | None, nodes: Iterable[int]) -> _Side:
    nodes = [i for i in graph.in_order(nodes) if graph.ops[i] != "Constant"]
    kinds = find_kinds(graph, graph.iter_inputs(nodes))
    constants = {}
    computed = []
    for name, kind in kinds.items():
        held = graph.constant(name)
        if held is not None:
            constants[name] = protobuf.to_array(held, graph.path)
        elif kind != VALUE:
            computed.append(name)
    if values and computed:
        with suppress(SubcutError):
            values.need(computed)
            records = {name: values.records[0][name] for name in computed}
            constants |= {n: r.array() for n, r in records.items() if r.form == "tensor"}
    return _Side(graph, nodes, constants)


@frozen
class _Node:
    """A node of one side."""

    side: _Side
    proto: protobuf.NodeProto
    label: str

    @property
    def fold(self) -> Fold | None:
        """The fold of the BatchNormalization after a Conv into it; None without one."""
        graph = self.side.graph
        return find_fold(graph, graph.maker[self.proto.output[0]])

    @property
    def schema(self) -> Any:
        """onnx's schema of the operator in the version that the model imports."""
        domain = canonicalize_domain(self.proto.domain)
        return find_schema(
            self.proto.op_type, read_imports(self.side.graph.model).get(domain, 1), domain
        )

    @property
    def operator(self) -> str:
        return ".".join(filter(None, (canonicalize_domain(self.proto.domain), self.proto.op_type)))

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes that the node has, without the file of TensorFlow Lite's operator."""
        hidden = ("operator",) if self.proto.domain == TFLITE else ()
        return {
            str(a.name): format_attribute(a) for a in self.proto.attribute if a.name not in hidden
        }

    def is_scale(self, attribute: str) -> bool:
        """Return whether an attribute is a scale or zero point of TensorFlow Lite."""
        return self.proto.domain == TFLITE and attribute.endswith(("scale", "zero_point"))

    @property
    def defaults(self) -> dict[str, str]:
        """The default values of its attributes."""
        known = self.schema.attributes.values() if self.schema else ()
        return {a.name: format_attribute(a.default_value) for a in known if a.default_value.name}

    def only(self, side: str) -> ModelDifference:
        """Return the difference that only one side has this node."""
        attributes = (f"{name}={text}" for name, text in self.attributes.items())
        inputs = SCALE_INPUTS.get(self.proto.op_type)
        scale = read_constant_scale(self.side.graph, self.proto, *inputs) if inputs else None
        scales = [_format_scale(scale)] if scale else []
        text = ", ".join([self.operator, *attributes, *scales])
        ours, theirs = (text, "") if side == "ours" else ("", text)
        return ModelDifference(self.label, "operator", ours, theirs)

    def find_input_name(self, k: int) -> str:
        """Return the name of an input in the operator's schema."""
        formal = self.schema.inputs if self.schema else ()
        if formal:
            return clean(formal[min(k, len(formal) - 1)].name)
        return f"input {k}"


@frozen
class _Pairing:
    """A region in both models.

    Attributes:
        ours: The side of the reference's model.
        theirs: The side of the candidate's model.
        pairs: The nodes of the candidate's side, by the nodes of our side.
    """

    ours: _Side
    theirs: _Side
    pairs: Mapping[int, int]


def _pair_region(trials: Trials, region: Region) -> _Pairing | None:
    """Pair the nodes of a region; None if both run the same model, or the region is too large."""
    other = trials.runtime.own_model
    if other is None:
        return None
    names = {name: match.name for name, match in other.matches.items()}
    nodes = region.all_nodes
    if other.find_problem(region):
        made = (names.get(name, name) for name in trials.graph.iter_outputs(nodes))
        theirs_nodes = tuple(dict.fromkeys(other.graph.producers(made)))
    else:
        theirs_nodes = other.region(region).all_nodes
    if max(len(nodes), len(theirs_nodes)) > MAX_NODES:
        return None
    ours = _make_side(trials.graph, trials.values, nodes)
    theirs = _make_side(other.graph, other.values, theirs_nodes)
    return _Pairing(ours, theirs, _pair_nodes(ours, theirs, names))


def _pair_nodes(ours: _Side, theirs: _Side, names: StringMap) -> dict[int, int]:
    """Pair nodes of one operator by the tensor that they compute, then by their order; the others
    by the numbers of a constant, as a Gemm and a MatMul, then by the tensor."""
    made = [
        {*ours.graph.makes[i], *(names.get(name, name) for name in ours.graph.makes[i])}
        for i in ours.nodes
    ]

    def follow(i: int) -> Iterator[int]:
        return (j for j in iter_successors(theirs.graph, i) if theirs.graph.ops[j] in AXIS)

    # Quantizers downstream carry a node's values on.
    carried = {j: {*theirs.graph.iter_outputs(reach([j], follow))} for j in theirs.nodes}

    def is_made_alike(k: int, j: int) -> bool:
        return not made[k].isdisjoint(carried[j])

    def has_operator(k: int, j: int) -> bool:
        return ours.graph.ops[ours.nodes[k]] == theirs.graph.ops[j]

    def has_constant(k: int, j: int) -> bool:
        return not ours.list_numbers(ours.nodes[k]).isdisjoint(theirs.list_numbers(j))

    pairs: dict[int, int] = {}
    for rules in ([has_operator, is_made_alike], [has_operator], [has_constant], [is_made_alike]):
        free = [j for j in theirs.nodes if j not in set(pairs.values())]
        for k, i in enumerate(ours.nodes):
            fitting = (j for j in free if i not in pairs and all(fits(k, j) for fits in rules))
            for j in islice(fitting, 1):
                pairs[i] = j
                free.remove(j)
    return dict(sorted(pairs.items(), key=lambda pair: ours.nodes.index(pair[0])))


# ------------------------------------------------------------ differences


def _iter_reads(
    graph: Graph, other: CandidateModel, nodes: Iterable[int]
) -> Iterator[ModelDifference]:
    """Yield the nodes whose output the other model computes of another tensor than ours."""
    names = {match.name: name for name, match in other.matches.items()}
    for name in graph.iter_outputs(nodes):
        if name not in other.matches:
            continue
        ours = find_upstream_until(graph, [name], other.matches.__contains__)
        theirs = find_upstream_until(other.graph, [other.matches[name].name], names.__contains__)
        if ours is None or theirs is None:
            continue
        read = [names.get(tensor, "") for tensor in theirs.inputs]
        operators = {
            *(graph.ops[i] for i in ours.nodes),
            *map(other.graph.ops.__getitem__, theirs.nodes),
        }
        has_order = len(ours.nodes) == len(theirs.nodes) == len(operators - COMMUTES) == 1
        own = [n for n in ours.inputs if has_order or n not in read]
        read = [n for n in read if has_order or n not in ours.inputs]
        exchanged = [pair for pair in zip(own, read, strict=False) if pair[0] != pair[1]]
        if len(own) != len(read) or not exchanged or not (has_order or len(own) == 1):
            continue
        # an output that is cast at the end of the model only
        before = find_upstream_until(graph, [exchanged[0][0]], other.matches.__contains__)
        more = _count_operators(other.graph, theirs) - _count_operators(graph, ours)
        if before is None or not _count_operators(graph, before) <= more:
            tensors = (READS + clean(tensor) for tensor in exchanged[0])
            yield ModelDifference(clean(graph.label(graph.maker[name])), "input", *tensors)


def _count_operators(graph: Graph, region: Region) -> Counter[str]:
    """Count the operators of a region, those that compute with codes as those of floats."""
    return Counter(graph.ops[i].removeprefix(CODED_PREFIX) for i in region.nodes)


def _are_equal(values: ReferenceValues, row: ModelDifference) -> bool:
    """Return whether the two tensors that nodes read have the same values in ours."""
    names = [text.removeprefix(READS) for text in (row.ours, row.theirs)]
    with suppress(SubcutError):
        values.need(names)
        ours, theirs = names
        return all(np.array_equal(r[ours].array(), r[theirs].array()) for r in values.records)
    return False


def _iter_node(ours: _Node, theirs: _Node) -> Iterator[ModelDifference]:
    """Yield what differs between two nodes that are paired."""
    if ours.operator != theirs.operator:
        yield ModelDifference(
            ours.label, "operator", ours.only("ours").ours, theirs.only("theirs").theirs
        )
        return
    versions = [node.schema.since_version if node.schema else 0 for node in (ours, theirs)]
    added = [_list_added(ours, theirs), _list_added(theirs, ours)]
    if all(versions) and versions[0] != versions[1]:
        texts = [
            f"{number}{', which adds ' * bool(names)}{', '.join(names)}"
            for number, names in zip(versions, added, strict=True)
        ]
        yield ModelDifference(ours.label, "version of the operator", *texts)
    hidden = {text.partition("=")[0] for text in flatten(added)}
    own = ours.defaults | ours.attributes
    their = theirs.defaults | theirs.attributes
    quantized = {n for n in (*own, *their) if ours.is_scale(n) and not (n in own and n in their)}
    for name in dict.fromkeys((*own, *their)):
        if own.get(name) != their.get(name) and name not in quantized | hidden:
            yield ModelDifference(ours.label, clean(name), own.get(name, ""), their.get(name, ""))
    if len(ours.proto.input) != len(theirs.proto.input):
        counts = (str(len(node.proto.input)) for node in (ours, theirs))
        yield ModelDifference(ours.label, INPUTS_PART, *counts)


def _list_added(node: _Node, other: _Node) -> list[str]:
    """List the attributes at their defaults that the other node's version of the operator does not
    have: `axis=-1`. A conversion to another version that changes what they mean omits them."""
    known = other.schema.attributes if other.schema else node.defaults
    return [
        f"{name}={text}"
        for name, text in node.defaults.items()
        if name not in known and name not in node.attributes
    ]


def _measure_constants(
    nodes: Iterable[tuple[_Node, _Node]],
) -> list[tuple[float, ModelDifference]]:
    """List the constants that differ between paired nodes, and how far they are apart, those
    farthest first."""
    found = []
    for ours, theirs in nodes:
        has_own_scale = any(map(ours.is_scale, ours.attributes.keys() ^ theirs.attributes.keys()))
        if ours.operator != theirs.operator or has_own_scale:
            continue
        folded = ours.fold if not theirs.fold else None
        for k, (a, b) in enumerate(zip(ours.proto.input, theirs.proto.input, strict=False)):
            is_moved = ours.find_input_name(k) != theirs.find_input_name(k)  # in another version
            if is_moved or a not in ours.side.constants or b not in theirs.side.constants:
                continue
            own = ours.side.constants[a]
            their = theirs.side.constants[b]
            part = ours.find_input_name(k)
            if folded:
                own = folded.apply(own, is_bias=k == BIAS_INPUT)
                part += " with its BatchNormalization"
            if _are_nearest_codes(theirs.side.graph, b, own, their):
                continue
            apart = compute_relative_l2(own, their)
            if texts := _describe_constants(own, their, apart):
                makers = ", ".join(_list_folded(ours.side.graph, theirs.side.graph, a))
                by = f" by {makers}" if makers else ""
                found.append((apart, ModelDifference(ours.label, part, texts[0] + by, texts[1])))
    return sorted(found, key=lambda pair: -pair[0])


def _list_folded(ours: Graph, theirs: Graph, name: str) -> list[str]:
    """List the nodes that compute a constant of our side, and that the other model lacks."""

    def is_value(tensor: str) -> bool:
        return find_kinds(ours, [tensor])[tensor] == VALUE

    nodes = ours.in_order(find_ancestors_until(ours, ours.producers([name]), is_value))
    known = theirs.maker.keys()
    return [clean(ours.label(i)) for i in nodes if known.isdisjoint(ours.makes[i])]


def _are_nearest_codes(graph: Graph, name: str, ours: Array, theirs: Array) -> bool:
    """Return whether their constant is dequantized from the nearest codes of our constant."""
    if find_operator(graph, name) != "DequantizeLinear" or ours.shape != theirs.shape:
        return False
    scale = read_constant_scale(
        graph, graph.nodes[graph.maker[name]], *SCALE_INPUTS["DequantizeLinear"]
    )
    apart = np.max(np.abs(ours - theirs), initial=0.0)
    return scale is not None and bool(apart <= MAX_CODE_DISTANCE * max(scale.step))


def _iter_outputs(
    trials: Trials, other: CandidateModel, region: Region
) -> Iterator[ModelDifference]:
    """Yield outputs of the region that have another shape or element type."""
    theirs = other.values.records[0] if other.values else {}
    for name in region.outputs:
        match = other.matches.get(name)
        if match is None or match.perm or match.name not in theirs:
            continue
        records = trials.values.records[0][name], theirs[match.name]
        own, their = (f"{record.dtype} {record.shape_text}" for record in records)
        their += f", {_format_scale(match.scale)}" if match.scale else ""
        if own != their:
            label = trials.graph.label(trials.graph.maker[name])
            yield ModelDifference(clean(label), f"output {clean(name)}", own, their)


def _iter_coarse(
    trials: Trials, other: CandidateModel, pairing: _Pairing, region: Region
) -> Iterator[ModelDifference]:
    """Yield tensors of the region of which the scale of a quantizer clips values, or makes many 0.

    Outliers, a mask, or another range share such a scale. A scale that is found as the model runs
    is that of the tensors that the region reads.
    """
    graph = trials.graph
    theirs = pairing.theirs
    weights = pairing.ours.constants
    records = trials.values.records[0]
    made = [n for n in graph.iter_outputs(region.nodes) if n in other.matches]
    scales = {n: other.matches[n].scale or other.find_quantizer(n)[1] for n in made}
    shares = measure_saturation(other, trials.values) if any(scales.values()) else {}
    places = {n: graph.maker[n] for n in made if scales[n] and n in records}
    dynamic = {theirs.graph.reads[j][0] for j in theirs.nodes if theirs.graph.ops[j] in FINDS_RANGE}
    for name in (n for n, match in other.matches.items() if match.name in dynamic):
        reading = [i for i in region.nodes if name in graph.reads[i]]
        if reading and name in records:
            span = float(np.ptp(np.append(records[name].array(), 0)))
            scales[name] = Scale((span / STEPS,), (0,))
            places[name] = reading[0]
    for name, step in iter_useless(weights, theirs.graph):
        scales[name] = Scale((step,), (0,))
        places[name] = next(i for i in pairing.ours.nodes if name in graph.reads[i])
    for name, place in places.items():
        scale = scales[name]
        if scale is None or not np.isfinite(scale.step).all():
            continue
        value = np.abs(weights[name] if name in weights else records[name].array())
        free = value[value > 0]
        lost = np.count_nonzero(free < max(scale.step) / 2) / max(free.size, 1)
        share = shares.get(name, 0.0) if name in region.outputs else 0.0
        if share >= MIN_CLIPPED_SHARE:
            text = f"clips {100 * share:.2g} % of our values"
        elif name in weights or (
            lost >= MIN_ZERO_SHARE and find_operator(graph, name) not in SQUASHES
        ):
            text = f"makes {100 * lost:.2g} % of our values 0, next to {value.max():.4g}"
        else:
            continue
        their = f"{text} ({_format_scale(scale)})"
        yield ModelDifference(clean(graph.label(place)), f"{QUANTIZER} {clean(name)}", "", their)


def _describe_constants(ours: Array, theirs: Array, apart: float) -> tuple[str, str] | tuple[()]:
    """Describe two constants; nothing if they are equal but for rounding, also to another float
    type."""
    are_floats = ours.dtype.kind == theirs.dtype.kind == "f"
    eps = max(float(np.finfo(v.dtype).eps) for v in (ours, theirs)) if are_floats else 0.0
    is_equal = apart <= max(MAX_ROUNDING_DISTANCE, eps) or np.array_equal(ours, theirs)
    if is_equal and (are_floats or ours.dtype == theirs.dtype):
        return ()
    is_long = ours.size > MAX_LISTED_VALUES and apart < np.inf
    return _format_constant(ours), _format_constant(theirs) + (
        f", {100 * apart:.3g} % apart" if is_long else ""
    )


def _format_scale(scale: Scale) -> str:
    """Return `16 scales 0.001 … 0.02 along axis 0, zero point 0`."""
    low = min(scale.step)
    high = max(scale.step)
    zeros = " … ".join(map(str, sorted({min(scale.zero), max(scale.zero)})))
    if len(scale.step) == 1:
        return f"scale {low:.4g}, zero point {zeros}"
    axis = f"along axis {scale.axis}"
    return f"{len(scale.step)} scales {low:.3g} … {high:.3g} {axis}, zero point {zeros}"


def _format_constant(value: Array) -> str:
    """Return `float32 2 [0.1, 0.2]`; the range instead of more than `MAX_LISTED_VALUES` values."""
    text = f"{value.dtype} {format_shape(value.shape)}"
    if value.size <= MAX_LISTED_VALUES:
        is_float = value.dtype.kind == "f"
        listed = [float(f"{v:.4g}") for v in value.flat] if is_float else value.tolist()
        return f"{text} {listed}"
    if value.dtype.kind not in "iuf":
        return text
    return f"{text} {float(value.min()):.3g} … {float(value.max()):.3g}"
