"""Barriers: something that changes no bit, on an edge between two nodes.

Optimizers remove some of these. Seen behind Pad, Conv and Mul, of four dimensions:

    onnxruntime 1.31.1, all optimizations    Reshape, Max and Sub survive; what it removes: Identity, Dropout, Expand,
                                             Cast there and back, two Transposes, Pad by nothing, Mul by 1, Sub of 0,
                                             Slice of all
    OpenVINO 2026.4.1                        only Max and Sub survive
    MNN 3.6.1                                Identity and Concat do not keep a Conv from the Add behind it

A Where, whose condition is computed from an input and never holds, survives in onnxruntime and OpenVINO at all levels.
OpenVINO compiles it together with elementwise neighbors, and keeps these from a Conv or a MatMul.

Cheapest first: a Reshape copies nothing in most runtimes, a Sub of zeros reads everything three times.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from subgraph.rewrites._region_model import (
    FLOATS,
    INTEGERS,
    RegionModel,
    Substitution,
)

NUMBERS = (*FLOATS, *INTEGERS)
SIGNED = (
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.INT32,
    TensorProto.INT64,
)

Barrier = Callable[
    [Substitution, str, str, int], object
]  # between two tensors of this element type


def _reshape(new: Substitution, x: str, y: str, element: int) -> None:
    new.node("Reshape", [x, new.node("Shape", [x])], y)


def _subtract(new: Substitution, x: str, y: str, element: int) -> None:
    new.node("Sub", [x, new.zeros(x, element)], y)


def _where(new: Substitution, x: str, y: str, element: int) -> None:
    new.always(x, new.other(element), y)


def _takes_where(source: RegionModel, name: str) -> bool:
    is_number = source.element(name) in NUMBERS
    return is_number and source.opset >= 9 and bool(Substitution(source).never())


def _cast(new: Substitution, x: str, y: str, element: int) -> None:
    new.node("Cast", [new.node("Cast", [x], to=TensorProto.INT32)], y, to=element)


BARRIERS: tuple[tuple[str, Barrier, Callable[[RegionModel, str], bool]], ...] = (
    ("an Identity", lambda new, x, y, _: new.node("Identity", [x], y), lambda s, n: True),
    ("a Reshape to its own shape", _reshape, lambda s, n: s.rank(n) != 0),
    (
        "a Max of twice the same",
        lambda new, x, y, _: new.node("Max", [x, x], y),
        lambda s, n: s.element(n) in NUMBERS,
    ),
    ("a Sub of zeros", _subtract, lambda s, n: s.element(n) in SIGNED),
    ("a Cast to integers and back", _cast, lambda s, n: s.element(n) == TensorProto.BOOL),
    ("a Where that always takes it", _where, _takes_where),
)
STRONGEST = BARRIERS[:0:-1]  # those that most optimizers keep first; none keeps an Identity
