"""A prototxt's tree, and the blobs of a caffemodel -> an ONNX model, one tensor name per layer.

A layer that writes over its bottom ("in place": `conv1`, `bn_conv1`, `scale_conv1`, `conv1_relu`
all have the top `conv1`) makes a new tensor, with the layer's name; any other top keeps its
name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from subgraph.errors import ModelError
from subgraph.iterables import flatten
from subgraph.origins.caffe import layers, shapes, windows
from subgraph.origins.caffe.builder import Builder, CaffeLayer, LayerText, estimate_rms
from subgraph.origins.caffe.caffemodel import WeightBlobs
from subgraph.origins.caffe.messages import Message, Parameters, Scalar
from subgraph.storage.tensors import format_shape
from subgraph.text import clean, count, find_nearest
from subgraph.types import Shape, StringMap, Strings, frozen

# The oldest opset with all operators that are used, because old converters refuse newer ones.
OPSET = 13
IR_VERSION = 7
PRODUCER = "subcut from Caffe"

CONVERTERS: dict[str, Callable[[CaffeLayer], None]] = {
    **windows.LAYERS,
    **layers.LAYERS,
    **shapes.LAYERS,
}
# (fewest, most) bottoms of layers that have not exactly one; any number of tops only of those in
# MANY_TOPS.
_BOTTOMS = {
    "Axpy": (3, 3),
    "Bias": (1, 2),
    "Concat": (1, 10_000),
    "Crop": (2, 2),
    "DetectionOutput": (3, 3),
    "Eltwise": (2, 10_000),
    "LSTM": (2, 2),
    "ROIPooling": (2, 2),
    "PriorBox": (2, 2),
    "Scale": (1, 2),
}
_NamedShapes: TypeAlias = "Iterable[tuple[str, Sequence[int]]]"
_MANY_TOPS = ("Slice", "Split")
_INPUTS = "AnnotatedData Data DummyData HDF5Data ImageData Input MemoryData WindowData".split()
# They measure or write, and compute nothing on.
_IGNORED = (
    "Accuracy",
    "DetectionEvaluate",
    "HDF5Output",
    "Silence",
)
# Types of layers before 2014: their names in capitals, `INNER_PRODUCT` for InnerProduct.
_V1_TYPES = {"SOFTMAXLOSS": "SoftmaxWithLoss"} | {
    name.upper(): name
    for name in (
        "AbsVal Accuracy ArgMax BNLL Concat ContrastiveLoss Convolution Data Deconvolution "
        "Dropout DummyData Eltwise EuclideanLoss Exp Flatten HDF5Data HDF5Output HingeLoss Im2col "
        "ImageData InfogainLoss InnerProduct LRN MemoryData MultinomialLogisticLoss MVN Pooling "
        "Power ReLU Sigmoid SigmoidCrossEntropyLoss Silence Slice Softmax Split TanH Threshold "
        "WindowData"
    ).split()
}


@frozen
class ConvertedLayer:
    """A layer with the tensors that its blobs became."""

    text: LayerText
    bottoms: Strings
    tops: Strings
    nodes: Strings
    weights: WeightBlobs


@frozen
class CaffeNetwork:
    """A converted network. `shapes`: of every blob by its tensor's name; `field`: `layer`, before
    2014 `layers`."""

    name: str
    model: ModelProto
    layers: tuple[ConvertedLayer, ...]
    shapes: Mapping[str, Shape]
    field: str


def convert(
    tree: Message,
    where: str,
    weights: Mapping[str, WeightBlobs] | None,
    seed: int = 0,
    drawn: Path | None = None,
) -> CaffeNetwork:
    """Return the ONNX model of a prototxt. Large weights are stubs whose location is the
    caffemodel, or `drawn`.

    Args:
        tree: The prototxt.
        where: Its name, for errors.
        weights: The blobs of each layer; None draws them from `seed`.
        seed: The seed.
        drawn: The file of drawn weights; None keeps them in memory.

    Raises:
        ModelError: a layer is of an unknown type, a field is misspelt, shapes do not fit; names the
            layer or line.
    """
    try:
        net = Parameters("net", tree, where)
    except ModelError:  # of a layer that is not known, the parameters are not either
        _require_known(tree, where)
        raise
    texts = [*_iter_layers(net, tree, where)]
    builder = Builder(where, weights, seed, drawn)
    builder.taken = set(flatten((layer.name, *layer.bottoms, *layer.tops) for layer in texts))
    current: dict[str, str] = {}  # blob -> the tensor that holds its value now
    inputs = [*_declare(builder, current, _find_inputs(net, where))]
    converted = []
    for text in texts:
        if text.type in _INPUTS:
            inputs += _declare(
                builder, current, zip(text.tops, _find_input_shapes(text, where), strict=True)
            )
            continue
        # A new top keeps its name; a top that is written again gets the name of the layer.
        tops = []
        for top in text.tops:
            name = text.name if top in current else top
            if name in builder.shapes or name in tops:
                name = builder.make_unique(f"{top}@{text.name}")
            tops.append(name)
        layer = CaffeLayer(
            builder,
            text,
            tuple(_find_bottom(text, b, current, where) for b in text.bottoms),
            tuple(tops),
        )
        _require_arity(layer)
        before = len(builder.nodes)
        try:
            CONVERTERS[text.type](layer)
        except IndexError:
            shapes_of = ", ".join(format_shape(shape) for shape in layer.shapes)
            raise layer.refuse(f"needs a bottom with more axes than {shapes_of}") from None
        builder.rms |= dict.fromkeys(layer.tops, estimate_rms(layer))
        current.update(zip(text.tops, layer.tops, strict=True))
        for node in builder.nodes[before:]:
            node.doc_string = text.name
        names = tuple(n.name for n in builder.nodes[before:])
        converted.append(
            ConvertedLayer(
                text, layer.bottoms, layer.tops, names, tuple(builder.used.get(text.name, ()))
            )
        )
    return CaffeNetwork(
        net.name,
        _make_model(net.name, builder, inputs),
        tuple(converted),
        builder.shapes,
        "layers" if net.layers else "layer",
    )


def _iter_layers(net: Parameters, tree: Message, where: str) -> Iterator[LayerText]:
    """Yield the layers that are there when a network is tested, in their order, of types that are
    known."""
    if net.layer and net.layers:
        raise ModelError(
            f"{where} has both `layer` and `layers`",
            "write all as `layer`: upgrade_net_proto_text of Caffe",
            code="caffe.mixed-forms",
        )
    messages = [value for name, value in tree.fields if name in ("layer", "layers")]
    seen = set()
    for fields, message in zip(net.layer or net.layers, messages, strict=True):
        assert isinstance(message, Message)
        kind = fields.type
        if net.layers:
            kind = _V1_TYPES.get(kind.replace("_", ""), kind)
        if not _is_tested(fields) or kind in _IGNORED:
            continue
        if kind not in CONVERTERS and kind not in _INPUTS:
            raise _refuse_type(fields.name, kind, message, where)
        if fields.name in seen:
            raise ModelError(
                f"{where}, line {message.line}: two layers are called '{fields.name}'",
                "rename one",
                code="caffe.same-name",
            )
        if not fields.name or not fields.top:
            raise ModelError(
                f"{where}, line {message.line}: a layer without a name or a top",
                "give it both",
                code="caffe.layer-incomplete",
            )
        seen.add(fields.name)
        yield LayerText(fields.name, kind, tuple(fields.bottom), tuple(fields.top), fields, message)
    if not seen:
        raise ModelError(
            f"{where} has no layers",
            "name the prototxt of a network: deploy.prototxt",
            code="caffe.no-layers",
        )


def _is_tested(fields: Parameters) -> bool:
    """Return whether the layer is part of the network in the phase TEST, at no stage."""
    if fields.phase and fields.phase not in ("TEST", "1"):
        return False

    def meets(rule: Any) -> bool:
        return (not rule.phase or rule.phase in ("TEST", "1")) and not rule.stage

    if fields.include:
        return any(map(meets, fields.include))
    return not any(map(meets, fields.exclude))


def _require_known(tree: Message, where: str) -> None:
    """Require that each layer of a network is of a known type.

    Raises:
        ModelError: a layer is of a type that is not known, or the network is of Caffe's first form.
    """
    for field, message in tree.fields:
        if field not in ("layer", "layers") or not isinstance(message, Message):
            continue
        words = {name: value.text for name, value in message.fields if isinstance(value, Scalar)}
        kind = words.get("type", "")
        if field == "layers" and any(name == "layer" for name, _ in message.fields):
            raise ModelError(
                f"{where}, line {message.line}: a network in Caffe's first form (V0), a `layer` in"
                " each `layers`",
                "upgrade_net_proto_text of Caffe writes it as subcut reads it",
                code="caffe.old-form",
            )
        if field == "layer" and kind and not {kind} & {*CONVERTERS, *_INPUTS, *_IGNORED}:
            raise _refuse_type(words.get("name", ""), kind, message, where)


def _refuse_type(name: str, kind: str, message: Message, where: str) -> ModelError:
    what = f"{where}, line {message.line}: layer '{clean(name)}' is of the type '{clean(kind)}'"
    if kind.endswith("Loss"):
        return ModelError(
            f"{what}, which is for training",
            "name the deploy.prototxt, without data and loss layers",
            code="caffe.training-layer",
        )
    return ModelError(
        f"{what}, which subcut does not convert",
        f"known: {', '.join(sorted(CONVERTERS))}",
        code="caffe.unsupported-layer",
    )


def _find_inputs(net: Parameters, where: str) -> _NamedShapes:
    """Return the inputs before all layers, each with an `input_shape` or four `input_dim`s."""
    shapes = [shape.dim for shape in net.input_shape]
    if not shapes:
        shapes = [net.input_dim[k : k + 4] for k in range(0, len(net.input_dim), 4)]
    if len(shapes) != len(net.input):
        raise ModelError(
            f"{where}: {count(net.input, 'input')}, {count(shapes, 'shape')}",
            "give each input an input_shape, or four input_dim",
            code="caffe.input-shape",
        )
    return zip(net.input, shapes, strict=True)


def _find_input_shapes(text: LayerText, where: str) -> list[list[int]]:
    """Return the shapes that a data layer declares, one per top."""
    f = text.fields
    shapes = []
    if text.type == "Input" and f.input_param:
        shapes = [shape.dim for shape in f.input_param.shape]
    elif text.type == "DummyData" and (p := f.dummy_data_param):
        shapes = [s.dim for s in p.shape] or [
            list(d) for d in zip(p.num, p.channels, p.height, p.width, strict=False)
        ]
    elif text.type == "MemoryData" and (p := f.memory_data_param):
        shapes = [[p.batch_size, p.channels, p.height, p.width], [p.batch_size]]
    elif p := f.data_param or f.image_data_param:
        size = p.crop_size or (f.transform_param.crop_size if f.transform_param else 0)
        height = size or getattr(p, "new_height", 0)
        width = size or getattr(p, "new_width", 0)
        batch = p.batch_size or 1
        shapes = [[batch, 3, height, width], [batch]] if height and width else []
    shapes = shapes[: len(text.tops)]
    if len(shapes) == 1 and text.type in ("Input", "DummyData"):
        shapes *= len(text.tops)
    if len(shapes) != len(text.tops):
        raise ModelError(
            f"{where}: layer '{text.name}' ({text.type}) declares no shape of its tops",
            'write it as type: "Input" input_param { shape { dim: 1 dim: 3 dim: 224 dim: 224 } }',
            code="caffe.input-shape",
        )
    return shapes


def _declare(builder: Builder, current: dict[str, str], inputs: _NamedShapes) -> Iterator[str]:
    """Note inputs of the model; yields their tensors."""
    for name, shape in inputs:
        if name in current:
            raise ModelError(
                f"{builder.where}: two inputs are called '{name}'",
                "rename one",
                code="caffe.same-name",
            )
        builder.declare(name, shape)
        builder.taken.add(name)
        current[name] = name
        yield name


def _find_bottom(text: LayerText, blob: str, current: StringMap, where: str) -> str:
    if blob not in current:
        near = find_nearest(blob, current)[:1]
        raise ModelError(
            f"{where}, line {text.message.line}: no layer makes '{blob}', the bottom of"
            f" '{text.name}'",
            (
                f"did you mean '{near[0]}'?"
                if near
                else "a layer in front of it must have it as its top"
            ),
            code="caffe.no-producer",
        )
    return current[blob]


def _require_arity(layer: CaffeLayer) -> None:
    fewest, most = _BOTTOMS.get(layer.text.type, (1, 1))
    tops = len(layer.tops)
    if not fewest <= len(layer.bottoms) <= most or (tops > 1 and layer.text.type not in _MANY_TOPS):
        if fewest == most:
            wants = f"{fewest}"
        elif most > 2:
            wants = f"at least {fewest}"
        else:
            wants = f"{fewest} or {most}"
        raise layer.refuse(
            f"has {count(layer.bottoms, 'bottom')} and {count(tops, 'top')}",
            f"known: {wants}, and one top",
        )


def _make_model(name: str, builder: Builder, inputs: list[str]) -> ModelProto:
    """Return the model with the inputs that are read; tensors without a reader are outputs."""
    read = set(flatten(node.input for node in builder.nodes))
    made = [n for n in flatten(node.output for node in builder.nodes) if n in builder.shapes]
    if not made:
        raise ModelError(
            f"{builder.where} computes nothing",
            "name the prototxt of a network: deploy.prototxt",
            code="caffe.no-layers",
        )

    def info(tensor: str) -> ValueInfoProto:
        shape: list[int | str] = [*builder.shapes[tensor]]
        if tensor in builder.open:
            shape[2] = f"{tensor}_rows"
        return helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)

    outputs = [n for n in made if n not in read]
    graph = helper.make_graph(
        builder.nodes,
        name or "Caffe",
        [info(n) for n in inputs if n in read],
        [info(n) for n in outputs],
        value_info=[info(n) for n in made if n in read],
    )
    graph.initializer.extend(builder.initializers)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name=PRODUCER,
    )
