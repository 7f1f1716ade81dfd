"""Nodes kept apart, so that they are not fused: something that changes no bit, on each edge between two of them.

Optimizers remove some of these. Seen behind Pad, Conv and Mul, of four dimensions:

    onnxruntime 1.31.1, all optimizations    Reshape, Max and Sub survive; what it removes: Identity, Dropout, Expand,
                                             Cast there and back, two Transposes, Pad by nothing, Mul by 1, Sub of 0,
                                             Slice of all
    OpenVINO 2026.4.1                        only Max and Sub survive
    MNN 3.6.1                                Identity and Concat do not keep a Conv from the Add behind it

A Where, whose condition is computed from an input and never holds, survives in both at all levels.
OpenVINO compiles it together with elementwise neighbors, and keeps these from a Conv or a MatMul.

Cheapest first: a Reshape copies nothing in most runtimes, a Sub of zeros reads everything three times.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable

from onnx import NodeProto

from subgraph.rewrites._barriers import BARRIERS, Barrier
from subgraph.rewrites._region_model import Form, RegionModel, Substitution


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


FORMS = [_form(*barrier) for barrier in BARRIERS]
