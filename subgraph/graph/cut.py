"""Graph and region → `Cut`: the region as a standalone model.

A cut holds the nodes of the region in topological order, the constants that they read, the local
functions that they call, and the metadata of the model at every level. Tensors that depend only on
shapes are frozen to their captured value if there is one, because converters and fusions expect
constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from subgraph.errors import ModelError
from subgraph.graph import protobuf, region as regions
from subgraph.graph.graph import Graph, as_graph
from subgraph.graph.nested import (
    find_called,
    get_attribute,
    iter_attribute_tensors,
    iter_model_nodes,
    iter_tensors,
    list_bodies,
    list_captured,
)
from subgraph.graph.onnx_process import OnnxError, OnnxProcess
from subgraph.graph.opsets import STANDARD
from subgraph.graph.properties import (
    FLOAT_ONLY,
    KEEPS_SHAPE,
    KEEPS_TYPE,
    MAKES_BOOL,
    MAKES_INT64,
    ONE_TYPE,
    POOLS,
    SAME_INPUTS,
)
from subgraph.graph.region import Region
from subgraph.graph.value_types import (
    DeclaredTensor,
    allows,
    find_common_type,
    find_declared_types,
    find_value_infos,
    is_complete,
    is_fixed,
    open_dimensions,
    read_type,
    set_tensor,
)
from subgraph.iterables import flatten, index_by_name, restrict
from subgraph.lazy import onnx
from subgraph.storage import dtypes
from subgraph.storage.tensors import PACKED, Record, Records
from subgraph.types import StringMap, Strings, frozen

if TYPE_CHECKING:
    from subgraph.graph.protobuf import (
        GraphProto,
        ModelProto,
        NodeProto,
        TensorProto,
        TypeProto,
        ValueInfoProto,
    )

# Assembled again; training graphs do not fit a cut.
MODEL_PARTS = frozenset(("graph", "functions", "training_info"))
T = TypeVar("T")  # a class of messages
# Operator → element type of its first output, of TensorProto.DataType: int64 or bool.
FIXED_TYPE = dict.fromkeys(MAKES_INT64, 7) | dict.fromkeys(MAKES_BOOL, 9)
INTEGERS = frozenset((2, 3, 4, 5, 6, 7, 9, 12, 13))  # of TensorProto.DataType, bool among them
# Element types whose .npy file does not hold the bytes of an initializer.
UNFREEZABLE = PACKED | {"string"}
# The fields of a graph that are assembled again.
GRAPH_PARTS = frozenset(
    (
        "node",
        "initializer",
        "sparse_initializer",
        "input",
        "output",
        "value_info",
        "quantization_annotation",
    )
)


@frozen
class Cut:
    """A region as a standalone model.

    Attributes:
        graph: The source model.
        region: The region of the source model.
        inputs: Names of the boundary tensors that enter, as in the source model.
        outputs: Names of the boundary tensors that leave, as in the source model.
        frozen: Names of the tensors in `region.shapes` that are constants in the cut.
        types: The TypeProto of each input and output.
        model: The ModelProto. Its large weights are stubs that point into the source
            (`graph.protobuf`).
        renamed: New node name → old, for nodes of the region that share a name.

    >>> from subgraph import cut, load
    >>> [path.name for path in cut(load("resnet50.onnx"), "pool1", "res2a_relu").save("piece.onnx")]
    ['piece.onnx']
    """

    graph: Graph
    region: Region
    inputs: Strings
    outputs: Strings
    frozen: Strings
    types: Mapping[str, TypeProto] = field(repr=False)
    model: ModelProto = field(repr=False)
    renamed: StringMap = field(default_factory=dict)

    def __repr__(self) -> str:
        count = len(self.region.nodes)
        return f"Cut({count} nodes of {self.graph!r}, {self.inputs} -> {self.outputs})"

    @property
    def weights(self) -> list[TensorProto]:
        """Initializers whose bytes are on disk."""
        return list(filter(protobuf.is_on_disk, self.model.graph.initializer))

    @property
    def parameters(self) -> int:
        """Number of elements of all initializers except frozen tensors, and of Constant nodes."""
        held = [t for t in self.model.graph.initializer if t.name not in self.frozen]
        return count_constant_elements(self.graph, self.region) + sum(
            map(protobuf.count_elements, held)
        )

    def get_declaration(self, name: str) -> DeclaredTensor:
        """Return the declaration of an input or output."""
        form, dtype, dims = read_type(self.types[name])
        return DeclaredTensor(form, dtype, None if dims is None else [dims])

    def to_model(self) -> onnx.ModelProto:
        """Return the cut in memory, with all its weights.

        Raises:
            DataError: the bytes of a weight cannot be read.
        """
        full: onnx.ModelProto = protobuf.load_protos().ModelProto()
        full.CopyFrom(self.model)
        protobuf.load_all(full.graph.initializer, self.graph.path)
        return full

    def save(self, path: str | Path) -> list[Path]:
        """Write the model, and weights from external files into a `.data` file next to it.

        Returns:
            The written files.

        Raises:
            DataError: The bytes of a weight cannot be read.
            OutputError: The disk is full or not writable.
        """
        return protobuf.write(self.model, self.graph.path, Path(path))


def cut(
    graph: Graph | str | Path,
    start: str | Sequence[str] = (),
    end: str | Sequence[str] = (),
    *,
    captured: Sequence[Records] = (),
    folder: Path | None = None,
    dynamic: bool = False,
) -> Cut:
    """Cut the nodes between `start` and `end` out of a model. Nothing is run.

    `captured` holds reference values of the boundary, one mapping per sample, whose files are in
    `folder`. Without it, types of boundary tensors come from the model's value_info or from onnx's
    shape inference.

    >>> from subgraph import load
    >>> piece = cut(load("resnet50.onnx"), start="pool1", end="res2a_relu")
    >>> piece.inputs, piece.outputs, len(piece.region.nodes)
    (('conv1',), ('res2a',), 17)

    Raises:
        UnknownName, UsageError: a selector matches nothing, or several things.
        NoRegion: no path leads from start to end.
        ModelError: the type of a boundary tensor is unknown; or as `build_model`.
        DataError: the bytes of a weight cannot be read.
    """
    graph = as_graph(graph, "cut")
    region = regions.find_region(
        graph, *([names] if isinstance(names, str) else names for names in (start, end))
    )
    return cut_region(graph, region, captured, folder, dynamic=dynamic)


def count_constant_elements(graph: Graph, region: Region) -> int:
    """Return how many elements the Constant nodes hold that a region reads."""
    held = map(graph.constant, graph.iter_outputs(region.pulled))
    return sum(protobuf.count_elements(tensor) for tensor in held if tensor is not None)


def cut_region(
    graph: Graph,
    region: Region,
    captured: Sequence[Records] = (),
    folder: Path | None = None,
    *,
    dynamic: bool = False,
    freeze: bool = True,
) -> Cut:
    """Return a region as a model; arguments and errors as of `cut`.

    Tensors in `region.shapes` are frozen to the value of the first sample, unless `dynamic` or not
    `freeze`; the caller makes sure that they are equal in all samples. `dynamic` also keeps open
    dimensions open. With captured values and without `dynamic` the cut is *pinned*: shapes in it
    are sizes, and agree with those captured, or are not declared.
    """
    frozen = list_freezable(region, captured) if folder and freeze and not dynamic else ()
    inputs = region.inputs + tuple(n for n in region.shapes if n not in frozen)
    own = {*inputs, *graph.iter_outputs(region.all_nodes)}
    makers = () if captured else graph.producers(inputs)
    declared = find_value_infos(graph, own.union(graph.iter_inputs(makers)))
    infos = restrict(declared, own)
    if not captured and _contradicts_declarations(graph, region, inputs, declared):
        inferred = _infer_types(graph, [n for n in infos if n not in graph.inputs])
        infos = {n: _correct_type(v, inferred.get(n)) for n, v in infos.items()}
    types = list_boundary_types(graph, (*inputs, *region.outputs), captured, infos, dynamic=dynamic)
    constants = [freeze_constant(captured[0][name], folder) for name in frozen if folder]
    pinned = bool(captured) and not dynamic
    infos = make_consistent_infos(graph, types, infos, pinned=pinned)
    model, renamed = build_model(graph, region, inputs, region.outputs, types, infos, constants)
    if pinned:
        drop_open_shapes(model)
    full = protobuf.to_onnx(model, graph.path)
    return Cut(graph, region, inputs, region.outputs, frozen, types, full, renamed)


def _correct_type(info: ValueInfoProto, type_proto: TypeProto | None) -> ValueInfoProto:
    """Return a declaration with the type that was inferred, if the two contradict each other."""
    if type_proto is None or allows(type_proto, info.type):
        return info
    inferred = type_proto.tensor_type
    declared = info.type.tensor_type
    if (
        type_proto.HasField("tensor_type")
        and not inferred.HasField("shape")
        and inferred.elem_type == declared.elem_type
    ):
        return info  # of the shape nothing was inferred
    corrected = protobuf.clone(info)
    corrected.type.CopyFrom(type_proto)
    return corrected


def list_freezable(region: Region, captured: Sequence[Records]) -> Strings:
    """Return the tensors in `region.shapes` whose captured values can be initializers: tensors of
    unpacked numbers."""
    return tuple(
        n
        for n in region.shapes
        if captured
        and all(s[n].form == "tensor" and s[n].dtype not in UNFREEZABLE for s in captured)
    )


def build_model(
    graph: Graph,
    region: Region,
    inputs: Sequence[str],
    outputs: Sequence[str],
    types: Mapping[str, TypeProto],
    infos: Mapping[str, ValueInfoProto],
    constants: Iterable[TensorProto] = (),
) -> tuple[ModelProto, dict[str, str]]:
    """Return (model, renamed nodes): the region in the class `protobuf.find_reading_class()`, with
    large weights as stubs.

    `types` are those of inputs and outputs; an output without a type is declared without one.
    `infos` are kept as value_info of intermediate tensors. `constants` become initializers.
    Complexity: linear in the region.

    Raises:
        ModelError: the model imports no opset, so the versions of its operators are unknown.
        DataError: the bytes of a weight that is stored inside the cut cannot be read.
    """
    if not graph.model.opset_import and graph.model.ir_version >= 3:
        raise ModelError(
            f"{graph.path.name} imports no opset: the versions of its operators are undefined",
            "the file may be truncated: compare its size and checksum with the original",
            code="model.no-opset",
        )
    model = copy_without(graph.model, MODEL_PARTS)
    out = model.graph
    out.MergeFrom(copy_without(graph.model.graph, GRAPH_PARTS))
    order = graph.in_order(region.all_nodes)
    out.node.extend(graph.nodes[i] for i in order)
    protobuf.load_all(
        iter_attribute_tensors(out.node), graph.path
    )  # next to the cut it would be missing
    renamed = _make_names_distinct(order, out)
    inside = set(graph.iter_outputs(order))
    annotated = inside.union(inputs)
    weights = dict.fromkeys(region.weights)  # and those that quantization annotations name
    for annotation in graph.model.graph.quantization_annotation:
        if annotation.tensor_name in annotated or annotation.tensor_name in weights:
            out.quantization_annotation.append(annotation)
            parameters = (entry.value for entry in annotation.quant_parameter_tensor_names)
            weights.update(dict.fromkeys(n for n in parameters if n in graph.weights))
    for name in weights:
        add_weight(graph, name, out)
    for tensor in constants:
        out.initializer.add().MergeFromString(tensor.SerializeToString())
    for declarations, names in ((out.input, inputs), (out.output, outputs)):
        for name in names:
            declare(declarations, name, infos.get(name), types.get(name))
    if model.ir_version < 4:  # every initializer must be an input as well
        declared = index_by_name(graph.model.graph.input)
        for tensor in out.initializer:
            type_proto = protobuf.load_protos().TypeProto()
            set_tensor(type_proto, tensor.data_type, tensor.dims)
            declare(out.input, tensor.name, declared.get(tensor.name), type_proto)
    inner = inside.difference(outputs)
    out.value_info.extend(info.SerializeToString() for name, info in infos.items() if name in inner)
    add_functions(graph, out.node, model)
    return model, renamed


def declare(
    field: Any, name: str, info: ValueInfoProto | None, type_proto: TypeProto | None
) -> None:
    """Add the declaration of a tensor to a field of a graph.

    Args:
        field: The inputs, outputs or value_info.
        name: The tensor.
        info: Its declaration in another model, if it has one.
        type_proto: Its type, if it is known; it replaces that of `info`.
    """
    added = field.add(name=name)
    if info is not None:
        added.MergeFromString(info.SerializeToString())
    if type_proto is not None:
        added.ClearField("type")
        added.type.MergeFromString(type_proto.SerializeToString())


def copy_without(message: T, fields: frozenset[str]) -> T:
    """Return a copy of a message without these fields, which are never copied."""
    copy = type(message)()
    original: Any = message
    for descriptor, value in original.ListFields():
        if descriptor.name in fields:
            continue
        if descriptor.is_repeated:
            getattr(copy, descriptor.name).MergeFrom(value)
        elif descriptor.message_type:
            getattr(copy, descriptor.name).CopyFrom(value)
        else:
            setattr(copy, descriptor.name, value)
    return copy


def _make_names_distinct(order: Sequence[int], out: GraphProto) -> dict[str, str]:
    """Rename nodes that share a name within the cut, because onnxruntime refuses those. Returns new
    name → old."""
    renamed = {}
    earlier_names = set()
    taken = {node.name for node in out.node}
    for i, node in zip(order, out.node, strict=True):
        old = node.name
        if old and old in earlier_names:
            while node.name in taken:
                node.name += f"#{i}"
            renamed[node.name] = old
            taken.add(node.name)
        earlier_names.add(old)
    return renamed


def add_weight(graph: Graph, name: str, out: GraphProto) -> None:
    """Copy an initializer, dense or sparse; a large dense one stays on disk."""
    if name in graph.sparse:
        sparse = out.sparse_initializer.add()
        sparse.CopyFrom(graph.sparse[name])
        protobuf.load_all((sparse.values, sparse.indices), graph.path)
        return
    source = graph.weights[name]
    if protobuf.is_in_other_file(source) and protobuf.count_bytes(source) < protobuf.MIN_STUB_BYTES:
        source = protobuf.load_raw(source, graph.path)
    out.initializer.add().MergeFromString(source.SerializeToString())


def add_functions(graph: Graph, nodes: Iterable[NodeProto], model: ModelProto) -> None:
    """Copy the local functions that these nodes call, also from bodies and other functions, in file
    order."""
    needed = find_called(nodes, graph.functions)
    model.functions.extend(function for key, function in graph.functions.items() if key in needed)
    for function in model.functions:
        protobuf.load_all(iter_tensors(function), graph.path)


# ------------------------------------------------------------ types


def list_boundary_types(
    graph: Graph,
    names: Sequence[str],
    captured: Sequence[Records],
    infos: Mapping[str, ValueInfoProto],
    *,
    dynamic: bool = False,
) -> dict[str, TypeProto]:
    """Return the types of boundary tensors.

    With captured values: their types, with a dimension open if samples differ. With `dynamic`,
    or without captured values: as declared in `infos`, else as inferred; and if neither exists
    or the captured values contradict it, the captured type with all dimensions open.

    Raises:
        ModelError: the type of a tensor is neither declared nor captured, and cannot be inferred.
    """
    captured_types = {
        n: find_common_type([s[n] for s in captured])
        for n in names
        if captured and n in captured[0]
    }
    if captured and not dynamic:
        return captured_types
    types = {n: infos[n].type for n in names if n in infos and is_complete(infos[n].type)}
    if len(types) < len(names):
        types = {**_infer_types(graph, [n for n in names if n not in types]), **types}
    for name, captured_type in captured_types.items():
        if name not in types or not allows(types[name], captured_type):
            types[name] = open_dimensions(captured_type)
    missing = [n for n in names if n not in types]
    if missing:
        raise ModelError(
            f"the type of tensor '{missing[0]}' is not declared in {graph.path.name} and cannot be"
            " inferred",
            "cut with a capture (without --no-capture): its type then comes from the run",
            code="cut.unknown-type",
        )
    return types


def make_consistent_infos(
    graph: Graph,
    types: Mapping[str, TypeProto],
    infos: Mapping[str, ValueInfoProto],
    *,
    pinned: bool,
) -> dict[str, ValueInfoProto]:
    """Return the declarations of a model that are consistent with the boundary types of a cut.

    Converters trust the declarations of intermediate tensors: a symbol next to a size, or a size of
    another sample. Declarations of the boundary stay, with their type replaced. Inner ones stay if
    no boundary type departs from its declaration; in a `pinned` cut only if they are fixed, and if
    all inputs of the model have a fixed shape.
    """
    boundary = restrict(infos, types)
    if pinned:
        complete = [n for n, v in boundary.items() if is_complete(v.type)]
        fits = all(is_fixed(v.type) for v in graph.inputs.values())
        fits = fits and all(allows(boundary[n].type, types[n]) for n in complete)
        return {n: v for n, v in infos.items() if n in types or (fits and is_fixed(v.type))}
    if all(v.type == types[n] for n, v in boundary.items()):
        return dict(infos)
    return boundary


def drop_open_shapes(model: ModelProto) -> None:
    """Remove types of intermediate tensors and open boundary shapes in bodies and functions.

    Operators of other domains keep them: onnxruntime's BeamSearch reads the shapes of its decoder.
    """
    for function in model.functions:
        function.ClearField("value_info")
    standard = [node for node in iter_model_nodes(model) if node.domain in STANDARD]
    for body in flatten(map(list_bodies, standard)):
        body.ClearField("value_info")
        for info in (*body.input, *body.output):
            if info.type.HasField("tensor_type") and not is_fixed(info.type):
                info.type.tensor_type.ClearField("shape")


def _contradicts_declarations(
    graph: Graph,
    region: Region,
    inputs: Sequence[str],
    infos: Mapping[str, ValueInfoProto],
) -> bool:
    """Return whether a node of the region, or a producer of its inputs, refutes a declaration."""
    # Shapes are known of inputs, and downstream of operators that keep the shape.
    shapes = {name: _find_dims(graph, name, infos) for name in inputs}
    for i in region.nodes:
        if shapes.keys().isdisjoint(graph.reads[i]):
            continue
        read = [shapes.get(name) or _find_dims(graph, name, infos) for name in graph.reads[i]]
        if _has_misfit(graph, i, read):
            return True
        name = next(iter(graph.nodes[i].output), "")
        if name and (output_shape := _find_output_shape(graph.nodes[i], read)) is not None:
            declared_dims = _find_dims(graph, name, infos)
            if declared_dims and (
                len(declared_dims) != len(output_shape)
                or any(map(_differ, declared_dims, output_shape))
            ):
                return True
            shapes[name] = output_shape
    nodes = {*region.nodes, *graph.producers(inputs)}
    types = {n: v.type.tensor_type.elem_type for n, v in infos.items()}
    types |= {n: graph.weights[n].data_type for n in graph.iter_inputs(nodes) if n in graph.weights}
    return types_contradict((graph.nodes[i] for i in graph.in_order(nodes)), types)


def types_contradict(nodes: Iterable[NodeProto], types: dict[str, int]) -> bool:
    """Return whether a node has a tensor of an element type that its operator excludes.

    Args:
        nodes: The nodes, in topological order.
        types: Element type by tensor, 0 if it is not known. Types that follow are added.
    """
    for node in nodes:
        if node.domain not in STANDARD:
            continue
        if node.op_type in FLOAT_ONLY and node.input and types.get(node.input[0]) in INTEGERS:
            return True
        named = next(iter(node.output), "")
        read = [types.get(n, 0) for n in node.input]
        if node.op_type in SAME_INPUTS and len({*read} - {0}) > 1:
            return True
        if node.op_type in ONE_TYPE:
            same = {*read, *(types.get(n, 0) for n in node.output)}
        elif node.op_type == "Where":
            same = {*read[1:], types.get(named, 0)}
        else:
            same = {types.get(named, 0), _infer_output_type(node, types)}
        same.discard(0)
        if len(same) > 1:
            return True
        if same and named:
            types[named] = next(iter(same))
    return False


def _infer_output_type(node: NodeProto, types: Mapping[str, int]) -> int:
    """Return the element type of a node's first output, by its operator; 0 if it is not
    known."""
    if node.op_type == "Cast":
        return get_attribute(node, "to", 0) or 0  # None: a damaged file's has no type
    if node.op_type in KEEPS_TYPE and node.input:
        return types.get(node.input[0], 0)
    return FIXED_TYPE.get(node.op_type, 0)


def _find_output_shape(node: NodeProto, read: Sequence[list[Any] | None]) -> list[Any] | None:
    """Return the dimensions of a node's first output, None for unknown ones.

    Returns:
        None for operators without a rule.
    """
    if node.domain not in STANDARD or not read or not node.input[0] or not (first := read[0]):
        return None
    if node.op_type in KEEPS_SHAPE:
        return first
    if node.op_type in POOLS:
        return [*first[:2], *[None] * len(first[2:])]
    if node.op_type == "Conv" and len(read) > 1 and (weight := read[1]):
        return [first[0], weight[0], *[None] * len(first[2:])]
    return None


def _has_misfit(graph: Graph, i: int, shapes: Sequence[list[Any] | None]) -> bool:
    """Return whether the shapes of a node's inputs exclude each other."""
    node = graph.nodes[i]
    if node.domain not in STANDARD or node.op_type not in ONE_TYPE:
        return False
    if node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
        first, second = shapes[:2] if len(shapes) > 1 else (None, None)
        if first is None or second is None or min(len(first), len(second)) < 2:
            return False
        if node.op_type == "Conv":
            groups = get_attribute(node, "group", 1)
            return len(first) != len(second) or _differ(first[1], second[1], groups)
        if node.op_type == "ConvTranspose":
            return len(first) != len(second) or _differ(first[1], second[0])
        columns = first[-2 if get_attribute(node, "transA", 0) else -1]
        return _differ(columns, second[-1 if get_attribute(node, "transB", 0) else -2])
    if get_attribute(node, "axis", None) is not None:  # as broadcasting was before opset 7
        return False
    axes = zip_longest(*(reversed(dims) for dims in shapes if dims is not None), fillvalue=1)
    return any(len({size for size in axis if isinstance(size, int)} - {1}) > 1 for axis in axes)


