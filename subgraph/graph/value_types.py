"""`TypeProto`: the declared type of a value, and the type that captured values have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from subgraph.errors import InputError
from subgraph.graph import protobuf
from subgraph.graph.graph import Graph
from subgraph.graph.nested import assign
from subgraph.iterables import flatten
from subgraph.storage import dtypes
from subgraph.storage.tensors import Record
from subgraph.types import frozen

if TYPE_CHECKING:
    from subgraph.graph.protobuf import GraphProto, TypeProto, ValueInfoProto


@frozen
class DeclaredTensor:
    """A boundary tensor as a manifest declares it; `shapes` has one shape, or is None if the rank
    is open."""

    form: str
    dtype: str
    shapes: list[list[Any]] | None


class DeclaredType(NamedTuple):
    """A type as a model declares it: `form` and `dtype` as in `storage.tensors.Record`.

    A dimension is a size (int), a symbol (str) or None; `dims` is None if no shape is declared.
    """

    form: str
    dtype: str
    dims: list[Any] | None

    @property
    def text(self) -> str:
        """`float32`, `sequence of int64`."""
        if self.form == "tensor":
            return self.dtype
        return f"{self.form} of {self.dtype}"

    @property
    def known_dims(self) -> list[Any] | None:
        """The dimensions, None for those whose symbol shape inference has made up."""
        if self.dims is None:
            return None
        return [None if isinstance(d, str) and d.startswith("unk__") else d for d in self.dims]

    def does_shape_fit(self, other: DeclaredType) -> bool:
        """Return whether a tensor can have both shapes. An open dimension fits any size."""
        if self.dims is None or other.dims is None:
            return True
        sizes = zip(self.dims, other.dims, strict=False)
        same = all(m == n for m, n in sizes if isinstance(m, int) and isinstance(n, int))
        return same and len(self.dims) == len(other.dims)


def get_tensor_type(proto: TypeProto | None) -> DeclaredType | None:
    """Return the type of a tensor; None for no type, or another than a tensor's."""
    try:
        declared = read_type(proto) if proto else None
    except InputError:
        return None
    if declared and declared.form == "tensor":
        return declared
    return None


def read_type(type_proto: TypeProto) -> DeclaredType:
    """Return the declaration of a TypeProto.

    Raises:
        InputError: The type is a map, or another type without tensors.
    """
    form = ""
    inner = type_proto
    if inner.HasField("optional_type"):
        form = "optional"
        inner = inner.optional_type.elem_type
    if inner.HasField("sequence_type"):
        form = f"{form} sequence".strip()
        inner = inner.sequence_type.elem_type
    if not inner.HasField("tensor_type"):
        kind = inner.WhichOneof("value") or "no type"
        raise InputError(
            f"values of type {kind} cannot be handled",
            "cut elsewhere: between plain tensors",
            code="tensor.unsupported-type",
        )
    tensor = inner.tensor_type
    dtype = dtypes.name_of(tensor.elem_type, "undefined")
    dims = [d.dim_value if _is_size(d) else (d.dim_param or None) for d in tensor.shape.dim]
    return DeclaredType(form or "tensor", dtype, dims if tensor.HasField("shape") else None)


def _is_size(dim: Any) -> bool:
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)


def allows(declared: TypeProto, actual: TypeProto) -> bool:
    """Return whether values of type `actual` can be declared as `declared`.

    Fixed dimensions of `declared` must be equal.
    """
    if not declared.HasField("tensor_type"):
        return bool(declared.WhichOneof("value") == actual.WhichOneof("value"))
    a = declared.tensor_type
    b = actual.tensor_type
    if (
        a.elem_type != b.elem_type
        or not a.HasField("shape")
        or len(a.shape.dim) != len(b.shape.dim)
    ):
        return False
    pairs = zip(a.shape.dim, b.shape.dim, strict=True)
    return all(m.dim_value == n.dim_value for m, n in pairs if m.HasField("dim_value"))


def is_complete(proto: TypeProto) -> bool:
    """Return whether the type contains the element type."""
    inner = _find_innermost(proto)
    return inner.HasField("map_type") or bool(inner.tensor_type.elem_type)


def holds_maps(proto: TypeProto) -> bool:
    """Return whether the type is a map or consists of maps, which no file can store."""
    return bool(_find_innermost(proto).HasField("map_type"))


def is_fixed(proto: TypeProto) -> bool:
    """Return whether every dimension is a size."""
    tensor = _find_innermost(proto).tensor_type
    return bool(tensor.HasField("shape")) and all(map(_is_size, tensor.shape.dim))


