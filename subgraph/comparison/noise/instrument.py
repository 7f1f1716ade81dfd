"""A cut's model -> one that takes its rounding from outside: shifts are inputs, or every value is rounded to a type.

What a node makes is renamed, and a node behind it makes the old name from it: nobody downstream has to know. So bodies
that read it see the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.comparison.noise.analysis import RoundingSites
from subgraph.comparison.noise.perturb import HUGE
from subgraph.comparison.precision import TYPE_OF, wider
from subgraph.graph import protobuf
from subgraph.graph.graph import STANDARD, captured_names
from subgraph.storage import dtypes
from subgraph.storage.tensors import Record

if TYPE_CHECKING:
    from subgraph.types import Array

SMALL = 1 << 20  # elements; smaller tensors are fed together: hundreds of files take longer than the run
BFLOAT16_SINCE = 13  # opset of Cast
SIZES_SINCE = 13  # opset from which Split is told the sizes by an input


@dataclass(frozen=True)
class PerturbedInput:
    """An input of a shaken model, and what it is fed: a tensor's value as it is, shaken, or only its shift.

    Attributes:
        pack: the input that it is a part of, where it is none itself: many small ones, one after another.
    """

    name: str
    tensor: str
    form: str  # "plain", "shaken", "shift"
    info: protobuf.ValueInfoProto = field(repr=False)
    pack: str = ""


Insert = Callable[[str, str, str], list[Any]]  # raw name, name, element type -> nodes


def added(raw: str, name: str, dtype: str) -> list[protobuf.NodeProto]:
    """Nodes that make `name` from `raw` and its shift, which is fed; narrow types are added in float32."""
    from onnx import helper

    if dtype in ("float32", "float64"):
        return [helper.make_node("Add", [raw, f"{raw}:shift"], [name])]
    return [
        helper.make_node("Cast", [raw], [f"{raw}:wide"], to=dtypes.TYPE_NUMBERS["float32"]),
        helper.make_node("Add", [f"{raw}:wide", f"{raw}:shift"], [f"{raw}:sum"]),
        helper.make_node("Cast", [f"{raw}:sum"], [name], to=dtypes.TYPE_NUMBERS[dtype]),
    ]


def narrowed(claim: str, version: int) -> Insert:
    """Nodes that round `raw` to the claimed type and back. Before opset 13 no Cast makes bfloat16: see `_split_off`."""
    from onnx import helper

    if claim == "bf16" and 0 < version < BFLOAT16_SINCE:
        return _split_off

    def insert(raw: str, name: str, dtype: str) -> list[protobuf.NodeProto]:
        to = dtypes.TYPE_NUMBERS[TYPE_OF[claim]]
        there = helper.make_node("Cast", [raw], [f"{raw}:narrow"], to=to)
        return [there, helper.make_node("Cast", [f"{raw}:narrow"], [name], to=dtypes.TYPE_NUMBERS[dtype])]

    return insert


def _split_off(raw: str, name: str, dtype: str) -> list[protobuf.NodeProto]:
    """float32 rounded to 8 bits of significand by Veltkamp's splitting: c = (2¹⁶ + 1)·x, c − (c − x).

    T. J. Dekker, A floating-point technique for extending the available precision, Numer. Math. 18, 1971. Values above
    1e30, where c may overflow, stay.
    """
    from onnx import helper

    def make(op: str, reads: list[str], gives: str, **more: Any) -> protobuf.NodeProto:
        return helper.make_node(op, reads, [f"{raw}:{gives}"], **more)

    def constant(value: float, gives: str) -> protobuf.NodeProto:
        return make("Constant", [], gives, value=helper.make_tensor("", dtypes.TYPE_NUMBERS["float32"], [], [value]))

    x, c = f"{raw}:wide", f"{raw}:c"
    return [
        make("Cast", [raw], "wide", to=dtypes.TYPE_NUMBERS["float32"]),
        constant(2.0**16 + 1, "factor"),
        constant(HUGE, "huge"),
        make("Mul", [x, f"{raw}:factor"], "c"),
        make("Sub", [c, x], "rest"),
        make("Sub", [c, f"{raw}:rest"], "narrow"),
        make("Abs", [x], "size"),
        make("Less", [f"{raw}:size", f"{raw}:huge"], "fits"),
        make("Where", [f"{raw}:fits", f"{raw}:narrow", x], "whole"),
        helper.make_node("Cast", [f"{raw}:whole"], [name], to=dtypes.TYPE_NUMBERS[dtype]),
    ]


def opset(model: protobuf.ModelProto) -> int:
    """The version of the standard operators; 0 where the model imports none."""
    return next((int(o.version) for o in model.opset_import if o.domain in STANDARD), 0)


def shaken(
    model: protobuf.ModelProto,
    rounding: RoundingSites,
    made: Mapping[str, Record],
    outputs: Sequence[str],
    insert: Insert,
) -> list[PerturbedInput]:
    """Change a cut's model: each tensor of `made` gets the nodes of `insert` behind its maker, each float tensor that
    enters becomes an input. Reads of parameters stay with the exact values. Returns the inputs.

    `outputs`: what it shall give. The model's nodes stand in `rounding.order`. Weights that become inputs leave the
    model; what it does not read is not fed.
    """
    graph = model.graph
    if not opset(model):  # a cut of other domains' nodes alone
        model.opset_import.add(domain="", version=SIZES_SINCE)
    weights = {t.name for t in graph.initializer}
    raw = _raw_names(graph, {*rounding.fed, *made})
    exact = _insert(graph, rounding, made, raw, insert)
    read = {name for node in graph.node for name in (*node.input, *captured_names(node))} | set(outputs)
    inputs = [i for i in _entering(graph, set(rounding.fed), exact) if i.name in read]
    inputs += [i for i in _shifts(made, raw) if i.name in read]
    gone = set(rounding.fed)
    kept = [t for t in graph.initializer if t.name not in gone]
    kept += [_renamed(t, exact[t.name]) for t in graph.initializer if t.name in gone and t.name in exact]
    _replace(graph.initializer, kept)
    inputs = _packed(model, inputs, weights)
    _replace(graph.input, [i.info for i in inputs if not i.pack] + _packs(inputs))
    tap(model, outputs)
    model.ir_version = max(model.ir_version, 4)  # before, every initializer must be an input
    return inputs


def _raw_names(graph: protobuf.GraphProto, names: set[str]) -> dict[str, str]:
    """A name for each tensor as it was before it is shaken, that nobody has."""
    suffix = ":raw"
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    while any(f"{name}{suffix}" in taken for name in names):
        suffix += "'"
    return {name: f"{name}{suffix}" for name in names}


def _insert(
    graph: protobuf.GraphProto,
    rounding: RoundingSites,
    made: Mapping[str, Record],
    raw: Mapping[str, str],
    insert: Insert,
) -> dict[str, str]:
    """Put the nodes behind their makers, and parameters' reads to exact values; returns the raw names that are read."""
    nodes: list[protobuf.NodeProto] = []
    exact: dict[str, str] = {}
    for i, node in zip(rounding.order, graph.node, strict=True):
        for k, name in enumerate(node.input):
            if (i, k) in rounding.raw and name in raw:
                node.input[k] = exact[name] = raw[name]
        shaken = [(k, name) for k, name in enumerate(node.output) if name in made]
        for k, name in shaken:
            node.output[k] = raw[name]
        nodes += [node, *(n for _, name in shaken for n in insert(raw[name], name, made[name].dtype))]
    _replace(graph.node, nodes)
    return exact


