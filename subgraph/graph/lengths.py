"""Long tensors of one axis, hidden from onnx's propagation of values while types are inferred, and brought back.

Insight: to compute shapes, onnx follows the values of tensors of one axis, and writes each of them down as a dimension
of 140 bytes, known or not: 10⁹ samples of sound would take 140 GB. It does so where it knows the length, so a Reshape
by a shape that nobody knows is put behind the tensor. No shape is as long; nothing that is computed from them is lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from subgraph.graph import protobuf
from subgraph.graph.graph import bodies
from subgraph.storage import dtypes

LONG = 1 << 14  # elements; 2 MB where they are followed. Values that shapes are computed from are a few dozen
RAW = "#raw"  # what a hidden tensor is called while it is hidden
HIDES = "#hides"  # the name of the nodes that hide
ONE, ANY = "#one", "#any"  # shapes that nobody knows: of one dimension, of so many as there are
# Operators whose values are followed (those of onnx with a data propagation function, 1.18 to 1.22)
FOLLOWED = frozenset("Add Cast Concat Gather Mul Slice Squeeze Sub Unsqueeze".split())
# Operators that may make one long axis of values that are known only once values are followed: the place of the shape
# among what they read, -1 for none
STRETCHES = {"Range": -1, "ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1, "Squeeze": -1, "Pad": -1}
FIRST = 5  # opset: before, Reshape read no shape, and no operator's shape depended on values


def graphs(graph: protobuf.GraphProto) -> Iterator[protobuf.GraphProto]:
    """The graph and all bodies in it."""
    yield graph
    for node in graph.node:
        for body in bodies(node) if node.attribute else ():
            yield from graphs(body)


def long(plain: protobuf.ModelProto) -> set[str]:
    """Tensors of a model with inferred types that are followed, and known to be long. Linear in its nodes."""
    found: set[str] = set()
    for graph in graphs(plain.graph):
        found.update(v.name for v in (*graph.input, *graph.value_info, *graph.output) if _length(v.type) > LONG)
        found.update(t.name for t in graph.initializer if len(t.dims) == 1 and t.dims[0] > LONG)
    return found & _followed(plain.graph)


def unsure(plain: protobuf.ModelProto) -> dict[str, str]:
    """Tensors that are followed, and may turn out to be long, with a shape to hide them by. Linear in its nodes."""
    types = {v.name: v.type for graph in graphs(plain.graph) for v in (*graph.input, *graph.value_info, *graph.output)}
    sizes = {t.name: t.dims[0] for graph in graphs(plain.graph) for t in graph.initializer if len(t.dims) == 1}
    found: dict[str, str] = {}
    followed = _followed(plain.graph)
    for node in (node for graph in graphs(plain.graph) for node in graph.node if node.op_type in STRETCHES):
        place = STRETCHES[node.op_type]
        shape = node.input[place] if 0 <= place < len(node.input) else ""
        axes = sizes.get(shape, _length(types[shape]) if shape in types else -1)
        name = node.output[0] if node.output else ""
        if axes < 2 and name in followed and (shape := _open(types.get(name))):
            found[name] = shape
    return found


def _open(kind: protobuf.TypeProto | None) -> str:
    """What hides a tensor of this type that may have one axis, of a length that is not known; "" if it has not."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return ANY
    dims = kind.tensor_type.shape.dim
    return ONE if len(dims) == 1 and not dims[0].HasField("dim_value") else ""


def _length(kind: protobuf.TypeProto) -> int:
    """Of its one axis; -1 where it has several, or nobody knows."""
    dims = kind.tensor_type.shape.dim
    return int(dims[0].dim_value) if len(dims) == 1 and dims[0].HasField("dim_value") else -1


def _followed(graph: protobuf.GraphProto) -> set[str]:
    return {n for g in graphs(graph) for node in g.node if node.op_type in FOLLOWED for n in node.input if n}


# ---------------------------------------------------------------------------------------------------- hide, bring back


def hide(model: protobuf.ModelProto, shapes: dict[str, str]) -> protobuf.ModelProto:
    """A copy in which nobody sees the length of these tensors; each with ONE or ANY. Linear in the model."""
    copy = type(model)()
    copy.CopyFrom(model)
    for graph in list(graphs(copy.graph)):
        _hide(graph, shapes)
    for name in (ONE, ANY):
        kind = copy.graph.input.add(name=name).type.tensor_type
        kind.elem_type = dtypes.TYPE_NUMBERS["int64"]
        kind.shape.dim.add()
        if name == ONE:
            kind.shape.dim[0].dim_value = 1
    return copy


