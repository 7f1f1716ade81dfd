"""The reference's model with the weights that the candidate's model holds in 16 bits or fewer.

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
from subgraph.graph.nested import get_attribute
from subgraph.graph.quantization import find_channel_axis, unpack_blocks
from subgraph.graph.region import prepare_graph
from subgraph.lazy import onnx
from subgraph.storage.dtypes import count_bits, name_of
from subgraph.storage.tensors import find_dtype
from subgraph.types import Array, Arrays, frozen

MAX_BITS = 16  # of a code; the 32 bits of biases are so fine that they do not matter
MAX_STEPS = 0.501  # of an element from its nearest code
MIN_SHARE = 0.9  # of the elements that are so near
MAX_LOSS = 0.3  # relative error of a row or column; one of which more is lost is useless
DEAD_SIZE = 1e-3  # of the median of rows or columns; training has left a smaller one unused
MIN_SLICE = 8  # elements of a row or column; of fewer, a small one shows nothing
MIN_RANGE = 1 / 8  # of its type's codes that the largest weight takes, else all would be near
MAX_PROBED = 16  # indices of each axis that are compared before all are
MAX_ELEMENTS = 1 << 28  # of all weights; larger models are compared as they are
# Suffixes that onnxruntime's tool adds.
QUANTIZED = "_quantized"
SCALE = "_scale"
ZERO = "_zero_point"


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


@frozen
class _Weight:
    """A float weight of the reference's model, as the candidate's model can hold it.

    Attributes:
        name: Its name.
        values: Its values, with the factor.
        factor: The factor of a BatchNormalization that is folded into the weight; 1 without one.
    """

    name: str
    values: Array
    factor: Array | float = 1.0

    def read(self, codes: _Codes) -> Array | None:
        """Return the values of the weight as these codes hold it; None if they hold another one."""
        for real, step in ((codes.real, codes.step), (codes.real.T, codes.step.T)):
            if real.shape != self.values.shape:
                continue
            probe = (slice(MAX_PROBED),) * real.ndim
            apart = np.abs(self.values[probe] - real[probe])
            if np.mean(apart <= MAX_STEPS * step[probe]) < MIN_SHARE:
                continue
            near = np.abs(self.values - real) <= MAX_STEPS * step
            is_coded = np.abs(self.values) >= MIN_RANGE * (1 << codes.bits) * step
            taken = np.asarray(np.where(near, real, self.values))
            if np.any(is_coded) and np.mean(near) >= MIN_SHARE:
                return taken
        return None


def _measure_loss(weight: Array, real: Array) -> float:
    """Measure the relative error of the worst row or column of a weight."""
    lost = [0.0]
    for axis in range(weight.ndim):
        if weight.size < MIN_SLICE * max(weight.shape[axis], 1):
            continue
        others = tuple(k for k in range(weight.ndim) if k != axis)
        size, error = (np.sqrt((v**2).sum(others)) for v in (weight, weight - real))
        size = np.maximum(size, DEAD_SIZE * np.median(size))
        lost.append(float(np.max(error / np.maximum(size, 1e-30), initial=0.0)))
    return max(lost)


def quantize_reference(graph: Graph, other: Graph, folder: Path) -> tuple[Graph, float]:
    """Make the reference's model with the weights of the candidate's model, as it quantizes them.

    Args:
        graph: The reference's model.
        other: The candidate's.
        folder: An existing folder for the file.

    Returns:
        The model of the new file, or `graph` itself if no weight is quantized; and the elements of
        the candidate's quantized weights that are weights of the reference's model, as a share of
        all that it quantizes. 0 if it quantizes none.
    """
    total = sum(math.prod(tensor.dims) for tensor in graph.weights.values())
    found, share = find_quantized(graph, other) if total <= MAX_ELEMENTS else ({}, 0.0)
    if not found:
        return graph, 0.0
    model = protobuf.clone(graph.model)
    for tensor in model.graph.initializer:
        if tensor.name in found:
            _set_values(tensor, found[tensor.name])
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output[0] in found:
            _set_values(node.attribute[0].t, found[node.output[0]])
    file = folder / graph.path.name
    protobuf.write(model, graph.path, file)
    return prepare_graph(load(file)), share


def find_quantized(graph: Graph, other: Graph) -> tuple[Arrays, float]:
    """Find the float weights that the candidate's model quantizes: by name, their values there; and
    the share of its codes that are such weights."""
    made = (name for name in graph.maker if graph.constant(name) is not None)
    arrays = {name: graph.array(name) for name in (*graph.weights, *made)}
    weights = [_Weight(n, v) for n, v in arrays.items() if v is not None and _are_floats(v)]
    floats = {weight.name: weight.values for weight in weights}
    for i, node in enumerate(graph.nodes):
        fold = find_fold(graph, i)
        if fold and node.input[1] in floats:
            own = floats[node.input[1]]
            factor = fold.factor.reshape(-1, *[1] * (own.ndim - 1))
            weights.append(_Weight(node.input[1], own * factor, factor))
    found: dict[str, Array] = {}
    known = 0
    total = 0
    for codes in _iter_codes(other):
        held = ((weight, weight.read(codes)) for weight in weights)
        values = {
            weight.name: real / weight.factor
            for weight, real in held
            if real is not None and _measure_loss(weight.values, real) <= MAX_LOSS
        }
        total += codes.real.size
        known += codes.real.size if values else 0
        found |= values
    return found, known / total if total else 0.0


def iter_useless(weights: Arrays, other: Graph) -> Iterator[tuple[str, float]]:
    """Yield the weights of which codes of the candidate's model lose a row or column, each with the
    largest step of its codes."""
    for codes in _iter_codes(other):
        for name, values in weights.items():
            real = _Weight(name, values).read(codes) if _are_floats(values) else None
            if real is not None and _measure_loss(values, real) > MAX_LOSS:
                yield name, float(np.max(codes.step))


def _are_floats(values: Array) -> bool:
    """Return whether an array may be a weight: floats, and not a single number."""
    return values.dtype.kind == "f" and values.ndim > 0


@frozen
class Fold:
    """The numbers that fold a BatchNormalization into the Conv before it, per channel.

    Attributes:
        factor: The factor of the weight and the bias.
        shift: The addend of the bias.
    """

    factor: Array
    shift: Array

    def apply(self, values: Array, *, is_bias: bool = False) -> Array:
        """Return the weight or bias of the Conv with the BatchNormalization."""
        folded = values * self.factor.reshape(-1, *[1] * (values.ndim - 1))
        shifted = folded + self.shift if is_bias else folded
        return np.asarray(shifted.astype(values.dtype))


def find_fold(graph: Graph, i: int) -> Fold | None:
    """Find the fold of the BatchNormalization after a Conv into it; None without one."""
    name = graph.makes[i][0]
    readers = graph.readers.get(name, []) if graph.ops[i] == "Conv" else []
    is_inner = len(readers) == 1 and name not in graph.outputs
    if not is_inner or graph.ops[readers[0]] != "BatchNormalization":
        return None
    node = graph.nodes[readers[0]]
    if len(graph.makes[readers[0]]) > 1 or get_attribute(node, "training_mode", 0):
        return None
    constants = [graph.array(name) for name in node.input[1:5]]
    known = [values for values in constants if values is not None]
    if len(known) < len(constants):
        return None
    scale, bias, mean, variance = known
    factor = scale / np.sqrt(variance + get_attribute(node, "epsilon", 1e-5))
    return Fold(factor, bias - mean * factor)


def _set_values(tensor: protobuf.TensorProto, values: Array) -> None:
    dtype = find_dtype(name_of(tensor.data_type))
    made = onnx.numpy_helper.from_array(np.ascontiguousarray(values.astype(dtype)), tensor.name)
    tensor.CopyFrom(type(tensor).FromString(made.SerializeToString()))


# ------------------------------------------------------------ codes


def _iter_codes(graph: Graph) -> Iterator[_Codes]:
    """Yield the quantized weights of a model."""
    for node in graph.nodes:
        constants = [graph.array(name) if name else None for name in node.input]
        if node.op_type == "DequantizeLinear":
            axis = int(get_attribute(node, "axis", 1))
            block = int(get_attribute(node, "block_size", 0))
            codes = _dequantize(constants, axis, block)
            if codes:
                yield codes
        elif node.op_type == "MatMulNBits":
            stored, scales, zeros = (*constants[1:4], None)[:3]
            if stored is not None and scales is not None:
                real, step = unpack_blocks(node, stored, scales, zeros)
                yield _Codes(real.T, step.T, int(get_attribute(node, "bits", 4)))
    for name in graph.weights:
        readers = graph.readers.get(name, ())
        if readers and name.endswith(QUANTIZED):
            base = name.removesuffix(QUANTIZED)
            values = [graph.array(base + suffix) for suffix in (QUANTIZED, SCALE, ZERO)]
            axis = find_channel_axis(graph.nodes[readers[0]], len(graph.weights[name].dims))
            codes = _dequantize(values, axis, 0)
            if codes:
                yield codes


def _dequantize(constants: list[Array | None], axis: int, block: int) -> _Codes | None:
    """Return the values of codes, scale and zero point; None if they are no quantized weight."""
    codes, scale, *zeros = constants
    if codes is None or scale is None or not codes.ndim:
        return None
    bits = count_bits(codes.dtype.name)
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
