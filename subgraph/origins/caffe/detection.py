"""Layers of SSD: Normalize, PriorBox, DetectionOutput
(https://github.com/weiliu89/caffe/tree/ssd/src/caffe/layers)."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, sqrt

import numpy as np
from onnx import numpy_helper

from subgraph.origins.caffe.builder import CaffeLayer
from subgraph.origins.caffe.fields import Parameters
from subgraph.types import Array

MAX_VALUES = 1 << 26  # of prior boxes, which become a constant: 256 MiB
CORNER = ("CORNER", "1")
CENTER_SIZE = ("CENTER_SIZE", "2")


def normalize(layer: CaffeLayer) -> None:
    """x / sqrt(sum of squares + eps) · scale, the sum over the channels of a place, or over the
    whole sample."""
    p = layer.parameters("norm_param")
    shape = layer.shape
    axes = [1, 2, 3] if p.across_spatial else [1]
    square = layer.step("square", "Mul", layer.bottoms * 2)
    total = layer.step("sum", "ReduceSum", [square, layer.integers("axes", axes)])
    norm = layer.step(
        "norm", "Sqrt", [layer.step("eps", "Add", [total, layer.constant("epsilon", p.eps)])]
    )
    divided = layer.step("divide", "Div", [*layer.bottoms, norm])
    count = 1 if p.channel_shared else shape[1]
    scale = layer.weight(0, (count,), "scale", "factor", (count, 1, 1))
    layer.last("Mul", [divided, scale], shape)


def prior_box(layer: CaffeLayer) -> None:
    """The boxes and their variances depend on shapes only: a Constant (1, 2, places · boxes ·
    4)."""
    p = layer.parameters("prior_box_param")
    (height, width), (rows, columns) = layer.shapes[1][2:], layer.shape[2:]
    height, width = p.img_h or p.img_size or height, p.img_w or p.img_size or width
    step_y = p.step_h or p.step or height / rows
    step_x = p.step_w or p.step or width / columns
    sizes = np.array([*_box_sizes(layer, p)], np.float64)
    if rows * columns * len(sizes) * 8 > MAX_VALUES:
        raise layer.refuse("has too many boxes")
    y, x = np.meshgrid(
        (np.arange(rows) + p.offset) * step_y,
        (np.arange(columns) + p.offset) * step_x,
        indexing="ij",
    )
    centers = np.stack([x, y], axis=-1)[:, :, None]  # (rows, columns, 1, 2)
    corners = np.concatenate([centers - sizes / 2, centers + sizes / 2], axis=-1) / [
        width,
        height,
        width,
        height,
    ]
    if p.clip:
        corners = corners.clip(0, 1)
    out = np.stack([corners.reshape(-1), _variances(layer, p, corners.size)]).astype(np.float32)[
        None
    ]
    layer.last("Constant", [], out.shape, value=numpy_helper.from_array(out, layer.name))


def _box_sizes(layer: CaffeLayer, p: Parameters) -> Iterator[tuple[float, float]]:
    """(width, height) of the boxes at each place."""
    if not p.min_size or (p.max_size and len(p.max_size) != len(p.min_size)):
        raise layer.refuse(f"has {len(p.min_size)} min_size and {len(p.max_size)} max_size")
    if not all(0 < size < inf for size in (*p.min_size, *p.max_size)):
        raise layer.refuse(f"has boxes of the sizes {[*p.min_size, *p.max_size]}")
    ratios = [1.0]
    for ratio in p.aspect_ratio:
        if not 0 < ratio < inf:
            raise layer.refuse(f"has the aspect ratio {ratio:g}")
        if all(abs(ratio - other) >= 1e-6 for other in ratios):
            ratios += [ratio, 1 / ratio] if p.flip else [ratio]
    for k, size in enumerate(p.min_size):
        yield size, size
        if p.max_size:
            between = sqrt(size * p.max_size[k])
            yield between, between
        for ratio in ratios[1:]:
            yield size * sqrt(ratio), size / sqrt(ratio)


def _variances(layer: CaffeLayer, p: Parameters, size: int) -> Array:
    """Four variances per box, or one for all; 0.1 where none is given."""
    if len(p.variance) not in (0, 1, 4):
        raise layer.refuse(f"has {len(p.variance)} variances: it must have one or four")
    return np.resize(np.array(p.variance or [0.1]), size)


def detection_output(layer: CaffeLayer) -> None:
    """Boxes decoded, non-maximum suppression per class, the best kept: (1, 1, found, 7).

    A row is [image, class, score, x1, y1, x2, y2], by class and falling score; one row of -1 where
    nothing is found. Each class is a batch of NonMaxSuppression, because Caffe suppresses among the
    `top_k` best of each class.
    """
    p = layer.parameters("detection_output_param")
    nms = p.nms_param or Parameters("nms_param", None, "")
    classes = p.num_classes
    boxes = layer.shapes[2][-1] // 4
    _require_plain(layer, p, nms, boxes)
    corners = _decode(layer, p, boxes)
    kept = [k for k in range(classes) if k != p.background_label_id]
    scores = layer.step(
        "scores", "Reshape", [layer.bottoms[1], layer.integers("scores", (boxes, classes))]
    )
    scores = layer.step("by_class", "Transpose", [scores], perm=[1, 0])
    scores = layer.step("foreground", "Gather", [scores, layer.integers("classes", kept)], axis=0)
    best = layer.step(
        "best",
        "TopK",
        [scores, layer.integers("top_k", [min(nms.top_k, boxes) if nms.top_k > -1 else boxes])],
        outputs=2,
        axis=1,
    )
    candidates = layer.step(
        "candidates", "Gather", [corners, f"{best}@2"], axis=0
    )  # (classes, top_k, 4)
    three = layer.step("unsqueeze", "Unsqueeze", [best, layer.integers("axis", [1])])
    limits = [layer.integers("per_class", [boxes]), layer.constant("overlap", [nms.nms_threshold])]
    limits.append(
        layer.constant(
            "threshold", [-3e38 if p.confidence_threshold is None else p.confidence_threshold]
        )
    )
    found = layer.step("nms", "NonMaxSuppression", [candidates, three, *limits])
    pairs = layer.step(
        "pairs", "Gather", [found, layer.integers("columns", [0, 2])], axis=1
    )  # (class, its candidate)
    score = layer.step("score", "GatherND", [best, pairs])
    if p.keep_top_k > -1:
        pairs, score = _keep_best(layer, p.keep_top_k, pairs, score)
    box = layer.step("box", "GatherND", [candidates, pairs])
    row = layer.step("row", "Gather", [pairs, layer.integers("first", [0])], axis=1)
    label = layer.step("label", "Gather", [layer.constant("labels", kept), row], axis=0)
    column = layer.step("column", "Unsqueeze", [score, layer.integers("axis_1", [1])])
    image = layer.step("image", "Mul", [label, layer.constant("zero", 0)])
    table = layer.step("table", "Concat", [image, label, column, box], axis=1)
    _rows(layer, table, score, most=p.keep_top_k if p.keep_top_k > -1 else boxes * len(kept))


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
    """The boxes as corners (boxes, 4), from locations relative to the prior boxes."""
    location = layer.step(
        "location", "Reshape", [layer.bottoms[0], layer.integers("location", (boxes, 4))]
    )
    priors = layer.step(
        "priors", "Reshape", [layer.bottoms[2], layer.integers("priors", (2, boxes, 4))]
    )
    prior, variance = (
        layer.step(
            f"prior{k}", "Gather", [priors, layer.constant(f"index{k}", k, np.int64)], axis=0
        )
        for k in (0, 1)
    )
    if not p.variance_encoded_in_target:
        location = layer.step("scaled", "Mul", [location, variance])
    if p.code_type in CORNER:
        return layer.step("corners", "Add", [prior, location])

    def halves(tensor: str, what: str) -> tuple[str, str]:
        name = layer.step(
            what, "Split", [tensor, layer.integers(f"{what}_sizes", [2, 2])], outputs=2, axis=1
        )
        return name, f"{name}@2"

    low, high = halves(prior, "prior_corners")
    half = layer.constant("half", 0.5)
    size = layer.step("prior_size", "Sub", [high, low])
    center = layer.step("prior_center", "Mul", [layer.step("prior_sum", "Add", [low, high]), half])
    shift, growth = halves(location, "location_parts")
    moved = layer.step("center", "Add", [layer.step("shift", "Mul", [shift, size]), center])
    grown = layer.step("size", "Mul", [layer.step("growth", "Exp", [growth]), size])
    reach = layer.step("reach", "Mul", [grown, half])
    ends = [layer.step(what, op, [moved, reach]) for what, op in (("low", "Sub"), ("high", "Add"))]
    return layer.step("corners", "Concat", ends, axis=1)


def _keep_best(layer: CaffeLayer, most: int, pairs: str, score: str) -> tuple[str, str]:
    """The `most` best of all classes, still in the order of their classes."""
    count = layer.step("count", "Shape", [score])
    limit = layer.step("limit", "Min", [count, layer.integers("keep_top_k", [most])])
    chosen = layer.step("keep", "TopK", [score, limit], outputs=2, axis=0)
    sortable = layer.step("chosen", "Cast", [f"{chosen}@2"], to=1)
    order = layer.step("order", "TopK", [sortable, limit], outputs=2, axis=0, largest=0)
    index = layer.step("index", "Cast", [order], to=7)
    return layer.step("kept_pairs", "Gather", [pairs, index]), layer.step(
        "kept_score", "Gather", [score, index]
    )


def _rows(layer: CaffeLayer, table: str, score: str, most: int) -> None:
    """The table, or one row of -1 where it is empty (its first column is the image, 0)."""
    nothing = layer.constant("nothing", [[0, *[-1] * 6]])
    filled = layer.step("fill", "Concat", [table, nothing], axis=0)
    count = layer.step(
        "rows", "Max", [layer.step("found", "Shape", [score]), layer.integers("one", [1])]
    )
    cut = layer.step(
        "cut", "Slice", [filled, layer.integers("start", [0]), count, layer.integers("axis_0", [0])]
    )
    layer.last("Unsqueeze", [cut, layer.integers("axes", [0, 1])], (1, 1, max(most, 1), 7))
    layer.builder.open.add(layer.tops[0])


LAYERS = {"DetectionOutput": detection_output, "Normalize": normalize, "PriorBox": prior_box}
