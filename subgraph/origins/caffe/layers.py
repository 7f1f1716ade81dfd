"""Layers that compute: inner product, normalization, element by element. Each function converts one
type.

The formulas are those of the layers' forward functions in Caffe
(https://github.com/BVLC/caffe/tree/master/src/caffe/layers).
"""

from __future__ import annotations

from math import exp, log, prod
from typing import Any

import numpy as np

from subgraph.origins.caffe.builder import CaffeLayer
from subgraph.origins.caffe.messages import Parameters
from subgraph.storage.tensors import format_shape
from subgraph.types import Array, JsonObject, Shape

MAX_EXPONENT = 88  # e to this power is the largest float32


def convert_inner_product(layer: CaffeLayer) -> None:
    """Weights `(outputs, inputs)`, or transposed."""
    p = layer.get_parameters("inner_product_param")
    shape = layer.shape
    axis = layer.resolve_axis(p.axis)
    outputs = p.num_output
    width = prod(shape[axis:])
    weight_shape = (width, outputs) if p.transpose else (outputs, width)
    values: JsonObject = {"weight": layer.weight(0, weight_shape, "weight", "filter")}
    if p.bias_term:
        values["bias"] = layer.weight(1, (outputs,), "bias", "offset")
    text = ""
    operands = ["x", *values]
    if len(shape) != 2 or axis != 1:
        text = f"flatten = Flatten <axis = {axis}> (x)\n"
        operands[0] = "flatten"
    text += f"gemm = Gemm <transB = {int(not p.transpose)}> ({', '.join(operands)})"
    output_shape = (*shape[:axis], outputs)
    if axis != 1:
        text += "\ny = Reshape (gemm, shape)"
        values["shape"] = output_shape
    layer.formula(text, output_shape, **values)


def convert_batch_norm(layer: CaffeLayer) -> None:
    """Blobs: sum of means, sum of variances, and the factor that both are divided by."""
    p = layer.get_parameters("batch_norm_param")
    if not p.use_global_stats:
        raise layer.refuse(
            "takes the statistics of the batch (use_global_stats: false)",
            "name the deploy.prototxt",
        )
    weights = layer.builder.weights or {}
    if len(weights.get(layer.name, ())) > 3:
        raise layer.refuse(
            "has more than the three blobs of BVLC's BatchNorm", "a fork of Caffe wrote it"
        )
    mean, variance = _read_blobs(layer, "offset", "variance")
    total = layer.add_blob(2, (1,), "one").array().reshape(-1)[0]
    factor = np.float32(1 / total if total else 0)
    ones = np.ones(len(mean))
    _normalize(layer, p.eps, ones, np.zeros(len(mean)), mean * factor, variance * factor)


def _read_blobs(layer: CaffeLayer, *likes: str) -> list[Array]:
    """Return the first blobs, of a value per channel; `likes`: the distribution of each."""
    channels = layer.shape[1] if len(layer.shape) > 1 else 1
    return [layer.add_blob(k, (channels,), like).array() for k, like in enumerate(likes)]


def convert_bn(layer: CaffeLayer) -> None:
    """PSPNet's: blobs slope, bias, mean, variance. SegNet's, as it is run (INFERENCE): blobs scale,
    shift."""
    p = layer.get_parameters("bn_param")
    fields = {name for name, _ in p.given.fields}
    if not p.bn_mode and not fields & {"scale_filler", "shift_filler"}:
        blobs = _read_blobs(layer, "factor", "offset", "offset", "variance")
        _normalize(layer, p.eps, *blobs)
    elif p.bn_mode in ("INFERENCE", "1"):
        _scale_and_shift(layer)
    else:
        raise layer.refuse(
            "takes the statistics of the batch (bn_mode is not INFERENCE)",
            "name the deploy.prototxt",
        )


def convert_axpy(layer: CaffeLayer) -> None:
    """SENet's: a · x + y; a `(N, C)` or `(N, C, 1, 1)`."""
    scale, x, y = layer.shapes
    if len(x) != 4 or x != y or scale[:2] != x[:2] or prod(scale[2:]) != 1:
        raise layer.refuse("needs a scale per sample and channel, and two bottoms of one shape")
    text = "mul = Mul (x, x1)\ny = Add (mul, x2)"
    if len(scale) == 4:
        layer.formula(text, x)
    else:
        layer.formula(f"x = Reshape (x, shape)\n{text}", x, shape=(*x[:2], 1, 1))


