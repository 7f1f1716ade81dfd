"""Graph + Region -> a model of its own.

The cut keeps what the region needs and nothing else: its nodes in topological order, the constants they read, the local
functions they call, and the model's own metadata at every level. Tensors that depend only on shapes are frozen to their
captured value where there is one, because converters and fusions want constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.graph import region as regions
from subgraph.graph.graph import BODILESS, Graph, bodies
from subgraph.graph.region import Region
from subgraph.graph.types import common_type, declared_type, fits, is_complete, set_tensor, with_open_dims
from subgraph.storage import dtypes
from subgraph.storage.tensors import PACKED, Record, shape_text

if TYPE_CHECKING:
    import onnx

MODEL_PARTS = frozenset(("graph", "functions", "training_info"))  # training graphs do not fit a cut
UNFROZEN = PACKED | {"string"}  # types whose stored form is not the bytes of an initializer
GRAPH_PARTS = frozenset(
    ("node", "initializer", "sparse_initializer", "input", "output", "value_info", "quantization_annotation")
)


@dataclass(frozen=True)
class Cut:
    """A region as a model of its own.

    Attributes:
        graph, region: what was cut.
        inputs: names of the tensors that it must be fed; outputs: those that it gives.
        frozen: names of the shape-computing tensors that are constants in it.
        types: the TypeProto of each input and output.
        renamed: node names that had to change because others share them.
    """

    graph: Graph
    region: Region
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    frozen: tuple[str, ...]
    types: Mapping[str, protobuf.TypeProto] = field(repr=False)
    model: protobuf.ModelProto = field(repr=False)
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> list[protobuf.TensorProto]:
        """Initializers whose bytes still lie on disk."""
        return [t for t in self.model.graph.initializer if protobuf.on_disk(t)]

    @property
    def parameters(self) -> int:
        """How many numbers the weights hold, frozen tensors left out."""
        return sum(protobuf.element_count(t) for t in self.model.graph.initializer if t.name not in self.frozen)

    def declared(self, name: str) -> dict[str, Any]:
        """Form, element type and shapes of a boundary tensor, as a manifest records them; `shapes` None if open."""
        form, dtype, dims = declared_type(self.types[name])
        return {"form": form, "dtype": dtype, "shapes": None if dims is None else [dims]}

    def to_model(self) -> onnx.ModelProto:
        """The cut in memory, with all its weights.

        Raises:
            DataError: the bytes of a weight cannot be had.
        """
        full: onnx.ModelProto = protobuf.protos().ModelProto()
        full.CopyFrom(self.model)
        for tensor in full.graph.initializer:
            if protobuf.on_disk(tensor):
                tensor.CopyFrom(protobuf.load_raw(tensor, self.graph.path))
        return full

    def save(self, path: str | Path) -> list[Path]:
        """Write the model; weights that were in external files get a `.data` file beside it. Returns the files."""
        model = protobuf.protos().ModelProto()
        model.CopyFrom(self.model)
        return protobuf.write(
            model, self.graph.path, Path(path), external=any(map(protobuf.in_other_file, self.weights))
        )


def cut(
    graph: Graph,
    start: str | Sequence[str] = (),
    end: str | Sequence[str] = (),
    *,
    captured: Sequence[Mapping[str, Record]] = (),
    folder: Path | None = None,
    dynamic: bool = False,
) -> Cut:
    """Cut the nodes between `start` and `end` out of a model.

    Without `captured` nothing is run: edge types come from the model's value_info, or from onnx's shape inference.

    >>> c = cut(load("resnet50.onnx"), start="pool1", end="res2a_relu")                          # doctest: +SKIP
    >>> c.inputs, c.outputs                                                                      # doctest: +SKIP
    (('conv1',), ('res2a',))

    Raises:
        UnknownName, UsageError, NoRegion: start and end enclose nothing.
        ModelError: the type of an edge tensor is known to nobody; a weight's data cannot be had.
    """
    region = regions.between(graph, _words(start), _words(end))
    return cut_region(graph, region, captured, folder, dynamic=dynamic)


def _words(selectors: str | Sequence[str]) -> Sequence[str]:
    return (selectors,) if isinstance(selectors, str) else selectors


def cut_region(
    graph: Graph,
    region: Region,
    captured: Sequence[Mapping[str, Record]] = (),
    folder: Path | None = None,
    *,
    dynamic: bool = False,
    freeze: bool = True,
) -> Cut:
    """A region as a model: see `cut`. `captured` are records per sample, whose files lie in `folder`.

    Shape-computing tensors are frozen where they were captured, unless `dynamic` or not `freeze`; the caller gives
    samples in which they are equal.
    """
    frozen = freezable(region, captured) if folder and freeze and not dynamic else ()
    inputs = region.inputs + tuple(n for n in region.shapes if n not in frozen)
    inside = (name for i in (*region.nodes, *region.pulled) for name in graph.makes[i])
    infos = graph.value_infos({*inputs, *inside})
    types = boundary_types(graph, (*inputs, *region.outputs), captured, infos, dynamic=dynamic)
    constants = [frozen_constant(captured[0][name], folder) for name in frozen if folder]
    model, renamed = build_model(graph, region, inputs, region.outputs, types, infos, constants)
    full = protobuf.to_onnx(model, graph.path)
    return Cut(graph, region, inputs, region.outputs, frozen, types, full, renamed)


def freezable(region: Region, captured: Sequence[Mapping[str, Record]]) -> tuple[str, ...]:
    """The shape-computing tensors whose captured value can stand as an initializer: plain ones of numbers."""
    fits = [{n for n in region.shapes if s[n].form == "tensor" and s[n].dtype not in UNFROZEN} for s in captured]
    return tuple(n for n in region.shapes if fits and all(n in names for names in fits))


def build_model(
    graph: Graph,
    region: Region,
    inputs: Sequence[str],
    outputs: Sequence[str],
    types: Mapping[str, protobuf.TypeProto],
    infos: Mapping[str, protobuf.ValueInfoProto],
    constants: Iterable[protobuf.TensorProto] = (),
) -> tuple[protobuf.ModelProto, dict[str, str]]:
    """Assemble the model, in the class that models are read with (`wire.slim`); its large weights are husks.

    `infos` are kept as value_info, those of edge tensors with the type from `types`. Outputs without a type are
    declared without one. Complexity: linear in the region.

    Raises:
        ModelError: the model says of no operator which version it means.
        DataError: the bytes of a weight that belongs inside cannot be had.
    """
    if not graph.model.opset_import and graph.model.ir_version >= 3:
        raise ModelError(
            f"{graph.path.name} imports no opset: nobody can tell what its operators do",
            "the file may be truncated: compare its size and checksum with the original",
        )
    model = _others(graph.model, MODEL_PARTS)
    out = model.graph
    out.MergeFrom(_others(graph.model.graph, GRAPH_PARTS))
    order = graph.in_order((*region.nodes, *region.pulled))
    out.node.extend(graph.nodes[i] for i in order)
    for node in out.node:
        if node.op_type not in BODILESS or node.op_type == "Constant":
            _carry_nested_data(node, graph.path)
    renamed = _distinct_names(graph, order, out)
    inside = {name for i in order for name in graph.makes[i]}
    for name in _with_annotations(graph, region.weights, inside | set(inputs), out):
        _add_weight(graph, name, out)
    for tensor in constants:
        out.initializer.add().MergeFromString(tensor.SerializeToString())
    for place, names in ((out.input, inputs), (out.output, outputs)):
        for name in names:
            place.add().MergeFromString(_info(name, types, infos).SerializeToString())
    if model.ir_version < 4:  # every initializer must be an input there
        declared = {v.name: v for v in graph.model.graph.input}
        for tensor in out.initializer:
            out.input.add().MergeFromString(_input_of(tensor, declared).SerializeToString())
    inner = inside.difference(outputs)
    out.value_info.extend(info.SerializeToString() for name, info in infos.items() if name in inner)
    _add_functions(graph, order, model)
    return model, renamed


def _info(
    name: str, types: Mapping[str, protobuf.TypeProto], infos: Mapping[str, protobuf.ValueInfoProto]
) -> protobuf.ValueInfoProto:
    """The declaration of an edge tensor: the model's own words about it, with the type that it has here."""
    info = protobuf.protos().ValueInfoProto(name=name)
    if name in infos:
        info.CopyFrom(infos[name])
    if name in types:
        info.type.CopyFrom(types[name])
    return info


