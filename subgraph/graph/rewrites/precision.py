"""Computed in a wider type: float16 in float32, float32 in float64, between Casts."""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from subgraph.graph.nested import list_bodies
from subgraph.graph.properties import TYPED
from subgraph.graph.rewrites._region_model import Form, RegionModel, Substitution

WIDER = {
    "float32 instead of float16": (TensorProto.FLOAT16, TensorProto.FLOAT),
    "float32 instead of bfloat16": (TensorProto.BFLOAT16, TensorProto.FLOAT),
    "float64 instead of float32": (TensorProto.FLOAT, TensorProto.DOUBLE),
}


def _make_form(words: str, narrow: int, wide: int) -> Form:
    def form(source: RegionModel, node: NodeProto, new: Substitution) -> str:
        names = [n for n in dict.fromkeys(node.input) if source.element(n) == narrow]
        if node.op_type in TYPED or any(list_bodies(node)) or not names:
            return ""
        cast = {name: _widen(source, name, new, wide) for name in names}
        copied = new.copy(node)
        copied.input[:] = [cast.get(name, name) for name in node.input]
        for k, name in enumerate(node.output):
            if source.element(name) == narrow:
                copied.output[k] = new.name("wide")
                new.node("Cast", [copied.output[k]], name, to=narrow)
        return f"{words} in"

    return form


def _widen(source: RegionModel, name: str, new: Substitution, wide: int) -> str:
    value = source.value(name)
    if value is not None:
        return new.weight(value, wide)
    return new.node("Cast", [name], to=wide)


FORMS = [_make_form(words, *types) for words, types in WIDER.items()]
