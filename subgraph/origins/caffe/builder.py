"""Layers -> ONNX nodes and weights. Functions that convert one type of layer take a `CaffeLayer`.

The last node of a layer has the layer's name; nodes before it are called `layer/step`. Shapes are
known throughout, as a prototxt declares those of its inputs.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper, parser

from subgraph.errors import ModelError
from subgraph.graph import protobuf
from subgraph.origins.caffe.caffemodel import WeightBlob, WeightBlobs
from subgraph.origins.caffe.messages import Message, Parameters
from subgraph.storage.tensors import format_shape
from subgraph.text import clean, find_free_name
from subgraph.types import Array, JsonObject, Shape, Strings, frozen

MAX_ELEMENTS = 1 << 31  # of a tensor; onnxruntime and Caffe count in 32 bits
MAX_DRAWN = 1 << 28  # random weights of one blob: 1 GiB; VGG's largest has 1 << 27
# Of a larger filter this number of weights is drawn, and repeated; a prime, so that rows differ.
MAX_DRAWN_WEIGHTS = (1 << 22) - 3


@frozen
class LayerText:
    """A layer as the prototxt has it, of a type in today's spelling. `fields`: those of the layer
    itself."""

    name: str
    type: str
    bottoms: Strings
    tops: Strings
    fields: Parameters
    message: Message


@dataclass
class Builder:
    """The ONNX graph under construction.

    Attributes:
        where: The name of the prototxt, for errors.
        weights: The blobs of each layer; None if weights are drawn from `seed`.
        seed: The seed.
        drawn: The file that drawn weights are written to; None keeps them in memory.
        nodes: The nodes.
        initializers: The weights.
        shapes: The shape of each tensor.
        open: The tensors whose axis 2 may be shorter, which depends on values.
        used: The blobs of each layer, so that it can be written again.
        rms: About the root mean square of each tensor if weights are drawn, 1 if unknown; BatchNorm
            is drawn to fit.
        taken: Names of tensors and nodes, which are of one space.
    """

    where: str
    weights: Mapping[str, WeightBlobs] | None
    seed: int = 0
    drawn: Path | None = None
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    used: dict[str, list[WeightBlob]] = field(default_factory=dict)
    rms: dict[str, float] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def make_unique(self, name: str) -> str:
        """Return the name, or the name with a number if it is taken."""
        free = find_free_name(name, self.taken, "@")
        self.taken.add(free)
        return free

    def declare(self, tensor: str, shape: Sequence[int]) -> None:
        """Note the shape of a tensor.

        Raises:
            ModelError: a dimension is less than one, or there are too many elements.
        """
        if min(shape, default=1) < 1 or prod(shape) > MAX_ELEMENTS:
            raise ModelError(
                f"{self.where}: '{tensor}' would have the shape {format_shape(shape)}",
                "correct the sizes in front of it",
                code="caffe.wrong-shape",
            )
        self.shapes[tensor] = tuple(shape)


@dataclass
class CaffeLayer:
    """One layer to be converted: its bottoms as tensors with shapes, its parameters, its blobs.

    Attributes:
        builder: The graph.
        text: The layer in the prototxt.
        bottoms: Names of the tensors that it reads.
        tops: Names of the tensors that it computes.
    """

    builder: Builder
    text: LayerText
    bottoms: Strings
    tops: Strings

    @property
    def name(self) -> str:
        return self.text.name

    @property
    def shapes(self) -> list[Shape]:
        return [self.builder.shapes[b] for b in self.bottoms]

    @property
    def shape(self) -> Shape:
        """The shape of the first bottom."""
        return self.builder.shapes[self.bottoms[0]]

    def refuse(self, why: str, hint: str = "") -> ModelError:
        """Return the error that names the layer."""
        return ModelError(
            f"{self.builder.where}: layer '{clean(self.name)}' ({clean(self.text.type)}) {why}",
            hint,
            code="caffe.layer-refused",
        )

    def get_parameters(self, name: str) -> Parameters:
        """Return the layer's message of that name; all defaults if it has none."""
        return getattr(self.text.fields, name) or Parameters(name, None, self.builder.where)

    def resolve_axis(self, axis: int, rank: int | None = None) -> int:
        """Return an axis of the first bottom, counted from the front.

        Raises:
            ModelError: there is no such axis.
        """
        rank = len(self.shape) if rank is None else rank
        if not -rank <= axis < rank:
            raise self.refuse(f"has no axis {axis}: its bottom is {format_shape(self.shape)}")
        return axis % rank

    # ------------------------------------------------------------ weights

    def add_blob(self, k: int, shape: Shape, like: str) -> WeightBlob:
        """Return blob `k`, checked against the shape that the prototxt implies.

        `like`: how it is drawn without a caffemodel (`_draw`).

        Raises:
            ModelError: The caffemodel has no such blob, or one of another shape.
            OutputError: The disk is full.
        """
        if self.builder.weights is None:
            values = _draw(self, k, shape, like)
            blob = WeightBlob(shape, values=values)
            if file := self.builder.drawn:
                with protobuf.explain_write_error(file), file.open("ab") as out:
                    place = protobuf.Blob(file, out.tell(), values.nbytes)
                    out.write(values.astype("<f4", copy=False).data)
                blob = WeightBlob(shape, (place,))
        else:
            blobs = self.builder.weights.get(self.name, ())
            hint = "is the caffemodel of this prototxt? name it with --weights"
            if k >= len(blobs):
                have = "no weights" if not blobs else f"only {len(blobs)} blobs"
                raise self.refuse(f"has {have} in the caffemodel", hint)
            blob = blobs[k]
            # Old files declare four dims, filled up with ones.
            if _drop_leading_ones(blob.shape) != _drop_leading_ones(shape):
                have = format_shape(blob.shape)
                want = format_shape(shape)
                raise self.refuse(f"needs {want} as blob {k}, the caffemodel has {have}", hint)
        self.builder.used.setdefault(self.name, []).append(blob)
        return blob

    def weight(self, k: int, shape: Shape, what: str, like: str, view: Shape | None = None) -> str:
        """Add blob `k` as an initializer of the shape `view`; return its name.

        A large one stays in the caffemodel.
        """
        blob = self.add_blob(k, shape, like)
        name = self.builder.make_unique(f"{self.name}.{what}")
        place = blob.place
        dims = view or shape
        if place is None or place.length < protobuf.MIN_STUB_BYTES:
            tensor = numpy_helper.from_array(blob.array().reshape(dims), name)
        else:
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
            protobuf.point_to(tensor, protobuf.HERE, place.offset, place.length)
        self.builder.initializers.append(tensor)
        return name

    def constant(self, what: str, value: Any) -> str:
        """Add an initializer, of float32 or of int64; returns its name."""
        name = self.builder.make_unique(f"{self.name}.{what}")
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        self.builder.initializers.append(numpy_helper.from_array(array, name))
        return name

    # ------------------------------------------------------------ nodes

    def formula(self, text: str, *shapes: Sequence[int], **values: Any) -> None:
        """Add the nodes of a formula in ONNX's text syntax, of which the last outputs the tops.

        Args:
            text: One node per line: `half = Mul (x, factor)`. The bottoms are `x`, `x1` and `x2`;
                every other name is one of `values` or the output of an earlier line.
            shapes: Shapes of the tops; by default, that of the first bottom.
            values: Names of tensors, and constants: floats become float32, integers int64.
        """
        self._add_nodes(text, values, self.tops)
        self._declare_tops(shapes)

    def step(self, text: str, **values: Any) -> str:
        """Add nodes before the layer's last node, as `formula`; returns the output of the last."""
        return self._add_nodes(text, values, ())

    def _add_nodes(self, text: str, values: JsonObject, tops: Strings) -> str:
        names = {"": "", **dict(zip(("x", "x1", "x2"), self.bottoms, strict=False))}
        for what, value in values.items():
            names[what] = value if isinstance(value, str) else self.constant(what, value)
        nodes = [parser.parse_node(line) for line in text.splitlines()]
        for node in nodes:
            node.input[:] = [names[name] for name in node.input]
            if tops and node is nodes[-1]:
                node.name = self.name
                outputs = list(tops)
            else:
                node.name = self.builder.make_unique(f"{self.name}/{node.output[0]}")
                outputs = [node.name, *(f"{node.name}@{k + 1}" for k in range(1, len(node.output)))]
                self.builder.taken.update(outputs)
            names |= dict(zip(node.output, outputs, strict=True))
            node.output[:] = outputs
        self.builder.nodes += nodes
        return outputs[0]

    def _declare_tops(self, shapes: Sequence[Sequence[int]]) -> None:
        for top, shape in zip(self.tops, shapes or [self.shape], strict=False):
            self.builder.declare(top, shape)

    def last(
        self,
        op: str,
        *shapes: Sequence[int],
        inputs: Sequence[str] | None = None,
        **attributes: Any,
    ) -> None:
        """Add the layer's last node, which produces its tops.

        Args:
            shapes: Shapes of the tops; by default, that of the first bottom.
            inputs: By default, the bottoms.
        """
        read = list(self.bottoms if inputs is None else inputs)
        self.builder.nodes.append(
            helper.make_node(op, read, list(self.tops), name=self.name, **attributes)
        )
        self._declare_tops(shapes)

    def chain(self, *steps: tuple[str, str, Any, Any]) -> None:
        """Add unary or binary nodes in a row, of which the last is the layer's.

        Args:
            steps: The name of the step, the operator, its constant (None for a unary operator), and
                the constant with which the step changes nothing and is omitted.
        """
        needed = [step for step in steps if step[2] is None or step[2] != step[3]]
        lines = []
        tensor = "x"
        for what, op, value, _ in needed or [("y", "Identity", None, None)]:
            operands = tensor if value is None else f"{tensor}, {what}"
            lines.append(f"{what} = {op} ({operands})")
            tensor = what
        constants = {what: value for what, _, value, _ in needed if value is not None}
        self.formula("\n".join(lines), **constants)


