"""A graph -> the network that is drawn, and the texts in and next to the boxes of its nodes.

These are names, tensors, their types as text, the scopes of PyTorch's exporter, and small weights.

Symbolic sizes, such as onnx infers them, are written in the few characters that a table has:
`floor(floor(height/2 - 1/2)/2) + 1` is a quarter of `height`, rounded: `height/4`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from subgraph.bodies.model import Part
from subgraph.drawing.level import Inner
from subgraph.drawing.network import Network
from subgraph.errors import InputError, ModelError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.value_types import find_declared_types, read_type
from subgraph.iterables import drop_repeats, flatten
from subgraph.origins.source import SCOPE_NAMES, parse_texts
from subgraph.storage import dtypes
from subgraph.storage.tensors import format_shape
from subgraph.types import Strings

MAX_SIZE = 16  # characters of a size that is shown as it is
END_CHARACTERS = 6  # characters at the end of a longer name that are shown
MAX_EXPRESSION = 1000  # characters of an expression that is parsed
LARGE_SIZE = 720_720 << 20  # divisible by the usual divisors of sizes in networks
MAX_FACTOR = 4096
UNKNOWN = "…"
_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
}
_FUNCTIONS: Mapping[str, Callable[..., Fraction]] = {
    "floor": lambda x: Fraction(math.floor(x)),
    "ceiling": lambda x: Fraction(math.ceil(x)),
    "ceil": lambda x: Fraction(math.ceil(x)),
    "Max": max,
    "Min": min,
}
MAX_NOTES = 3  # weights that are named in a box


def make_network(graph: Graph, prefix: str = "", sizes: Mapping[str, int] | None = None) -> Network:
    """Return what a drawing shows of a model; bodies of If, Loop and Scan count to their node.

    Args:
        graph: The model.
        prefix: The start of its nodes' names, which is omitted.
        sizes: The sizes of symbols in shapes, as far as they are known.
    """
    types = find_declared_types(graph)
    is_named = any("/" in name for name in graph.node_names)
    scopes = [] if is_named else list(map(_get_scope, graph.nodes))
    return Network(
        names=[name.removeprefix(prefix) for name in graph.node_names],
        ops=graph.ops,
        reads=graph.reads,
        makes=graph.makes,
        inputs=tuple(graph.inputs),
        outputs=tuple(graph.outputs),
        types={name: format_type(proto, sizes or {}) for name, proto in types.items()},
        scopes=scopes if any(scopes) else (),
    )


def make_labeled_network(graph: Graph) -> Network:
    """Return the drawn network with each node by its label, without weights, for a document."""
    network = make_network(graph)
    drawn = {*network.inputs, *flatten(network.makes)}
    return replace(
        network,
        names=[graph.label(i) for i in range(len(graph.nodes))],
        reads=[[name for name in row if name in drawn] for row in network.reads],
    )


def make_inner_networks(part: Part) -> dict[int, list[Inner]]:
    """Return the drawn bodies of a part's nodes, by the nodes' indices."""
    return {
        i: [
            Inner(
                found.word,
                found.prefix.removeprefix(part.prefix),
                found.first - part.first,
                found.size,
                make_network(found.graph, found.prefix),
                make_inner_networks(found),
                format_weight_notes(found.graph),
            )
            for found in row
        ]
        for i, row in part.inside.items()
    }


def format_type(proto: protobuf.TypeProto, sizes: Mapping[str, int]) -> str:
    """Return a type as `float32 1×3×?`: a dimension that is computed, or has a generated name, is
    unknown unless the sizes give it."""
    try:
        declared = read_type(proto)
    except InputError:
        return str(proto.WhichOneof("value") or "")
    dims = declared.known_dims
    if dims is None:
        return declared.text
    shape = replace_known_dims(dims, sizes)
    shape = [None if isinstance(d, str) and not d.isidentifier() else d for d in shape]
    return f"{declared.text} {format_shape(shape)}"


def _get_scope(node: protobuf.NodeProto) -> Strings:
    text = next((p.value for p in node.metadata_props if p.key == SCOPE_NAMES), "")
    scopes = []
    before = ""
    # Each begins with the one around it: "", "layer1", "layer1.0"
    for part in parse_texts(text)[:-1]:
        scopes.append(part.removeprefix(f"{before}.") if before else part)
        before = part
    return tuple(filter(None, scopes))


@lru_cache(maxsize=4096)
def shorten_size(size: str) -> str:
    """Return a symbolic size in a few characters.

    A long one is written as a multiple or part of its only symbol, without what is added or
    rounded, a long name by its end; one that has several symbols, or cannot be read, as an
    ellipsis.

    >>> shorten_size("floor(floor(height/2 - 1/2)/2) + 1")
    'height/4'
    >>> shorten_size("p2o.DynamicDimension.1")
    '…sion.1'
    >>> shorten_size("floor(height/2)*floor(width/2) + height*width")
    '…'
    """
    if len(size) <= MAX_SIZE:
        return size
    if len(size) > MAX_EXPRESSION:
        return UNKNOWN
    if size.replace(".", "_").isidentifier():
        return UNKNOWN + size[-END_CHARACTERS:]
    try:
        tree = ast.parse(size, mode="eval").body
        (symbol,) = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - _FUNCTIONS.keys()
        share = _compute_value(tree, {symbol: LARGE_SIZE}) / LARGE_SIZE
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, TypeError):
        return UNKNOWN
    nearest = share.limit_denominator(MAX_FACTOR)
    if not 0 < nearest <= MAX_FACTOR or abs(share - nearest) >= Fraction(1, 1 << 20):
        return UNKNOWN
    factor = "" if nearest.numerator == 1 else f"{nearest.numerator}·"
    divisor = "" if nearest.denominator == 1 else f"/{nearest.denominator}"
    return f"{factor}{symbol}{divisor}"


def replace_known_dims(dims: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
    """Return dimensions with numbers instead of expressions whose symbols have a size.

    >>> replace_known_dims(["floor(height/2)", "dim.1", "width"], {"height": 33, "dim.1": 3})
    [16, 3, 'width']
    """
    return [_evaluate(dim, sizes) if isinstance(dim, str) and sizes else dim for dim in dims]


def _evaluate(size: str, sizes: Mapping[str, int]) -> int | str:
    if size in sizes or len(size) > MAX_EXPRESSION:
        return sizes.get(size, size)
    try:
        return int(_compute_value(ast.parse(size, mode="eval").body, sizes))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, TypeError):
        return size


def _compute_value(tree: ast.expr, sizes: Mapping[str, int]) -> Fraction:
    """Return the value of an expression.

    Raises:
        ValueError: it holds something else than numbers, symbols with a size and known functions.
    """
    match tree:
        case ast.Constant(value=int() | float() as number):
            return Fraction(number)
        case ast.Name(id=name) if name in sizes:
            return Fraction(sizes[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_compute_value(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_compute_value(left, sizes), _compute_value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_compute_value(argument, sizes) for argument in given))
    raise ValueError(ast.dump(tree))


def format_weight_notes(graph: Graph) -> dict[int, str]:
    """Return the weights of each node in a few words: shapes, and constants of one element.

    `⟨64×3×7×7⟩ ⟨64⟩`, `1.41421`, `0, 6`; nodes without weights are omitted.
    """
    texts = {}
    for i, reads in enumerate(graph.reads):
        tensors = filter(None, map(graph.constant, reads))
        notes = drop_repeats(filter(None, (_note(graph, tensor) for tensor in tensors)))
        if notes:
            notes[MAX_NOTES:] = ["…"] if len(notes) > MAX_NOTES else []
            texts[i] = ", ".join(notes)
    return texts


def _note(graph: Graph, tensor: protobuf.TensorProto) -> str:
    """Return the shape of a constant, or its value if it has one element; "" without its bytes."""
    if math.prod(tensor.dims) != 1:
        return f"⟨{format_shape(tuple(tensor.dims))}⟩"
    if not dtypes.count_number_bits(tensor.data_type):
        return ""
    try:
        value = protobuf.to_array(tensor, graph.path).reshape(-1)[0].item()
    except (ModelError, OSError, ValueError, TypeError):  # `inspection.validate` reports why
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, (float, int)):
        return f"{value:.6g}"
    return ""
