"""A Loop or Scan as a model of its own that ends earlier: what it leaves is what the next iteration begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from subgraph.bodies.model import Body
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.graph.cut import build_model
from subgraph.graph.types import set_tensor
from subgraph.graph.walk import assign

TRIPS, RAN, ZERO, ONE = "subcut:trips", "subcut:ran", "subcut:zero", "subcut:one"  # ':' keeps them apart from users'
INT64 = 7


def truncated_loop(
    body: Body, types: Mapping[str, protobuf.TypeProto], trips: int | None = None
) -> protobuf.ModelProto:
    """The Loop alone, which may run at most `trips` times, or as often as its input `TRIPS` says.

    Its outputs are `RAN`, how often it did, and its states, called as by `state_name`; with `trips` also what it
    collects. `types`: of the inputs, which are called as in the graph.
    """
    graph, i = body.graph, body.name.node
    region = regions.of_nodes(graph, [i])
    model, _ = build_model(graph, region, list(types), [], types, {})
    node = next(n for n in model.graph.node if list(n.output) == list(graph.nodes[i].output))
    states = len(body.formals) - 2
    if trips is None:
        set_tensor(model.graph.input.add(name=TRIPS).type, INT64, ())
    else:
        _add_scalar(model.graph, TRIPS, trips)
    for name, number in ((ZERO, 0), (ONE, 1)):
        _add_scalar(model.graph, name, number)
    inside = next(a.g for a in node.attribute if a.name == body.name.attribute)
    node.input[:] = [TRIPS, node.input[1], ZERO, *node.input[2:]]
    set_tensor(inside.input.add(name=f"{RAN}:in").type, INT64, ())
    _reorder(inside.input, 2)
    inside.node.add(op_type="Add", input=[f"{RAN}:in", ONE], output=[f"{RAN}:out"])
    set_tensor(inside.output.add(name=f"{RAN}:out").type, INT64, ())
    _reorder(inside.output, 1)
    collected = list(node.output)[states:]
    node.output[:] = [RAN, *map(state_name, range(states)), *collected]
    set_tensor(model.graph.output.add(name=RAN).type, INT64, ())
    shown = [n for n in collected if n and trips is not None]
    for name in (*map(state_name, range(states)), *shown):
        model.graph.output.add(name=name)
    return model


def scan_states(
    body: Body,
    types: Mapping[str, protobuf.TypeProto],
    slices: Sequence[protobuf.TypeProto],
    *,
    collects: bool = False,
) -> protobuf.ModelProto:
    """The Scan alone, whose outputs are its states, called as by `state_name`, and if asked for what it collects.

    What it scans are inputs of their own after the others, of the types `slices`, called as by `slices_name`: the same
    tensor may be read whole by the body, scanned in both directions, or be a weight.
    """
    graph, i = body.graph, body.name.node
    region = regions.of_nodes(graph, [i])
    model, _ = build_model(graph, region, list(types), [], types, {})
    node = next(n for n in model.graph.node if list(n.output) == list(graph.nodes[i].output))
    states = len(node.input) - len(slices)
    node.input[states:] = map(slices_name, range(len(slices)))
    for name, proto in zip(node.input[states:], slices, strict=True):
        model.graph.input.add(name=name).type.MergeFromString(proto.SerializeToString())
    node.output[:] = [
        *map(state_name, range(states)),
        *(n or f"subcut:{k}" for k, n in enumerate(node.output[states:])),
    ]
    for name in node.output if collects else node.output[:states]:
        model.graph.output.add(name=name)
    return model


def _add_scalar(graph: protobuf.GraphProto, name: str, value: int) -> None:
    graph.initializer.add(name=name, data_type=INT64, int64_data=[value])


def _reorder(items: Any, position: int) -> None:
    """Move the last item to this position."""
    kept = list(items)
    kept.insert(position, kept.pop())
    assign(items, kept)


def state_name(k: int) -> str:
    """What the k-th state is called among the outputs."""
    return f"subcut:state{k}"


def slices_name(k: int) -> str:
    """What the k-th tensor that is scanned is called among the inputs."""
    return f"subcut:slices{k}"