def estimate_rms(layer: CaffeLayer) -> float:
    """Estimate the root mean square of a layer's top.

    He's filters double the power, ReLU halves it, a sum adds it.
    """
    powers = [layer.builder.rms.get(b, 1.0) ** 2 for b in layer.bottoms]
    match layer.text.type:
        case "BatchNorm" | "BN" | "InnerProduct":  # drawn so
            return 1.0
        case "Convolution" | "Deconvolution":
            return float((2 * powers[0]) ** 0.5)
        case "ReLU" | "ReLU6" | "PReLU" | "ELU":
            return float((powers[0] / 2) ** 0.5)
        case "Eltwise":  # mostly positive, so that a later ReLU halves nothing
            return float((2 * sum(powers)) ** 0.5)
    return float(powers[0] ** 0.5)


def _drop_leading_ones(shape: Shape) -> Shape:
    """Return a shape without the ones in front."""
    return next((shape[k:] for k, n in enumerate(shape) if n != 1), ())


def _draw(layer: CaffeLayer, k: int, shape: Shape, like: str) -> Array:
    """Draw random weights that keep values near one.

    `like`: filter (He), offset, factor, variance, slope, one.

    So a net of a hundred layers neither vanishes nor saturates its softmax: a wrong layer shows at
    its output.
    """
    if prod(shape) > MAX_DRAWN:
        raise layer.refuse(
            f"needs {prod(shape)} random weights", "name a caffemodel with --weights"
        )
    power = layer.builder.rms.get(layer.bottoms[0], 1.0) ** 2
    rng = np.random.default_rng([layer.builder.seed, zlib.crc32(layer.name.encode()), k])
    if like == "filter":
        fan_in = (prod(shape[1:]) or 1) * (2 * power if layer.text.type == "InnerProduct" else 1)
        block = rng.standard_normal(
            min(prod(shape), MAX_DRAWN_WEIGHTS), dtype=np.float32
        ) * np.float32((2 / fan_in) ** 0.5)
        return np.resize(block, shape)
    ranges = {"offset": (-0.1, 0.1), "factor": (0.8, 1.2), "slope": (0.1, 0.4), "one": (1.0, 1.0)}
    low, high = ranges.get(like, (0.8 * power, 1.2 * power))
    return rng.uniform(low, high, shape).astype(np.float32)
