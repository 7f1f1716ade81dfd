"""The reference's model with the weights that the candidate's model holds in 8 bits or fewer.

A quantizer rounds each weight to the nearest step of a scale. Its cost is the choice of the person
who quantized the model, and no node computes it wrong. So the reference takes such weights as they
are quantized, and all other differences are errors of the candidate or of its model: a scale of
another block, a bias that is missing. A weight counts as quantized if nearly all of its elements
are within half a step of the dequantized ones; its other elements remain as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from subgraph.graph import protobuf
from subgraph.graph.graph import Graph, load
from subgraph.graph.nested import attribute
from subgraph.storage.dtypes import bits_of
from subgraph.types import Array, Arrays, frozen

MAX_BITS = 8  # of a code; those of biases are so fine that they do not matter
MAX_STEPS = 0.501  # of an element from its nearest code
MIN_SHARE = 0.9  # of the elements that are so near
MIN_RANGE = 1 / 8  # of its type's codes that the largest weight takes, else all would be near
MAX_PROBED = 256  # elements that are looked at before all are
MAX_ELEMENTS = 1 << 28  # of all weights; larger models are compared as they are
QUANTIZED, SCALE, ZERO = "_quantized", "_scale", "_zero_point"  # what onnxruntime's tool adds


@frozen
class _Codes:
    """A quantized weight.

    Attributes:
        real: Its dequantized values.
        step: Per element, the step of its scale.
        bits: The bits of one code.
    """

    real: Array
    step: Array
    bits: int

    @property
    def transposed(self) -> _Codes:
        return _Codes(self.real.T, self.step.T, self.bits)

    def find_near(self, weight: Array) -> Array | None:
        """Return which elements of a weight are within half a step; None if it is another one."""
        if self.real.shape != weight.shape:
            return None
        ours, theirs, step = (
            values.reshape(-1)[:MAX_PROBED] for values in (weight, self.real, self.step)
        )
        if np.mean(np.abs(ours - theirs) <= MAX_STEPS * step) < MIN_SHARE:
            return None
        near = np.abs(weight - self.real) <= MAX_STEPS * self.step
        most = np.max(np.abs(weight) / self.step, initial=0.0)
        is_coded = most >= MIN_RANGE * (1 << self.bits) and np.mean(near) >= MIN_SHARE
        return near if is_coded else None


def quantize_reference(graph: Graph, other: Graph, folder: Path) -> Graph:
    """Make the reference's model with the weights of the candidate's model, as it quantizes them.

    Args:
        graph: The reference's model.
        other: The candidate's.
        folder: An existing folder for the file.

    Returns:
        The model of the new file, or `graph` itself if no weight is quantized.
    """
    total = sum(math.prod(tensor.dims) for tensor in graph.weights.values())
    found = _find_quantized(graph, other) if total <= MAX_ELEMENTS else {}
    if not found:
        return graph
    model = protobuf.clone(graph.model)
    for tensor in model.graph.initializer:
        if tensor.name in found:
            _set_values(tensor, found[tensor.name])
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output[0] in found:
            _set_values(node.attribute[0].t, found[node.output[0]])
    file = folder / graph.path.name
    protobuf.write(model, graph.path, file)
    return load(file).prepare()


def _find_quantized(graph: Graph, other: Graph) -> Arrays:
    """By float weight of the reference's model, its values as the candidate's model has them."""
    constants = [
        *graph.weights,
        *(name for name in graph.maker if graph.constant(name) is not None),
    ]
    weights = {}
    for name in constants:
        values = graph.array(name)
        if values is not None and values.dtype.kind == "f" and values.ndim:
            weights[name] = values
    found: Arrays = {}
    for codes in _iter_codes(other):
        forms = [codes, codes.transposed] if codes.real.ndim == 2 else [codes]
        for name, weight in weights.items():
            near = None if name in found else _find_form(forms, weight)
            if near is not None:
                found = {**found, name: near}
    return found


def _find_form(forms: list[_Codes], weight: Array) -> Array | None:
    """Return a weight with the values of one of these forms; None if it is none of them."""
    for codes in forms:
        near = codes.find_near(weight)
        if near is not None:
            return np.where(near, codes.real, weight).astype(weight.dtype)
    return None


def _set_values(tensor: protobuf.TensorProto, values: Array) -> None:
    from onnx import numpy_helper

    made = numpy_helper.from_array(np.ascontiguousarray(values), tensor.name)
    tensor.CopyFrom(type(tensor).FromString(made.SerializeToString()))


# ------------------------------------------------------------ codes


def _iter_codes(graph: Graph) -> Iterator[_Codes]:
    """Yield the quantized weights of a model."""
    for node in graph.nodes:
        constants = [graph.array(name) if name else None for name in node.input]
        if node.op_type == "DequantizeLinear":
            axis = int(attribute(node, "axis", 1))
            block = int(attribute(node, "block_size", 0))
            codes = _dequantize(constants, axis, block)
        elif node.op_type == "MatMulNBits":
            codes = _unpack(node, constants)
        else:
            continue
        if codes:
            yield codes
    for name in graph.weights:
        if name.endswith(QUANTIZED):
            base = name.removesuffix(QUANTIZED)
            values = [graph.array(base + suffix) for suffix in (QUANTIZED, SCALE, ZERO)]
            last = -1 if values[0] is not None and values[0].ndim == 2 else 0
            codes = _dequantize(values, last, 0)
            if codes:
                yield codes


def _dequantize(constants: list[Array | None], axis: int, block: int) -> _Codes | None:
    """Return the values of codes, scale and zero point; None if they are no quantized weight."""
    codes, scale, *zeros = constants
    if codes is None or scale is None or not codes.ndim:
        return None
    bits = bits_of(codes.dtype.name)
    zero = next((values for values in zeros if values is not None), np.zeros(1, np.int32))
    if bits > MAX_BITS:
        return None
    try:
        step, zero = (_spread(values, codes, axis, block) for values in (scale, zero))
    except ValueError:  # a scale that does not fit its codes
        return None
    real = (codes.astype(np.int32) - zero.astype(np.int32)) * step.astype(np.float64)
    return _Codes(real, step, bits)


def _spread(values: Array, codes: Array, axis: int, block: int) -> Array:
    """Give a scale or zero point the shape of its codes."""
    if values.size == 1:
        values = values.reshape(())
    elif block:
        values = np.repeat(values, block, axis)[tuple(map(slice, codes.shape))]
    else:
        shape = [1] * codes.ndim
        shape[axis] = values.size
        values = values.reshape(shape)
    return np.broadcast_to(values, codes.shape)


def _unpack(node: protobuf.NodeProto, constants: list[Array | None]) -> _Codes | None:
    """Return the weight of a MatMulNBits; None if its form is not known."""
    bits, block = (int(attribute(node, name, 0)) for name in ("bits", "block_size"))
    rows, columns = (int(attribute(node, name, 0)) for name in ("N", "K"))
    packed, scale, *more = constants[1:]
    zeros = more[0] if more else None
    if packed is None or scale is None or 8 % (bits or 3):
        return None
    codes = _split(packed.reshape(rows, -1), bits)[:, :columns]
    step = np.repeat(scale.reshape(rows, -1), block, 1)[:, :columns]
    zero = np.full((rows, 1), 1 << (bits - 1), np.float64)
    if zeros is not None:
        blocks = -(-columns // block)
        is_packed = zeros.dtype == np.uint8
        each = _split(zeros.reshape(rows, -1), bits) if is_packed else zeros.reshape(rows, -1)
        zero = np.repeat(each[:, :blocks].astype(np.float64), block, 1)[:, :columns]
    return _Codes((codes - zero) * step.astype(np.float64), step, bits).transposed


def _split(packed: Array, bits: int) -> Array:
    """Split bytes into codes, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(packed), -1)
