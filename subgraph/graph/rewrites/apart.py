"""Nodes kept apart, so that they are not fused: barriers that change no bit, on the edges."""

from __future__ import annotations

from collections.abc import Callable

from onnx import NodeProto

from subgraph.graph.rewrites._full_model import BARRIERS, Barrier
from subgraph.graph.rewrites._region_model import Form, RegionModel, Substitution


def _make_form(words: str, barrier: Barrier, fits: Callable[[RegionModel, str], bool]) -> Form:
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
        return f"{words} after"

    return form


FORMS = [_make_form(*barrier) for barrier in BARRIERS]
