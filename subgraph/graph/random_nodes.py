"""Nodes that draw random numbers: random operators, and Dropout in training mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from subgraph.graph.nested import (
    BODILESS,
    FunctionKey,
    find_called,
    get_constant_value,
    list_bodies,
)
from subgraph.graph.opsets import STANDARD
from subgraph.graph.properties import RANDOM_OPS
from subgraph.iterables import index_by_name, invert
from subgraph.types import JsonObject

if TYPE_CHECKING:
    from subgraph.graph.protobuf import NodeProto, TensorProto

ConstantLookup = Callable[[str], Any]  # tensor name → its TensorProto; None if it is computed


def find_random_nodes(
    nodes: Sequence[NodeProto], functions: Mapping[FunctionKey, Any], constant_of: ConstantLookup
) -> set[int]:
    """Find the nodes of a graph that draw random numbers.

    Args:
        nodes: The nodes of the graph.
        functions: The local functions that they can call.
        constant_of: Returns a constant of the graph.
    """
    certain = BODILESS - RANDOM_OPS - {"Dropout", *(name for _, name, _ in functions)}
    drawing = {
        key
        for key, f in functions.items()
        if _has_draw(f.node, _make_lookup(f.node, (), lambda name: None))
    }
    doubtful = [i for i, node in enumerate(nodes) if node.op_type not in certain]
    return {
        i
        for i in doubtful
        if _has_draw([nodes[i]], constant_of)
        or (drawing and drawing & find_called([nodes[i]], functions))
    }


def _has_draw(nodes: Iterable[NodeProto], constant_of: ConstantLookup) -> bool:
    """Return whether a node, or a node in its bodies, draws random numbers.

    Args:
        nodes: The nodes.
        constant_of: Returns a constant in the scope of the nodes.
    """
    for node in nodes:
        if node.domain in STANDARD and (
            node.op_type in RANDOM_OPS or _is_training(node, constant_of)
        ):
            return True
        if any(
            _has_draw(body.node, _make_lookup(body.node, body.initializer, constant_of))
            for body in list_bodies(node)
        ):
            return True
    return False


def _is_training(node: NodeProto, constant_of: ConstantLookup) -> bool:
    """Return whether a Dropout can be in training mode: its third input is true or computed."""
    name = node.input[2] if node.op_type == "Dropout" and len(node.input) > 2 else ""
    if not name:
        return False
    mode = constant_of(name)
    return mode is None or any(mode.raw_data) or any(mode.int32_data)


def _make_lookup(
    nodes: Iterable[NodeProto],
    weights: Iterable[TensorProto],
    outer: ConstantLookup,
) -> ConstantLookup:
    """Return the lookup of constants in a body or function, whose names shadow those around it."""
    own: JsonObject = invert((get_constant_value(n), n.output) for n in nodes)
    own |= index_by_name(weights)
    return lambda name: own[name] if name in own else outer(name)
