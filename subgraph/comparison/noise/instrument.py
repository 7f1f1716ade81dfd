"""A cut's model -> a model with a perturbation input for each tensor that rounds, or with all values rounded to a type.

Insight: the output of a node is renamed, and a node behind it makes the old name: nothing downstream changes, nor do
bodies that read the name.

    before:  x → Conv → y → …
    after:   x → Conv → y:raw → Add(y:raw, y:raw:shift) → y → …
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onnx import helper

from subgraph.comparison.noise.analysis import RoundingSites
from subgraph.comparison.noise.perturb import MAX_PERTURBED
from subgraph.comparison.precision import TYPE_OF, wider
from subgraph.graph import protobuf
from subgraph.graph.graph import STANDARD, captured_names
from subgraph.storage.dtypes import TYPE_NUMBERS, name_of
from subgraph.storage.tensors import Record

MAX_PACKED = 1 << 20  # elements; smaller tensors share one input, since hundreds of files take longer than the run
BFLOAT16_SINCE = 13  # opset from which Cast makes bfloat16
SPLIT_SIZES_SINCE = 13  # opset from which Split reads the sizes from an input


@dataclass(frozen=True)
class PerturbedInput:
    """An input of an instrumented model.

    Attributes:
        tensor: the tensor of the original model whose value, or shift, is fed.
        form: "exact" (its value), "perturbed" (its value, perturbed), or "shift" (what is added to it).
        pack: name of the packed input that contains it; empty if it is an input of its own.
    """

    name: str
    tensor: str
    form: str
    info: protobuf.ValueInfoProto = field(repr=False)
    pack: str = ""


Insert = Callable[[str, str, str], list[Any]]  # raw name, name, element type -> nodes that make `name` from the raw one


def instrument_model(
    model: protobuf.ModelProto,
    sites: RoundingSites,
    computed: Mapping[str, Record],
    outputs: Sequence[str],
    rounded_to: str = "",
) -> list[PerturbedInput]:
    """Change the model of a cut, whose nodes stand in `sites.order`; returns the inputs that it has then.

    Every float tensor that enters becomes an input, weights too, and leaves the initializers. Every tensor of
    `computed` gets a shift input, or, with `rounded_to` (fp16, bf16), is rounded to that type. `sites.exact_reads`
    read the values without either.

    Args:
        computed: unperturbed values of float tensors that nodes make.
        outputs: the new outputs of the model.
    """
    graph = model.graph
    if not _opset(model):  # a cut with nodes of other domains only
        model.opset_import.add(domain="", version=SPLIT_SIZES_SINCE)
    weights = {t.name for t in graph.initializer}
    raw = _raw_names(graph, {*sites.entering, *computed})
    insert = _rounding(rounded_to, _opset(model)) if rounded_to else _shifting
    exact = _insert_nodes(graph, sites, computed, raw, insert)
    read = {name for node in graph.node for name in (*node.input, *captured_names(node))} | set(outputs)
    inputs = [i for i in _entering(graph, set(sites.entering), exact) if i.name in read]
    inputs += [i for i in _shift_inputs(computed, raw) if i.name in read]
    gone = set(sites.entering)
    kept = [t for t in graph.initializer if t.name not in gone]
    read_exactly = [t for t in graph.initializer if t.name in gone and t.name in exact]
    for tensor in read_exactly:
        tensor.name = exact[tensor.name]
    _replace(graph.initializer, kept + read_exactly)
    inputs = _pack(model, inputs, weights)
    packs = dict.fromkeys(i.pack for i in inputs if i.pack)
    whole = [helper.make_tensor_value_info(pack, TYPE_NUMBERS[pack.partition(":")[0]], None) for pack in packs]
    _replace(graph.input, [i.info for i in inputs if not i.pack] + whole)
    set_outputs(model, outputs)
    model.ir_version = max(model.ir_version, 4)  # before 4, every initializer must be an input
    return inputs


def set_outputs(model: protobuf.ModelProto, outputs: Sequence[str]) -> None:
    """Let the model give these tensors; the runtime infers their types."""
    _replace(model.graph.output, [helper.make_empty_tensor_value_info(n) for n in outputs])
    model.graph.ClearField("quantization_annotation")  # may name tensors that are gone


def _opset(model: protobuf.ModelProto) -> int:
    """The version of the standard operators; 0 if the model imports none."""
    return next((int(o.version) for o in model.opset_import if o.domain in STANDARD), 0)


# ------------------------------------------------------------------------------------------------ inserted nodes


def _shifting(raw: str, name: str, dtype: str) -> list[protobuf.NodeProto]:
    """Nodes that add the shift; types below float32 are added in float32."""
    if dtype in ("float32", "float64"):
        return [helper.make_node("Add", [raw, f"{raw}:shift"], [name])]
    return [
        helper.make_node("Cast", [raw], [f"{raw}:wide"], to=TYPE_NUMBERS["float32"]),
        helper.make_node("Add", [f"{raw}:wide", f"{raw}:shift"], [f"{raw}:sum"]),
        helper.make_node("Cast", [f"{raw}:sum"], [name], to=TYPE_NUMBERS[dtype]),
    ]


def _rounding(claim: str, opset: int) -> Insert:
    """Nodes that round to the claimed type and back. Before opset 13 no Cast makes bfloat16: see `_split_bfloat16`."""
    if claim == "bf16" and 0 < opset < BFLOAT16_SINCE:
        return _split_bfloat16

    def insert(raw: str, name: str, dtype: str) -> list[protobuf.NodeProto]:
        narrow = helper.make_node("Cast", [raw], [f"{raw}:narrow"], to=TYPE_NUMBERS[TYPE_OF[claim]])
        return [narrow, helper.make_node("Cast", [f"{raw}:narrow"], [name], to=TYPE_NUMBERS[dtype])]

    return insert


def _split_bfloat16(raw: str, name: str, dtype: str) -> list[protobuf.NodeProto]:
    """float32 rounded to 8 bits of significand by Veltkamp's splitting: c = (2¹⁶ + 1)·x, c − (c − x).

    T. J. Dekker, A floating-point technique for extending the available precision, Numer. Math. 18, 1971. Values above
    1e30, where c may overflow, stay.
    """

    def make(op: str, reads: list[str], gives: str, **attributes: Any) -> protobuf.NodeProto:
        return helper.make_node(op, reads, [f"{raw}:{gives}"], **attributes)

    def constant(value: float, gives: str) -> protobuf.NodeProto:
        return make("Constant", [], gives, value=helper.make_tensor("", TYPE_NUMBERS["float32"], [], [value]))

    x, c = f"{raw}:wide", f"{raw}:c"
    return [
        make("Cast", [raw], "wide", to=TYPE_NUMBERS["float32"]),
        constant(2.0**16 + 1, "factor"),
        constant(MAX_PERTURBED, "huge"),
        make("Mul", [x, f"{raw}:factor"], "c"),
        make("Sub", [c, x], "rest"),
        make("Sub", [c, f"{raw}:rest"], "narrow"),
        make("Abs", [x], "size"),
        make("Less", [f"{raw}:size", f"{raw}:huge"], "fits"),
        make("Where", [f"{raw}:fits", f"{raw}:narrow", x], "whole"),
        helper.make_node("Cast", [f"{raw}:whole"], [name], to=TYPE_NUMBERS[dtype]),
    ]


def _raw_names(graph: protobuf.GraphProto, names: set[str]) -> dict[str, str]:
    """For each tensor, an unused name for its value before the perturbation."""
    suffix = ":raw"
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    while any(f"{name}{suffix}" in taken for name in names):
        suffix += "'"
    return {name: f"{name}{suffix}" for name in names}


def _insert_nodes(
    graph: protobuf.GraphProto,
    sites: RoundingSites,
    computed: Mapping[str, Record],
    raw: Mapping[str, str],
    insert: Insert,
) -> dict[str, str]:
    """Insert nodes behind the makers of `computed`, and let `sites.exact_reads` read raw names; returns those read."""
    nodes: list[protobuf.NodeProto] = []
    exact: dict[str, str] = {}
    for i, node in zip(sites.order, graph.node, strict=True):
        for k, name in enumerate(node.input):
            if (i, k) in sites.exact_reads and name in raw:
                node.input[k] = exact[name] = raw[name]
        perturbed = [(k, name) for k, name in enumerate(node.output) if name in computed]
        for k, name in perturbed:
            node.output[k] = raw[name]
        nodes += [node, *(n for _, name in perturbed for n in insert(raw[name], name, computed[name].dtype))]
    _replace(graph.node, nodes)
    return exact


# ------------------------------------------------------------------------------------------------ inputs


def _entering(graph: protobuf.GraphProto, floats: set[str], exact: Mapping[str, str]) -> Iterator[PerturbedInput]:
    """Inputs of the cut, and its float weights; a second one for the exact value where that is read."""
    weights = {t.name: t for t in graph.initializer}
    for v in graph.input:
        if v.name in weights:  # before IR version 4 weights were inputs as well
            continue
        yield PerturbedInput(v.name, v.name, "perturbed" if v.name in floats else "exact", v)
        if v.name in exact:
            yield PerturbedInput(exact[v.name], v.name, "exact", helper.make_value_info(exact[v.name], v.type))
    for name in floats & weights.keys():
        info = helper.make_tensor_value_info(name, weights[name].data_type, list(weights[name].dims))
        yield PerturbedInput(name, name, "perturbed", info)


def _shift_inputs(computed: Mapping[str, Record], raw: Mapping[str, str]) -> Iterator[PerturbedInput]:
    for name, record in computed.items():
        shift, dtype = f"{raw[name]}:shift", TYPE_NUMBERS[wider(record.dtype)]
        yield PerturbedInput(shift, name, "shift", helper.make_tensor_value_info(shift, dtype, record.shapes[0]))


def _pack(
    model: protobuf.ModelProto, inputs: Sequence[PerturbedInput], weights: Collection[str]
) -> list[PerturbedInput]:
    """Let small shifts and weights come out of two packed inputs, one per type, by Split, Reshape and Cast.

    A packed input is flat: the tensors one after the other, in the order of the inputs returned.
    """
    nodes: list[protobuf.NodeProto] = []
    packed: list[PerturbedInput] = []
    for wide in ("float32", "float64"):
        pack = f"{wide}:pack"
        sizes: list[int] = []
        for i in inputs:
            dtype, shape = _tensor_type(i.info)
            size = math.prod(shape)
            if (i.form == "shift" or i.tensor in weights) and wider(dtype) == wide and 0 < size <= MAX_PACKED:
                sizes.append(size)
                packed.append(replace(i, pack=pack))
                nodes += _unpack(model.graph, i.name, dtype, shape)
        if sizes:
            parts = [f"{i.name}:part" for i in packed if i.pack == pack]
            nodes.append(_split(model, pack, parts, sizes))
    _replace(model.graph.node, [*reversed(nodes), *model.graph.node])
    names = {i.name for i in packed}
    return [*(i for i in inputs if i.name not in names), *packed]


def _tensor_type(info: protobuf.ValueInfoProto) -> tuple[str, tuple[int, ...]]:
    tensor = info.type.tensor_type
    return name_of(tensor.elem_type), tuple(d.dim_value for d in tensor.shape.dim)


def _unpack(graph: protobuf.GraphProto, name: str, dtype: str, shape: tuple[int, ...]) -> list[protobuf.NodeProto]:
    """Nodes, the last one first, that make `name` from its flat part."""
    graph.initializer.append(helper.make_tensor(f"{name}:shape", TYPE_NUMBERS["int64"], [len(shape)], shape))
    if dtype == wider(dtype):
        return [helper.make_node("Reshape", [f"{name}:part", f"{name}:shape"], [name])]
    return [
        helper.make_node("Cast", [f"{name}:whole"], [name], to=TYPE_NUMBERS[dtype]),
        helper.make_node("Reshape", [f"{name}:part", f"{name}:shape"], [f"{name}:whole"]),
    ]


def _split(model: protobuf.ModelProto, pack: str, parts: list[str], sizes: list[int]) -> protobuf.NodeProto:
    if _opset(model) < SPLIT_SIZES_SINCE:
        return helper.make_node("Split", [pack], parts, split=sizes, axis=0)
    tensor = helper.make_tensor(f"{pack}:sizes", TYPE_NUMBERS["int64"], [len(sizes)], sizes)
    model.graph.initializer.append(tensor)
    return helper.make_node("Split", [pack, f"{pack}:sizes"], parts, axis=0)


def _replace(repeated: Any, messages: Sequence[Any]) -> None:
    """Set a repeated field to messages, some of which it may contain now."""
    copies = [type(m).FromString(m.SerializeToString()) for m in messages]
    del repeated[:]
    repeated.extend(copies)
