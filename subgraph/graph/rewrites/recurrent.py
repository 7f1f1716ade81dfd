"""A backward LSTM, GRU or RNN as a forward one on the reversed sequence; both ways as two."""

from __future__ import annotations

from onnx import NodeProto

from subgraph.graph.nested import assign, get_attribute
from subgraph.graph.rewrites._region_model import (
    RegionModel,
    Substitution,
    get_argument,
    restrict_to,
)

ACTIVATIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}  # per direction
# Inputs whose first axis is the direction: W, R, B, initial_h, initial_c, P.
PER_DIRECTION = (
    1,
    2,
    3,
    5,
    6,
    7,
)


def _fits(node: NodeProto, new: Substitution, direction: str) -> bool:
    """Return whether a node runs in a direction, on sequences of one length, in the layout
    (sequence, direction, batch, hidden)."""
    has_layout = not get_argument(node, 4) and not get_attribute(node, "layout", 0)
    return new.opset >= 13 and has_layout and get_attribute(node, "direction") == direction


@restrict_to(*ACTIVATIONS)
def _rewrite_forward(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    if not _fits(node, new, "reverse"):
        return ""
    _run(node, new, list(node.input), list(node.output), 0, reverse=True)
    return "forwards, on the reversed sequence, not backwards:"


@restrict_to(*ACTIVATIONS)
def _rewrite_one_way_each(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    if not _fits(node, new, "bidirectional"):
        return ""
    outputs_by_way = []
    for k in (0, 1):
        inputs = [
            _write_half(source, new, n, k) if n and i in PER_DIRECTION else n
            for i, n in enumerate(node.input)
        ]
        outputs = [new.name(f"way{k}") if name else "" for name in node.output]
        _run(node, new, inputs, outputs, k, reverse=bool(k))
        outputs_by_way.append(outputs)
    for i, (forward, backward) in enumerate(zip(*outputs_by_way, strict=True)):
        if forward:
            new.node("Concat", [forward, backward], node.output[i], axis=0 if i else 1)
    return "two that run forwards, one on the reversed sequence, instead of"


def _write_half(source: RegionModel, new: Substitution, name: str, k: int) -> str:
    value = source.value(name)
    if value is not None:
        return new.weight(value[k : k + 1])
    return new.node("Slice", [name, *[new.integers([n]) for n in (k, k + 1, 0)]])


def _run(
    node: NodeProto,
    new: Substitution,
    inputs: list[str],
    outputs: list[str],
    k: int,
    *,
    reverse: bool,
) -> None:
    """Write the k-th direction as a node that runs forwards."""
    x = _reverse(new, inputs[0], "") if reverse else inputs[0]
    copied = new.copy(node)
    copied.name = new.name(f"{node.op_type}_node")
    copied.input[:] = [x, *inputs[1:]]
    copied.output[:] = outputs
    count = ACTIVATIONS[node.op_type]
    assign(copied.attribute, [a for a in node.attribute if a.name != "direction"])
    for a in copied.attribute:
        for values in (a.strings, a.floats) if a.name.startswith("activation") else ():
            if len(values) == 2 * count:
                values[:] = values[k * count : (k + 1) * count]
    if reverse and outputs[0]:
        copied.output[0] = new.name("forwards")
        _reverse(new, copied.output[0], outputs[0])


def _reverse(new: Substitution, x: str, output: str) -> str:
    """Reverse a tensor along axis 0."""
    bounds = [new.integers([n]) for n in (-1, -(2**31), 0, -1)]  # begin, end, axis, step
    return new.node("Slice", [x, *bounds], output)


FORMS = [_rewrite_forward, _rewrite_one_way_each]
