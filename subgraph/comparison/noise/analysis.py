"""Graph + Region -> where rounding acts in it: which tensors are rounded, which reads must see exact values, what lies
behind a choice.

Insight: most ops either round or only move values. What only moves, picks or compares adds no error of its own, but a
choice (an index, a comparison) turns an error of one bit into a jump; so what lies behind one is judged otherwise.
Nothing is run: the element types that matter follow from inputs, weights and casts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from subgraph.comparison.precision import FLOATS, coarsest
from subgraph.graph import protobuf
from subgraph.graph.graph import CONSTANT, SHAPE, SHAPE_OPS, STANDARD, Graph, bodies
from subgraph.graph.region import Region
from subgraph.storage import dtypes
from subgraph.storage.tensors import Record

# They move, pick or compare values, or change signs: the result is a value that went in, or one written in the model.
EXACT = frozenset(
    "Abs And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil CenterCropPad Clip "
    "Compress Concat ConcatFromSequence ConstantOfShape DepthToSpace Dropout Equal Expand EyeLike Flatten Floor Gather "
    "GatherElements GatherND GlobalMaxPool Greater GreaterOrEqual Hardmax Identity IsInf IsNaN Less LessOrEqual Max "
    "MaxPool MaxUnpool Min Neg NonMaxSuppression NonZero Not OneHot Optional OptionalGetElement OptionalHasElement Or "
    "Pad QuantizeLinear Range ReduceMax ReduceMin Relu Reshape ReverseSequence Round Scatter ScatterElements ScatterND "
    "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Sign Size Slice "
    "SpaceToDepth Split SplitToSequence Squeeze ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where Xor "
    "ZipMap".split()
)
# An error of one bit at the input may choose another result. Op -> outputs that are such choices.
CHOICES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys("ArgMax ArgMin Compress Equal Greater GreaterOrEqual Hardmax Less LessOrEqual".split(), (0,)),
    **dict.fromkeys("NonMaxSuppression NonZero Not And Or Xor".split(), (0,)),
    "Unique": (0, 1, 2, 3),
    "TopK": (1,),
    "MaxPool": (1,),
}
# They round to steps: an error of one bit at a boundary makes a whole step. Op -> outputs.
STEPS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys("Ceil Floor Mod QuantizeLinear Round Sign".split(), (0,)),
    "DynamicQuantizeLinear": (0, 2),
}
RANKING = ("TopK", "ArgMax", "ArgMin")
LOOSE = frozenset("NonMaxSuppression NonZero Compress Unique".split())  # the shape of what they make depends on values
# Inputs that say what to do rather than being worked on, from this position to another.
PARAMETERS = {
    "Clip": (1, 3), "Dropout": (1, 3), "MelWeightMatrix": (0, 5), "NonMaxSuppression": (2, 5), "OneHot": (0, 2),
    "Pad": (1, 4), "Pow": (1, 2), "Range": (0, 3), "Resize": (1, 4), "Upsample": (1, 2),
}  # fmt: skip
_FLOAT_NUMBERS = {dtypes.TYPE_NUMBERS[name]: name for name in FLOATS}


@dataclass
class RoundingSites:
    """Where rounding acts in one region.

    Attributes:
        order: the nodes of the region and of what it pulls in, as in its cut.
        fed: float tensors that enter, and float weights.
        rounded: what nodes make that round (or call something we cannot look into), and what Constants hold; of any
            type, the run will tell. Only what is read or leaves.
        cast: what exact nodes make that another float type would round: results of casts, ranges and the like.
        raw: (node, position of input): reads that must see the value without a perturbation.
        noisy, chosen, stepped, loose: tensors that rounding reaches; that lie behind a choice; behind steps; and those
            whose shape depends on values.
        coarsest: the float type that rounds most, among all tensors.
    """

    order: tuple[int, ...]
    fed: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    cast: tuple[str, ...] = ()
    raw: frozenset[tuple[int, int]] = frozenset()
    noisy: set[str] = field(default_factory=set)
    chosen: set[str] = field(default_factory=set)
    stepped: set[str] = field(default_factory=set)
    loose: set[str] = field(default_factory=set)
    coarsest: str = "float64"


def of_region(graph: Graph, region: Region, records: Mapping[str, Record]) -> RoundingSites:
    """Where rounding acts. `records`: of the region's inputs at least. Complexity: linear in the nodes above it.

    Raises:
        ModelError: the graph has a cycle.
    """
    order = tuple(graph.in_order((*region.nodes, *region.pulled)))
    found = RoundingSites(order)
    floats = [n for n in region.inputs if records[n].dtype in FLOATS and records[n].form == "tensor"]
    weights = [n for n in region.weights if n in graph.weights and graph.weights[n].data_type in _FLOAT_NUMBERS]
    found.fed = (*floats, *weights)
    found.noisy = set(found.fed)
    kinds = graph.kinds(name for i in order for name in graph.makes[i])
    still = _still(graph, order, kinds)
    used = {name for i in order for name in graph.reads[i]} | set(region.outputs)
    rounded: list[str] = []
    cast: list[str] = []
    for i in order:
        if i in still:
            continue
        made = [name for name in graph.makes[i] if name in used]
        _flow(graph, i, found)
        if found.loose.isdisjoint(made):
            (rounded if _rounds(graph, i) else cast if _floats_anew(graph, i) else []).extend(made)
    found.rounded, found.cast = tuple(rounded), tuple(cast)
    found.raw = frozenset((i, k) for i in order for k in _exact_reads(graph, i, i in still))
    found.coarsest = coarsest((*_types(graph, region, order), *(r.dtype for r in records.values())))
    return found


def _still(graph: Graph, order: Iterable[int], kinds: Mapping[str, int]) -> set[int]:
    """Nodes that compute shapes, or integers from constants: every runtime does that exactly, and a perturbed shape
    would be another model. With what they are computed from, but for Constants: others may read those as well."""
    inside = set(order)
    seeds = {i for i in inside if any(kinds[n] == SHAPE for n in graph.makes[i])}
    seeds |= {i for i in inside if _to_integers(graph, i) and all(kinds[n] == CONSTANT for n in graph.makes[i])}
    still = set(seeds)
    stack = list(seeds)
    while stack:
        for other in graph.predecessors(stack.pop()):
            moves = other in inside and other not in still and graph.ops[other] != "Constant"
            if moves and all(kinds[n] in (SHAPE, CONSTANT) for n in graph.makes[other]):
                still.add(other)
                stack.append(other)
    return still


def _to_integers(graph: Graph, i: int) -> bool:
    op = graph.ops[i]
    return _standard(graph, i) and (op in CHOICES or op in STEPS or _casts_to_steps(graph.nodes[i]))


def _standard(graph: Graph, i: int) -> bool:
    domain: str = graph.nodes[i].domain
    return domain in STANDARD


def _flow(graph: Graph, i: int, found: RoundingSites) -> None:
    """What the node's outputs inherit from its inputs, and what it adds."""
    node, reads, makes, op = graph.nodes[i], set(graph.reads[i]), graph.makes[i], graph.ops[i]
    if op in SHAPE_OPS and _standard(graph, i):
        found.chosen.update(makes if not found.loose.isdisjoint(reads) else ())
        return
    if not reads:
        found.noisy.update(makes if _rounds(graph, i) and not _holds_integers(node) else ())
        return
    for kind in (found.chosen, found.stepped, found.loose):
        if not kind.isdisjoint(reads):
            kind.update(makes)
    inner = _inner_ops(graph, node)
    if (op in LOOSE or inner & LOOSE) and not found.chosen.isdisjoint(reads):
        found.loose.update(makes)
    worked = reads - {node.input[k] for k in _parameters(graph, i)}
    if not (found.noisy | found.stepped).isdisjoint(worked):
        _add(graph, i, inner, found)


