"""Layers that compute: inner product, normalization, element by element. Each function converts one
type.

The formulas are those of the layers' forward functions in Caffe
(https://github.com/BVLC/caffe/tree/master/src/caffe/layers).
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, prod
from typing import Any

import numpy as np

from subgraph.origins.caffe.builder import CaffeLayer, Shape
from subgraph.origins.caffe.fields import Parameters

MAX_EXPONENT = 88  # e to this power is the largest float32


def inner_product(layer: CaffeLayer) -> None:
    """Weights `(outputs, inputs)`, or transposed."""
    p = layer.parameters("inner_product_param")
    shape = layer.shape
    axis = layer.axis(p.axis)
    outputs = p.num_output
    width = prod(shape[axis:])
    tensor = layer.bottoms[0]
    if len(shape) != 2 or axis != 1:
        tensor = layer.step("flatten", "Flatten", [tensor], axis=axis)
    inputs = [
        tensor,
        layer.weight(0, (width, outputs) if p.transpose else (outputs, width), "weight", "filter"),
    ]
    if p.bias_term:
        inputs.append(layer.weight(1, (outputs,), "bias", "offset"))
    attributes = {"transB": int(not p.transpose)}
    if axis == 1:
        layer.last("Gemm", inputs, (shape[0], outputs), **attributes)
        return
    tensor = layer.step("gemm", "Gemm", inputs, **attributes)
    out = (*shape[:axis], outputs)
    layer.last("Reshape", [tensor, layer.integers("shape", out)], out)


def batch_norm(layer: CaffeLayer) -> None:
    """Blobs: sum of means, sum of variances, and the factor that both are divided by."""
    p = layer.parameters("batch_norm_param")
    shape = layer.shape
    if not p.use_global_stats:
        raise layer.refuse(
            "takes the statistics of the batch (use_global_stats: false)",
            "name the deploy.prototxt",
        )
    if len(layer.builder.weights.get(layer.name, ()) if layer.builder.weights else ()) > 3:
        raise layer.refuse(
            "has more than the three blobs of BVLC's BatchNorm", "a fork of Caffe wrote it"
        )
    channels = shape[1] if len(shape) > 1 else 1
    mean, variance = (
        layer.blob(k, (channels,), like).array() for k, like in ((0, "offset"), (1, "variance"))
    )
    total = layer.blob(2, (1,), "one").array().reshape(-1)[0]
    factor = np.float32(1 / total if total else 0)
    _normalize(
        layer, np.ones(channels), np.zeros(channels), mean * factor, variance * factor, p.eps
    )


def bn(layer: CaffeLayer) -> None:
    """PSPNet's: blobs slope, bias, mean, variance. SegNet's, as it is run (INFERENCE): blobs scale,
    shift."""
    p = layer.parameters("bn_param")
    shape = layer.shape
    channels = shape[1] if len(shape) > 1 else 1
    given = {name for name, _ in p.given.fields}
    if not p.bn_mode and not given & {"scale_filler", "shift_filler"}:
        likes = ("factor", "offset", "offset", "variance")
        slope, bias, mean, variance = (
            layer.blob(k, (channels,), like).array() for k, like in enumerate(likes)
        )
        _normalize(layer, slope, bias, mean, variance, p.eps)
    elif p.bn_mode in ("INFERENCE", "1"):
        factor, shift = (
            layer.blob(k, (channels,), like).array() for k, like in enumerate(("factor", "offset"))
        )
        _normalize(layer, factor, shift, np.zeros(channels), np.ones(channels), 0.0)
    else:
        raise layer.refuse(
            "takes the statistics of the batch (bn_mode is not INFERENCE)",
            "name the deploy.prototxt",
        )


def axpy(layer: CaffeLayer) -> None:
    """SENet's: a · x + y; a `(N, C)` or `(N, C, 1, 1)`."""
    scale, x, y = layer.shapes
    if len(x) != 4 or x != y or scale[:2] != x[:2] or prod(scale[2:]) != 1:
        raise layer.refuse("needs a scale per sample and channel, and two bottoms of one shape")
    factor = layer.bottoms[0]
    if len(scale) != 4:
        factor = layer.step("reshape", "Reshape", [factor, layer.integers("shape", (*x[:2], 1, 1))])
    product = layer.step("mul", "Mul", [factor, layer.bottoms[1]])
    layer.last("Add", [product, layer.bottoms[2]], x)