def _normalize(layer: CaffeLayer, eps: float, *values: Any) -> None:
    """Add a BatchNormalization with gamma, beta, mean and variance."""
    names = ("gamma", "beta", "mean", "variance")
    inputs = [layer.constant(n, np.reshape(v, -1)) for n, v in zip(names, values, strict=True)]
    layer.last("BatchNormalization", inputs=[*layer.bottoms, *inputs], epsilon=eps)


def _scale_and_shift(layer: CaffeLayer) -> None:
    """Add the node of factors and offsets per channel: a mean of 0 and a variance of 1."""
    factor, shift = _read_blobs(layer, "factor", "offset")
    _normalize(layer, 0.0, factor, shift, np.zeros(len(shift)), np.ones(len(shift)))


def convert_scale(layer: CaffeLayer) -> None:
    """gamma · x + beta. Along the channels it is one node, a BatchNormalization of mean 0 and
    variance 1."""
    p = layer.get_parameters("scale_param")
    if (
        len(layer.bottoms) == 1
        and p.bias_term
        and layer.resolve_axis(p.axis) == 1
        and p.num_axes == 1
    ):
        _scale_and_shift(layer)
        return
    factor, shape = _find_factor(layer, p, "gamma", "factor")
    if not p.bias_term:
        layer.formula("y = Mul (x, factor)", factor=factor)
        return
    view = _append_ones(layer, p, shape)
    shift = layer.weight(2 - len(layer.bottoms), shape, "beta", "offset", view)
    text = "mul = Mul (x, factor)\ny = Add (mul, shift)"
    layer.formula(text, factor=factor, shift=shift)


def convert_bias(layer: CaffeLayer) -> None:
    """x + beta."""
    beta, _ = _find_factor(layer, layer.get_parameters("bias_param"), "beta", "offset")
    layer.formula("y = Add (x, beta)", beta=beta)


def _find_factor(layer: CaffeLayer, p: Parameters, what: str, like: str) -> tuple[str, Shape]:
    """Return the second bottom, or the first blob, shaped so that it is spread over the first
    bottom; and its own shape."""
    if len(layer.bottoms) == 2:
        shape = layer.shapes[1]
        view = _append_ones(layer, p, shape)
        if view == shape:
            return layer.bottoms[1], shape
        return layer.step(f"{what} = Reshape (x1, shape)", shape=view), shape
    axis = layer.resolve_axis(p.axis) if p.num_axes else 0
    shape = layer.shape[axis:] if p.num_axes == -1 else layer.shape[axis : axis + p.num_axes]
    return layer.weight(0, shape, what, like, _append_ones(layer, p, shape)), shape


def _append_ones(layer: CaffeLayer, p: Parameters, shape: Shape) -> Shape:
    """Return the shape, with ones appended for further axes of the first bottom."""
    axis = layer.resolve_axis(p.axis) if shape else 0
    if layer.shape[axis : axis + len(shape)] != shape:
        raise layer.refuse(f"cannot spread {format_shape(shape)} over axis {axis} of its bottom")
    return (*shape, *[1] * (len(layer.shape) - axis - len(shape))) if shape else ()


def convert_lrn(layer: CaffeLayer) -> None:
    """x / (k + alpha / n · sum of squares) ** beta, across channels or over a square window."""
    p = layer.get_parameters("lrn_param")
    n = p.local_size
    if n % 2 == 0:
        raise layer.refuse(f"has an even local_size, {n}")
    if p.norm_region in ("ACROSS_CHANNELS", "0"):
        layer.last("LRN", size=n, alpha=p.alpha, beta=p.beta, bias=p.k)
        return
    window = f"kernel_shape = {[n, n]}, strides = [1, 1], pads = {[n // 2] * 4}"
    layer.formula(
        f"""square = Mul (x, x)
        mean = AveragePool <{window}, count_include_pad = 1> (square)
        mul = Mul (mean, alpha)
        add = Add (mul, one)
        pow = Pow (add, power)
        y = Mul (x, pow)""",
        alpha=p.alpha,
        one=1.0,
        power=-p.beta,
    )


