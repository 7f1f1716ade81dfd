"""Laws of layers: each gives what numpy gives in float64 by Caffe's formula.

Covers `origins.caffe.layers`, `origins.caffe.shapes`, `origins.caffe.windows` and
`origins.caffe.builder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fixtures.caffe import layer, net
from subgraph.errors import ModelError
from subgraph.types import Array
from tests.helpers.caffe_layers import X, check, convert, parameters_of, run
from tests.helpers.refusals import raises


def windows(
    x: Array, k: Sequence[int], s: Sequence[int], p: Sequence[int], d: Sequence[int] = (1, 1)
) -> Array:
    """(N, C, rows, columns, k0, k1) of the padded picture."""
    padded = np.pad(x, ((0, 0), (0, 0), (p[0],) * 2, (p[1],) * 2))
    reach = [di * (ki - 1) + 1 for ki, di in zip(k, d, strict=True)]
    all_of = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    return all_of[:, :, :: s[0], :: s[1], :: d[0], :: d[1]]


def conv(
    k: Sequence[int], s: Sequence[int], p: Sequence[int], d: Sequence[int] = (1, 1), groups: int = 1
) -> Any:
    def expected(x: Array, w: Array, *bias: Array) -> Any:
        parts = [
            np.einsum("nchwij,ocij->nohw", windows(part, k, s, p, d), filters)
            for part, filters in zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True)
        ]
        return np.concatenate(parts, 1) + (bias[0][:, None, None] if bias else 0)

    return expected


def deconv(k: int, s: int, p: int, groups: int = 1) -> Any:
    def expected(x: Array, w: Array, *bias: Array) -> Any:
        outs = []
        for part, filters in zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True):
            n, _, h, v = part.shape
            out = np.zeros((n, filters.shape[1], (h - 1) * s + k, (v - 1) * s + k))
            for i in range(h):
                for j in range(v):
                    out[:, :, i * s : i * s + k, j * s : j * s + k] += np.einsum(
                        "nc,coij->noij", part[:, :, i, j], filters
                    )
            outs.append(out[:, :, p : out.shape[2] - p, p : out.shape[3] - p])
        return np.concatenate(outs, 1) + (bias[0][:, None, None] if bias else 0)

    return expected


def pool(
    method: str, k: Sequence[int], s: Sequence[int], p: Sequence[int], round_up: bool = True
) -> Any:
    """Caffe's own loop: pooling_layer.cpp."""

    def expected(x: Array) -> Any:
        sizes: list[int] = []
        for n, ki, si, pi in zip(x.shape[2:], k, s, p, strict=True):
            span = (n + 2 * pi - ki) / si
            size = int(np.ceil(span) if round_up else np.floor(span)) + 1
            sizes.append(size - (any(p) and (size - 1) * si >= n + pi))
        out: Any = np.zeros((*x.shape[:2], *sizes))
        for i in range(sizes[0]):
            for j in range(sizes[1]):
                starts = [i * s[0] - p[0], j * s[1] - p[1]]
                ends = [
                    min(a + ki, n + pi)
                    for a, ki, n, pi in zip(starts, k, x.shape[2:], p, strict=True)
                ]
                area = (ends[0] - starts[0]) * (ends[1] - starts[1])
                part = x[
                    :,
                    :,
                    max(starts[0], 0) : min(ends[0], x.shape[2]),
                    max(starts[1], 0) : min(ends[1], x.shape[3]),
                ]
                out[:, :, i, j] = part.max((2, 3)) if method == "MAX" else part.sum((2, 3)) / area
        return out

    return expected


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(
    "window",
    [(2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 2), (2, 1, 1), (3, 3, 1), (9, 2, 1)],
)
@pytest.mark.parametrize("size", [(5, 6), (7, 8), (11, 9)])
def test_pooling_at_odd_and_even_sizes(
    method: str, window: tuple[int, int, int], size: tuple[int, int]
) -> None:
    k, s, p = window
    if k - min(size) - 2 * p >= s:
        k = min(size) + 2 * p + s - 1  # the largest that gives a size of one
    given = {"pool": method, "kernel_size": k, "stride": s, "pad": p}
    check("Pooling", pool(method, (k, k), (s, s), (p, p)), [(1, 2, *size)], pooling_param=given)