def _normalize(
    layer: CaffeLayer, gamma: Any, beta: Any, mean: Any, variance: Any, eps: float
) -> None:
    names = ("gamma", "beta", "mean", "variance")
    values = [
        layer.constant(n, np.reshape(v, -1))
        for n, v in zip(names, (gamma, beta, mean, variance), strict=True)
    ]
    layer.last("BatchNormalization", [*layer.bottoms, *values], layer.shape, epsilon=eps)


def scale(layer: CaffeLayer) -> None:
    """gamma · x + beta. Along the channels it is one node, a BatchNormalization of mean 0 and
    variance 1."""
    p = layer.parameters("scale_param")
    if len(layer.bottoms) == 1 and p.bias_term and layer.axis(p.axis) == 1 and p.num_axes == 1:
        channels = layer.shape[1]
        gamma, beta = (
            layer.blob(k, (channels,), like).array() for k, like in ((0, "factor"), (1, "offset"))
        )
        _normalize(layer, gamma, beta, np.zeros(channels), np.ones(channels), 0.0)
        return
    factor, shape = _broadcast(layer, p, "gamma", "factor")
    if not p.bias_term:
        layer.last("Mul", [layer.bottoms[0], factor], layer.shape)
        return
    scaled = layer.step("mul", "Mul", [layer.bottoms[0], factor])
    view = _view(layer, p, shape)
    layer.last(
        "Add",
        [scaled, layer.weight(2 - len(layer.bottoms), shape, "beta", "offset", view)],
        layer.shape,
    )


def bias(layer: CaffeLayer) -> None:
    """x + beta."""
    beta, _ = _broadcast(layer, layer.parameters("bias_param"), "beta", "offset")
    layer.last("Add", [layer.bottoms[0], beta], layer.shape)


def _broadcast(layer: CaffeLayer, p: Parameters, what: str, like: str) -> tuple[str, Shape]:
    """The second bottom, or the first blob, shaped so that it is spread over the first bottom; and
    its own shape."""
    if len(layer.bottoms) == 2:
        shape = layer.shapes[1]
        view = _view(layer, p, shape)
        if view == shape:
            return layer.bottoms[1], shape
        return layer.step(what, "Reshape", [layer.bottoms[1], layer.integers("shape", view)]), shape
    axis = layer.axis(p.axis) if p.num_axes else 0
    shape = layer.shape[axis:] if p.num_axes == -1 else layer.shape[axis : axis + p.num_axes]
    return layer.weight(0, shape, what, like, _view(layer, p, shape)), shape


def _view(layer: CaffeLayer, p: Parameters, shape: Shape) -> Shape:
    """The shape, with ones behind it where the first bottom has further axes."""
    axis = layer.axis(p.axis) if shape else 0
    if layer.shape[axis : axis + len(shape)] != shape:
        raise layer.refuse(
            f"cannot spread {'×'.join(map(str, shape))} over axis {axis} of its bottom"
        )
    return (*shape, *[1] * (len(layer.shape) - axis - len(shape))) if shape else ()


