"""The reference's model with the weights that the candidate's model holds in 8 bits or fewer.

A quantizer rounds each weight to the nearest step of a scale. Its cost is the choice of the person
who quantized the model, and no node computes it wrong. So the reference takes such weights as they
are quantized, and all other differences are errors of the candidate or of its model: a scale of
another block, a bias that is missing. A weight counts as quantized if nearly all of its elements
are within half a step of the dequantized ones; its other elements remain as they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
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


@frozen
class QuantizedReference:
    """The reference's model with quantized weights.

    Attributes:
        graph: The model.
        share: The elements of the candidate's quantized weights that are weights of the
            reference's model, as a share of all that it quantizes. 0 if it quantizes none.
    """

    graph: Graph
    share: float


def quantize_reference(graph: Graph, other: Graph, folder: Path) -> QuantizedReference:
    """Make the reference's model with the weights of the candidate's model, as it quantizes them.

    Args:
        graph: The reference's model.
        other: The candidate's.
        folder: An existing folder for the file.

    Returns:
        The model of the new file, or `graph` itself if no weight is quantized.
    """
    total = sum(math.prod(tensor.dims) for tensor in graph.weights.values())
    if total > MAX_ELEMENTS:
        return QuantizedReference(graph, 0.0)
    found, share = _find_quantized(graph, other)
    if not found:
        return QuantizedReference(graph, 0.0)
    model = protobuf.clone(graph.model)
    for tensor in model.graph.initializer:
        if tensor.name in found:
            _set_values(tensor, found[tensor.name])
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output[0] in found:
            _set_values(node.attribute[0].t, found[node.output[0]])
    file = folder / graph.path.name
    protobuf.write(model, graph.path, file)
    return QuantizedReference(load(file).prepare(), share)


@frozen
class _Weight:
    """A float weight of the reference's model, as the candidate's model can hold it.

    Attributes:
        values: Its values, with the factor.
        factor: What a BatchNormalization that is folded into the weight multiplies it by.
    """

    values: Array
    factor: Array | float = 1.0


def _find_quantized(graph: Graph, other: Graph) -> tuple[Arrays, float]:
    """Find the float weights that the candidate's model quantizes: by name, their values there; and
    the share of its codes that are such weights."""
    made = (name for name in graph.maker if graph.constant(name) is not None)
    weights: dict[str, list[_Weight]] = {}
    for name in (*graph.weights, *made):
        values = graph.array(name)
        if values is not None and values.dtype.kind == "f" and values.ndim:
            weights[name] = [_Weight(values)]
    for name, factor in _iter_folded(graph, weights):
        weights[name].append(_Weight(weights[name][0].values * factor, factor))
    found: dict[str, Array] = {}
    known = 0
    total = 0
    for codes in _iter_codes(other):
        total += codes.real.size
        names = [name for name in weights if _take(codes, weights[name], name, found)]
        known += codes.real.size if names else 0
    return found, known / total if total else 0.0


def _iter_folded(graph: Graph, weights: Collection[str]) -> Iterator[tuple[str, Array]]:
    """Yield the weights of Convs that a BatchNormalization follows, and the factor that folds it
    into them."""
    for i, node in enumerate(graph.nodes):
        conv = graph.maker.get(node.input[0], -1) if node.op_type == "BatchNormalization" else -1
        if conv < 0 or graph.ops[conv] != "Conv" or graph.nodes[conv].input[1] not in weights:
            continue
        scale, variance = (graph.array(graph.nodes[i].input[k]) for k in (1, 4))
        name = graph.nodes[conv].input[1]
        rank = len(graph.weights[name].dims) if name in graph.weights else 0
        if scale is not None and variance is not None and rank:
            factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
            yield name, factor.reshape(-1, *[1] * (rank - 1))


def _take(codes: _Codes, forms: Sequence[_Weight], name: str, found: dict[str, Array]) -> bool:
    """Return whether a weight is quantized to these codes; its values there go to `found`."""
    both = [codes, codes.transposed] if codes.real.ndim == 2 else [codes]
    for weight in forms:
        for form in both:
            near = form.find_near(weight.values)
            if near is not None:
                taken = np.where(near, form.real, weight.values) / weight.factor
                found.setdefault(name, taken.astype(forms[0].values.dtype))
                return True
    return False


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