def _entering(graph: protobuf.GraphProto, floats: set[str], exact: Mapping[str, str]) -> Iterator[PerturbedInput]:
    """What the cut is fed, and its float weights; twice where some read the exact value."""
    from onnx import helper

    weights = {t.name: t for t in graph.initializer}
    for v in graph.input:
        if v.name in weights:  # before IR 4 weights were inputs as well
            continue
        yield PerturbedInput(v.name, v.name, "shaken" if v.name in floats else "plain", v)
        if v.name in exact:
            yield PerturbedInput(exact[v.name], v.name, "plain", helper.make_value_info(exact[v.name], v.type))
    for name in floats & weights.keys():
        info = helper.make_tensor_value_info(name, weights[name].data_type, list(weights[name].dims))
        yield PerturbedInput(name, name, "shaken", info)


def _shifts(made: Mapping[str, Record], raw: Mapping[str, str]) -> Iterator[PerturbedInput]:
    from onnx import helper

    for name, record in made.items():
        by, wide = f"{raw[name]}:shift", dtypes.TYPE_NUMBERS[wider(record.dtype)]
        yield PerturbedInput(by, name, "shift", helper.make_tensor_value_info(by, wide, record.shapes[0]))


def _packed(
    model: protobuf.ModelProto, inputs: Sequence[PerturbedInput], weights: Collection[str]
) -> list[PerturbedInput]:
    """Take small shifts and weights out of two long inputs, one per type, by Split, Reshape and Cast."""
    nodes: list[protobuf.NodeProto] = []
    found: list[PerturbedInput] = []
    for wide in ("float32", "float64"):
        pack = f"{wide}:pack"
        sizes: list[int] = []
        for f in inputs:
            kind, shape = _tensor_type(f.info)
            if (f.form == "shift" or f.tensor in weights) and wider(kind) == wide and 0 < math.prod(shape) <= SMALL:
                sizes.append(math.prod(shape))
                found.append(replace(f, pack=pack))
                nodes += _unpacked(model.graph, f.name, kind, shape)
        if sizes:
            parts = [f"{f.name}:part" for f in found if f.pack == pack]
            nodes.append(_split(model, pack, parts, sizes))
    _replace(model.graph.node, [*reversed(nodes), *model.graph.node])
    names = {f.name for f in found}
    return [*(f for f in inputs if f.name not in names), *found]