def convert_mvn(layer: CaffeLayer) -> None:
    """Compute (x - mean) / (standard deviation + eps) of each sample or of each of its channels."""
    p = layer.get_parameters("mvn_param")
    axes = list(range(1 if p.across_channels else 2, len(layer.shape)))
    if not axes:
        raise layer.refuse("has no axes to take the mean over")
    if not p.normalize_variance:
        layer.formula(f"mean = ReduceMean <axes = {axes}> (x)\ny = Sub (x, mean)")
        return
    layer.formula(
        f"""mean = ReduceMean <axes = {axes}> (x)
        center = Sub (x, mean)
        square = Mul (center, center)
        variance = ReduceMean <axes = {axes}> (square)
        deviation = Sqrt (variance)
        eps = Add (deviation, epsilon)
        y = Div (center, eps)""",
        epsilon=p.eps,
    )


def convert_eltwise(layer: CaffeLayer) -> None:
    """Product, weighted sum or maximum of equal shapes."""
    p = layer.get_parameters("eltwise_param")
    if any(shape != layer.shape for shape in layer.shapes):
        raise layer.refuse(
            f"has bottoms of other shapes: {', '.join(format_shape(s) for s in layer.shapes)}"
        )
    if p.coeff and len(p.coeff) != len(layer.bottoms):
        raise layer.refuse(f"has {len(p.coeff)} coefficients for {len(layer.bottoms)} bottoms")
    terms = list(layer.bottoms)
    if p.operation in ("MAX", "2"):
        layer.last("Max")
    elif p.operation in ("SUM", "1"):
        for k, coefficient in enumerate(p.coeff):
            if coefficient != 1:
                terms[k] = layer.step(
                    f"coeff{k} = Mul (term, factor)", term=terms[k], factor=float(coefficient)
                )
        layer.last("Add" if len(terms) == 2 else "Sum", inputs=terms)
    elif p.operation in ("PROD", "0"):
        product = terms[0]
        for k, term in enumerate(terms[1:-1]):
            product = layer.step(f"mul{k} = Mul (left, right)", left=product, right=term)
        layer.last("Mul", inputs=[product, terms[-1]])
    else:
        raise layer.refuse(f"has the operation {p.operation}", "known: PROD, SUM, MAX")


def convert_relu(layer: CaffeLayer) -> None:
    """max(x, 0) + slope · min(x, 0)."""
    slope = layer.get_parameters("relu_param").negative_slope
    if slope:
        layer.last("LeakyRelu", alpha=slope)
    else:
        layer.last("Relu")


def convert_prelu(layer: CaffeLayer) -> None:
    """max(x, 0) + slope · min(x, 0), with a slope per channel."""
    channels = 1 if layer.get_parameters("prelu_param").channel_shared else layer.shape[1]
    slope = layer.weight(
        0, (channels,), "slope", "slope", (channels, *[1] * (len(layer.shape) - 2))
    )
    layer.last("PRelu", inputs=[*layer.bottoms, slope])


def convert_elu(layer: CaffeLayer) -> None:
    """x, or alpha · (exp(x) - 1) below zero."""
    layer.last("Elu", alpha=layer.get_parameters("elu_param").alpha)


def convert_clip(layer: CaffeLayer) -> None:
    """Clip, and the ReLU6 of forks."""
    p = layer.get_parameters("clip_param")
    low, high = (0, 6) if layer.text.type == "ReLU6" else (p.min, p.max)
    if low is None or high is None:
        raise layer.refuse("needs min and max in clip_param")
    layer.formula("y = Clip (x, min, max)", min=float(low), max=float(high))


def convert_swish(layer: CaffeLayer) -> None:
    """x · sigmoid(beta · x)."""
    layer.formula(
        """mul = Mul (x, beta)
        sigmoid = Sigmoid (mul)
        y = Mul (x, sigmoid)""",
        beta=layer.get_parameters("swish_param").beta,
    )


def convert_power(layer: CaffeLayer) -> None:
    """Compute (shift + scale · x) ** power."""
    p = layer.get_parameters("power_param")
    layer.chain(
        ("scale", "Mul", p.scale, 1), ("shift", "Add", p.shift, 0), ("power", "Pow", p.power, 1)
    )


