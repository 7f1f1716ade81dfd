"""Nodes kept apart, so that they are not fused: something that changes no bit, on each edge between two of them.

Optimizers remove some of these. Seen behind Pad, Conv and Mul, of four dimensions:

    onnxruntime 1.31.1, all optimizations    Reshape, Unsqueeze with Squeeze, Concat, Max and Sub survive; what it
                                             removes: Identity, Dropout, Expand, Cast there and back, two Transposes,
                                             Pad by nothing, Mul by 1, Sub of 0, Slice of all
    OpenVINO 2026.4.1                        only Max and Sub survive
    MNN 3.6.1                                Identity and Concat do not keep a Conv from the Add behind it

Cheapest first: a Reshape copies nothing in most runtimes, a Sub of zeros reads everything three times.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable

from onnx import NodeProto, TensorProto

from subgraph.rewrites._region_model import (
    FLOATS,
    INTEGERS,
    Form,
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


def _form(words: str, barrier: Barrier, fits: Callable[[RegionModel, str], bool]) -> Form:
    def form(source: RegionModel, node: NodeProto, new: Substitution) -> str:
        edges = [
            n for n in node.output if n in source.inner and source.element(n) and fits(source, n)
        ]
        if not edges:
            return ""
        copied = new.copy(node)
        for k, name in enumerate(node.output):
            if name in edges:
                copied.output[k] = new.name("apart")
                barrier(new, copied.output[k], name, source.element(name))
        return f"{words} behind"

    return form


def _reshape(new: Substitution, x: str, y: str, element: int) -> None:
    new.node("Reshape", [x, new.node("Shape", [x])], y)


def _squeeze(new: Substitution, x: str, y: str, element: int) -> None:
    new.reduce("Squeeze", new.reduce("Unsqueeze", x, [0], keepdims=None), [0], y, keepdims=None)


def _subtract(new: Substitution, x: str, y: str, element: int) -> None:
    new.node("Sub", [x, new.zeros(x, element)], y)


def _cast(new: Substitution, x: str, y: str, element: int) -> None:
    new.node("Cast", [new.node("Cast", [x], to=TensorProto.INT32)], y, to=element)


BARRIERS: tuple[tuple[str, Barrier, Callable[[RegionModel, str], bool]], ...] = (
    ("an Identity", lambda new, x, y, _: new.node("Identity", [x], y), lambda s, n: True),
    ("a Reshape to its own shape", _reshape, lambda s, n: s.rank(n) != 0),
    ("an Unsqueeze and a Squeeze", _squeeze, lambda s, n: s.rank(n) is not None),
    (
        "a Concat of one input",
        lambda new, x, y, _: new.node("Concat", [x], y, axis=0),
        lambda s, n: bool(s.rank(n)),
    ),
    (
        "a Max of twice the same",
        lambda new, x, y, _: new.node("Max", [x, x], y),
        lambda s, n: s.element(n) in NUMBERS,
    ),
    ("a Sub of zeros", _subtract, lambda s, n: s.element(n) in SIGNED),
    ("a Cast to integers and back", _cast, lambda s, n: s.element(n) == TensorProto.BOOL),
)


FORMS = [_form(*barrier) for barrier in BARRIERS]