def _find_dims(graph: Graph, name: str, infos: Mapping[str, ValueInfoProto]) -> list[Any] | None:
    """Return the shape of a weight, or as it is declared; None if that is unknown."""
    if name in graph.weights:
        return list(graph.weights[name].dims)
    if name in infos:
        return read_type(infos[name].type)[2]
    return None


def _differ(size: Any, other: Any, times: int = 1) -> bool:
    return isinstance(size, int) and isinstance(other, int) and size != other * times


def _infer_types(graph: Graph, names: Sequence[str]) -> dict[str, TypeProto]:
    """Infer types by onnx over the nodes upstream of these tensors; weights stay on disk."""
    computed_names = [n for n in names if n in graph.maker]
    if not computed_names:
        return {}
    above = regions.find_upstream(graph, computed_names)
    feeds = above.entering
    model, _ = build_model(graph, above, feeds, [], find_declared_types(graph, feeds), {})
    try:
        with OnnxProcess(graph.path) as onnx:
            model = onnx.infer_shapes(protobuf.to_onnx(model, graph.path))
    except OnnxError:
        return {}  # an invalid graph: `subcut inspect` reports where
    return {
        v.name: v.type for v in model.graph.value_info if v.name in names and is_complete(v.type)
    }


def freeze_constant(record: Record, folder: Path) -> TensorProto:
    """Return a captured value as an initializer. Read without numpy, so that cutting need not load
    it."""
    # After the header of a C-ordered .npy file, of the versions 1 to 3 of numpy.lib.format.
    data = (folder / record.files[0]).read_bytes()
    width = 2 if data[6] == 1 else 4  # bytes of the header's length, which is at byte 8
    begin = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    return protobuf.load_protos().TensorProto(
        name=record.name,
        data_type=dtypes.TYPE_NUMBERS[record.dtype],
        dims=record.shapes[0],
        raw_data=data[begin:],
    )


def find_structure_problem(model: ModelProto) -> str | None:
    """Return a tensor that is read before it is produced, or an output without a producer.

    Returns:
        None if the structure is valid.
    """
    graph = model.graph
    available = {v.name for v in (*graph.input, *graph.initializer)}
    available |= {s.values.name for s in graph.sparse_initializer}
    for node in graph.node:
        for name in (*node.input, *list_captured(node)):
            if name and name not in available:
                return f"'{name}', read by '{node.name}', has no producer before it"
        available.update(node.output)
    missing = [v.name for v in graph.output if v.name not in available]
    if missing:
        return f"output '{missing[0]}' has no producer"
    return None
