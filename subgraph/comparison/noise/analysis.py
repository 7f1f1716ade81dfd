"""The places of rounding in a region: tensors to perturb, reads that need exact values, tensors
downstream of a choice.

Insight: most ops either round or only move values. An op that moves, selects or compares values
adds no error; but a choice (an index, a comparison) turns an error of one bit into a jump, so
tensors downstream of a choice are judged by another rule. Nothing is run: the element types follow
from inputs, weights and casts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from subgraph.comparison.float_types import FLOATS, find_coarsest
from subgraph.comparison.noise.perturb import is_exact
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import CONSTANT, SHAPE, VALUE, find_kinds
from subgraph.graph.nested import find_called, get_attribute, iter_nodes
from subgraph.graph.opsets import STANDARD
from subgraph.graph.properties import (
    BODY_OPS,
    CHOICES,
    EXACT,
    PARAMETERS,
    RANDOM_OPS,
    RANKS,
    REARRANGES,
    SHAPE_OPS,
    STEPS,
    VALUE_SIZED,
)
from subgraph.graph.quantization import QUANTIZERS, TFLITE, TFLITE_CARRIERS, makes_steps
from subgraph.graph.region import Region
from subgraph.graph.walks import iter_predecessors, skip_operators
from subgraph.iterables import flatten, ungroup
from subgraph.precision import Precision
from subgraph.reach import reach
from subgraph.storage import dtypes
from subgraph.storage.tensors import Records
from subgraph.types import Array, Strings

_FLOAT_NUMBERS = {dtypes.TYPE_NUMBERS[name]: name for name in FLOATS}
# Ops that compute no new values; a Cast to a wider type is one.
CARRIERS = REARRANGES | {"Cast"}


@dataclass
class DiscreteDependents:
    """Tensors that depend on discrete decisions, which rounding can change.

    Attributes:
        choices: tensors that depend on a choice.
        steps: tensors that depend on rounding to steps.
        ranks: tensors that depend on the order of inexact values.
    """

    choices: set[str] = field(default_factory=set)
    steps: set[str] = field(default_factory=set)
    ranks: set[str] = field(default_factory=set)


@dataclass
class RoundingSites:
    """The places of rounding in one region.

    Attributes:
        order: nodes of the region and the nodes that its cut needs in addition, in the order of the
            cut.
        entering: float tensors that enter, and float weights.
        rounded: results of nodes that round (or whose contents are unknown), and Constants; of any
            type, since types are known only after a run. Only tensors that are read or leave the
            region.
        converted: float results of exact nodes that another float type would round: of casts,
            ranges and the like.
        quantizers: steps that nodes make of values, as the model's own quantization wants it.
        exact_reads: (node, position of input) of reads that get the unperturbed value.
        noisy: tensors that rounding reaches.
        discrete: tensors that depend on discrete decisions.
        quantized: `quantizers` and those that depend on them.
        value_shaped: tensors whose shape depends on values.
        coarsest: of each tensor the float type with the largest unit roundoff among all that it
            depends on.
    """

    order: tuple[int, ...]
    entering: Strings = ()
    rounded: Strings = ()
    converted: Strings = ()
    quantizers: Strings = ()
    exact_reads: frozenset[tuple[int, int]] = frozenset()
    noisy: set[str] = field(default_factory=set)
    discrete: DiscreteDependents = field(default_factory=DiscreteDependents)
    quantized: set[str] = field(default_factory=set)
    value_shaped: set[str] = field(default_factory=set)
    coarsest: dict[str, str] = field(default_factory=dict)


def find_rounding_sites(
    graph: Graph, region: Region, records: Records, unrounded: Collection[str]
) -> RoundingSites:
    """Find the places of rounding. `records`: of the region's inputs at least; `unrounded`: as of
    `find_unrounded`. Complexity: linear in the upstream nodes.

    Raises:
        ModelError: the graph has a cycle.
    """
    order = tuple(graph.in_order(region.all_nodes))
    floats = [
        n
        for n in region.inputs
        if records[n].dtype in FLOATS and records[n].form == "tensor" and n not in unrounded
    ]
    weights = [
        n
        for n in region.weights
        if n in graph.weights and graph.weights[n].data_type in _FLOAT_NUMBERS
    ]
    sites = RoundingSites(order, (*floats, *weights), noisy={*floats, *weights})
    kinds = find_kinds(graph, graph.iter_outputs(order))
    shape_nodes = _find_shape_nodes(graph, order, kinds)
    used = set(graph.iter_inputs(order)) | set(region.outputs)
    rounded = []
    converted = []
    quantizers = []
    for i in order:
        if i in shape_nodes:
            continue
        _inherit(graph, i, sites)
        if makes_steps(graph.nodes[i]) and kinds[graph.makes[i][0]] == VALUE:
            quantizers.append(graph.makes[i][0])
            sites.quantized.update(graph.makes[i])
            sites.discrete.steps.update(graph.makes[i] if graph.nodes[i].domain == TFLITE else ())
        outputs = [name for name in graph.makes[i] if name in used]
        if sites.value_shaped.isdisjoint(outputs):
            if rounds(graph.nodes[i]) and not any(n in unrounded for n in outputs):
                rounded += outputs
            elif graph.ops[i] in FLOAT_MAKERS or find_cast_type(graph.nodes[i]) in FLOATS:
                converted += outputs
    sites.rounded = tuple(rounded)
    sites.converted = tuple(converted)
    sites.quantizers = tuple(quantizers)
    whole = {i for i in shape_nodes if graph.ops[i] not in SHAPE_OPS}
    positions = (
        (i, range(len(node.input)) if i in whole else find_parameter_positions(node))
        for i, node in ((i, graph.nodes[i]) for i in order)
    )
    sites.exact_reads = frozenset(ungroup(positions))
    sites.coarsest = _find_coarsest_types(graph, region, order, records, unrounded)
    return sites


def find_ranked_tensor(graph: Graph, output: str) -> tuple[str, int] | None:
    """Find the tensor and the axis that a TopK, ArgMax or ArgMin compares for an output of indices.

    Casts can follow the operator. Returns None for other outputs.
    """
    output = skip_operators(graph, output, ("Identity", "Cast"))
    i = graph.maker.get(output)
    if i is None or graph.ops[i] not in RANKS or graph.nodes[i].domain not in STANDARD:
        return None
    node = graph.nodes[i]
    if list(node.output).index(output) != CHOICES[node.op_type][0]:
        return None
    return str(node.input[0]), get_attribute(node, "axis", -1 if node.op_type == "TopK" else 0)


# ------------------------------------------------------------ which nodes, which tensors


def _find_shape_nodes(graph: Graph, order: Iterable[int], kinds: Mapping[str, int]) -> set[int]:
    """Return nodes that compute shapes, integers from constants, or a parameter from constants, and
    the nodes that feed them; Constants excepted, since others may read those too. Every runtime
    computes these exactly, and a perturbed shape would be another model."""
    inside = set(order)
    seeds = {i for i in inside if any(kinds[n] == SHAPE for n in graph.makes[i])}
    for i in inside:
        op = graph.ops[i]
        makes_integers = op in CHOICES or op in STEPS or _casts_to_integers(graph.nodes[i])
        is_standard = graph.nodes[i].domain in STANDARD
        if is_standard and makes_integers and all(kinds[n] == CONSTANT for n in graph.makes[i]):
            seeds.add(i)

    def feeds(other: int) -> bool:
        is_own = other in inside and graph.ops[other] != "Constant"
        return is_own and all(kinds[n] in (SHAPE, CONSTANT) for n in graph.makes[other])

    for i in inside:
        names = (graph.nodes[i].input[k] for k in find_parameter_positions(graph.nodes[i]))
        seeds.update(filter(feeds, graph.producers(names)))
    return reach(seeds, lambda i: filter(feeds, iter_predecessors(graph, i)))


def _inherit(graph: Graph, i: int, sites: RoundingSites) -> None:
    """Add a node's outputs to the sets of `sites` that its inputs are in, and to those that the
    node causes."""
    node = graph.nodes[i]
    reads = set(graph.reads[i])
    makes = graph.makes[i]
    op = graph.ops[i]
    if op in SHAPE_OPS and node.domain in STANDARD:
        sites.discrete.choices.update(makes if not sites.value_shaped.isdisjoint(reads) else ())
        return
    if not reads:
        holds_floats = node.op_type != "Constant" or any(
            a.name.startswith("value_float") or a.t.data_type in _FLOAT_NUMBERS
            for a in node.attribute
        )
        sites.noisy.update(makes if rounds(node) and holds_floats else ())
        return
    inherited = sites.discrete.choices, sites.discrete.steps, sites.discrete.ranks, sites.quantized
    for tensors in (*inherited, sites.value_shaped):
        if not tensors.isdisjoint(reads):
            tensors.update(makes)
    # The op types in its bodies and local function, at any depth.
    functions = (graph.functions[key].node for key in find_called([node], graph.functions))
    _, *nested = iter_nodes([node])
    inner = frozenset(n.op_type for n in (*nested, *iter_nodes(flatten(functions))))
    if (op in VALUE_SIZED or inner & VALUE_SIZED) and not sites.discrete.choices.isdisjoint(reads):
        sites.value_shaped.update(makes)
    data = reads - {node.input[k] for k in find_parameter_positions(node)}
    # Results that are steps, or depend on steps, are computed in real numbers.
    inexact = not sites.noisy.isdisjoint(data) or not sites.discrete.steps.isdisjoint(data)
    if op in QUANTIZERS or op == "DequantizeLinear" or inexact:
        _classify(graph, i, inner, sites)


def _classify(graph: Graph, i: int, inner: frozenset[str], sites: RoundingSites) -> None:
    """Add the outputs of a node that reads inexact values: noise, choices, steps; `inner`: the ops
    inside it."""
    node = graph.nodes[i]
    makes = graph.makes[i]
    op = graph.ops[i]
    if inner:
        choices = set(makes if inner & CHOICES.keys() else ())
        steps = set(makes if inner & STEPS.keys() else ())
        sites.noisy.update(makes)
        sites.quantized.update(makes if inner & QUANTIZERS else ())
    else:
        choices = _find_outputs_at(node, CHOICES.get(op, ()))
        steps = _find_outputs_at(node, STEPS.get(op, ()))
        if _casts_to_integers(node):
            (choices if find_cast_type(node) == "bool" else steps).update(makes)
        sites.noisy.update(n for n in makes if n not in choices | steps)
    sites.discrete.choices |= choices
    if op in RANKS or op == "NonMaxSuppression":
        sites.discrete.ranks.update(makes)
    sites.discrete.steps |= steps
    if op in VALUE_SIZED or inner & VALUE_SIZED:
        sites.value_shaped.update(makes)


def _find_coarsest_types(
    graph: Graph,
    region: Region,
    order: Iterable[int],
    records: Records,
    unrounded: Collection[str],
) -> dict[str, str]:
    """Find for each tensor the float type with the largest unit roundoff among itself and all
    tensors on which it depends.

    A Cast that rounds one tensor does not change the types of the tensors elsewhere.
    """
    numbers = {n: graph.weights[n].data_type for n in region.weights if n in graph.weights}
    types = {n: dtypes.TYPES[t][0] for n, t in numbers.items() if t in dtypes.TYPES}
    types |= {n: record.dtype for n, record in records.items() if n in region.inputs}
    for i in order:
        node = graph.nodes[i]
        own = []
        if graph.ops[i] in ("Constant", "ConstantOfShape"):
            own = [a.t.data_type for a in node.attribute if a.name == "value"]
        elif graph.ops[i] == "Cast" and not any(n in unrounded for n in graph.makes[i]):
            own = [get_attribute(node, "to", 0)]
        read = [types[n] for n in graph.reads[i] if n in types]
        found = find_coarsest((*read, *(dtypes.TYPES[t][0] for t in own if t in dtypes.TYPES)))
        types.update(
            (n, find_coarsest((found, records[n].dtype)) if n in records else found)
            for n in graph.makes[i]
        )
    return types


# ------------------------------------------------------------ single nodes


FLOAT_MAKERS = ("Range", "ConstantOfShape", "CastLike", "OneHot")


def rounds(node: protobuf.NodeProto) -> bool:
    """Return whether the node outputs values that a runtime may round differently from the
    reference."""
    op = node.op_type
    if node.domain not in STANDARD:
        return node.domain != TFLITE or op not in TFLITE_CARRIERS
    if op in ("Resize", "Upsample"):
        return bool(get_attribute(node, "mode", "nearest") != "nearest")
    if op.startswith("Scatter"):
        return get_attribute(node, "reduction", "none") not in ("none", "max", "min")
    if op == "Cast":  # to a narrower type: runtimes keep float32 between float16 nodes
        return find_cast_type(node) in ("float16", "bfloat16")
    return op not in EXACT and op not in BODY_OPS


def is_fixed(node: protobuf.NodeProto, fixed: Collection[str]) -> bool:
    """Return whether a node of a body outputs shapes, or values of `fixed` ones alone. Every
    runtime computes these alike."""
    if node.domain not in STANDARD or node.op_type in BODY_OPS | RANDOM_OPS:
        return False
    return node.op_type in SHAPE_OPS or all(name in fixed for name in node.input if name)


def find_parameter_positions(node: protobuf.NodeProto) -> list[int]:
    """Return the positions of the inputs that are parameters."""
    positions = PARAMETERS.get(node.op_type, ()) if node.domain in STANDARD else ()
    return [k for k in positions if k < len(node.input)]


def find_channel_axis(node: protobuf.NodeProto, weight: str) -> int:
    """Return the axis of a weight's channels for the node that reads it.

    These are the channels of the node's output, not those over which it sums.
    """
    if node.op_type == "DEPTHWISE_CONV_2D":
        return -1
    if node.op_type in ("MatMul", "Gemm") and list(node.input).index(weight) == 1:
        return 0 if get_attribute(node, "transB", 0) else -1
    return 1 if node.op_type == "ConvTranspose" else 0


def find_cast_type(node: protobuf.NodeProto) -> str:
    """Return the element type that a Cast casts to; "" for another node."""
    if node.op_type == "Cast":
        return dtypes.name_of(get_attribute(node, "to", 0))
    return ""


def _find_outputs_at(node: protobuf.NodeProto, positions: Iterable[int]) -> set[str]:
    return {node.output[k] for k in positions if k < len(node.output) and node.output[k]}


def _casts_to_integers(node: protobuf.NodeProto) -> bool:
    return node.op_type == "Cast" and "float" not in find_cast_type(node)


def find_unrounded(
    graph: Graph, known: Collection[str], value: Callable[[str], Array]
) -> dict[str, str]:
    """Find the results of narrow Casts that were not rounded, and the known tensors that show it.

    A runtime may keep float32 between such Casts. A translation may not: if the original has the
    Cast, its values are those of the narrow type.

    Args:
        graph: the graph.
        known: tensors that have a value.
        value: returns the value of a tensor, as the original computes it.
    """
    unrounded = {}
    for i in range(len(graph.nodes)):
        type_ = Precision.from_dtype(find_cast_type(graph.nodes[i]))
        if not type_.narrow:
            continue
        holders = [graph.makes[i][0]]  # tensors that hold the same values; the nearest first
        for held in holders:
            readers = (k for k in graph.readers.get(held, ()) if graph.ops[k] in CARRIERS)
            holders += [graph.makes[k][0] for k in readers if graph.reads[k][0] == held]
        seen = next((n for n in holders if n in known), None)
        if (
            seen is not None
            and (values := value(seen)).dtype.kind == "f"
            and not is_exact(values, type_)
        ):
            unrounded[graph.makes[i][0]] = seen
    return unrounded
