"""Element types of the tensors that the nodes of a graph or body make, by the schemas of their
operators.

Nothing is run and no shape is inferred: a schema says which inputs and outputs share a type. Nodes
without a schema (other domains, calls of local functions) make tensors of unknown type.
"""

from __future__ import annotations

from typing import Any

from subgraph.graph import protobuf
from subgraph.graph.nested import bodies
from subgraph.graph.opsets import STANDARD, schema
from subgraph.storage.dtypes import name_of
from subgraph.storage.tensors import parse_type
from subgraph.types import StringMap

UNKNOWN = ""
# Op -> type of its output if neither an input nor an attribute says it.
DEFAULTS = {"QuantizeLinear": "uint8", "ConstantOfShape": "float32", "SequenceEmpty": UNKNOWN}
DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
FIRST_CARRIED = {
    "Loop": 2,
    "Scan": 0,
}  # position of the first input that becomes the body's input of that position


def element_types(
    graph: protobuf.GraphProto,
    outer: StringMap,
    opset: int,
    known: StringMap | None = None,
) -> dict[str, str]:
    """Type by name (`float32`) of all tensors of a sorted graph or body, and those of the scopes
    around it (`outer`).

    `known`: types of tensors that are not declared and that no schema gives. Unknown types and
    sequences are "". Complexity: linear in the nodes, times the depth to which bodies are nested.
    """
    known = known or {}
    types = {**outer, **known}
    for value in graph.input:
        if declared := value.type.tensor_type.elem_type:
            types[value.name] = name_of(declared)
    types.update((t.name, name_of(t.data_type)) for t in graph.initializer)
    for node in graph.node:
        made = output_types(node, types, opset)
        for k, name in enumerate(node.output):
            types[name] = (made[k] if k < len(made) else UNKNOWN) or known.get(name, UNKNOWN)
    return types


def body_inputs(
    node: protobuf.NodeProto, body: protobuf.GraphProto, types: StringMap
) -> dict[str, str]:
    """Types of a body's inputs, from the values that the node feeds into it."""
    first = FIRST_CARRIED.get(node.op_type)
    fed = list(node.input)[first:] if first is not None else []
    names = [v.name for v in body.input][first:] if first is not None else []
    return {name: types.get(value, UNKNOWN) for name, value in zip(names, fed, strict=False)}


def output_types(node: protobuf.NodeProto, types: StringMap, opset: int) -> list[str]:
    """Types of a node's outputs, given those of its inputs."""
    inner = list(bodies(node))
    if inner and node.op_type in ("If", "Loop", "Scan"):
        body = inner[0]
        found = element_types(body, types, opset, body_inputs(node, body, types))
        return [found.get(v.name, UNKNOWN) for v in body.output][
            1 if node.op_type == "Loop" else 0 :
        ]
    known = schema(node.op_type, opset) if node.domain in STANDARD else None
    if known is None:
        return []
    bound = _bound_types(known, node, types)
    only = {
        c.type_param_str: c.allowed_type_strs[0]
        for c in known.type_constraints
        if len(c.allowed_type_strs) == 1
    }
    formal = (_formal(known.outputs, k) for k in range(len(node.output)))
    return [_output_type(only.get(variable, variable), node, bound) for variable in formal]


def _bound_types(known: Any, node: protobuf.NodeProto, types: StringMap) -> dict[str, str]:
    """The schema's type variables, as far as the inputs bind them."""
    bound: dict[str, str] = {}
    for k, name in enumerate(node.input):
        variable = _formal(known.inputs, k)
        if name and variable and types.get(name):
            bound.setdefault(variable, types[name])
    return bound


def _output_type(variable: str, node: protobuf.NodeProto, bound: StringMap) -> str:
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


def _formal(parameters: Any, position: int) -> str:
    """The type, or type variable, of an input or output; the last one repeats. Empty if there is
    none."""
    return str(parameters[min(position, len(parameters) - 1)].type_str) if parameters else ""
