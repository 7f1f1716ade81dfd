"""A float model and its lowered twin -> the places where precision changes, and how each is
lowered.

A place is the tensors that one node reads, or an output of the model. A lowered tensor passes
through QuantizeLinear and DequantizeLinear with the twin's own scale, or the node computes in
float16. So the float graph stays as it is, whatever the tool that wrote the twin fused, folded or
renamed: putting quantizers into the float graph is right even if taking them out of the quantized
one is not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum

import numpy as np

from subgraph.errors import UsageError
from subgraph.graph.graph import Graph
from subgraph.graph.kinds import VALUE, find_kinds
from subgraph.graph.nested import list_bodies
from subgraph.graph.opsets import STANDARD, find_schema, get_opset
from subgraph.graph.properties import CHANNEL_AXES, OUTPUT_SCALES, QUANTIZED_WEIGHTS
from subgraph.graph.quantization import AXIS, find_channel_axis, read_constant_scale
from subgraph.graph.shape_inference import infer_types
from subgraph.graph.value_types import read_type
from subgraph.iterables import flatten, group_values, invert
from subgraph.precision import Precision
from subgraph.storage.dtypes import Scale
from subgraph.trials.candidate_model import CandidateModel
from subgraph.types import Array, frozen

OUTPUT = -1  # in place of a node's index: an output of the model
NARROW = ("float16", "bfloat16")
GEARS = ("int16", "float16")  # between 8 bits and float32, the lower first
FREE = {"tensor(float)", "tensor(float16)"}  # what a parameter's type must allow
FLOAT = 1  # TensorProto.FLOAT
INT8_LEVELS = 127  # of a symmetric int8 weight
# A weight may be this share of a step from its code's value, and still be what was quantized.
MAX_CODE_DISTANCE = 0.75


class Unit(StrEnum):
    """The unit that is lowered, or kept, together."""

    NODE = "node"
    BLOCK = "block"
    OPERATOR = "operator"
    SCALE = "scale"


@frozen
class Quantized:
    """A tensor is quantized by this scale to an integer type, and dequantized."""

    scale: Scale
    dtype: str


@frozen
class Dynamic:
    """The form of a tensor that is quantized to uint8 by the range of its values."""


@frozen
class Rounded:
    """A node computes in float16, or rounds its values to bfloat16: the inputs and outputs at these
    positions."""

    dtype: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


Form = Quantized | Dynamic
Lowering = Form | Rounded
# A node, or OUTPUT, and the tensor that it reads; "": the node computes in another float type.
Read = tuple[int, str]


@frozen
class Place:
    """A part of the model that is lowered, or kept in float, as one.

    Attributes:
        name: The name of the node, operator, tensor or output.
        reads: The reads that are lowered in it.
        nodes: Indices of the nodes of the reads, in order.
    """

    name: str
    reads: frozenset[Read]
    nodes: tuple[int, ...] = ()


@frozen
class Twin:
    """The lowering of the tensors of a float model.

    Attributes:
        precision: The precision of the lowered tensors: "int8", "fp16" …
        forms: The forms of tensors, activations and weights.
        own: Weights whose codes the twin holds otherwise (for example folded): they are quantized
            again, by channel.
        rounded: The rounding of each node that computes in another float type.
        by_command: Nodes that the candidate lowers by itself, unless a list keeps them.
    """

    precision: Precision
    forms: Mapping[str, Form] = field(default_factory=dict)
    own: Collection[str] = ()
    rounded: Mapping[int, Rounded] = field(default_factory=dict)
    by_command: frozenset[int] = frozenset()

    def make_lowering(self, read: Read) -> Lowering:
        """Return the lowering of a read."""
        node, name = read
        if name:
            return self.forms[name]
        return self.rounded[node]

    def reads(self, graph: Graph) -> Iterator[Read]:
        """Return all that can be lowered, in the order of the nodes; the model's outputs last."""
        for i in graph.order:
            if i in self.rounded or i in self.by_command:
                yield i, ""
            yield from (
                (i, name) for name in dict.fromkeys(graph.nodes[i].input) if name in self.forms
            )
        yield from (
            (OUTPUT, name) for name in graph.outputs if name in self.forms and name in graph.maker
        )


def list_places(graph: Graph, twin: Twin, unit: Unit) -> list[Place]:
    """List the places of a model, in the order of its nodes."""
    names = name_blocks(graph) if unit is Unit.BLOCK else {}
    groups = group_values(
        (names.get(read[0]) or _name(graph, read, unit), read) for read in twin.reads(graph)
    )
    return [
        Place(name, frozenset(reads), tuple(dict.fromkeys(i for i, _ in reads if i != OUTPUT)))
        for name, reads in groups.items()
    ]


def _name(graph: Graph, read: Read, unit: Unit) -> str:
    node, tensor = read
    if unit is Unit.SCALE and tensor:
        return tensor
    if node == OUTPUT:
        return f"output {tensor}"
    if unit is Unit.OPERATOR:
        return graph.ops[node]
    return graph.label(node)