def test_other_pooling() -> None:
    uneven = {"kernel_h": 3, "kernel_w": 2, "stride_h": 2, "stride_w": 1, "pad_h": 1, "pad_w": 0}
    for method in ("MAX", "AVE"):
        check(
            "Pooling",
            pool(method, (3, 2), (2, 1), (1, 0)),
            pooling_param={"pool": method, **uneven},
        )
        for down in ({"round_mode": "FLOOR"}, {"ceil_mode": False}):
            floor = {"pool": method, "kernel_size": 2, "stride": 2, **down}
            check(
                "Pooling", pool(method, (2, 2), (2, 2), (0, 0), round_up=False), pooling_param=floor
            )
    check(
        "Pooling",
        lambda x: x.mean((2, 3), keepdims=True),
        pooling_param={"pool": "AVE", "global_pooling": True},
    )
    check("Pooling", lambda x: x.max((2, 3), keepdims=True), pooling_param={"global_pooling": True})


CONVOLUTIONS: list[tuple[Any, dict[str, Any]]] = [
    (conv((3, 3), (1, 1), (0, 0)), {"num_output": 4, "kernel_size": 3}),
    (
        conv((3, 3), (2, 2), (1, 1)),
        {"num_output": 4, "kernel_size": 3, "stride": 2, "pad": 1, "bias_term": False},
    ),
    (
        conv((3, 3), (1, 1), (2, 2), (2, 2)),
        {"num_output": 4, "kernel_size": 3, "dilation": 2, "pad": 2},
    ),
    (
        conv((3, 3), (1, 1), (1, 1), groups=2),
        {"num_output": 4, "kernel_size": 3, "pad": 1, "group": 2},
    ),
    (
        conv((1, 3), (2, 1), (0, 1)),
        {"num_output": 2, "kernel_h": 1, "kernel_w": 3, "stride_h": 2, "pad_w": 1},
    ),
    (
        conv((2, 3), (1, 2), (1, 0)),
        {"num_output": 2, "kernel_size": [2, 3], "stride": [1, 2], "pad": [1, 0]},
    ),
]


@pytest.mark.parametrize(("expected", "parameters"), CONVOLUTIONS)
def test_convolution(expected: Any, parameters: dict[str, Any]) -> None:
    check("Convolution", expected, convolution_param=parameters)


def test_depthwise_convolution_and_deconvolution() -> None:
    depthwise = conv((3, 3), (1, 1), (1, 1), groups=6)
    check(
        "DepthwiseConvolution",
        depthwise,
        convolution_param={"num_output": 6, "kernel_size": 3, "pad": 1},
    )
    given = {"num_output": 4, "kernel_size": 4, "stride": 2, "pad": 1}
    check("Deconvolution", deconv(4, 2, 1), convolution_param=given)
    check(
        "Deconvolution",
        deconv(4, 2, 1, 2),
        convolution_param=given | {"group": 2, "bias_term": False},
    )