def _tensor_type(info: protobuf.ValueInfoProto) -> tuple[str, tuple[int, ...]]:
    tensor = info.type.tensor_type
    return dtypes.name_of(tensor.elem_type), tuple(d.dim_value for d in tensor.shape.dim)


def _unpacked(graph: protobuf.GraphProto, name: str, kind: str, shape: tuple[int, ...]) -> list[protobuf.NodeProto]:
    """Nodes, last first, that make `name` from its flat part."""
    from onnx import helper

    graph.initializer.append(helper.make_tensor(f"{name}:shape", dtypes.TYPE_NUMBERS["int64"], [len(shape)], shape))
    if kind == wider(kind):
        return [helper.make_node("Reshape", [f"{name}:part", f"{name}:shape"], [name])]
    return [
        helper.make_node("Cast", [f"{name}:whole"], [name], to=dtypes.TYPE_NUMBERS[kind]),
        helper.make_node("Reshape", [f"{name}:part", f"{name}:shape"], [f"{name}:whole"]),
    ]


def _split(model: protobuf.ModelProto, pack: str, parts: list[str], sizes: list[int]) -> protobuf.NodeProto:
    from onnx import helper

    if opset(model) < SIZES_SINCE:
        return helper.make_node("Split", [pack], parts, split=sizes, axis=0)
    model.graph.initializer.append(
        helper.make_tensor(f"{pack}:sizes", dtypes.TYPE_NUMBERS["int64"], [len(sizes)], sizes)
    )
    return helper.make_node("Split", [pack, f"{pack}:sizes"], parts, axis=0)


def _packs(inputs: Sequence[PerturbedInput]) -> list[protobuf.ValueInfoProto]:
    """The long inputs."""
    from onnx import helper

    names = dict.fromkeys(f.pack for f in inputs if f.pack)
    return [helper.make_tensor_value_info(n, dtypes.TYPE_NUMBERS[type_of(n)], None) for n in names]


def type_of(pack: str) -> str:
    """The element type of a long input."""
    return pack.partition(":")[0]


def _renamed(tensor: protobuf.TensorProto, name: str) -> protobuf.TensorProto:
    copy = type(tensor).FromString(tensor.SerializeToString())
    copy.name = name
    return copy


def tap(model: protobuf.ModelProto, outputs: Sequence[str]) -> None:
    """Let the model give these tensors; of what type, the runtime knows."""
    from onnx import helper

    _replace(model.graph.output, [helper.make_empty_tensor_value_info(n) for n in outputs])
    model.graph.ClearField("quantization_annotation")  # names tensors that may be gone


def _replace(field: Any, messages: Sequence[Any]) -> None:
    """Set a repeated field to messages, of which some may stand in it."""
    copies = [type(m).FromString(m.SerializeToString()) for m in messages]
    del field[:]
    field.extend(copies)


def weight_value(tensor: protobuf.TensorProto, model: Path) -> Array:
    """The value of a weight of a model file.

    Raises:
        DataError: its bytes cannot be had.
    """
    from onnx import numpy_helper

    full = protobuf.load_raw(tensor, model) if protobuf.on_disk(tensor) else tensor
    value: Array = numpy_helper.to_array(protobuf.protos().TensorProto.FromString(full.SerializeToString()))
    return value