def _hide(graph: protobuf.GraphProto, shapes: dict[str, str]) -> None:
    """Rename these tensors where they come from, and make them again behind it, of no length; who reads them stays."""
    behind = _renamed(graph, shapes)
    if not behind:
        return
    hidden = {name for names in behind for name in names}
    for info in (*graph.value_info, *graph.output):
        if info.name in hidden:
            info.type.tensor_type.ClearField("shape")
    nodes = list(graph.node)
    graph.ClearField("node")
    for place, names in enumerate(behind):
        graph.node.extend(nodes[place - 1 : place] if place else ())
        for name in names:
            graph.node.add(op_type="Reshape", name=HIDES, input=[name + RAW, shapes[name]], output=[name])


def _renamed(graph: protobuf.GraphProto, shapes: dict[str, str]) -> list[dict[str, None]]:
    """Rename them; those to be made again before the first node, behind the first, behind the second … [] for none."""
    behind: list[dict[str, None]] = [{}]
    for given in (*graph.input, *graph.initializer):
        if given.name in shapes:
            behind[0][given.name] = None
            given.name += RAW
    for node in graph.node:
        mine = [name for name in node.output if name in shapes]
        behind.append(dict.fromkeys(mine))
        if mine:
            node.output[:] = [name + RAW if name in shapes else name for name in node.output]
    return behind if any(behind) else []


def learned(found: protobuf.ModelProto, hidden: dict[str, str]) -> dict[str, str]:
    """What must still be hidden, and how, by the types that were found while this was."""
    types = {
        v.name: v.type
        for graph in graphs(found.graph)
        for v in (*graph.input, *graph.value_info, *graph.output)
        if v.name.endswith(RAW)
    }
    out = {}
    for name, shape in hidden.items():
        kind = types.get(name + RAW)
        if kind is None:  # of an initializer, or not found
            out[name] = shape
        elif still := ONE if _length(kind) > LONG else _open(kind):
            out[name] = still
    return out


def show(found: protobuf.ModelProto, plain: protobuf.ModelProto) -> None:
    """Bring back what was hidden; what nobody saw meanwhile is as in `plain`, the types inferred without values."""
    inputs = [v for v in found.graph.input if v.name not in (ONE, ANY)]
    found.graph.ClearField("input")
    found.graph.input.extend(inputs)
    for graph in graphs(found.graph):
        _show(graph)
    for graph, twin in zip(graphs(found.graph), graphs(plain.graph), strict=True):
        own = {v.name: v for v in (*graph.value_info, *graph.output)}
        for info in (*twin.value_info, *twin.output):
            if info.name in own:
                _complete(own[info.name].type, info.type)
            else:
                graph.value_info.add().CopyFrom(info)


def _show(graph: protobuf.GraphProto) -> None:
    hidden = {node.output[0] for node in graph.node if node.name == HIDES}
    nodes = [node for node in graph.node if node.name != HIDES]
    graph.ClearField("node")
    graph.node.extend(nodes)
    for node in graph.node:
        node.output[:] = [name.removesuffix(RAW) for name in node.output]
    for given in (*graph.input, *graph.initializer):
        given.name = given.name.removesuffix(RAW)
    raw = {v.name.removesuffix(RAW): v for v in graph.value_info if v.name.endswith(RAW)}
    for info in graph.output:
        if info.name in raw:
            _complete(info.type, raw[info.name].type)
    infos = [v for v in graph.value_info if v.name not in hidden and not v.name.endswith(RAW)]
    outputs = {v.name for v in graph.output}
    graph.ClearField("value_info")
    graph.value_info.extend(infos)
    for name, info in raw.items():
        if name not in outputs:
            graph.value_info.add(name=name, type=info.type)


def _complete(mine: protobuf.TypeProto, theirs: protobuf.TypeProto) -> None:
    """Add what the other one knows of the same tensor."""
    if not mine.WhichOneof("value") or (
        theirs.tensor_type.HasField("shape") and mine.HasField("tensor_type") and not mine.tensor_type.HasField("shape")
    ):
        mine.CopyFrom(theirs)
    ours, others = mine.tensor_type.shape.dim, theirs.tensor_type.shape.dim
    for dim, other in zip(ours, others, strict=False) if len(ours) == len(others) else ():
        if other.HasField("dim_value") and not dim.HasField("dim_value"):
            dim.dim_value = other.dim_value
