"""A cut's model -> a model that perturbs every tensor that rounds, or rounds all values to a
claimed precision.

Insight: the output of a node is renamed, and nodes after it produce a tensor with the old name:
nothing downstream changes, nor do bodies that read the name. Inputs and weights are renamed alike,
and so are values inside the bodies of If, Loop and Scan.

    before:  x → Conv → y → …
    after:   x → Conv → y:raw → nodes of `rounding_nodes` → y → …

All random numbers come from one input, the keys. So one session serves all draws, and a draw costs
no copy of a weight or an activation through a file.

Inside of TensorFlow Lite's operators nothing can be reached, but the codes that they return can
deviate by a step, and the floats by a rounding. `add_steps` inserts a subcut operator after each of
them, which adds the values that it is fed. The outputs of the region are those of its last
operators, without such an addition: the criterion allows them one step.

    before:  CONV_2D → y → ADD …
    after:   CONV_2D → y → subcut's operator → y:moved → ADD …
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper

from subgraph.comparison.float_types import FLOATS, find_wider
from subgraph.comparison.noise.analysis import (
    RoundingSites,
    find_parameter_positions,
    is_fixed,
    rounds,
)
from subgraph.comparison.noise.rounding_nodes import (
    CODES,
    ChannelRange,
    Constants,
    NodeWriter,
    is_stepped,
    write_perturbed,
    write_rounded,
    write_shifted,
    write_stepped,
)
from subgraph.graph import protobuf
from subgraph.graph.nested import assign, list_bodies
from subgraph.graph.opsets import STANDARD, find_schema, get_opset
from subgraph.graph.quantization import QUANTIZERS, TFLITE, TFLITE_SHIFT
from subgraph.iterables import flatten, index_by_name
from subgraph.precision import Precision
from subgraph.storage.dtypes import TYPE_NUMBERS, name_of
from subgraph.storage.tensors import parse_type
from subgraph.types import StringMap, Strings, frozen

KEYS = 32  # random factors per float type, of two scalars each; tensors take turns
MARK = ":subcut:"  # in the names of all that is inserted
NEWEST_KNOWN = 18  # opset of the inserted nodes in a cut with nodes of other domains only
STEPPED = ("int8", "uint8")  # types that TensorFlow Lite adds with any scale


@frozen
class Instrumented:
    """The inputs and outputs of an instrumented model in addition to the region's tensors.

    Attributes:
        keys: input of scalars, two for each of `keyed`; "" if `keyed` is empty.
        keyed: (label, float type, or `CODES`) in the order of the keys.
        raw: new name of each input that is perturbed or rounded.
        shifts: input → tensor, of `untied` ones.
        check: output that is finite if all perturbed tensors outside of bodies are; "" without such
            tensors.
        moved: inputs, and weights that became inputs, that are fed with perturbed values.
    """

    keys: str
    keyed: tuple[tuple[str, str], ...]
    raw: StringMap
    shifts: StringMap
    check: str
    moved: Strings = ()


@frozen
class Change:
    """The changes to the tensors of a region.

    Attributes:
        claim: the precision whose rounding is meant.
        rounded: values are rounded to it; else perturbed by one rounding.
        entering: float type of each input and weight to change.
        channels: ranges of the weights that are quantized per channel.
        computed: float type of each tensor to change that a node produces.
        types: of all tensors.
        stepped: integer type of each quantized tensor, some of whose elements are moved by a step.
        untied: shape of each of them whose shift is fed instead.
        certain: those that no choice decides: if one becomes NaN or infinite, the run is void.
    """

    claim: Precision
    rounded: bool
    entering: StringMap
    computed: StringMap
    types: StringMap
    channels: Mapping[str, ChannelRange] = field(default_factory=dict)
    stepped: StringMap = field(default_factory=dict)
    untied: Mapping[str, Sequence[int]] = field(default_factory=dict)
    certain: frozenset[str] = frozenset()


def instrument_model(
    model: ModelProto, sites: RoundingSites, change: Change, outputs: Sequence[str]
) -> Instrumented:
    """Change the model of a cut.

    `sites.exact_reads` read the values without noise.

    Args:
        model: The model, which is changed.
        sites: The places of rounding; the nodes of the model are in the order `sites.order`.
        change: The changes to the tensors.
        outputs: The tensors that the changed model returns.
    """
    if not get_opset(model, 0):
        model.opset_import.add(domain="", version=NEWEST_KNOWN)
    instrumented = _Instrumentation(model, sites, change).run(outputs)
    model.ir_version = max(model.ir_version, 4)  # before 4, every initializer must be an input
    return instrumented


def set_outputs(model: ModelProto, outputs: Sequence[str]) -> None:
    """Let the model return these tensors; the runtime infers their types."""
    assign(model.graph.output, [helper.make_empty_tensor_value_info(n) for n in outputs])
    model.graph.ClearField("quantization_annotation")  # may name tensors that are gone


class _Instrumentation:
    def __init__(self, model: ModelProto, sites: RoundingSites, change: Change) -> None:
        self.model = model
        self.graph = model.graph
        self.sites = sites
        self.change = change
        self.opset = get_opset(model, 0)
        self.constants = Constants(f"{MARK}constant")
        self.raw = {
            name: f"{name}{MARK}raw"
            for name in (*change.entering, *change.computed, *change.stepped)
        }
        # Label and type -> names of its two scalars.
        self.keyed: dict[tuple[str, str], tuple[str, str]] = {}
        self.number = 0  # of tensors perturbed
        # Weights, and what depends on shapes and weights alone.
        self.fixed = {t.name for t in model.graph.initializer}
        self.shifts: dict[str, str] = {}
        # Of the tensors that are to be finite.
        self.sums = NodeWriter(self.constants, self.opset, f"{MARK}check:")

    def run(self, outputs: Sequence[str]) -> Instrumented:
        graph = self.graph
        before = list(
            flatten(self._change(name, dtype) for name, dtype in self.change.entering.items())
        )
        nodes = list(
            flatten(
                self._instrument_node(i, node)
                for i, node in zip(self.sites.order, graph.node, strict=True)
            )
        )
        check = ""  # a sum of sums, which is finite only if all terms are
        checks = []
        if self.sums.nodes:
            check = self.sums("Sum", *(node.output[0] for node in self.sums.nodes))
            checks = self.sums.nodes[-1:]
        weights = {t.name for t in graph.initializer}
        for tensor in graph.initializer:
            tensor.name = self.raw.get(tensor.name, tensor.name)
        # Before IR version 4 weights were inputs as well.
        inputs = [v for v in graph.input if v.name not in weights]
        raw_inputs = {v.name: self.raw[v.name] for v in inputs if v.name in self.raw}
        for value in inputs:
            value.name = self.raw.get(value.name, value.name)
        for name, tensor in self.shifts.items():
            number = TYPE_NUMBERS[find_wider(self.change.computed[tensor])]
            shape = list(self.change.untied[tensor])
            inputs.append(helper.make_tensor_value_info(name, number, shape))
        keys = f"{MARK}keys" if self.keyed else ""
        if keys:
            inputs.append(
                helper.make_tensor_value_info(keys, TYPE_NUMBERS["float32"], [2 * len(self.keyed)])
            )
        # These nodes take the scalars from the input: bodies read them from the graph, too.
        names = list(flatten(self.keyed.values()))
        places = [self.constants.name(place, np.int64) for place in range(len(names))]
        scalars = [
            helper.make_node("Gather", [keys, k], [n], axis=0)
            for k, n in zip(places, names, strict=True)
        ]
        assign(graph.node, [*scalars, *before, *nodes, *checks])
        assign(graph.input, inputs)
        graph.initializer.extend(self.constants.tensors.values())
        set_outputs(self.model, [*outputs, *filter(None, [check])])
        return Instrumented(keys, tuple(self.keyed), raw_inputs, dict(self.shifts), check)

    # --------------------------------------------------------------------------------------------
    # nodes

    def _instrument_node(self, i: int, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a node of the graph, and those that change what it makes."""
        for k, name in enumerate(node.input):
            if (i, k) in self.sites.exact_reads:
                node.input[k] = self.raw.get(name, name)
        self._instrument_bodies(node, self.change.types, self.fixed)
        if is_fixed(node, self.fixed):
            self.fixed.update(node.output)
        replaced = {**self.change.computed, **self.change.stepped}
        computed = [(name, replaced[name]) for name in node.output if name in replaced]
        for k, name in enumerate(node.output):
            node.output[k] = self.raw.get(name, name)
        yield node
        for name, dtype in computed:
            yield from self._change(name, dtype)

    def _instrument_bodies(self, node: NodeProto, types: StringMap, fixed: Collection[str]) -> None:
        """Change values in the bodies of a node; `fixed`: tensors that hold shapes or constants."""
        for body in list_bodies(node) if node.domain in STANDARD else ():
            inside = find_element_types(
                body, types, self.opset, find_body_inputs(node, body, types)
            )
            counters = {v.name for v in body.input[:1]} if node.op_type == "Loop" else set()
            constant = {*fixed, *(t.name for t in body.initializer), *counters}
            nodes = []
            for inner in body.node:
                nodes += self._instrument_inner_node(inner, inside, constant)
            assign(body.node, nodes)

    def _instrument_inner_node(
        self, node: NodeProto, types: dict[str, str], fixed: set[str]
    ) -> list[NodeProto]:
        """Return a node of a body, and those that change what it makes."""
        exact = is_fixed(node, fixed)
        for k in range(len(node.input)) if exact else find_parameter_positions(node):
            node.input[k] = self.raw.get(node.input[k], node.input[k])
        if exact:
            fixed.update(node.output)
            return [node]
        self._instrument_bodies(node, types, fixed)
        nodes = [node]
        quantizes = node.op_type in QUANTIZERS
        for k, dtype in enumerate(
            find_output_types(node, types, self.opset) if quantizes or rounds(node) else ()
        ):
            steps = quantizes and not self.change.rounded and k == 0 and is_stepped(dtype)
            if k < len(node.output) and (name := node.output[k]) and (dtype in FLOATS or steps):
                node.output[k] = raw = f"{name}{MARK}raw"
                nodes += self._write(raw, str(name), dtype)
        return nodes

    def _change(self, name: str, dtype: str) -> list[NodeProto]:
        """Return the nodes that produce a tensor of the graph from its raw value."""
        raw = self.raw[name]
        if name in self.change.untied:
            self.shifts[f"{raw}shift"] = name
            write = self._make_writer(raw)
            write_shifted(write, raw, name, dtype, f"{raw}shift")
            nodes = write.nodes
        else:
            nodes = self._write(raw, name, dtype)
        if name in self.change.certain:
            wide = raw if dtype == "float32" else f"{raw}wide"
            if dtype != "float32":
                nodes.append(helper.make_node("Cast", [raw], [wide], to=TYPE_NUMBERS["float32"]))
            self.sums("ReduceSum", wide, keepdims=0)
            # The sum is right after its tensor: onnxruntime takes five times as long to load 10,000
            # sums at the end of the model.
            nodes.append(self.sums.nodes[-1])
        return nodes

    def _write(self, raw: str, name: str, dtype: str) -> list[NodeProto]:
        claim = self.change.claim
        channels = self.change.channels.get(name)
        write = self._make_writer(raw)
        if dtype not in FLOATS:
            write_stepped(write, raw, name, dtype, self._take_next_key(CODES), self.number)
        elif self.change.rounded:
            write_rounded(write, raw, name, dtype, claim, channels)
        else:
            write_perturbed(write, raw, name, dtype, claim, self._take_next_key(dtype), channels)
        return write.nodes

    def _take_next_key(self, dtype: str) -> tuple[str, str]:
        """Return names of the random factor and the scale that the next tensor takes."""
        label = str(self.number % KEYS)
        self.number += 1
        name = f"{MARK}{dtype}{label}"
        return self.keyed.setdefault((label, dtype), (f"{name}factor", f"{name}scale"))

    def _make_writer(self, raw: str) -> NodeWriter:
        return NodeWriter(self.constants, self.opset, f"{raw}:")

    # --------------------------------------------------------------------------------------------
    # in addition to the tensors


