"""A Loop or Scan as a model that ends after a given iteration and outputs the state at that point.

A Loop that counts its iterations is another model, because the counter needs an Add of int64, which
a candidate may lack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from subgraph.bodies.model import Body
from subgraph.graph import region as regions
from subgraph.graph.cut import build_model
from subgraph.graph.nested import assign
from subgraph.graph.value_types import set_tensor

if TYPE_CHECKING:
    from subgraph.graph.protobuf import GraphProto, ModelProto, NodeProto, TypeProto

# A ':' distinguishes these names from those of the user's tensors.
TRIPS = "subcut:trips"
RAN = "subcut:ran"
FIRST = "subcut:first"
ONE = "subcut:one"
INT64 = 7
# The first value of a candidate's counter. If the candidate scales this output, the result is not a
# possible number of iterations.
COUNTER_START = 1_000_000


def truncate_loop(body: Body, types: Mapping[str, TypeProto], trips: int) -> ModelProto:
    """Return a model of the Loop alone, which runs at most `trips` iterations.

    Its outputs are the states, named by `make_state_name`, and the scan outputs. The model has no
    other operator: a candidate may lack int64 operators.

    Args:
        body: The body of the Loop.
        types: The type of each input, by its name in the full model.
        trips: The largest number of iterations.
    """
    model, node = _make_node_model(body, types)
    _add_scalar(model.graph, TRIPS, trips)
    node.input[0] = TRIPS
    states = len(body.formals) - 2
    node.output[:] = [*map(make_state_name, range(states)), *node.output[states:]]
    for name in filter(None, node.output):
        model.graph.output.add(name=name)
    return model


def make_counting_loop(
    body: Body, types: Mapping[str, TypeProto], *, truncated: bool = False
) -> ModelProto:
    """Return a model of the Loop alone, with `COUNTER_START` plus its iterations as output `RAN`.

    Args:
        body: The body of the Loop.
        types: The type of each input, by its name in the full model.
        truncated: Whether the model counts from 0, has an input `TRIPS` for the largest number of
            iterations, and also outputs the states.
    """
    model, node = _make_node_model(body, types)
    states = len(body.formals) - 2
    for name, number in ((FIRST, 0 if truncated else COUNTER_START), (ONE, 1)):
        _add_scalar(model.graph, name, number)
    inside = next(a.g for a in node.attribute if a.name == body.name.attribute)
    set_tensor(inside.input.add(name=f"{RAN}:in").type, INT64, ())
    _reorder(inside.input, 2)
    inside.node.add(op_type="Add", input=[f"{RAN}:in", ONE], output=[f"{RAN}:out"])
    set_tensor(inside.output.add(name=f"{RAN}:out").type, INT64, ())
    _reorder(inside.output, 1)
    node.input[:] = [*node.input[:2], FIRST, *node.input[2:]]
    node.output[:] = [RAN, *map(make_state_name, range(states)), *node.output[states:]]
    set_tensor(model.graph.output.add(name=RAN).type, INT64, ())
    if truncated:
        set_tensor(model.graph.input.add(name=TRIPS).type, INT64, ())
        node.input[0] = TRIPS
        for name in map(make_state_name, range(states)):
            model.graph.output.add(name=name)
    return model


def _make_node_model(body: Body, types: Mapping[str, TypeProto]) -> tuple[ModelProto, NodeProto]:
    """Return a model of the node that has the body, without outputs, and that node in the model."""
    graph = body.graph
    i = body.name.node
    model, _ = build_model(graph, regions.build_region(graph, [i]), list(types), [], types, {})
    return model, next(n for n in model.graph.node if list(n.output) == list(graph.nodes[i].output))


def scan_states(
    body: Body,
    types: Mapping[str, TypeProto],
    slices: Sequence[TypeProto],
    *,
    collects: bool = False,
) -> ModelProto:
    """Return a model of the Scan alone, with the states as outputs, named by `make_state_name`.

    Each scanned tensor is a separate input, named by `make_slices_name`. The tensor itself may be a
    weight, the body may also read all of it, or the Scan may scan it in both directions.

    Args:
        body: The body of the Scan.
        types: The types of the other inputs, by name.
        slices: The types of the scanned tensors.
        collects: Whether the model also has the scan outputs.
    """
    model, node = _make_node_model(body, types)
    states = len(node.input) - len(slices)
    node.input[states:] = map(make_slices_name, range(len(slices)))
    for name, proto in zip(node.input[states:], slices, strict=True):
        model.graph.input.add(name=name).type.MergeFromString(proto.SerializeToString())
    node.output[:] = [
        *map(make_state_name, range(states)),
        *(n or f"subcut:{k}" for k, n in enumerate(node.output[states:])),
    ]
    for name in node.output if collects else node.output[:states]:
        model.graph.output.add(name=name)
    return model


def _add_scalar(graph: GraphProto, name: str, value: int) -> None:
    graph.initializer.add(name=name, data_type=INT64, int64_data=[value])


def _reorder(items: Any, position: int) -> None:
    """Move the last item to this position."""
    kept = list(items)
    kept.insert(position, kept.pop())
    assign(items, kept)


def make_state_name(k: int) -> str:
    """Return the name of the k-th state among the outputs."""
    return f"subcut:state{k}"


def make_slices_name(k: int) -> str:
    """Return the name of the k-th scanned tensor among the inputs."""
    return f"subcut:slices{k}"
