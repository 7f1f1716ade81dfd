"""Planted faults in fused and renamed other models: how often does `bisect` name the
changed node?

    python -m benchmarks.fused_models [--kinds gelu,rms] [--names kept,numbers] [--folder DIR]

A model is a chain of seven blocks of two kinds: sequences (1, 16, 16), or pictures (1, 16, 8, 8).
The other model has each block as an optimizer writes it: a Gelu for four nodes, a
LayerNormalization for nine, folded constants, weights, shapes and scales, Transposes that are
merged or moved. One block of it has the fault of such a step. Its tensors keep the names of our
blocks' outputs, or all have numbers for names. Each healthy other model is checked.

A finding is exact if its nodes are of the changed block. Exit code 1 if less than 90 % are.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from benchmarks.other_models import run
from benchmarks.report import table

Array = npt.NDArray[Any]
MICROSOFT = "com.microsoft"
OPSET = 17
IR_VERSION = 8
SIZE = 16  # of each axis of a sequence, and channels of a picture
HEIGHT = 8
BLOCKS = 7
MIN_EFFECT = 0.02  # of the output's largest value
MAX_HEALTHY = 1e-4  # the same, of a healthy other model
MIN_EXACT = 0.9
MAX_DRAWS = 20
LIMIT = 300  # seconds of one bisection
NAMES = ("kept", "numbers")


class Builder:
    """A model under construction.

    Attributes:
        fused: whether the other model is built.
        has_numbers: whether its tensors have numbers for names.
        block: the name of the present block.
        is_faulty: whether the present block has its fault.
    """

    def __init__(self, *, fused: bool, has_numbers: bool) -> None:
        self.fused = fused
        self.has_numbers = has_numbers
        self.block = ""
        self.is_faulty = False
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.nodes_of: dict[str, set[str]] = {}

    def draw(self, name: str, *shape: int, deviation: float = 0.25, mean: float = 0.0) -> Array:
        """Normal values that depend on the block and a name only."""
        rng = np.random.default_rng(zlib.crc32(f"{self.block}.{name}".encode()))
        return np.asarray(rng.standard_normal(shape) * deviation + mean, np.float32)

    def put(self, values: Any, dtype: npt.DTypeLike = np.float32) -> str:
        """Store a constant; return its name."""
        name = f"const_{len(self.weights)}" if self.has_numbers else f"w{len(self.weights)}"
        name = f"{self.block}.{name}" if not self.has_numbers else name
        self.weights[name] = numpy_helper.from_array(np.asarray(values, dtype), name)
        return name

    def whole(self, *values: int) -> str:
        """Store integers."""
        return self.put(values, np.int64)

    def op(
        self, kind: str, *reads: str, domain: str = "", outputs: int = 1, **attributes: Any
    ) -> str:
        """Append a node; return its first output, to whose name `:1` and so on is added."""
        number = len(self.nodes)
        name = f"{self.block}/{kind}_{number}" if not self.has_numbers else ""
        tensor = f"v{number}" if self.has_numbers else f"{name}{'~' if self.fused else ''}"
        makes = [tensor, *(f"{tensor}:{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, reads, makes, name, domain=domain, **attributes))
        self.nodes_of.setdefault(self.block, set()).add(name)
        return tensor

    def rename(self, old: str, new: str) -> None:
        """Rename a tensor."""
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]

    def model(self, shape: Sequence[int]) -> onnx.ModelProto:
        """The model, from `x` to `y`."""
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
        graph = helper.make_graph(self.nodes, "g", [x], [y], [*self.weights.values()])
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        return made if self.fused else shape_inference.infer_shapes(made)


# ------------------------------------------------------------ blocks of sequences


def gemm_transb(b: Builder, x: str) -> str:
    """A Gemm loses transB."""
    rows = b.op("Reshape", x, b.whole(-1, SIZE))
    weight, bias = b.put(b.draw("w", SIZE, SIZE)), b.put(b.draw("b", SIZE))
    sums = b.op("Gemm", rows, weight, bias, transB=None if b.is_faulty else 1)
    return b.op("Reshape", sums, b.whole(1, SIZE, SIZE))


def gemm_matmul(b: Builder, x: str) -> str:
    """A Gemm becomes a MatMul and an Add, whose square weight is not transposed."""
    weight, bias = b.draw("w", SIZE, SIZE), b.put(b.draw("b", SIZE))
    if b.fused:
        return b.op("Add", b.op("MatMul", x, b.put(weight if b.is_faulty else weight.T)), bias)
    rows = b.op("Reshape", x, b.whole(-1, SIZE))
    sums = b.op("Gemm", rows, b.put(weight), bias, transB=1)
    return b.op("Reshape", sums, b.whole(1, SIZE, SIZE))


def einsum(b: Builder, x: str) -> str:
    """An Einsum becomes a MatMul whose square weight is not transposed."""
    weight = b.draw("w", SIZE, SIZE)
    if not b.fused:
        return b.op("Einsum", x, b.put(weight), equation="bld,od->blo")
    return b.op("MatMul", x, b.put(weight if b.is_faulty else weight.T))


def linear(b: Builder, x: str) -> str:
    """A bias is dropped."""
    sums = b.op("MatMul", x, b.put(b.draw("w", SIZE, SIZE)))
    return sums if b.is_faulty else b.op("Add", sums, b.put(b.draw("b", SIZE, deviation=1)))


def _gelu(b: Builder, x: str) -> str:
    bell = b.op("Add", b.op("Erf", b.op("Div", x, b.put(math.sqrt(2)))), b.put(1.0))
    return b.op("Mul", b.op("Mul", x, bell), b.put(0.5))


def gelu(b: Builder, x: str) -> str:
    """Four nodes become another approximation of Gelu."""
    if not b.fused:
        return _gelu(b, x)
    return b.op("QuickGelu" if b.is_faulty else "Gelu", x, domain=MICROSOFT)


def bias_gelu(b: Builder, x: str) -> str:
    """A bias loses its sign on the way into a BiasGelu."""
    bias = b.draw("b", SIZE, deviation=1)
    if not b.fused:
        return _gelu(b, b.op("Add", x, b.put(bias)))
    return b.op("BiasGelu", x, b.put(np.abs(bias) if b.is_faulty else bias), domain=MICROSOFT)


def _scale_and_shift(b: Builder) -> list[Array]:
    return [b.draw("g", SIZE, deviation=0.2, mean=1), b.draw("h", SIZE, deviation=0.2)]


def _layer_norm(b: Builder, x: str) -> str:
    scale, shift = map(b.put, _scale_and_shift(b))
    centered = b.op("Sub", x, b.op("ReduceMean", x, axes=[-1]))
    variance = b.op("ReduceMean", b.op("Pow", centered, b.put(2.0)), axes=[-1])
    normal = b.op("Div", centered, b.op("Sqrt", b.op("Add", variance, b.put(1e-5))))
    return b.op("Add", b.op("Mul", normal, scale), shift)


def layer_norm(b: Builder, x: str) -> str:
    """Nine nodes become a LayerNormalization with another epsilon."""
    if not b.fused:
        return _layer_norm(b, x)
    weights = map(b.put, _scale_and_shift(b))
    return b.op("LayerNormalization", x, *weights, epsilon=0.3 if b.is_faulty else 1e-5)


def layer_norm_weights(b: Builder, x: str) -> str:
    """Nine nodes become a LayerNormalization whose weights are exchanged."""
    if not b.fused:
        return _layer_norm(b, x)
    weights = _scale_and_shift(b)[:: -1 if b.is_faulty else 1]
    return b.op("LayerNormalization", x, *map(b.put, weights), epsilon=1e-5)


def skip_layer_norm(b: Builder, x: str) -> str:
    """An Add and nine nodes become a SkipLayerNormalization with another epsilon."""
    sums = b.op("MatMul", x, b.put(b.draw("w", SIZE, SIZE)))
    if not b.fused:
        return _layer_norm(b, b.op("Add", x, sums))
    weights = map(b.put, _scale_and_shift(b))
    epsilon = 0.3 if b.is_faulty else 1e-5
    kind = "SkipLayerNormalization"
    return b.op(kind, x, sums, *weights, domain=MICROSOFT, epsilon=epsilon)


def rms(b: Builder, x: str) -> str:
    """Six nodes become a SimplifiedLayerNormalization with another epsilon."""
    scale = b.put(_scale_and_shift(b)[0])
    if b.fused:
        epsilon = 0.3 if b.is_faulty else 1e-5
        return b.op("SimplifiedLayerNormalization", x, scale, epsilon=epsilon)
    square = b.op("ReduceMean", b.op("Pow", x, b.put(2.0)), axes=[-1])
    root = b.op("Sqrt", b.op("Add", square, b.put(1e-5)))
    return b.op("Mul", b.op("Div", x, root), scale)


def _attend(b: Builder, x: str, keys: Sequence[Sequence[int]], scale: float, folded: float) -> str:
    """Attention of four heads; `keys`: the Transposes of the keys; a scale of 1 has no node."""

    def split(name: str, orders: Sequence[Sequence[int]], factor: float = 1.0) -> str:
        weight = b.draw(name, SIZE, SIZE, deviation=0.3) * np.float32(factor)
        heads = b.op("Reshape", b.op("MatMul", x, b.put(weight)), b.whole(1, SIZE, 4, 4))
        for order in orders:
            heads = b.op("Transpose", heads, perm=list(order))
        return heads

    queries = split("q", [(0, 2, 1, 3)], folded)
    scores = b.op("MatMul", queries, split("k", keys))
    scores = scores if scale == 1 else b.op("Mul", scores, b.put(scale))
    shares = b.op("Softmax", scores, axis=-1)
    mixed = b.op("MatMul", shares, split("v", [(0, 2, 1, 3)]))
    joined = b.op("Reshape", b.op("Transpose", mixed, perm=[0, 2, 1, 3]), b.whole(1, SIZE, SIZE))
    return b.op("MatMul", joined, b.put(b.draw("p", SIZE, SIZE)))


def attention_scale(b: Builder, x: str) -> str:
    """The scale of the scores is folded into a weight, as its inverse."""
    keys = [(0, 2, 3, 1)]
    if not b.fused:
        return _attend(b, x, keys, 0.5, 1)
    return _attend(b, x, keys, 1, 2.0 if b.is_faulty else 0.5)


def attention_transposes(b: Builder, x: str) -> str:
    """Two Transposes become one of other axes."""
    if not b.fused:
        return _attend(b, x, [(0, 2, 1, 3), (0, 1, 3, 2)], 0.5, 1)
    return _attend(b, x, [(0, 3, 2, 1) if b.is_faulty else (0, 2, 3, 1)], 0.5, 1)


def shape_chain(b: Builder, x: str) -> str:
    """A computed shape becomes a constant with other numbers."""
    if b.fused:
        shape = b.whole(1, SIZE, 2, 8) if b.is_faulty else b.whole(1, SIZE, 4, 4)
        turned = b.op("Transpose", b.op("Reshape", x, shape), perm=[0, 1, 3, 2])
        return b.op("Reshape", turned, b.whole(1, SIZE, SIZE))
    length, width = (b.op("Gather", b.op("Shape", x), b.whole(k)) for k in (1, 2))
    heads = b.op("Div", width, b.whole(4))
    shape = b.op("Concat", b.whole(1), length, heads, b.whole(4), axis=0)
    turned = b.op("Transpose", b.op("Reshape", x, shape), perm=[0, 1, 3, 2])
    return b.op("Reshape", turned, b.op("Concat", b.whole(1), length, width, axis=0))


def transposed_sum(b: Builder, x: str) -> str:
    """Transposes around an Add are removed, and its constant stays as it was."""
    value = b.draw("c", SIZE, SIZE, deviation=1)
    if b.fused:
        return b.op("Add", x, b.put(value if b.is_faulty else value.T))
    sums = b.op("Add", b.op("Transpose", x, perm=[0, 2, 1]), b.put(value))
    return b.op("Transpose", sums, perm=[0, 2, 1])


def transposed_softmax(b: Builder, x: str) -> str:
    """Transposes around a Softmax are removed, and its axis stays as it was."""
    if b.fused:
        shares = b.op("Softmax", x, axis=2 if b.is_faulty else 1)
    else:
        shares = b.op("Softmax", b.op("Transpose", x, perm=[0, 2, 1]), axis=-1)
        shares = b.op("Transpose", shares, perm=[0, 2, 1])
    return b.op("Mul", b.op("Add", x, shares), b.put(1.5))


def transposed_mean(b: Builder, x: str) -> str:
    """Transposes around a ReduceMean are removed, and its axis stays as it was."""
    if b.fused:
        mean = b.op("ReduceMean", x, axes=[1 if b.is_faulty else 2])
    else:
        mean = b.op("ReduceMean", b.op("Transpose", x, perm=[0, 2, 1]), axes=[1])
        mean = b.op("Transpose", mean, perm=[0, 2, 1])
    return b.op("Sub", x, mean)


def hard_swish(b: Builder, x: str) -> str:
    """Three nodes become a HardSigmoid with its default slope."""
    if b.fused:
        return b.op("Mul", x, b.op("HardSigmoid", x, alpha=0.2 if b.is_faulty else 1 / 6, beta=0.5))
    gate = b.op("Clip", b.op("Add", x, b.put(3.0)), b.put(0.0), b.put(6.0))
    return b.op("Mul", x, b.op("Div", gate, b.put(6.0)))


def clamped_mask(b: Builder, x: str) -> str:
    """A mask is clamped."""
    mask = np.where(b.draw("m", SIZE, SIZE, deviation=1) > 1, -0.5 if b.is_faulty else -4.0, 0)
    shares = b.op("Softmax", b.op("Add", x, b.put(mask)), axis=-1)
    return b.op("Add", b.op("Mul", shares, b.put(10.0)), x)


def leaky(b: Builder, x: str) -> str:
    """A Mul and a Max become a LeakyRelu with its default slope."""
    if not b.fused:
        return b.op("Max", x, b.op("Mul", x, b.put(0.3)))
    return b.op("LeakyRelu", x, alpha=None if b.is_faulty else 0.3)


def rotary(b: Builder, x: str) -> str:
    """Two Slices become a Split, and the halves are exchanged."""
    angles = b.draw("angles", SIZE, SIZE, deviation=2)
    if b.fused:
        low = b.op("Split", x, b.whole(8, 8), outputs=2, axis=2)
        high = f"{low}:1"
    else:
        low, high = (
            b.op("Slice", x, b.whole(begin), b.whole(begin + 8), b.whole(2)) for begin in (0, 8)
        )
    halves = [b.op("Neg", high), low]
    turned = b.op("Concat", *halves[:: -1 if b.is_faulty else 1], axis=2)
    sine = b.op("Mul", turned, b.put(np.sin(angles)))
    return b.op("Add", b.op("Mul", x, b.put(np.cos(angles))), sine)


def padded_conv(b: Builder, x: str) -> str:
    """A Pad becomes the pads of a Conv, both on one side."""
    columns = b.op("Transpose", x, perm=[0, 2, 1])
    weight = b.put(b.draw("w", SIZE, SIZE, 3, deviation=0.15))
    if b.fused:
        sums = b.op("Conv", columns, weight, pads=[2, 0] if b.is_faulty else [1, 1])
    else:
        sums = b.op("Conv", b.op("Pad", columns, b.whole(0, 0, 1, 0, 0, 1)), weight)
    return b.op("Transpose", sums, perm=[0, 2, 1])


def casts(b: Builder, x: str) -> str:
    """Two Casts that cut off the fraction are removed."""
    scaled = b.op("Mul", x, b.put(1.0))
    if not b.is_faulty:
        codes = b.op("Cast", scaled, to=TensorProto.INT32)
        scaled = b.op("Cast", codes, to=TensorProto.FLOAT)
    return b.op("Add", b.op("Mul", scaled, b.put(0.5)), x)


def lstm(b: Builder, x: str) -> str:
    """The gates of an LSTM are in another order."""
    order = [0, 2, 1, 3] if b.is_faulty else [0, 1, 2, 3]
    weights = (b.draw(name, 1, 4, SIZE, SIZE)[:, order].reshape(1, -1, SIZE) for name in "wr")
    steps = b.op("Transpose", x, perm=[1, 0, 2])
    bias = b.put(b.draw("b", 1, 8 * SIZE))
    states = b.op("LSTM", steps, *map(b.put, weights), bias, outputs=2, hidden_size=SIZE)
    return b.op("Transpose", b.op("Squeeze", states, b.whole(1)), perm=[1, 0, 2])


# ------------------------------------------------------------ blocks of pictures


def _kernel(b: Builder) -> Array:
    return b.draw("w", SIZE, SIZE, 3, 3, deviation=0.11)


def _fold(b: Builder, epsilon: float, shift: float) -> tuple[Array, Array]:
    """The weight and bias of a Conv with its BatchNormalization; `shift`: the sign of its bias."""
    scale, bias = _scale_and_shift(b)
    factor = scale / np.sqrt(_variance(b) + epsilon)
    weight = _kernel(b) * factor.reshape(-1, 1, 1, 1)
    return weight, (b.draw("b", SIZE) - b.draw("m", SIZE)) * factor + shift * bias


def _variance(b: Builder) -> Array:
    return np.abs(b.draw("v", SIZE, deviation=0.5)) + np.float32(0.05)


def _conv(b: Builder, x: str, weight: Array, bias: Array) -> str:
    return b.op("Conv", x, b.put(weight), b.put(bias), pads=[1] * 4)


def _normalized_conv(b: Builder, x: str) -> str:
    sums = _conv(b, x, _kernel(b), b.draw("b", SIZE))
    weights = (*_scale_and_shift(b), b.draw("m", SIZE), _variance(b))
    return b.op("BatchNormalization", sums, *map(b.put, weights), epsilon=1e-3)


def folded_epsilon(b: Builder, x: str) -> str:
    """A BatchNormalization is folded with another epsilon."""
    if not b.fused:
        return _normalized_conv(b, x)
    return _conv(b, x, *_fold(b, 0.5 if b.is_faulty else 1e-3, 1))


def folded_bias(b: Builder, x: str) -> str:
    """A BatchNormalization is folded with its bias subtracted."""
    if not b.fused:
        return _normalized_conv(b, x)
    return _conv(b, x, *_fold(b, 1e-3, -1 if b.is_faulty else 1))


def folded_factor(b: Builder, x: str) -> str:
    """A Mul is folded into the weight of a Conv, and not into its bias."""
    bias, factor = b.draw("b", SIZE, deviation=0.5), b.draw("k", SIZE, deviation=0.5, mean=1)
    if b.fused:
        weight = _kernel(b) * factor.reshape(-1, 1, 1, 1)
        return _conv(b, x, weight, bias if b.is_faulty else bias * factor)
    return b.op("Mul", _conv(b, x, _kernel(b), bias), b.put(factor.reshape(-1, 1, 1)))


def fused_activation(b: Builder, x: str) -> str:
    """A Conv and a LeakyRelu become a FusedConv with another slope."""
    if not b.fused:
        return b.op("LeakyRelu", _conv(b, x, _kernel(b), b.draw("b", SIZE)), alpha=0.3)
    weights = map(b.put, (_kernel(b), b.draw("b", SIZE)))
    more: dict[str, Any] = {"activation": "LeakyRelu", "pads": [1] * 4}
    slope = [0.01 if b.is_faulty else 0.3]
    return b.op("FusedConv", x, *weights, domain=MICROSOFT, activation_params=slope, **more)


def depth_to_space(b: Builder, x: str) -> str:
    """Three nodes become a DepthToSpace of the other mode."""
    if b.fused:
        wide = b.op("DepthToSpace", x, blocksize=2, mode="CRD" if b.is_faulty else "DCR")
    else:
        wide = b.op("Reshape", x, b.whole(1, 2, 2, 4, HEIGHT, HEIGHT))
        wide = b.op("Transpose", wide, perm=[0, 3, 4, 1, 5, 2])
        wide = b.op("Reshape", wide, b.whole(1, 4, 2 * HEIGHT, 2 * HEIGHT))
    weight = b.put(b.draw("w", SIZE, 4, 2, 2, deviation=0.3))
    return b.op("Conv", wide, weight, strides=[2, 2])


def group_norm(b: Builder, x: str) -> str:
    """A normalization has half as many groups."""
    groups = 2 if b.is_faulty else 4
    rows = b.op("Reshape", x, b.whole(1, groups, -1))
    ones = b.put(np.ones(groups)), b.put(np.zeros(groups))
    normal = b.op("InstanceNormalization", rows, *ones, epsilon=1e-5)
    picture = b.op("Reshape", normal, b.whole(1, SIZE, HEIGHT, HEIGHT))
    scale, shift = (b.put(value.reshape(-1, 1, 1)) for value in _scale_and_shift(b))
    return b.op("Add", b.op("Mul", picture, scale), shift)


def resize(b: Builder, x: str) -> str:
    """A Resize has the default mode of coordinates."""
    mode = "half_pixel" if b.is_faulty else "align_corners"
    scales = b.put([1, 1, 2, 2])
    wide = b.op("Resize", x, "", scales, mode="linear", coordinate_transformation_mode=mode)
    weight = b.put(b.draw("w", SIZE, SIZE, 2, 2, deviation=0.12))
    return b.op("Conv", wide, weight, strides=[2, 2])


def average_pool(b: Builder, x: str) -> str:
    """An AveragePool no longer counts its padding."""
    bent = b.op("PRelu", x, b.put(b.draw("s", SIZE, 1, 1)))
    counted = None if b.is_faulty else 1
    more: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1] * 4}
    return b.op("AveragePool", bent, count_include_pad=counted, **more)


def padded_pool(b: Builder, x: str) -> str:
    """A Pad of −1 becomes the pads of a MaxPool, which are minus infinity."""
    if b.is_faulty:
        return b.op("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
    padded = b.op("Pad", x, b.whole(0, 0, 1, 1, 0, 0, 1, 1), b.put(-1.0))
    return b.op("MaxPool", padded, kernel_shape=[3, 3])


def concat(b: Builder, x: str) -> str:
    """The inputs of a Concat are exchanged."""
    low = b.op("Split", x, b.whole(8, 8), outputs=2, axis=1)
    halves = [b.op("Sigmoid", low), f"{low}:1"]
    joined = b.op("Concat", *halves[:: -1 if b.is_faulty else 1], axis=1)
    return b.op("Conv", joined, b.put(_kernel(b)), pads=[1] * 4)


Block = Callable[[Builder, str], str]
SEQUENCES: Sequence[Block] = (
    gemm_transb,
    gemm_matmul,
    einsum,
    linear,
    gelu,
    bias_gelu,
    layer_norm,
    layer_norm_weights,
    skip_layer_norm,
    rms,
    attention_scale,
    attention_transposes,
    shape_chain,
    transposed_sum,
    transposed_softmax,
    transposed_mean,
    hard_swish,
    clamped_mask,
    leaky,
    rotary,
    padded_conv,
    casts,
    lstm,
)
PICTURES: Sequence[Block] = (
    folded_epsilon,
    folded_bias,
    folded_factor,
    fused_activation,
    depth_to_space,
    group_norm,
    resize,
    average_pool,
    padded_pool,
    concat,
)
SHAPES = {SEQUENCES: (1, SIZE, SIZE), PICTURES: (1, SIZE, HEIGHT, HEIGHT)}
KINDS: Mapping[str, Block] = {block.__name__: block for block in (*SEQUENCES, *PICTURES)}


# ------------------------------------------------------------ cases


def build(chain: Sequence[Block], shape: Sequence[int], builder: Builder, faulty: int) -> Any:
    """The model of a chain whose block with this number is faulty."""
    tensor = "x"
    for k, block in enumerate(chain):
        builder.block = f"{k}.{block.__name__}"
        builder.is_faulty = k == faulty
        made = block(builder, tensor)
        tensor = "y" if k == len(chain) - 1 else f"{builder.block}.out"
        if builder.has_numbers and tensor != "y":
            tensor = made
        builder.rename(made, tensor)
    return builder.model(shape)


def make(kind: str, names: str, folder: Path) -> set[str]:
    """Write a case, `model.onnx`, `other.onnx` and `x.npy`; return our nodes of the faulty block.

    Raises:
        ValueError: the fault has no effect in any chain, or a healthy other model is wrong.
    """
    pool = SEQUENCES if KINDS[kind] in SEQUENCES else PICTURES
    shape = SHAPES[pool]
    for attempt in range(MAX_DRAWS):
        rng = np.random.default_rng([attempt, *kind.encode()])
        others = [block for block in pool if block.__name__ != kind]
        chain = [others[k] for k in rng.choice(len(others), BLOCKS - 1, replace=False)]
        place = int(rng.integers(1, BLOCKS - 2))
        chain.insert(place, KINDS[kind])
        x = rng.standard_normal(shape, np.float32)
        ours = Builder(fused=False, has_numbers=False)
        models = [build(chain, shape, ours, -1)]
        for faulty in (-1, place):
            builder = Builder(fused=True, has_numbers=names == "numbers")
            models.append(build(chain, shape, builder, faulty))
        expected, healthy, wrong = (run(model, {"x": x})[0] for model in models)
        errors = [np.abs(one - expected).max() / np.abs(expected).max() for one in (healthy, wrong)]
        if errors[0] > MAX_HEALTHY:
            raise ValueError(f"{kind}: the healthy other model is off by {errors[0]:.2g}")
        if errors[1] >= MIN_EFFECT:
            onnx.save(models[0], folder / "model.onnx")
            onnx.save(models[2], folder / "other.onnx")
            np.save(folder / "x.npy", x)
            return ours.nodes_of[f"{place}.{kind}"]
    raise ValueError(f"{kind}: no visible effect")


def grade(folder: Path, group: set[str]) -> tuple[str, str]:
    """How exactly bisect names the changed block, and what it says of the cause."""
    command = [sys.executable, "-m", "subgraph", "bisect", "model.onnx", "-q", "--json"]
    command += ["--candidate-model", "other.onnx", "-i", "x.npy", "--max-time", f"{LIMIT}s"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    named = [set(finding["nodes"]) for finding in document.get("findings", ())]
    if document["exit_code"] != 1 or not named:
        return {0: "right"}.get(document["exit_code"], "unresolved"), document["says"]
    rows = document["findings"][0].get("differences") or [{}]
    cause = ": ".join(str(rows[0].get(key, "")) for key in ("node", "part", "ours", "theirs"))
    if all(nodes <= group for nodes in named):
        return "exact", cause
    return "contains" if any(nodes & group for nodes in named) else "wrong node", cause


def main(arguments: list[str]) -> int:
    """Make the cases, ask about each, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fused_models")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args(arguments)
    place = asked.folder or Path(tempfile.mkdtemp())
    counts: dict[str, Counter[str]] = {}
    for names in asked.names.split(","):
        for kind in asked.kinds.split(","):
            folder = place / f"{kind}-{names}"
            folder.mkdir(parents=True)
            group = make(kind, names, folder)
            found, cause = grade(folder, group)
            counts.setdefault(names, Counter())[found] += 1
            print(f"{found:10} {kind}, {names}: {cause}", flush=True)
    grades = ("exact", "contains", "wrong node", "unresolved", "right")
    rows = [[names, *(str(of[one]) for one in grades)] for names, of in counts.items()]
    print(table(["names", *grades], rows))
    every = sum(counts.values(), Counter[str]())
    return int(every["exact"] < MIN_EXACT * every.total() or every["right"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