def name_blocks(graph: Graph) -> dict[int, str]:
    """Return the name of each node's block: `first … last`.

    A block is between two tensors each of which alone carries all values on. A residual block or a
    layer of a transformer is one, or a convolution with the nodes after it. Inputs of the model and
    shapes may pass by.

    Complexity: linear in the nodes.
    """
    order = graph.order
    kinds = find_kinds(graph, list(flatten(graph.makes)))
    last = invert((k, graph.reads[i]) for k, i in enumerate(order)) | dict.fromkeys(
        graph.outputs, len(order)
    )
    ends: dict[int, int] = {}  # how many tensors are read for the last time at a place in the order
    open_tensors = 0
    groups = list[list[int]]()
    group = []
    for k, i in enumerate(order):
        group.append(i)
        open_tensors -= ends.pop(k, 0)
        for n in graph.makes[i]:
            if kinds[n] == VALUE and last.get(n, k) > k:
                ends[last[n]] = ends.get(last[n], 0) + 1
                open_tensors += 1
        if open_tensors <= 1 or k == len(order) - 1:
            if groups and not any(graph.ops[j] in CHANNEL_AXES for j in group):
                groups[-1] += group
            else:
                groups.append(group)
            group = []
    ends_of = invert(((graph.label(g[0]), graph.label(g[-1])), g) for g in groups)
    return {j: a if a == b else f"{a} … {b}" for j, (a, b) in ends_of.items()}


# ------------------------------------------------------------ a twin's forms


def read_pair(pair: CandidateModel) -> Twin:
    """Read the lowering of the reference's tensors from the candidate's own model.

    Raises:
        UsageError: nothing in it is lowered.
    """
    graph = pair.reference
    narrow = {
        graph.maker[n]: m.dtype
        for n, m in pair.matches.items()
        if m.dtype in NARROW and n in graph.maker
    }
    rounded = {
        i: replace(form, dtype=narrow[i])
        for i, form in list_narrowable(graph).items()
        if i in narrow
    }
    stored = dict(_iter_activations(pair.graph))
    forms = {n: stored[m.name] for n, m in pair.matches.items() if m.name in stored}
    weights, own = _find_weight_forms(graph, pair.graph, forms) if forms else ({}, [])
    if not forms and not rounded:
        raise UsageError(
            f"nothing in {pair.graph.path.name} is quantized, or of 16 bits, where"
            f" {graph.path.name} is float",
            "plan needs the float model, and the same one in less precision",
            code="plan.not-lower",
        )
    if forms:
        precision = Precision.INT8
    else:
        precision = Precision.from_dtype(next(iter(rounded.values())).dtype)
    return Twin(precision, {**forms, **weights}, own, rounded)


def round_nodes(graph: Graph, precision: Precision) -> Twin:
    """Return the twin in which every node that can be computed in a 16-bit float type is."""
    return Twin(precision, rounded=list_narrowable(graph, precision.dtype))


def lower_by_command(graph: Graph, precision: Precision) -> Twin:
    """Return the twin of every node that computes values, which the candidate's
    converter lowers."""
    kinds = find_kinds(graph, list(flatten(graph.makes)))
    lowered = (i for i, names in enumerate(graph.makes) if any(kinds[n] == VALUE for n in names))
    return Twin(precision, by_command=frozenset(lowered))


def make_gear(graph: Graph, twin: Twin, name: str) -> Twin:
    """Return a gear above 8 bits: "int16" of activations, in the same ranges, or "float16", which
    nodes compute in."""
    if name == Precision.FP16.dtype:
        return round_nodes(graph, Precision.FP16)
    wide = {n: form if graph.is_weight(n) else _widen(form) for n, form in twin.forms.items()}
    return replace(twin, forms={n: form for n, form in wide.items() if form})


def _widen(form: Form) -> Form | None:
    """Return a form with the same range in 65,536 steps.

    Returns:
        None if the form has no fixed range, or is as wide already.
    """
    if isinstance(form, Dynamic) or form.dtype not in ("int8", "uint8"):
        return None
    info = np.iinfo(form.dtype)
    steps = tuple(s * (info.max - info.min) / (2**16 - 1) for s in form.scale.step)
    lows = [(info.min - z) * s for s, z in zip(form.scale.step, form.scale.zero, strict=True)]
    zeros = tuple(round(-(2**15) - low / s) for low, s in zip(lows, steps, strict=True))
    steps = tuple(float(f"{s:.9g}") for s in steps)
    return Quantized(Scale(steps, zeros, form.scale.axis), "int16")