def lrn(n: int, alpha: float, beta: float, k: float) -> Any:
    def expected(x: Array) -> Any:
        square = np.pad(x * x, ((0, 0), (n // 2,) * 2, (0, 0), (0, 0)))
        total: Any = sum(square[:, j : j + x.shape[1]] for j in range(n))
        return x / (k + alpha / n * total) ** beta

    return expected


def within(n: int, alpha: float, beta: float) -> Any:
    return lambda x: (
        x * (1 + alpha * windows(x * x, (n, n), (1, 1), (n // 2,) * 2).mean((4, 5))) ** -beta
    )


def mvn(axes: tuple[int, ...], eps: float) -> Any:
    def expected(x: Array) -> Any:
        centered = x - x.mean(axes, keepdims=True)
        return centered / (np.sqrt((centered**2).mean(axes, keepdims=True)) + eps)

    return expected


def softmax(axis: int) -> Any:
    return lambda x: np.exp(x) / np.exp(x).sum(axis, keepdims=True)


C = (slice(None), None, None)  # a value per channel, spread over a picture
ELEMENTWISE: list[tuple[str, Any, dict[str, Any]]] = [
    ("ReLU", lambda x: np.maximum(x, 0), {}),
    ("ReLU", lambda x: np.where(x > 0, x, 0.1 * x), {"negative_slope": 0.1}),
    ("ReLU6", lambda x: x.clip(0, 6), {}),
    ("Clip", lambda x: x.clip(-0.5, 0.7), {"min": -0.5, "max": 0.7}),
    ("PReLU", lambda x, a: np.where(x > 0, x, a[C] * x), {}),
    ("PReLU", lambda x, a: np.where(x > 0, x, a * x), {"channel_shared": True}),
    ("ELU", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), {"alpha": 0.5}),
    ("Sigmoid", lambda x: 1 / (1 + np.exp(-x)), {}),
    ("TanH", np.tanh, {}),
    ("AbsVal", np.abs, {}),
    ("BNLL", lambda x: np.log1p(np.exp(x)), {}),
    ("Swish", lambda x: x / (1 + np.exp(-2 * x)), {"beta": 2}),
    ("Power", lambda x: (0.5 + 2 * x) ** 2, {"power": 2, "scale": 2, "shift": 0.5}),
    ("Power", lambda x: x, {}),
    ("Exp", lambda x: 2 ** (1 + 0.5 * x), {"base": 2, "scale": 0.5, "shift": 1}),
    ("Exp", np.exp, {}),
    ("Dropout", lambda x: x, {"dropout_ratio": 0.3}),
    ("Dropout", lambda x: 0.7 * x, {"dropout_ratio": 0.3, "scale_train": False}),
    ("Threshold", lambda x: (x > 0.25) * 1.0, {"threshold": 0.25}),
    ("LRN", lrn(5, 0.5, 0.75, 2), {"alpha": 0.5, "k": 2}),
    ("LRN", within(3, 0.5, 0.75), {"local_size": 3, "alpha": 0.5, "norm_region": "WITHIN_CHANNEL"}),
    ("MVN", mvn((2, 3), 1e-09), {}),
    ("MVN", mvn((1, 2, 3), 0.5), {"across_channels": True, "eps": 0.5}),
    ("MVN", lambda x: x - x.mean((2, 3), keepdims=True), {"normalize_variance": False}),
    ("Softmax", softmax(1), {}),
    ("Softmax", softmax(3), {"axis": -1}),
    ("BatchNorm", lambda x, m, v, f: (x - m[C] / f) / np.sqrt(v[C] / f + 0.001), {"eps": 0.001}),
    ("Scale", lambda x, g: x * g[C], {}),
    ("Scale", lambda x, g, b: x * g[C] + b[C], {"bias_term": True}),
    ("Scale", lambda x, g, b: x * g + b, {"bias_term": True, "axis": 2, "num_axes": -1}),
    ("Scale", lambda x, g: x * g, {"num_axes": 0}),
    ("Bias", lambda x, b: x + b[C], {}),
]


@pytest.mark.parametrize(("kind", "expected", "fields"), ELEMENTWISE)
def test_element_by_element(kind: str, expected: Any, fields: dict[str, Any]) -> None:
    check(kind, expected, **parameters_of(kind, fields))


def test_logarithms() -> None:
    check("Log", np.log, positive=True)
    given = {"base": 2, "scale": 3, "shift": 1}
    check("Log", lambda x: np.log2(1 + 3 * x), positive=True, log_param=given)


def test_two_bottoms_that_are_spread() -> None:
    check("Scale", lambda x, g: x * g[None, :, :, None], [X, X[1:3]])
    check("Scale", lambda x, g, b: x * g[C] + b[C], [X, X[1:2]], scale_param={"bias_term": True})
    check("Bias", lambda x, b: x + b, [X, X], bias_param={"axis": 0})


def test_inner_products() -> None:
    def flat(x):  # type: ignore[no-untyped-def]
        return x.reshape(x.shape[0], -1)

    check("InnerProduct", lambda x, w, b: flat(x) @ w.T + b, inner_product_param={"num_output": 3})  # type: ignore[no-untyped-call]
    transposed = {"num_output": 3, "transpose": True, "bias_term": False}
    check("InnerProduct", lambda x, w: flat(x) @ w, inner_product_param=transposed)  # type: ignore[no-untyped-call]
    check(
        "InnerProduct",
        lambda x, w, b: x @ w.T + b,
        inner_product_param={"num_output": 3, "axis": -1},
    )
    check(
        "InnerProduct", lambda x, w, b: x @ w.T + b, [(2, 6)], inner_product_param={"num_output": 3}
    )


def last_of_equal(x: Array, axis: int, k: int) -> tuple[Array, Array]:
    """Indices and values of the `k` largest, the later of equal ones first."""
    size = x.shape[axis]
    order = (size - 1) - np.argsort(-np.flip(x, axis), axis, kind="stable").take(range(k), axis)
    return order.astype(np.float64), np.take_along_axis(x, order, axis)


def _spread(values: Array) -> Array:
    return values.reshape(-1, 1, 1)


def reorg(x: Array, s: int, *, reverse: bool) -> Any:
    """Darknet's loop over the bottom's places: one side is read in order, the other at (c % few,
    …)."""
    n, c, h, w = x.shape
    few = c // (s * s)
    flat = x.reshape(-1)
    out = np.empty_like(flat)
    for place, (b, k, j, i) in enumerate(np.ndindex(n, c, h, w)):
        row = j * s + k // few // s
        column = i * s + k // few % s
        other = column + w * s * (row + h * s * (k % few + few * b))
        out[other if reverse else place] = flat[place if reverse else other]
    return out.reshape((n, few, h * s, w * s) if reverse else (n, c * s * s, h // s, w // s))


def test_roi_pooling() -> None:
    """Fast R-CNN's loop: boxes are rounded to places, cells overlap, one without places is 0."""
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 8)).astype(np.float32)
    boxes = np.array([[0, 0, 0, 15, 17], [1, 3, 2, 9, 12], [1, 4, 4, 4, 4]], np.float32)
    want = np.zeros((3, 3, 2, 3), np.float32)
    for r, (batch, *box) in enumerate(boxes):
        x0, y0, x1, y1 = (int(np.floor(v * 0.5 + 0.5)) for v in box)
        height = max(y1 - y0 + 1, 1)
        width = max(x1 - x0 + 1, 1)
        for i, j in np.ndindex(2, 3):
            top = int(np.floor(i * height / 2)) + y0
            bottom = int(np.ceil((i + 1) * height / 2)) + y0
            left = int(np.floor(j * width / 3)) + x0
            right = int(np.ceil((j + 1) * width / 3)) + x0
            cell = x[int(batch), :, max(top, 0) : min(bottom, 9), max(left, 0) : min(right, 8)]
            want[r, :, i, j] = cell.max((1, 2)) if cell.size else 0
    sizes = {"pooled_h": 2, "pooled_w": 3, "spatial_scale": 0.5}
    for shape in ((3, 5), (3, 5, 1, 1)):
        prototxt = net(
            layer("ROIPooling", "y", "x boxes", roi_pooling_param=sizes), x=x.shape, boxes=shape
        )
        values, _ = run(prototxt, {"x": x, "boxes": boxes.reshape(shape)})
        np.testing.assert_array_equal(values[0], want)


MOVES: list[tuple[str, Any, Sequence[tuple[int, ...]], dict[str, Any]]] = [
    ("Concat", lambda a, b: np.concatenate([a, b], 1), [X, X], {}),
    ("Concat", lambda a, b: np.concatenate([a, b], 2), [X, (2, 6, 1, 5)], {"axis": -2}),
    ("Slice", lambda x: tuple(np.split(x, 3, 1)), [X], {}),
    ("Slice", lambda x: tuple(np.split(x, [2, 5], 2)), [X], {"axis": 2, "slice_point": [2, 5]}),
    ("Split", lambda x: (x, x), [X], {}),
    ("Crop", lambda x, _: x[:, :, 2:5, 2:4], [X, (2, 6, 3, 2)], {"offset": 2}),
    ("Crop", lambda x, _: x[:, 1:3, 2:5, 3:5], [X, (2, 2, 3, 2)], {"axis": 1, "offset": [1, 2, 3]}),
    ("Flatten", lambda x: x.reshape(2, -1), [X], {}),
    ("Flatten", lambda x: x.reshape(2, 42, 5), [X], {"end_axis": 2}),
    ("Permute", lambda x: x.transpose(0, 2, 3, 1), [X], {"order": [0, 2, 3, 1]}),
    ("Permute", lambda x: x.transpose(1, 0, 2, 3), [X], {"order": 1}),
    ("Reshape", lambda x: x.reshape(2, 2, -1), [X], {"shape": {"dim": [0, 2, -1]}}),
    (
        "Reshape",
        lambda x: x.reshape(2, 3, 2, 7, 5),
        [X],
        {"axis": 1, "num_axes": 1, "shape": {"dim": [3, -1]}},
    ),
    ("Axpy", lambda a, x, y: a[:, :, None, None] * x + y, [(2, 6), X, X], {}),
    ("Axpy", lambda a, x, y: a * x + y, [(2, 6, 1, 1), X, X], {}),
    (
        "BN",
        lambda x, s, b, m, v: (
            _spread(s) * (x - _spread(m)) / np.sqrt(_spread(v) + 0.001) + _spread(b)
        ),
        [X],
        {"frozen": True, "eps": 0.001},
    ),
    ("BN", lambda x, s, b: _spread(s) * x + _spread(b), [X], {"bn_mode": "INFERENCE"}),
    ("ShuffleChannel", lambda x: x[:, [0, 3, 1, 4, 2, 5]], [X], {"group": 2}),
    ("Reorg", lambda x: reorg(x, 2, reverse=False), [(2, 8, 4, 6)], {"stride": 2}),
    ("Reorg", lambda x: reorg(x, 2, reverse=True), [(2, 8, 4, 6)], {"stride": 2, "reverse": True}),
    ("Upsample", lambda x: x.repeat(3, 2).repeat(3, 3), [X], {"scale": 3}),
    ("Tile", lambda x: np.tile(x, (1, 1, 3, 1)), [X], {"axis": 2, "tiles": 3}),
    ("Eltwise", lambda a, b: a + b, [X, X], {}),
    ("Eltwise", lambda a, b, c: a - 2 * b + c, [X] * 3, {"coeff": [1, -2, 1]}),
    ("Eltwise", lambda a, b, c: np.maximum(a, np.maximum(b, c)), [X] * 3, {"operation": "MAX"}),
    ("Eltwise", lambda a, b, c: a * b * c, [X] * 3, {"operation": "PROD"}),
    ("Reduction", lambda x: x.sum(), [X], {}),
    ("Reduction", lambda x: 3 * x.mean((2, 3)), [X], {"operation": "MEAN", "axis": 2, "coeff": 3}),
    ("Reduction", lambda x: np.abs(x).sum(3), [X], {"operation": "ASUM", "axis": -1}),
    ("Reduction", lambda x: (x * x).sum((1, 2, 3)), [X], {"operation": "SUMSQ", "axis": 1}),
    ("ArgMax", lambda x: last_of_equal(x.reshape(2, -1), 1, 1)[0].reshape(2, 1, 1, 1), [X], {}),
    (
        "ArgMax",
        lambda x: np.stack(last_of_equal(x, 1, 3), 1),
        [(2, 9)],
        {"top_k": 3, "out_max_val": True},
    ),
    ("ArgMax", lambda x: last_of_equal(x, 1, 2)[0], [X], {"top_k": 2, "axis": 1}),
    ("ArgMax", lambda x: x.max(1, keepdims=True), [X], {"axis": 1, "out_max_val": True}),
]
TOPS = {"Slice": "a b c", "Split": "a b"}  # of layers with several


@pytest.mark.parametrize(("kind", "expected", "shapes", "fields"), MOVES)
def test_moves(
    kind: str, expected: Any, shapes: Sequence[tuple[int, ...]], fields: dict[str, Any]
) -> None:
    check(kind, expected, shapes, TOPS.get(kind, "y"), **parameters_of(kind, fields))


def test_argmax_takes_the_later_of_equal_values() -> None:
    values, _ = run(
        net(layer("ArgMax", "y", "x"), x=(1, 4)), {"x": np.array([[1, 5, 5, 2]], np.float32)}
    )
    assert values[0].item() == 2


def bilinear(rows: int, columns: int) -> Any:
    """DeepLab's interp.cpp: corners aligned."""

    def expected(x: Array) -> Any:
        for axis, size in ((2, rows), (3, columns)):
            place = np.arange(size) * ((x.shape[axis] - 1) / (size - 1) if size > 1 else 0)
            low = np.minimum(place.astype(int), x.shape[axis] - 1)
            high = np.minimum(low + 1, x.shape[axis] - 1)
            part = (place - low).reshape(-1, *[1] * (3 - axis))
            x = x.take(low, axis) * (1 - part) + x.take(high, axis) * part
        return x

    return expected


def test_interp() -> None:
    check("Interp", bilinear(13, 9), interp_param={"zoom_factor": 2})
    check("Interp", bilinear(4, 3), interp_param={"shrink_factor": 2})
    check("Interp", bilinear(20, 11), interp_param={"height": 20, "width": 11})

    def cropped(x):  # type: ignore[no-untyped-def]
        return bilinear(9, 8)(x[:, :, 1:-1, 1:-1])

    check("Interp", cropped, interp_param={"height": 9, "width": 8, "pad_beg": -1, "pad_end": -1})


def test_lstm_begins_anew_where_cont_is_zero() -> None:
    steps = 5
    batch = 2
    width = 3
    size = 4
    prototxt = net(
        layer("LSTM", "y", "x cont", recurrent_param={"num_output": size}),
        x=(steps, batch, width),
        cont=(steps, batch),
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((steps, batch, width)).astype(np.float32)
    cont = np.array([[0, 0], [1, 1], [1, 0], [1, 1], [0, 1]], np.float32)
    (value,), (w, b, u) = run(prototxt, {"x": x, "cont": cont})
    h = c = np.zeros((batch, size))
    for t in range(steps):
        kept = cont[t][:, None]
        i, f, o, g = np.split(x[t] @ w.T + b + (kept * h) @ u.T, 4, 1)
        i, f, o = (1 / (1 + np.exp(-v)) for v in (i, f, o))
        c = f * kept * c + i * np.tanh(g)
        h = o * np.tanh(c)
        np.testing.assert_allclose(value[t], h, rtol=1e-5, atol=1e-6)


# The other refusals are in tests/said/caffe.md.
REFUSED: dict[str, list[tuple[str, Sequence[tuple[int, ...]], dict[str, Any], str]]] = {
    "caffe.layer-refused": [
        ("Pooling", [X], {"pool": "STOCHASTIC", "kernel_size": 2}, "STOCHASTIC"),
        ("Convolution", [X], {"num_output": 4000000000, "kernel_size": 3}, "random weights"),
        ("Eltwise", [X, (2, 6, 7, 4)], {}, "other shapes"),
        ("Concat", [X, (2, 6, 7, 4)], {}, "not fit"),
        ("Crop", [X, (2, 6, 8, 4)], {}, "smaller"),
        ("Scale", [X, (5,)], {}, "cannot spread 5"),
        ("PReLU", [(2,)], {}, "axes than 2"),
        ("BN", [X], {"scale_filler": {"value": 1}}, "statistics"),
        ("Axpy", [(2, 6), X, (2, 6, 7, 4)], {}, "two bottoms"),
        ("LSTM", [(5, 2, 3), (5, 3)], {"num_output": 2}, "cont, of 5×2"),
    ],
    "caffe.wrong-shape": [
        ("Pooling", [X], {"kernel_size": 9, "pad": 1, "stride": 2}, "2×6×1×0"),
        ("Convolution", [X], {"num_output": 4, "kernel_size": 9}, "the shape"),
        ("Tile", [X], {}, "the shape"),
    ],
}


@pytest.mark.parametrize(
    ("code", "kind", "shapes", "fields", "about"),
    [(code, *row) for code, rows in REFUSED.items() for row in rows],
)
def test_meaningless_field_is_refused(
    code: str, kind: str, shapes: Sequence[tuple[int, ...]], fields: dict[str, Any], about: str
) -> None:
    names = {f"x{k}": shape for k, shape in enumerate(shapes)}
    parameters = parameters_of(kind, fields)
    with raises(ModelError, code, about) as refusal:
        convert(net(layer(kind, "the_layer", " ".join(names), "y", **parameters), **names))
    assert "the_layer" in refusal.value.what or "'y'" in refusal.value.what
