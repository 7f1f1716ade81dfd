"""TypeProto: what a model declares of a value, what was seen of it in runs, and both together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from subgraph.errors import InputError
from subgraph.graph import protobuf
from subgraph.storage import dtypes
from subgraph.storage.tensors import Record


def declared_type(type_proto: protobuf.TypeProto) -> tuple[str, str, list[Any] | None]:
    """(form, dtype, dims) of a TypeProto. Dimensions: a number, a symbol, or None; dims is None without a shape."""
    form, inner = "", type_proto
    if inner.HasField("optional_type"):
        form, inner = "optional", inner.optional_type.elem_type
    if inner.HasField("sequence_type"):
        form, inner = f"{form} sequence".strip(), inner.sequence_type.elem_type
    if not inner.HasField("tensor_type"):
        kind = inner.WhichOneof("value") or "no type"
        raise InputError(f"values of type {kind} cannot be handled", "cut elsewhere: between plain tensors")
    tensor = inner.tensor_type
    dtype = dtypes.name_of(tensor.elem_type, "undefined")
    dims = [_dim(d) for d in tensor.shape.dim] if tensor.HasField("shape") else None
    return form or "tensor", dtype, dims


def _dim(d: Any) -> Any:
    if d.HasField("dim_value") and d.dim_value >= 0:
        return int(d.dim_value)
    return str(d.dim_param) or None


def fits(declared: protobuf.TypeProto, seen: protobuf.TypeProto) -> bool:
    """May a value of type `seen` (each dimension a number, or open where it differed) be declared like this?"""
    if not declared.HasField("tensor_type"):
        return bool(declared.WhichOneof("value") == seen.WhichOneof("value"))
    mine, its = declared.tensor_type, seen.tensor_type
    if mine.elem_type != its.elem_type or not mine.HasField("shape") or len(mine.shape.dim) != len(its.shape.dim):
        return False
    pairs = zip(mine.shape.dim, its.shape.dim, strict=True)
    return all(a.dim_value == b.dim_value for a, b in pairs if a.HasField("dim_value"))


def is_complete(proto: protobuf.TypeProto) -> bool:
    """Does the type say what the elements are?"""
    if proto.HasField("tensor_type"):
        return bool(proto.tensor_type.elem_type)
    inner = proto.optional_type if proto.HasField("optional_type") else proto.sequence_type
    return proto.WhichOneof("value") in ("optional_type", "sequence_type") and is_complete(inner.elem_type)


def common_type(records: Sequence[Record]) -> protobuf.TypeProto:
    """The type that all samples' values of one tensor have; differing dimensions stay open."""
    shapes = {shape for r in records for shape in r.shapes}
    ranks = {len(s) for s in shapes}
    dims: tuple[int | None, ...] | None = None
    if len(ranks) == 1:
        dims = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))
    proto = inner = protobuf.protos().TypeProto()
    if "optional" in records[0].form:
        inner = inner.optional_type.elem_type
    if any("sequence" in r.form for r in records):
        inner = inner.sequence_type.elem_type
    set_tensor(inner, dtypes.TYPE_NUMBERS[records[0].dtype], dims)
    return proto


def set_tensor(proto: protobuf.TypeProto, number: int, dims: Sequence[int | None] | None) -> None:
    """Declare a tensor of element type `number`; None for an open dimension, or for an unknown rank."""
    proto.tensor_type.elem_type = number
    if dims is None:
        return
    proto.tensor_type.shape.SetInParent()
    for n in dims:
        dim = proto.tensor_type.shape.dim.add()
        if n is not None:
            dim.dim_value = n


def with_open_dims(proto: protobuf.TypeProto) -> protobuf.TypeProto:
    """The same type with every dimension open: of a run we know the rank, not which dimensions vary."""
    for dim in proto.tensor_type.shape.dim if proto.HasField("tensor_type") else ():
        dim.ClearField("dim_value")
    return proto