def add_steps(
    model: ModelProto,
    stepped: dict[str, tuple[str, list[int]]],
    outputs: Sequence[str],
    moved: Collection[str] = (),
) -> Instrumented:
    """Change the model of a cut of TensorFlow Lite's operators.

    Args:
        model: The model, which is changed.
        stepped: Type and shape of each tensor to which a subcut operator adds the fed values.
        outputs: The tensors that the model returns afterwards.
        moved: Inputs and weights that are fed with perturbed values.

    Returns:
        The inputs that the model has in addition.
    """
    nodes = []
    shifts = dict[str, str]()
    graph = model.graph
    read = set(flatten(node.input for node in graph.node))
    for node in graph.node:
        node.input[:] = [
            f"{name}{MARK}moved" if name in shifts.values() else name for name in node.input
        ]
        nodes.append(node)
        for name in node.output:
            if name in stepped and name in read:
                shift = f"{name}{MARK}shift"
                shifts[shift] = name
                nodes.append(
                    helper.make_node(
                        TFLITE_SHIFT, [name, shift], [f"{name}{MARK}moved"], domain=TFLITE
                    )
                )
    infos = [
        helper.make_tensor_value_info(s, TYPE_NUMBERS[stepped[n][0]], stepped[n][1])
        for s, n in shifts.items()
    ]
    weights = index_by_name(graph.initializer)
    infos += [
        helper.make_tensor_value_info(n, weights[n].data_type, weights[n].dims)
        for n in moved
        if n in weights
    ]
    assign(graph.initializer, [t for n, t in weights.items() if n not in moved])
    graph.input.extend(infos)
    assign(graph.node, nodes)
    set_outputs(model, outputs)
    return Instrumented("", (), {}, shifts, "", tuple(moved))