def _others(message: Any, but: frozenset[str]) -> Any:
    """A copy of a message without some of its fields, made without copying those."""
    copy = type(message)()
    for descriptor, value in message.ListFields():
        if descriptor.name in but:
            continue
        if descriptor.is_repeated:
            getattr(copy, descriptor.name).MergeFrom(value)
        elif descriptor.message_type:
            getattr(copy, descriptor.name).CopyFrom(value)
        else:
            setattr(copy, descriptor.name, value)
    return copy


def _distinct_names(graph: Graph, order: Sequence[int], out: protobuf.GraphProto) -> dict[str, str]:
    """Rename nodes that share a name within the cut: onnxruntime refuses them. Returns new name → old."""
    renamed: dict[str, str] = {}
    seen: set[str] = set()
    taken: set[str] = {node.name for node in out.node}
    for i, node in zip(order, out.node, strict=True):
        old = node.name
        if old and old in seen:
            while node.name in taken:
                node.name += f"#{i}"
            renamed[node.name] = old
            taken.add(node.name)
        seen.add(old)
    return renamed


def _carry_nested_data(node: protobuf.NodeProto, source: Path) -> None:
    """Read external data of tensors inside a node (Constant, bodies) into it: it would not be found elsewhere."""
    for attribute in node.attribute:
        sparse = [
            *attribute.sparse_tensors,
            *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else ()),
        ]
        _carry([attribute.t] if attribute.HasField("t") else [], source)
        _carry([*attribute.tensors, *(t for s in sparse for t in (s.values, s.indices))], source)
    for body in bodies(node):
        _carry([*body.initializer, *(t for s in body.sparse_initializer for t in (s.values, s.indices))], source)
        for inner in body.node:
            _carry_nested_data(inner, source)


