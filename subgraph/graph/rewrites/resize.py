"""A Resize to a constant size as a Gather of the nearest elements, or as products with weights.

Every mode but `tf_crop_and_resize` is linear and treats each axis separately: along an axis of
length n, an output is a product with a matrix (n, m), whose columns are the filter of the mode
(ONNX's specification of Resize).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import NodeProto

from subgraph.graph.nested import get_attribute
from subgraph.graph.rewrites._region_model import (
    RegionModel,
    Substitution,
    get_argument,
    restrict_to,
)
from subgraph.types import Array

MAX_ELEMENTS = 1 << 22  # elements of a matrix of weights
COORDINATES: dict[
    str, Callable[[Array, float, int, int], Array]
] = {  # of an output, its scale, the lengths n and m
    "half_pixel": lambda x, s, n, m: (x + 0.5) / s - 0.5,
    "half_pixel_symmetric": lambda x, s, n, m: n / 2 * (1 - m / (s * n)) + (x + 0.5) / s - 0.5,
    "pytorch_half_pixel": lambda x, s, n, m: (x + 0.5) / s - 0.5 if m > 1 else 0 * x,
    "align_corners": lambda x, s, n, m: x * (n - 1) / (m - 1) if m > 1 else 0 * x,
    "asymmetric": lambda x, s, n, m: x / s,
}
ROUNDED: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@restrict_to("Resize", "Upsample", floats=True)
def _rewrite_products(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    sizes = source.shape(node.input[0])
    scales = _find_scales(source, node)
    after = source.shape(node.output[0])
    if sizes is None or scales is None or after is None:
        return ""
    axes = [
        k for k, (n, m, s) in enumerate(zip(sizes, after, scales, strict=True)) if n != m or s != 1
    ]
    nearest = get_attribute(node, "mode", "nearest") == "nearest"
    mode = _get_attribute(
        node, "coordinate_transformation_mode", "half_pixel", "asymmetric", new.opset
    )
    find_positions = COORDINATES.get(mode)
    rank = len(sizes)
    is_large = any(sizes[k] * after[k] > MAX_ELEMENTS for k in axes)
    if not axes or is_large or not find_positions or not (nearest or min(axes) >= rank - 2):
        return ""
    x = node.input[0]
    for k in axes:
        steps = np.arange(after[k], dtype=np.float64)
        positions = find_positions(steps, scales[k], sizes[k], after[k])
        output = node.output[0] if k == axes[-1] else ""
        if nearest:
            mode = _get_attribute(node, "nearest_mode", "round_prefer_floor", "floor", new.opset)
            rounded = ROUNDED[mode](positions)
            indices = new.weight(np.clip(rounded, 0, sizes[k] - 1).astype(np.int64))
            x = new.node("Gather", [x, indices], output, axis=k)
            continue
        weights = _compute_weights(node, positions, sizes[k], scales[k])
        element = source.element(node.input[0])
        last = k == rank - 1
        matrix = new.weight(weights if last else weights.T, element)
        x = new.node("MatMul", [x, matrix] if last else [matrix, x], output)
    operator = "Gather" if nearest else "MatMul"
    return f"a {operator} along each axis instead of"


def _get_attribute(node: NodeProto, name: str, default: str, old: str, opset: int) -> str:
    """Return an attribute; before opset 11, which lacks them, all meant `old`."""
    if opset >= 11:
        return str(get_attribute(node, name, default))
    return old


def _find_scales(source: RegionModel, node: NodeProto) -> list[float] | None:
    """Find the scale of each axis; None unless they are constant."""
    rank = source.rank(node.input[0]) or 0
    before = source.shape(node.input[0])
    position = 1 if source.opset < 11 else 2
    scales = source.value(get_argument(node, position))
    sizes = source.value(get_argument(node, 3))
    axes = get_attribute(node, "axes", list(range(rank)))
    if sizes is not None and sizes.size and before is not None:
        ratios = [float(m) / before[k] for k, m in zip(axes, sizes, strict=True)]
        policy = get_attribute(node, "keep_aspect_ratio_policy", "stretch")
        same = {"not_larger": min, "not_smaller": max}.get(policy)
        axis_scales = [same(ratios)] * len(ratios) if same else ratios
    elif scales is not None and scales.size:
        axis_scales = [float(s) for s in scales]
    else:
        return None
    all_scales = [1.0] * rank
    for k, scale in zip(axes, axis_scales, strict=True):
        all_scales[k] = scale
    return all_scales


def _compute_weights(node: NodeProto, positions: Array, n: int, scale: float) -> Array:
    """Return a matrix (n, m): of each output, the weights of the inputs around it."""
    cubic = get_attribute(node, "mode") == "cubic"
    smooth = get_attribute(node, "antialias", 0) and scale < 1
    wide = 1 / scale if smooth else 1.0
    reach = (2 if cubic else 1) * wide
    taps = np.floor(positions - reach)[:, None] + np.arange(1, int(np.ceil(2 * reach)) + 2)
    distance = np.abs(taps - positions[:, None]) / wide
    weights = np.maximum(0, 1 - distance)
    if cubic:
        # Keys' kernel: "Cubic convolution interpolation for digital image processing", 1981
        a = get_attribute(node, "cubic_coeff_a", -0.75)
        near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    if get_attribute(node, "exclude_outside", 0):
        weights = np.where((taps < 0) | (taps >= n), 0, weights)
    weights = weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((n, len(positions)))
    columns = np.broadcast_to(np.arange(len(positions))[:, None], taps.shape)
    np.add.at(matrix, (np.clip(taps, 0, n - 1).astype(np.int64), columns), weights)
    return matrix


FORMS = [_rewrite_products]
