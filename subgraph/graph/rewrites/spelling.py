"""Nodes in another spelling: defaults, negative axes, constants, shapes that are broadcast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from subgraph.graph.nested import assign, get_attribute
from subgraph.graph.opsets import STANDARD, find_schema
from subgraph.graph.properties import BROADCASTS, POOLS, WINDOWS
from subgraph.graph.rewrites._region_model import (
    Form,
    RegionModel,
    Substitution,
    copy_without_nodes,
    get_argument,
    restrict_to,
    tidy,
)

COUNTED = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def _broadcast(full: bool) -> Form:
    """Return a form in which constants have the rank of the output, or with `full` its shape."""
    kind = "shape" if full else "rank"
    words = f"a constant of the full {kind} in"

    @restrict_to(*BROADCASTS)
    def form(source: RegionModel, node: NodeProto, new: Substitution) -> str:
        rank = source.rank(node.output[0])
        shape = source.shape(node.output[0]) if full else None
        if rank is None or (full and shape is None):
            return ""
        inputs = list(node.input)
        for k, name in enumerate(node.input):
            value = source.value(name)
            if value is None or (node.op_type == "PRelu" and k == 0):
                continue
            target = shape or [1] * (rank - value.ndim) + list(value.shape)
            if list(value.shape) != target:
                inputs[k] = new.weight(np.broadcast_to(value, target))
        if inputs == list(node.input):
            return ""
        new.copy(node).input[:] = inputs
        return words

    return form


def _rewrite_axes(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    rank = source.rank(
        node.output[0] if node.op_type in ("Unsqueeze", "OneHot") else get_argument(node, 0)
    )
    axes = get_attribute(node, "axes", [])
    if get_attribute(node, "axis") is not None:
        all_axes = [*axes, get_attribute(node, "axis")]
    else:
        all_axes = axes
    if not rank or not all_axes or max(all_axes) >= rank or node.domain not in STANDARD:
        return ""
    copied = new.copy(node)
    for a in copied.attribute:
        if a.name == "axis":
            a.i += rank if a.i < 0 else -rank
        if a.name == "axes":
            a.ints[:] = [axis + (rank if axis < 0 else -rank) for axis in a.ints]
    return "axes counted from the other end in"


def _write(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    defined = find_schema(node.op_type, source.opset, node.domain)
    present = {a.name for a in node.attribute}
    values = [a.default_value for a in defined.attributes.values()] if defined is not None else []
    missing = [v for v in values if v.name and v.name not in present]
    window = _list_window_defaults(source, node).items()
    missing += [helper.make_attribute(name, v) for name, v in window if name not in present]
    if not missing:
        return ""
    assign(new.copy(node).attribute, [*node.attribute, *missing])
    return "default attributes written out in"


@restrict_to("Pad")
def _fill(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    """Write out the default value of the padding, which is an attribute before opset 11."""
    element = source.element(node.input[0])
    is_constant = get_attribute(node, "mode", "constant") == "constant"
    if new.opset < 11 or not element or not is_constant or get_argument(node, 2):
        return ""
    axes = [get_argument(node, 3)] if get_argument(node, 3) else []
    new.copy(node).input[:] = [*node.input[:2], new.weight(0, element), *axes]
    return "the default value written out in"


def _list_window_defaults(source: RegionModel, node: NodeProto) -> dict[str, list[int]]:
    """List the attributes of a convolution or a pooling whose defaults depend on its rank."""
    if node.op_type not in ("Conv", *(WINDOWS & POOLS)) or node.domain not in STANDARD:
        return {}
    kernel = get_attribute(node, "kernel_shape") or (source.shape(get_argument(node, 1)) or [])[2:]
    ones = [1] * len(kernel)
    known = {"kernel_shape": list(kernel)} if kernel else {}
    if kernel and get_attribute(node, "auto_pad", "NOTSET") == "NOTSET":
        known["pads"] = [0] * 2 * len(kernel)
    allowed = find_schema(node.op_type, source.opset).attributes
    return known | {name: ones for name in ("strides", "dilations") if kernel and name in allowed}


def _omit_defaults(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    defined = find_schema(node.op_type, source.opset, node.domain)
    if defined is None:
        return ""
    defaults = {
        a.name: a.default_value for a in defined.attributes.values() if a.default_value.name
    }
    value = helper.get_attribute_value
    kept = [
        a for a in node.attribute if a.name not in defaults or value(a) != value(defaults[a.name])
    ]
    if len(kept) == len(node.attribute):
        return ""
    assign(new.copy(node).attribute, kept)
    return "default attributes left out of"


def rewrite(source: RegionModel) -> Iterator[tuple[str, ModelProto]]:
    """Yield forms with constants in other places, and with constants that no optimizer can know."""
    inputs = {v.name for v in source.model.graph.input}
    weights = [t for t in source.model.graph.initializer if t.name not in inputs]
    if weights:
        variant = copy_without_nodes(source)
        assign(
            variant.graph.initializer, [t for t in variant.graph.initializer if t.name in inputs]
        )
        for t in weights:
            node = helper.make_node("Constant", [], [t.name], f"rewritten/{t.name}", value=t)
            variant.graph.node.append(node)
        variant.graph.node.extend(source.nodes)
        yield "initializers as Constant nodes", tidy(variant)
    constants = [
        n for n in source.nodes if n.op_type == "Constant" and n.output[0] in source.constants
    ]
    if constants:
        variant = copy_without_nodes(source)
        variant.graph.node.extend(n for n in source.nodes if n not in constants)
        for node in constants:
            variant.graph.initializer.add().CopyFrom(source.constants[node.output[0]])
            variant.graph.initializer[-1].name = node.output[0]
        yield "Constant nodes as initializers", tidy(variant)
    yield from _compute(source)


def _compute(source: RegionModel) -> Iterator[tuple[str, ModelProto]]:
    """Yield a form with floating constants from a Where, so that none can be folded."""
    names = [n for n in source.constants if source.element(n) in COUNTED and n in source.readers]
    new = Substitution(source)
    if not names or not new.never() or new.opset < 9:
        return
    computed = {name: new.always(name, new.other(source.element(name))) for name in names}
    for i, node in enumerate(source.nodes):
        if computed.keys() & set(node.input):
            new.move_to(i)
            new.copy(node).input[:] = [computed.get(name, name) for name in node.input]
    yield "floating constants computed at run time, so that nothing is folded", new.model()


FORMS = [
    _broadcast(full=False),
    _broadcast(full=True),
    _rewrite_axes,
    _write,
    _fill,
    _omit_defaults,
]