def _carry(tensors: Iterable[protobuf.TensorProto], source: Path) -> None:
    """Read the external data of these tensors into them."""
    for tensor in tensors:
        if protobuf.on_disk(tensor):
            tensor.CopyFrom(protobuf.load_raw(tensor, source))


def _with_annotations(graph: Graph, weights: Iterable[str], tensors: set[str], out: protobuf.GraphProto) -> list[str]:
    """Copy the quantization annotations of tensors in the cut; return the weights with those that they name."""
    wanted = dict.fromkeys(weights)
    for annotation in graph.model.graph.quantization_annotation:
        if annotation.tensor_name in tensors or annotation.tensor_name in wanted:
            out.quantization_annotation.append(annotation)
            named = (entry.value for entry in annotation.quant_parameter_tensor_names)
            wanted.update(dict.fromkeys(n for n in named if n in graph.weights))
    return list(wanted)


def _add_weight(graph: Graph, name: str, out: protobuf.GraphProto) -> None:
    if name in graph.sparse:
        sparse = out.sparse_initializer.add()
        sparse.CopyFrom(graph.sparse[name])
        _carry([sparse.values, sparse.indices], graph.path)
        return
    source = graph.weights[name]
    if protobuf.in_other_file(source) and protobuf.nbytes(source) < protobuf.STUB_ABOVE:
        source = protobuf.load_raw(source, graph.path)
    out.initializer.add().MergeFromString(source.SerializeToString())


def _input_of(tensor: protobuf.TensorProto, declared: Mapping[str, protobuf.ValueInfoProto]) -> protobuf.ValueInfoProto:
    if tensor.name in declared:
        return declared[tensor.name]
    info = protobuf.protos().ValueInfoProto(name=tensor.name)
    set_tensor(info.type, tensor.data_type, tuple(tensor.dims))
    return info


def _add_functions(graph: Graph, order: Iterable[int], model: protobuf.ModelProto) -> None:
    """The local functions that these nodes call, directly, inside bodies or from other functions, in file order."""
    if not graph.functions:
        return
    needed: set[tuple[str, str, str]] = set()
    stack = [graph.nodes[i] for i in order]
    while stack:
        node = stack.pop()
        key = (node.domain, node.op_type, node.overload)
        function = graph.functions.get(key)
        if function is not None and key not in needed:
            needed.add(key)
            stack += function.node
        stack += [inner for body in bodies(node) for inner in body.node]
    model.functions.extend(function for key, function in graph.functions.items() if key in needed)
    for function in model.functions:
        for node in function.node:
            _carry_nested_data(node, graph.path)