def _iter_activations(twin: Graph) -> Iterator[tuple[str, Form]]:
    """Yield the tensors of a quantized model that are quantized, codes, or
    dequantized, with form."""
    known: dict[str, Form] = {}
    for i in twin.order:
        node = twin.nodes[i]
        op = twin.ops[i]
        if op == "DynamicQuantizeLinear":
            known[node.input[0]] = Dynamic()
        elif op in OUTPUT_SCALES and (scale := read_constant_scale(twin, node, *OUTPUT_SCALES[op])):
            # Codes have the integer type of the zero point; without one they are uint8.
            position = OUTPUT_SCALES[op][1]
            zero = twin.array(node.input[position] if len(node.input) > position else "")
            form = Quantized(scale, "uint8" if zero is None else str(zero.dtype))
            known[node.output[0]] = form
            if op == "QuantizeLinear" and not twin.is_weight(node.input[0]):
                known[node.input[0]] = form
        elif op == "DequantizeLinear" and (codes := known.get(node.input[0])):
            known[node.output[0]] = codes
    yield from known.items()


def _find_weight_forms(
    graph: Graph, twin: Graph, forms: Mapping[str, Form]
) -> tuple[dict[str, Form], list[str]]:
    """Return the forms of weights: the twin's if it holds this weight, else by channel; and the
    names of the latter."""
    codes = list(_iter_codes(twin))
    found: dict[str, Form] = {}
    own: list[str] = []
    for i, node in enumerate(graph.nodes):
        if graph.ops[i] not in CHANNEL_AXES or node.input[0] not in forms:
            continue
        name = node.input[1]
        value = graph.array(name) if name not in found else None
        if value is None or value.dtype != np.float32:
            continue
        held = next((form for form, stored in codes if _is_code_of(stored, form, value)), None)
        found[name] = held or Quantized(
            compute_weight_scales(value, *CHANNEL_AXES[graph.ops[i]]), "int8"
        )
        if not held:
            own.append(name)
    return found, own


def _iter_codes(twin: Graph) -> Iterator[tuple[Quantized, Array]]:
    """Yield the quantized weights of a model."""
    for i, node in enumerate(twin.nodes):
        if (positions := QUANTIZED_WEIGHTS.get(twin.ops[i])) and len(node.input) > positions[1]:
            scale = read_constant_scale(twin, node, *positions[1:])
            stored = twin.array(node.input[positions[0]]) if scale else None
            if scale is None or stored is None:
                continue
            if twin.ops[i] not in AXIS:
                axis = find_channel_axis(node, stored.ndim)
                scale = Scale(scale.step, scale.zero, axis)
            yield Quantized(scale, str(stored.dtype)), stored


def _is_code_of(stored: Array, form: Quantized, value: Array) -> bool:
    """Return whether these are the codes of a weight."""
    if stored.shape != value.shape or (len(form.scale.step) > 1 and form.scale.axis >= stored.ndim):
        return False
    return bool(
        np.all(
            np.abs(form.scale.dequantize(stored) - value)
            <= MAX_CODE_DISTANCE * max(form.scale.step)
        )
    )


def compute_weight_scales(value: Array, axis: int) -> Scale:
    """Return a scale per channel along an axis, with which int8 codes hold a weight; zero is zero.

    >>> compute_weight_scales(np.array([[127, -254], [0, 0]], np.float32), 0).step
    (2.0, 1.0)
    """
    axis %= value.ndim
    others = tuple(k for k in range(value.ndim) if k != axis)
    peak = np.abs(value.astype(np.float64)).max(axis=others, initial=0)
    step = np.where(peak > 0, peak / INT8_LEVELS, 1.0)
    return Scale(tuple(float(f"{s:.9g}") for s in step), (0,) * len(step), axis)


# ------------------------------------------------------------ float16


def list_narrowable(graph: Graph, dtype: str = "float16") -> dict[int, Rounded]:
    """Return the nodes that can compute in a float type of 16 bits instead of float32, by index.

    An output follows the inputs of its type's parameter; that of a Cast follows its attribute. A
    node with bodies is omitted, because its bodies would have to be changed, too. The function
    starts a process that infers types.
    """
    types = infer_types(graph)

    def is_float(name: str) -> bool:
        tensor = graph.constant(name)
        if tensor is not None:
            return tensor.data_type == FLOAT
        proto = types.type_of(name)
        return proto is not None and read_type(proto).dtype == "float32"

    found = {}
    for i, node in enumerate(graph.nodes):
        is_standard = node.domain in STANDARD
        known = find_schema(node.op_type, get_opset(graph.model)) if is_standard else None
        if known is None or any(True for _ in list_bodies(node)):
            continue
        free = {c.type_param_str for c in known.type_constraints if {*c.allowed_type_strs} >= FREE}
        reads = [(k, n, _find_formal_type(known.inputs, k)) for k, n in enumerate(node.input) if n]
        narrow = free & {of for _, _, of in reads} - {of for _, n, of in reads if not is_float(n)}
        inputs = tuple(k for k, _, of in reads if of in narrow)
        outputs = tuple(
            k
            for k, n in enumerate(node.output)
            if n and _find_formal_type(known.outputs, k) in narrow
        )
        if inputs and outputs:
            found[i] = Rounded(dtype, inputs, outputs)
    return found


def _find_formal_type(formals: Sequence[object], position: int) -> str:
    """Return the type of a parameter; further ones have the type of a last, variadic one."""
    formal = formals[min(position, len(formals) - 1)] if formals else None
    return str(getattr(formal, "type_str", ""))
