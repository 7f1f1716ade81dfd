"""Layers of pictures: convolution, its transpose, pooling; and SSD's Normalize, PriorBox,
DetectionOutput.

Each function converts one type. Those of SSD:
https://github.com/weiliu89/caffe/tree/ssd/src/caffe/layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, sqrt

import numpy as np
from onnx import numpy_helper

from subgraph.origins.caffe.builder import CaffeLayer
from subgraph.origins.caffe.messages import Parameters
from subgraph.types import JsonObject

# Sizes of a window, with their defaults along all axes.
_DEFAULTS = {"kernel_size": None, "stride": 1, "pad": 0, "dilation": 1}


def _find_per_axis(layer: CaffeLayer, p: Parameters, name: str) -> list[int]:
    """Find `kernel_size`, `pad` or `stride` along each spatial axis.

    It is one number, one per axis, or `_h` and `_w`.
    """
    axes = len(layer.shape) - 2
    default = _DEFAULTS[name]
    stem = name.removesuffix("_size")
    both = [] if name == "dilation" else [getattr(p, f"{stem}_{side}", None) for side in "hw"]
    if any(n is not None for n in both):
        values = [default if n is None else n for n in both]
    else:
        own = getattr(p, name)
        values = own if isinstance(own, list) else [own]
        values = (values or [default]) * (axes if len(values) < 2 else 1)
    known = [n for n in values if n is not None]
    if not len(known) == len(values) == axes:
        raise layer.refuse(f"gives {name} for {len(known)} of {axes} axes")
    if name != "pad" and min(known) < 1:
        raise layer.refuse(f"has a {name} of 0")
    return known


def _find_groups(layer: CaffeLayer, p: Parameters) -> int:
    channels = layer.shape[1]
    outputs = p.num_output
    depthwise = layer.text.type in ("ConvolutionDepthwise", "DepthwiseConvolution") and p.group == 1
    groups = channels if depthwise else p.group
    if not outputs or not groups or channels % groups or outputs % groups:
        raise layer.refuse(
            f"cannot split {channels} channels and {outputs} outputs into {groups} groups"
        )
    return groups


def convert_convolution(layer: CaffeLayer) -> None:
    """Weights `(outputs, channels / groups, *kernel)`; of a Deconvolution `(channels, outputs /
    groups, *kernel)`."""
    p = layer.get_parameters("convolution_param")
    if len(layer.shape) < 3 or layer.resolve_axis(p.axis) != 1:
        raise layer.refuse("must have its channels on axis 1, and at least one axis after it")
    kernel, stride, pad, dilation = (_find_per_axis(layer, p, name) for name in _DEFAULTS)
    groups = _find_groups(layer, p)
    channels = layer.shape[1]
    outputs = p.num_output
    backwards = layer.text.type == "Deconvolution"
    front = (channels, outputs // groups) if backwards else (outputs, channels // groups)
    inputs = [*layer.bottoms, layer.weight(0, (*front, *kernel), "weight", "filter")]
    if p.bias_term:
        inputs.append(layer.weight(1, (outputs,), "bias", "offset"))
    sizes = [
        (n - 1) * s + d * (k - 1) + 1 - 2 * q
        if backwards
        else (n + 2 * q - d * (k - 1) - 1) // s + 1
        for n, k, s, q, d in zip(layer.shape[2:], kernel, stride, pad, dilation, strict=True)
    ]
    layer.last(
        "ConvTranspose" if backwards else "Conv",
        (layer.shape[0], outputs, *sizes),
        inputs=inputs,
        kernel_shape=kernel,
        strides=stride,
        pads=pad * 2,
        dilations=dilation,
        group=groups,
    )


def convert_pooling(layer: CaffeLayer) -> None:
    """Caffe rounds the size up, and an average counts the padding, but not what a last window has
    beyond it."""
    p = layer.get_parameters("pooling_param")
    if p.pool not in ("MAX", "AVE", "0", "1"):
        raise layer.refuse(f"pools by {p.pool}", "known: MAX, AVE")
    if len(layer.shape) != 4:
        raise layer.refuse("pools over two axes: its bottom must have four")
    op = "MaxPool" if p.pool in ("MAX", "0") else "AveragePool"
    shape = layer.shape
    if p.global_pooling:
        layer.last(f"Global{op}", (*shape[:2], 1, 1))
        return
    kernel, stride, pad = (_find_per_axis(layer, p, name) for name in list(_DEFAULTS)[:3])
    if any(q >= k for q, k in zip(pad, kernel, strict=True)):
        raise layer.refuse(f"pads by {pad}, which must be less than its kernel {kernel}")
    rounded_up = p.ceil_mode and p.round_mode in ("CEIL", "0")
    spans = [n + 2 * q - k for n, k, q in zip(shape[2:], kernel, pad, strict=True)]
    sizes = [
        (-(-span // s) if rounded_up else span // s) + 1
        for span, s in zip(spans, stride, strict=True)
    ]
    outside = [
        (o - 1) * s >= n + q for o, n, s, q in zip(sizes, shape[2:], stride, pad, strict=True)
    ]
    if any(outside) and not any(pad):
        raise layer.refuse("has a last window outside of its bottom")
    sizes = [o - beyond for o, beyond in zip(sizes, outside, strict=True)]
    layer.builder.declare(layer.tops[0], (*shape[:2], *sizes))  # refuses a size of 0
    _add_pool(
        layer,
        op,
        [min(k, k + span) for k, span in zip(kernel, spans, strict=True)],
        stride,
        pad,
        sizes,
    )


def _add_pool(
    layer: CaffeLayer,
    op: str,
    kernel: list[int],
    stride: list[int],
    pad: list[int],
    sizes: list[int],
) -> None:
    """Add the node, in the plainest form that has these sizes."""
    tensor = layer.bottoms[0]
    places = layer.shape[2:]
    spans = [n + 2 * q - k for n, k, q in zip(places, kernel, pad, strict=True)]
    floor = sizes == [span // s + 1 for span, s in zip(spans, stride, strict=True)]
    ceil = sizes == [-(-span // s) + 1 for span, s in zip(spans, stride, strict=True)]
    attributes: JsonObject = {"kernel_shape": kernel, "strides": stride, "pads": pad * 2}
    if op == "AveragePool" and any(pad):
        if floor:
            attributes["count_include_pad"] = 1
        else:  # runtimes differ in what they count if padding and rounding up meet
            tensor = layer.step("pad = Pad (x, pads)", pads=[0, 0, *pad, 0, 0, *pad])
            attributes["pads"] = [0] * 4
    if not floor and ceil:
        attributes["ceil_mode"] = 1
    elif not floor:
        before = attributes["pads"][:2]
        after = [
            max((o - 1) * s + k - size - 2 * q + b, 0)
            for o, s, k, size, q, b in zip(sizes, stride, kernel, places, pad, before, strict=True)
        ]
        attributes["pads"] = before + after
    layer.last(op, (*layer.shape[:2], *sizes), inputs=[tensor], **attributes)


MAX_VALUES = 1 << 26  # of prior boxes, which become a constant: 256 MiB
CORNER = ("CORNER", "1")
CENTER_SIZE = ("CENTER_SIZE", "2")


def convert_normalize(layer: CaffeLayer) -> None:
    """x / sqrt(sum of squares + eps) · scale, the sum over the channels of a place, or over the
    whole sample."""
    p = layer.get_parameters("norm_param")
    count = 1 if p.channel_shared else layer.shape[1]
    layer.formula(
        """square = Mul (x, x)
        sum = ReduceSum (square, axes)
        eps = Add (sum, epsilon)
        norm = Sqrt (eps)
        divide = Div (x, norm)
        y = Mul (divide, scale)""",
        axes=[1, 2, 3] if p.across_spatial else [1],
        epsilon=p.eps,
        scale=layer.weight(0, (count,), "scale", "factor", (count, 1, 1)),
    )


def convert_prior_box(layer: CaffeLayer) -> None:
    """Convert PriorBox to a Constant (1, 2, places · boxes · 4), because the boxes and their
    variances depend on shapes only."""
    p = layer.get_parameters("prior_box_param")
    height, width = layer.shapes[1][2:]
    rows, columns = layer.shape[2:]
    height = p.img_h or p.img_size or height
    width = p.img_w or p.img_size or width
    step_y = p.step_h or p.step or height / rows
    step_x = p.step_w or p.step or width / columns
    sizes = np.array([*_iter_box_sizes(layer, p)], np.float64)
    if rows * columns * len(sizes) * 8 > MAX_VALUES:
        raise layer.refuse("has too many boxes")
    y, x = np.meshgrid(
        (np.arange(rows) + p.offset) * step_y,
        (np.arange(columns) + p.offset) * step_x,
        indexing="ij",
    )
    centers = np.stack([x, y], axis=-1)[:, :, None]  # (rows, columns, 1, 2)
    corners = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=-1)
    corners /= [width, height, width, height]
    if p.clip:
        corners = corners.clip(0, 1)
    if len(p.variance) not in (0, 1, 4):
        raise layer.refuse(f"has {len(p.variance)} variances: it must have one or four")
    variances = np.resize(np.array(p.variance or [0.1]), corners.size)
    boxes = np.stack([corners.reshape(-1), variances]).astype(np.float32)[None]
    layer.last("Constant", boxes.shape, inputs=(), value=numpy_helper.from_array(boxes, layer.name))


def _iter_box_sizes(layer: CaffeLayer, p: Parameters) -> Iterator[tuple[float, float]]:
    """Yield (width, height) of the boxes at each place."""
    max_sizes = p.max_size
    min_sizes = p.min_size
    if not min_sizes or (max_sizes and len(max_sizes) != len(min_sizes)):
        raise layer.refuse(f"has {len(min_sizes)} min_size and {len(max_sizes)} max_size")
    if not all(0 < size < inf for size in (*min_sizes, *max_sizes)):
        raise layer.refuse(f"has boxes of the sizes {[*min_sizes, *max_sizes]}")
    ratios = [1.0]
    for ratio in p.aspect_ratio:
        if not 0 < ratio < inf:
            raise layer.refuse(f"has the aspect ratio {ratio:g}")
        if all(abs(ratio - other) >= 1e-6 for other in ratios):
            ratios += [ratio, 1 / ratio] if p.flip else [ratio]
    for k, size in enumerate(min_sizes):
        yield size, size
        if max_sizes:
            between = sqrt(size * max_sizes[k])
            yield between, between
        for ratio in ratios[1:]:
            yield size * sqrt(ratio), size / sqrt(ratio)


def convert_detection_output(layer: CaffeLayer) -> None:
    """Boxes decoded, non-maximum suppression per class, the best kept: (1, 1, found, 7).

    A row is [image, class, score, x1, y1, x2, y2], by class and falling score; one row of -1 if
    nothing is found. Each class is a batch of NonMaxSuppression, because Caffe suppresses among the
    `top_k` best of each class.
    """
    p = layer.get_parameters("detection_output_param")
    nms = p.nms_param or Parameters("nms_param", None, "")
    classes = p.num_classes
    boxes = layer.shapes[2][-1] // 4
    _require_plain(layer, p, nms, boxes)
    foreground = [k for k in range(classes) if k != p.background_label_id]
    threshold = -3e38 if p.confidence_threshold is None else p.confidence_threshold
    corners = _decode(layer, p, boxes)
    # A pair is a class and the index of one of its candidates.
    pairs = layer.step(
        """scores = Reshape (x1, sizes)
        by_class = Transpose <perm = [1, 0]> (scores)
        foreground = Gather <axis = 0> (by_class, classes)
        best, places = TopK <axis = 1> (foreground, top_k)
        candidates = Gather <axis = 0> (corners, places)
        unsqueeze = Unsqueeze (best, axis)
        nms = NonMaxSuppression (candidates, unsqueeze, per_class, overlap, threshold)
        pairs = Gather <axis = 1> (nms, columns)""",
        sizes=(boxes, classes),
        classes=foreground,
        top_k=[min(nms.top_k, boxes) if nms.top_k > -1 else boxes],
        corners=corners,
        axis=[1],
        per_class=[boxes],
        overlap=[nms.nms_threshold],
        threshold=[threshold],
        columns=[0, 2],
    )
    best = f"{layer.name}/best"
    candidates = f"{layer.name}/candidates"
    score = layer.step("score = GatherND (best, pairs)", best=best, pairs=pairs)
    most = boxes * len(foreground)
    if p.keep_top_k > -1:
        most = p.keep_top_k
        # The best boxes of all classes stay, in the order of their classes.
        index = layer.step(
            """count = Shape (score)
            limit = Min (count, keep_top_k)
            keep, places = TopK <axis = 0> (score, limit)
            chosen = Cast <to = 1> (places)
            order, sorted = TopK <axis = 0, largest = 0> (chosen, limit)
            index = Cast <to = 7> (order)""",
            score=score,
            keep_top_k=[most],
        )
        pairs = layer.step("kept_pairs = Gather (pairs, index)", pairs=pairs, index=index)
        score = layer.step("kept_score = Gather (score, index)", score=score, index=index)
    layer.formula(
        """box = GatherND (candidates, pairs)
        row = Gather <axis = 1> (pairs, first)
        label = Gather <axis = 0> (labels, row)
        column = Unsqueeze (score, axis_1)
        image = Mul (label, zero)
        table = Concat <axis = 1> (image, label, column, box)
        fill = Concat <axis = 0> (table, nothing)
        found = Shape (score)
        rows = Max (found, one)
        cut = Slice (fill, start, rows, axis_0)
        y = Unsqueeze (cut, axes)""",
        (1, 1, max(most, 1), 7),
        candidates=candidates,
        pairs=pairs,
        first=[0],
        labels=np.array(foreground, np.float32),
        score=score,
        axis_1=[1],
        zero=0.0,
        nothing=np.array([[0, *[-1] * 6]], np.float32),  # one row of -1; the first column: image 0
        one=[1],
        start=[0],
        axis_0=[0],
        axes=[0, 1],
    )
    layer.builder.open.add(layer.tops[0])


def _require_plain(layer: CaffeLayer, p: Parameters, nms: Parameters, boxes: int) -> None:
    classes = p.num_classes
    shapes = layer.shapes
    if shapes[0][0] != 1:
        raise layer.refuse(f"has a batch of {shapes[0][0]}", "set the batch to 1 in the prototxt")
    if not p.share_location or nms.eta != 1 or p.code_type not in (*CORNER, *CENTER_SIZE):
        raise layer.refuse(
            f"has share_location {p.share_location}, eta {nms.eta:g}, code_type {p.code_type}",
            "known: shared locations, eta 1, CORNER and CENTER_SIZE",
        )
    sizes = [int(np.prod(shape[1:])) for shape in shapes[:2]]
    if classes < 2 or sizes != [4 * boxes, classes * boxes]:
        raise layer.refuse(
            f"has {boxes} boxes and {classes} classes, its bottoms have {sizes[0]} and {sizes[1]}"
            " values"
        )


def _decode(layer: CaffeLayer, p: Parameters, boxes: int) -> str:
    """Return the boxes as corners (boxes, 4), from locations relative to the prior boxes."""
    scaled = "" if p.variance_encoded_in_target else "\nlocation = Mul (location, prior1)"
    parts = f"""location = Reshape (x, sizes)
        priors = Reshape (x2, prior_sizes)
        prior0 = Gather <axis = 0> (priors, index0)
        prior1 = Gather <axis = 0> (priors, index1){scaled}"""
    values = {"sizes": (boxes, 4), "prior_sizes": (2, boxes, 4), "index0": 0, "index1": 1}
    if p.code_type in CORNER:
        return layer.step(f"{parts}\ncorners = Add (prior0, location)", **values)
    return layer.step(
        f"""{parts}
        low, high = Split <axis = 1> (prior0, halves)
        prior_size = Sub (high, low)
        prior_sum = Add (low, high)
        prior_center = Mul (prior_sum, half)
        moves, grows = Split <axis = 1> (location, halves)
        shift = Mul (moves, prior_size)
        center = Add (shift, prior_center)
        growth = Exp (grows)
        size = Mul (growth, prior_size)
        reach = Mul (size, half)
        least = Sub (center, reach)
        most = Add (center, reach)
        corners = Concat <axis = 1> (least, most)""",
        **values,
        halves=[2, 2],
        half=0.5,
    )


LAYERS = {
    "Convolution": convert_convolution,
    "ConvolutionDepthwise": convert_convolution,
    "Deconvolution": convert_convolution,
    "DepthwiseConvolution": convert_convolution,
    "DetectionOutput": convert_detection_output,
    "Normalize": convert_normalize,
    "Pooling": convert_pooling,
    "PriorBox": convert_prior_box,
}