def lrn(layer: CaffeLayer) -> None:
    """x / (k + alpha / n · sum of squares) ** beta, across channels or over a square window."""
    p = layer.parameters("lrn_param")
    n = p.local_size
    if n % 2 == 0:
        raise layer.refuse(f"has an even local_size, {n}")
    if p.norm_region in ("ACROSS_CHANNELS", "0"):
        attributes = {"size": n, "alpha": p.alpha, "beta": p.beta, "bias": p.k}
        layer.last("LRN", layer.bottoms, layer.shape, **attributes)
        return
    square = layer.step("square", "Mul", layer.bottoms * 2)
    window: dict[str, Any] = {
        "kernel_shape": [n, n],
        "strides": [1, 1],
        "pads": [n // 2] * 4,
        "count_include_pad": 1,
    }
    mean = layer.step("mean", "AveragePool", [square], **window)
    scaled = layer.step("mul", "Mul", [mean, layer.constant("alpha", p.alpha)])
    added = layer.step("add", "Add", [scaled, layer.constant("one", 1)])
    power = layer.step("pow", "Pow", [added, layer.constant("power", -p.beta)])
    layer.last("Mul", [layer.bottoms[0], power], layer.shape)


def mvn(layer: CaffeLayer) -> None:
    """(x - mean) / (standard deviation + eps) of each sample, or of each channel of each sample."""
    p = layer.parameters("mvn_param")
    axes = list(range(1 if p.across_channels else 2, len(layer.shape)))
    if not axes:
        raise layer.refuse("has no axes to take the mean over")
    mean = layer.step("mean", "ReduceMean", layer.bottoms, axes=axes)
    if not p.normalize_variance:
        layer.last("Sub", [*layer.bottoms, mean], layer.shape)
        return
    centered = layer.step("center", "Sub", [*layer.bottoms, mean])
    square = layer.step("square", "Mul", [centered, centered])
    deviation = layer.step(
        "deviation", "Sqrt", [layer.step("variance", "ReduceMean", [square], axes=axes)]
    )
    divisor = layer.step("eps", "Add", [deviation, layer.constant("epsilon", p.eps)])
    layer.last("Div", [centered, divisor], layer.shape)


def eltwise(layer: CaffeLayer) -> None:
    """Product, weighted sum or maximum of equal shapes."""
    p = layer.parameters("eltwise_param")
    if any(shape != layer.shape for shape in layer.shapes):
        raise layer.refuse(
            f"has bottoms of other shapes: {', '.join('×'.join(map(str, s)) for s in layer.shapes)}"
        )
    if p.coeff and len(p.coeff) != len(layer.bottoms):
        raise layer.refuse(f"has {len(p.coeff)} coefficients for {len(layer.bottoms)} bottoms")
    terms = list(layer.bottoms)
    if p.operation in ("MAX", "2"):
        layer.last("Max", terms, layer.shape)
    elif p.operation in ("SUM", "1"):
        for k, coefficient in enumerate(p.coeff):
            if coefficient != 1:
                terms[k] = layer.step(
                    f"coeff{k}", "Mul", [terms[k], layer.constant(f"coefficient{k}", coefficient)]
                )
        layer.last("Add" if len(terms) == 2 else "Sum", terms, layer.shape)
    elif p.operation in ("PROD", "0"):
        product = terms[0]
        for k, term in enumerate(terms[1:-1]):
            product = layer.step(f"mul{k}", "Mul", [product, term])
        layer.last("Mul", [product, terms[-1]], layer.shape)
    else:
        raise layer.refuse(f"has the operation {p.operation}", "known: PROD, SUM, MAX")


def relu(layer: CaffeLayer) -> None:
    """max(x, 0) + slope · min(x, 0)."""
    slope = layer.parameters("relu_param").negative_slope
    if slope:
        layer.last("LeakyRelu", layer.bottoms, layer.shape, alpha=slope)
    else:
        layer.last("Relu", layer.bottoms, layer.shape)


def prelu(layer: CaffeLayer) -> None:
    """As ReLU, with a slope per channel."""
    channels = 1 if layer.parameters("prelu_param").channel_shared else layer.shape[1]
    slope = layer.weight(
        0, (channels,), "slope", "slope", (channels, *[1] * (len(layer.shape) - 2))
    )
    layer.last("PRelu", [*layer.bottoms, slope], layer.shape)


def elu(layer: CaffeLayer) -> None:
    """x, or alpha · (exp(x) - 1) below zero."""
    layer.last("Elu", layer.bottoms, layer.shape, alpha=layer.parameters("elu_param").alpha)


def clip(layer: CaffeLayer) -> None:
    """Clip, and the ReLU6 of forks."""
    p = layer.parameters("clip_param")
    low, high = (0, 6) if layer.text.type == "ReLU6" else (p.min, p.max)
    if low is None or high is None:
        raise layer.refuse("needs min and max in clip_param")
    layer.last(
        "Clip",
        [*layer.bottoms, layer.constant("min", low), layer.constant("max", high)],
        layer.shape,
    )


def swish(layer: CaffeLayer) -> None:
    """x · sigmoid(beta · x)."""
    beta = layer.parameters("swish_param").beta
    scaled = layer.step("mul", "Mul", [*layer.bottoms, layer.constant("beta", beta)])
    layer.last("Mul", [*layer.bottoms, layer.step("sigmoid", "Sigmoid", [scaled])], layer.shape)


def power(layer: CaffeLayer) -> None:
    """(shift + scale · x) ** power."""
    p = layer.parameters("power_param")
    layer.chain(
        ("scale", "Mul", p.scale, 1), ("shift", "Add", p.shift, 0), ("power", "Pow", p.power, 1)
    )


def exponential(layer: CaffeLayer) -> None:
    """base ** (shift + scale · x); base -1 stands for e."""
    p = layer.parameters("exp_param")
    rate = 1 if p.base == -1 else _log(layer, p.base)
    if not rate * p.shift < MAX_EXPONENT:
        raise layer.refuse(f"has the shift {p.shift:g}, beyond float32")
    factor = exp(rate * p.shift)
    layer.chain(
        ("scale", "Mul", rate * p.scale, 1), ("exp", "Exp", None, None), ("shift", "Mul", factor, 1)
    )


def logarithm(layer: CaffeLayer) -> None:
    """The logarithm of shift + scale · x to the base; base -1 stands for e."""
    p = layer.parameters("log_param")
    rate = 1 if p.base == -1 else 1 / _log(layer, p.base)
    layer.chain(
        ("scale", "Mul", p.scale, 1),
        ("shift", "Add", p.shift, 0),
        ("log", "Log", None, None),
        ("base", "Mul", rate, 1),
    )


def _log(layer: CaffeLayer, base: float) -> float:
    if base <= 0 or base == 1:
        raise layer.refuse(
            f"has the base {base:g}", "it must be more than 0, and not 1; -1 stands for e"
        )
    return log(base)


def dropout(layer: CaffeLayer) -> None:
    """Nothing, outside of training; with `scale_train: false` (SSD's branch) the mean is kept
    here."""
    p = layer.parameters("dropout_param")
    layer.chain(("keep", "Mul", 1 if p.scale_train else 1 - p.dropout_ratio, 1))


def threshold(layer: CaffeLayer) -> None:
    """1 above the threshold, else 0."""
    limit = layer.constant("threshold", layer.parameters("threshold_param").threshold)
    above = layer.step("greater", "Greater", [*layer.bottoms, limit])
    layer.last("Cast", [above], layer.shape, to=1)


def softmax(layer: CaffeLayer) -> None:
    """Along one axis."""
    axis = layer.axis(layer.parameters("softmax_param").axis)
    layer.last("Softmax", layer.bottoms, layer.shape, axis=axis)


def reduction(layer: CaffeLayer) -> None:
    """Sum, sum of magnitudes, of squares, or mean over an axis and all behind it."""
    p = layer.parameters("reduction_param")
    axis = layer.axis(p.axis)
    ops = dict(
        zip(
            ("SUM", "ASUM", "SUMSQ", "MEAN"),
            ("ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceMean"),
            strict=True,
        )
    )
    op = ops.get(p.operation) or ops.get(dict(zip("1234", ops, strict=True)).get(p.operation, ""))
    if op is None:
        raise layer.refuse(f"has the operation {p.operation}", f"known: {', '.join(ops)}")
    axes = list(range(axis, len(layer.shape)))
    out = layer.shape[:axis]
    inputs = [*layer.bottoms]
    attributes: dict[str, Any] = {"keepdims": 0, "axes": axes}
    if op == "ReduceSum":  # has its axes as an input since opset 13
        inputs.append(layer.integers("axes", attributes.pop("axes")))
    if p.coeff == 1:
        layer.last(op, inputs, out, **attributes)
        return
    reduced = layer.step("reduce", op, inputs, **attributes)
    layer.last("Mul", [reduced, layer.constant("coefficient", p.coeff)], out)


def _unary(op: str) -> Callable[[CaffeLayer], None]:
    """Return the conversion of a layer without parameters to an operator."""
    return lambda layer: layer.chain(("", op, None, None))


ELEMENT_WISE = {"AbsVal": "Abs", "BNLL": "Softplus", "Sigmoid": "Sigmoid", "TanH": "Tanh"}
LAYERS = {
    **{name: _unary(op) for name, op in ELEMENT_WISE.items()},
    "Axpy": axpy,
    "BN": bn,
    "BatchNorm": batch_norm,
    "Bias": bias,
    "Clip": clip,
    "Dropout": dropout,
    "ELU": elu,
    "Eltwise": eltwise,
    "Exp": exponential,
    "InnerProduct": inner_product,
    "LRN": lrn,
    "Log": logarithm,
    "MVN": mvn,
    "PReLU": prelu,
    "Power": power,
    "ReLU": relu,
    "ReLU6": clip,
    "Reduction": reduction,
    "Scale": scale,
    "Softmax": softmax,
    "Swish": swish,
    "Threshold": threshold,
}