def _add(graph: Graph, i: int, inner: frozenset[str], found: RoundingSites) -> None:
    """What a node that reads inexact values makes of them; `inner`: the ops inside it."""
    node, makes, op = graph.nodes[i], graph.makes[i], graph.ops[i]
    if inner:
        choices = set(makes if inner & CHOICES.keys() else ())
        steps = set(makes if inner & STEPS.keys() else ())
        found.noisy.update(makes)
    else:
        choices, steps = _named(node, CHOICES.get(op, ())), _named(node, STEPS.get(op, ()))
        if _casts_to_steps(node):
            (choices if _target(node) == "bool" else steps).update(makes)
        found.noisy.update(n for n in makes if n not in choices | steps)
    found.chosen |= choices
    found.stepped |= steps
    if op in LOOSE or inner & LOOSE:
        found.loose.update(makes)


def _holds_integers(constant: protobuf.NodeProto) -> bool:
    """Is it a Constant, but of no floats?"""
    if constant.op_type != "Constant":
        return False
    return not any(a.name.startswith("value_float") or a.t.data_type in _FLOAT_NUMBERS for a in constant.attribute)


def _named(node: protobuf.NodeProto, places: Iterable[int]) -> set[str]:
    return {node.output[k] for k in places if k < len(node.output) and node.output[k]}