def convert_exp(layer: CaffeLayer) -> None:
    """Convert Exp: base ** (shift + scale · x); base -1 means e."""
    p = layer.get_parameters("exp_param")
    rate = 1 if p.base == -1 else _compute_log(layer, p.base)
    if not rate * p.shift < MAX_EXPONENT:
        raise layer.refuse(f"has the shift {p.shift:g}, beyond float32")
    factor = exp(rate * p.shift)
    layer.chain(
        ("scale", "Mul", rate * p.scale, 1), ("exp", "Exp", None, None), ("shift", "Mul", factor, 1)
    )


def convert_log(layer: CaffeLayer) -> None:
    """Compute the logarithm of shift + scale · x to the base; base -1 means e."""
    p = layer.get_parameters("log_param")
    rate = 1 if p.base == -1 else 1 / _compute_log(layer, p.base)
    layer.chain(
        ("scale", "Mul", p.scale, 1),
        ("shift", "Add", p.shift, 0),
        ("log", "Log", None, None),
        ("base", "Mul", rate, 1),
    )


def _compute_log(layer: CaffeLayer, base: float) -> float:
    if base <= 0 or base == 1:
        raise layer.refuse(
            f"has the base {base:g}", "it must be more than 0, and not 1; -1 means e"
        )
    return log(base)


def convert_dropout(layer: CaffeLayer) -> None:
    """Nothing, outside of training; with `scale_train: false` (SSD's branch) the mean is kept
    here."""
    p = layer.get_parameters("dropout_param")
    layer.chain(("keep", "Mul", 1 if p.scale_train else 1 - p.dropout_ratio, 1))


def convert_threshold(layer: CaffeLayer) -> None:
    """1 above the threshold, else 0."""
    layer.formula(
        "greater = Greater (x, threshold)\ny = Cast <to = 1> (greater)",
        threshold=layer.get_parameters("threshold_param").threshold,
    )


def convert_softmax(layer: CaffeLayer) -> None:
    """Along one axis."""
    axis = layer.resolve_axis(layer.get_parameters("softmax_param").axis)
    layer.last("Softmax", axis=axis)


def convert_reduction(layer: CaffeLayer) -> None:
    """Sum, sum of magnitudes, of squares, or mean over an axis and all later ones."""
    p = layer.get_parameters("reduction_param")
    axis = layer.resolve_axis(p.axis)
    ops = {"SUM": "ReduceSum", "ASUM": "ReduceL1", "SUMSQ": "ReduceSumSquare", "MEAN": "ReduceMean"}
    by_number = dict(zip("1234", ops.values(), strict=True))
    op = ops.get(p.operation) or by_number.get(p.operation)
    if op is None:
        raise layer.refuse(f"has the operation {p.operation}", f"known: {', '.join(ops)}")
    axes = list(range(axis, len(layer.shape)))
    reduced = f"{op} <keepdims = 0, axes = {axes}> (x)"
    values = {}
    if op == "ReduceSum":  # has its axes as an input since opset 13
        reduced = "ReduceSum <keepdims = 0> (x, axes)"
        values["axes"] = axes
    text = f"reduce = {reduced}"
    if p.coeff != 1:
        text += "\ny = Mul (reduce, coefficient)"
        values["coefficient"] = p.coeff
    layer.formula(text, layer.shape[:axis], **values)


def convert_element_wise(layer: CaffeLayer) -> None:
    """Add an operator without parameters."""
    layer.last(ELEMENT_WISE[layer.text.type])


ELEMENT_WISE = {"AbsVal": "Abs", "BNLL": "Softplus", "Sigmoid": "Sigmoid", "TanH": "Tanh"}
LAYERS = {
    **dict.fromkeys(ELEMENT_WISE, convert_element_wise),
    "Axpy": convert_axpy,
    "BN": convert_bn,
    "BatchNorm": convert_batch_norm,
    "Bias": convert_bias,
    "Clip": convert_clip,
    "Dropout": convert_dropout,
    "ELU": convert_elu,
    "Eltwise": convert_eltwise,
    "Exp": convert_exp,
    "InnerProduct": convert_inner_product,
    "LRN": convert_lrn,
    "Log": convert_log,
    "MVN": convert_mvn,
    "PReLU": convert_prelu,
    "Power": convert_power,
    "ReLU": convert_relu,
    "ReLU6": convert_clip,
    "Reduction": convert_reduction,
    "Scale": convert_scale,
    "Softmax": convert_softmax,
    "Swish": convert_swish,
    "Threshold": convert_threshold,
}