# ---------------------------------------------------------------------------------------------------- types


def boundary_types(
    graph: Graph,
    names: Sequence[str],
    captured: Sequence[Mapping[str, Record]],
    infos: Mapping[str, protobuf.ValueInfoProto],
    *,
    dynamic: bool = False,
) -> dict[str, protobuf.TypeProto]:
    """Types of the tensors on an edge.

    From the capture, with its fixed shapes; a dimension that differs between samples stays open. With `dynamic` or
    without a capture: as declared, or as onnx's shape inference finds them; where that is missing or contradicts the
    capture, with all dimensions open.

    Raises:
        ModelError: nobody knows the type of a tensor.
    """
    known = {n: common_type([s[n] for s in captured]) for n in names if captured and n in captured[0]}
    if captured and not dynamic:
        return known
    found = {n: infos[n].type for n in names if n in infos and is_complete(infos[n].type)}
    if len(found) < len(names):
        found = {**_inferred(graph, [n for n in names if n not in found]), **found}
    found.update((n, with_open_dims(t)) for n, t in known.items() if n not in found or not fits(found[n], t))
    missing = [n for n in names if n not in found]
    if missing:
        raise ModelError(
            f"the type of tensor '{missing[0]}' is not declared in {graph.path.name} and cannot be inferred",
            "cut with a capture (without --no-capture): its type then comes from the run",
        )
    return found


def _inferred(graph: Graph, names: Sequence[str]) -> dict[str, protobuf.TypeProto]:
    """What onnx's shape inference says of these tensors, from the nodes above them; weights stay on disk."""
    import onnx.checker
    import onnx.shape_inference

    made = [n for n in names if n in graph.maker]
    if not made:
        return {}
    above = regions.above(graph, made)
    feeds = (*above.inputs, *above.shapes)
    model, _ = build_model(graph, above, feeds, [], graph.declared_types(feeds), {})
    try:
        model = onnx.shape_inference.infer_shapes(protobuf.to_onnx(model, graph.path))
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        ValueError,
    ):  # an invalid graph: `inspect` says where
        return {}
    return {v.name: v.type for v in model.graph.value_info if v.name in names and is_complete(v.type)}


def frozen_constant(record: Record, folder: Path) -> protobuf.TensorProto:
    """A captured value as an initializer, read without numpy: a .npy is a header and raw bytes."""
    tensor = protobuf.protos().TensorProto(name=record.name, data_type=dtypes.TYPE_NUMBERS[record.dtype])
    tensor.dims.extend(record.shapes[0])
    tensor.raw_data = npy_payload(folder / record.files[0])
    return tensor


def npy_payload(path: Path) -> bytes:
    """The raw bytes behind the header of a C-ordered .npy file (numpy.lib.format, versions 1 to 3)."""
    data = path.read_bytes()
    wide = 2 if data[6] == 1 else 4
    return data[8 + wide + int.from_bytes(data[8 : 8 + wide], "little") :]


def structure_problem(model: protobuf.ModelProto) -> str | None:
    """What is wrong with the cut's structure: a tensor read before it is made, an output that nobody makes."""
    graph = model.graph
    known = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    known |= {s.values.name for s in graph.sparse_initializer}
    from subgraph.graph.graph import captured as free

    for node in graph.node:
        for name in (*node.input, *free(node)):
            if name and name not in known:
                return f"'{name}', read by '{node.name}', is made by nobody before"
        known.update(node.output)
    lost = [v.name for v in graph.output if v.name not in known]
    return f"output '{lost[0]}' is made by nobody" if lost else None


def describe(cut: Cut, name: str) -> str:
    """`float32  1×64×56×56` of an edge tensor, as declared in the cut."""
    form, dtype, dims = declared_type(cut.types[name])
    text = f"{dtype}  {shape_text(tuple(dims)) if dims is not None else 'any shape'}"
    return text if form == "tensor" else f"{form} of {text}"