def _inner_ops(graph: Graph, node: protobuf.NodeProto) -> frozenset[str]:
    """Op types in the bodies of a node, or in the local function that it calls, at any depth; none for a plain one."""
    found: set[str] = set()
    stack = [node]
    called: set[tuple[str, str, str]] = set()
    while stack:
        inner = stack.pop()
        key = (inner.domain, inner.op_type, inner.overload)
        function = graph.functions.get(key) if graph.functions else None
        nested = [n for body in (bodies(inner) if inner.attribute else ()) for n in body.node]
        if function is not None and key not in called:
            called.add(key)
            nested += function.node
        found.update(n.op_type for n in nested)
        stack += nested
    return frozenset(found)


def _rounds(graph: Graph, i: int) -> bool:
    """Does the node make values that a runtime may round otherwise than the reference?"""
    node, op = graph.nodes[i], graph.ops[i]
    if not _standard(graph, i):
        return True
    if op in ("Resize", "Upsample"):
        return bool(_attribute(node, "mode", b"nearest") != b"nearest")
    if op.startswith("Scatter"):
        return _attribute(node, "reduction", b"none") not in (b"none", b"max", b"min")
    if op == "Cast":  # to a narrower type: runtimes keep float32 between float16 nodes
        return _target(node) in ("float16", "bfloat16")
    return op not in EXACT


def _floats_anew(graph: Graph, i: int) -> bool:
    """Does an exact node make float values that were in no float tensor before?"""
    op = graph.ops[i]
    return op in ("Range", "ConstantOfShape", "CastLike", "OneHot") or (
        op == "Cast" and _target(graph.nodes[i]) in FLOATS
    )


def _target(node: protobuf.NodeProto) -> str:
    """The element type that a Cast casts to."""
    return dtypes.TYPES.get(_attribute(node, "to", 0), ("", 0))[0]


def _casts_to_steps(node: protobuf.NodeProto) -> bool:
    return node.op_type == "Cast" and "float" not in _target(node)


def _attribute(node: protobuf.NodeProto, name: str, default: Any) -> Any:
    """An attribute's text (where the default is bytes) or integer."""
    return next((a.s if isinstance(default, bytes) else a.i for a in node.attribute if a.name == name), default)


def _parameters(graph: Graph, i: int) -> range:
    """Positions of the inputs that say what to do."""
    if not _standard(graph, i):
        return range(0)
    first, last = PARAMETERS.get(graph.ops[i], (0, 0))
    return range(first, min(last, len(graph.nodes[i].input)))


def _exact_reads(graph: Graph, i: int, still: bool) -> Iterable[int]:
    if still and graph.ops[i] not in SHAPE_OPS:
        return range(len(graph.nodes[i].input))
    return _parameters(graph, i)


def _types(graph: Graph, region: Region, order: Iterable[int]) -> Iterator[str]:
    """Element types of weights, Constants and results of casts."""
    numbers = [graph.weights[n].data_type for n in region.weights if n in graph.weights]
    for i in order:
        if graph.ops[i] in ("Constant", "ConstantOfShape"):
            numbers += [a.t.data_type for a in graph.nodes[i].attribute if a.name == "value"]
        elif graph.ops[i] == "Cast":
            numbers.append(_attribute(graph.nodes[i], "to", 0))
    return (dtypes.TYPES[n][0] for n in numbers if n in dtypes.TYPES)


def ranked(graph: Graph, output: str) -> tuple[str, int] | None:
    """For indices from TopK, ArgMax or ArgMin: the tensor that was compared, and the axis. Looks through casts."""
    i = graph.maker.get(output)
    while i is not None and graph.ops[i] in ("Identity", "Cast"):
        output = graph.reads[i][0]
        i = graph.maker.get(output)
    if i is None or graph.ops[i] not in RANKING or not _standard(graph, i):
        return None
    node = graph.nodes[i]
    if list(node.output).index(output) != CHOICES[node.op_type][0]:
        return None
    return str(node.input[0]), _attribute(node, "axis", -1 if node.op_type == "TopK" else 0)