def _find_innermost(proto: TypeProto) -> TypeProto:
    """Return the type of the elements of optional values and sequences, at any depth."""
    kind = proto.WhichOneof("value")
    while kind in ("optional_type", "sequence_type"):
        proto = getattr(proto, kind).elem_type
        kind = proto.WhichOneof("value")
    return proto


def find_common_type(records: Sequence[Record]) -> TypeProto:
    """Return the type of one tensor in all samples; a dimension or rank that differs is open."""
    dims = find_common_shape(set(flatten(r.shapes for r in records)))
    proto = inner = protobuf.load_protos().TypeProto()
    if "optional" in records[0].form:
        inner = inner.optional_type.elem_type
    if any("sequence" in r.form for r in records):
        inner = inner.sequence_type.elem_type
    set_tensor(inner, dtypes.TYPE_NUMBERS[records[0].dtype], dims)
    return proto


def find_common_shape(shapes: Collection[Sequence[int]]) -> tuple[int | None, ...] | None:
    """Return the shape of a tensor with these shapes, with None for a size that differs.

    Without a common rank, it is None.
    """
    if len(set(map(len, shapes))) != 1:
        return None
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True))


def set_tensor(proto: TypeProto, number: int, dims: Iterable[int | None] | None) -> None:
    """Make `proto` a tensor of element type `number` (TensorProto.DataType); None: open dimension,
    or open rank."""
    proto.tensor_type.elem_type = number
    if dims is None:
        return
    proto.tensor_type.shape.SetInParent()
    for size in dims:
        proto.tensor_type.shape.dim.add(dim_value=size)


def declare_weights_on_disk(graph: GraphProto) -> None:
    """Make weights whose bytes are not in the model inputs of it: onnx need not find their
    files."""
    inputs = {v.name for v in graph.input}
    for tensor in graph.initializer:
        if protobuf.is_on_disk(tensor) and tensor.name not in inputs:
            set_tensor(graph.input.add(name=tensor.name).type, tensor.data_type, tensor.dims)
    assign(graph.initializer, [t for t in graph.initializer if not protobuf.is_on_disk(t)])


def pin(declared: TypeProto, actual: TypeProto) -> dict[str, int]:
    """Give the open dimensions of a declared tensor the sizes of its values; sizes remain.

    Returns:
        The size of each symbol. Empty if the ranks differ.
    """
    sizes = actual.tensor_type.shape.dim
    if not declared.tensor_type.HasField("shape"):
        declared.tensor_type.shape.CopyFrom(actual.tensor_type.shape)
    symbols: dict[str, int] = {}
    if len(declared.tensor_type.shape.dim) != len(sizes):
        return symbols
    for dim, size in zip(declared.tensor_type.shape.dim, sizes, strict=True):
        if not size.HasField("dim_value") or _is_size(dim):
            continue
        if dim.dim_param:
            symbols[dim.dim_param] = size.dim_value
        dim.dim_value = size.dim_value
    return symbols


def open_dimensions(proto: TypeProto) -> TypeProto:
    """Return the type with every dimension open, changed in place: a run shows the rank, not which
    dimensions may vary."""
    for dim in proto.tensor_type.shape.dim if proto.HasField("tensor_type") else ():
        dim.ClearField("dim_value")
    return proto


def find_value_infos(graph: Graph, names: Iterable[str] | None = None) -> dict[str, ValueInfoProto]:
    """Find the declarations of graph inputs, outputs and value_info by tensor, in file order:
    all, or of `names`.

    Raises:
        ModelError: a value_info is damaged.
    """
    if names is not None and (infos := graph.known_infos) is not None:
        found = sorted((infos[name] for name in set(names) if name in infos), key=itemgetter(0))
        return {info.name: info for _, info in found}
    proto = graph.model.graph
    cls = protobuf.load_protos().ValueInfoProto
    selected = None if names is None else set(names)
    inner = protobuf.iter_value_infos(graph.skeleton, selected)
    ends = (cls.FromString(v.SerializeToString()) for v in (*proto.output, *proto.input))
    return {v.name: v for v in (*inner, *ends) if selected is None or v.name in selected}


def find_declared_types(graph: Graph, names: Iterable[str] | None = None) -> dict[str, TypeProto]:
    """Find the declared types by tensor: all of them, or those of `names`.

    Tensors without a declared type are omitted.
    """
    return {
        name: v.type
        for name, v in find_value_infos(graph, names).items()
        if v.type.WhichOneof("value")
    }