# ------------------------------------------------------------ element types
# Element types of the tensors that the nodes of a graph or body produce, by the schemas of their
# operators.
#
# Nothing is run and no shape is inferred: a schema defines which inputs and outputs share a type.
# Nodes without a schema (other domains, calls of local functions) produce tensors of unknown type.

UNKNOWN = ""
# Op -> type of its output if neither an input nor an attribute determines it.
DEFAULTS = {"QuantizeLinear": "uint8", "ConstantOfShape": "float32", "SequenceEmpty": UNKNOWN}
DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
# Position of the first input that becomes the body's input of that position.
FIRST_CARRIED = {
    "Loop": 2,
    "Scan": 0,
}


def find_element_types(
    graph: protobuf.GraphProto,
    outer: StringMap,
    opset: int,
    known: StringMap | None = None,
) -> dict[str, str]:
    """Return the type by name (`float32`) of all tensors of a sorted graph or body, and of `outer`.

    Unknown types and sequences are "". Complexity: linear in the nodes, times the depth to which
    bodies are nested.

    Args:
        graph: The graph or body.
        outer: Types of the tensors of the scopes around it.
        opset: The opset of the model.
        known: Types of tensors that are not declared and that no schema determines.
    """
    known = known or {}
    types = {**outer, **known}
    for value in graph.input:
        if declared := value.type.tensor_type.elem_type:
            types[value.name] = name_of(declared)
    types.update((t.name, name_of(t.data_type)) for t in graph.initializer)
    for node in graph.node:
        made = find_output_types(node, types, opset)
        for k, name in enumerate(node.output):
            types[name] = (made[k] if k < len(made) else UNKNOWN) or known.get(name, UNKNOWN)
    return types


def find_body_inputs(
    node: protobuf.NodeProto, body: protobuf.GraphProto, types: StringMap
) -> StringMap:
    """Return the types of a body's inputs, from the values that the node feeds into it."""
    first = FIRST_CARRIED.get(node.op_type)
    fed = list(node.input)[first:] if first is not None else []
    names = [v.name for v in body.input][first:] if first is not None else []
    return {name: types.get(value, UNKNOWN) for name, value in zip(names, fed, strict=False)}


def find_output_types(node: protobuf.NodeProto, types: StringMap, opset: int) -> list[str]:
    """Return the types of a node's outputs, given those of its inputs."""
    inner = list(list_bodies(node))
    if inner and node.op_type in ("If", "Loop", "Scan"):
        body = inner[0]
        body_types = find_element_types(body, types, opset, find_body_inputs(node, body, types))
        return [body_types.get(v.name, UNKNOWN) for v in body.output][
            1 if node.op_type == "Loop" else 0 :
        ]
    schema = find_schema(node.op_type, opset) if node.domain in STANDARD else None
    if schema is None:
        return []
    # The type variables of the schema, as far as the inputs bind them.
    bound: dict[str, str] = {}
    for k, name in enumerate(node.input):
        variable = _get_formal_type(schema.inputs, k)
        if name and variable and types.get(name):
            bound.setdefault(variable, types[name])
    only = {
        c.type_param_str: c.allowed_type_strs[0]
        for c in schema.type_constraints
        if len(c.allowed_type_strs) == 1
    }
    formal = (_get_formal_type(schema.outputs, k) for k in range(len(node.output)))
    return [_find_output_type(only.get(variable, variable), node, bound) for variable in formal]


def _find_output_type(variable: str, node: protobuf.NodeProto, bound: StringMap) -> str:
    if variable.startswith("tensor("):
        return parse_type(variable)[1]
    for attribute in node.attribute:
        if attribute.name in DTYPE_ATTRIBUTES and attribute.i:
            return name_of(attribute.i)
        if attribute.name == "value" and attribute.HasField("t"):
            return name_of(attribute.t.data_type)
        if attribute.name.startswith("value_"):
            return {"value_f": "float32", "value_i": "int64", "value_s": "string"}.get(
                attribute.name[:7], UNKNOWN
            )
    return bound.get(variable) or DEFAULTS.get(node.op_type, UNKNOWN if bound else "float32")


def _get_formal_type(parameters: Any, position: int) -> str:
    """Return the type, or type variable, of an input or output; the last one repeats.

    Returns "" without parameters.
    """
    if parameters:
        return str(parameters[min(position, len(parameters) - 1)].type_str)
    return ""
