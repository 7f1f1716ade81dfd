"""Layers that move values: join, cut, reorder, resize, pick. Each function converts one type."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
from onnx import helper, parser

from subgraph.origins.caffe.builder import CaffeLayer
from subgraph.storage.tensors import format_shape
from subgraph.types import JsonObject, Shape


def convert_concat(layer: CaffeLayer) -> None:
    """Join along an axis."""
    p = layer.get_parameters("concat_param")
    axis = layer.resolve_axis(p.axis if p.concat_dim is None else p.concat_dim)
    others = [shape[:axis] + shape[axis + 1 :] for shape in layer.shapes]
    if any(other != others[0] for other in others):
        raise layer.refuse(
            f"joins shapes that do not fit: {', '.join(format_shape(s) for s in layer.shapes)}"
        )
    output_shape = [*layer.shape]
    output_shape[axis] = sum(shape[axis] for shape in layer.shapes)
    layer.last("Concat", output_shape, axis=axis)


def convert_slice(layer: CaffeLayer) -> None:
    """Cut along an axis, at `slice_point`s or into equal parts."""
    p = layer.get_parameters("slice_param")
    axis = layer.resolve_axis(p.axis if p.slice_dim is None else p.slice_dim)
    size = layer.shape[axis]
    count = len(layer.tops)
    if not p.slice_point and size % count:
        raise layer.refuse(f"cannot cut {size} into {count} equal parts")
    points = [0, *(p.slice_point or range(size // count, size, size // count)), size]
    sizes = [b - a for a, b in pairwise(points)]
    if len(sizes) != count or min(sizes) < 1:
        raise layer.refuse(
            f"cuts {size} at {points[1:-1]} into {count} tops",
            "the points must rise, one less than tops",
        )
    shapes = [(*layer.shape[:axis], n, *layer.shape[axis + 1 :]) for n in sizes]
    tops = ", ".join(f"y{k}" for k in range(count))
    layer.formula(f"{tops} = Split <axis = {axis}> (x, sizes)", *shapes, sizes=sizes)


def convert_split(layer: CaffeLayer) -> None:
    """Convert Split to copies: a node for each top."""
    for k, top in enumerate(layer.tops):
        name = layer.name if k == 0 else layer.builder.make_unique(f"{layer.name}/{k + 1}")
        layer.builder.nodes.append(
            helper.make_node("Identity", list(layer.bottoms), [top], name=name)
        )
        layer.builder.declare(top, layer.shape)


def convert_crop(layer: CaffeLayer) -> None:
    """Cut the first bottom to the shape of the second from `axis` on."""
    p = layer.get_parameters("crop_param")
    axis = layer.resolve_axis(p.axis)
    shape, target_shape = layer.shapes
    axes = list(range(axis, len(shape)))
    offsets = p.offset or [0]
    if len(offsets) == 1:
        offsets = offsets * len(axes)
    if len(offsets) != len(axes) or len(target_shape) != len(shape):
        raise layer.refuse(f"has {len(p.offset)} offsets for {len(axes)} axes")
    ends = [offset + target_shape[a] for a, offset in zip(axes, offsets, strict=True)]
    if any(end > shape[a] for a, end in zip(axes, ends, strict=True)):
        raise layer.refuse(
            f"would cut {format_shape(target_shape)} out of {format_shape(shape)}, which is smaller"
        )
    output_shape = (*shape[:axis], *target_shape[axis:])
    layer.formula(
        "y = Slice (x, starts, ends, axes)", output_shape, starts=offsets, ends=ends, axes=axes
    )


def convert_flatten(layer: CaffeLayer) -> None:
    """Axes `axis` … `end_axis` become one."""
    p = layer.get_parameters("flatten_param")
    shape = layer.shape
    axis = layer.resolve_axis(p.axis)
    end = layer.resolve_axis(p.end_axis)
    if end < axis:
        raise layer.refuse(f"ends at axis {end}, in front of {axis}")
    output_shape = (*shape[:axis], prod(shape[axis : end + 1]), *shape[end + 1 :])
    if axis == 1 and end == len(shape) - 1:
        layer.last("Flatten", output_shape, axis=1)
    else:
        layer.formula("y = Reshape (x, shape)", output_shape, shape=output_shape)


def convert_reshape(layer: CaffeLayer) -> None:
    """Dimensions 0 (as in the bottom) and -1 (what is left) are computed here."""
    p = layer.get_parameters("reshape_param")
    shape = layer.shape
    start = layer.resolve_axis(p.axis, len(shape) + 1)
    end = len(shape) if p.num_axes == -1 else start + p.num_axes
    dims = list(p.shape.dim) if p.shape else []
    if end > len(shape) or dims.count(-1) > 1 or min(dims, default=0) < -1:
        raise layer.refuse(f"cannot reshape {format_shape(shape)} to {dims}")
    dims = [n or shape[layer.resolve_axis(start + k)] for k, n in enumerate(dims)]
    if -1 in dims:
        known_size = prod(n for n in dims if n != -1)
        dims[dims.index(-1)] = prod(shape[start:end]) // known_size
    output_shape = (*shape[:start], *dims, *shape[end:])
    if prod(output_shape) != prod(shape):
        raise layer.refuse(f"cannot reshape {format_shape(shape)} to {format_shape(output_shape)}")
    layer.formula("y = Reshape (x, shape)", output_shape, shape=output_shape)


def convert_permute(layer: CaffeLayer) -> None:
    """Another order of axes; those that are not named follow in their order."""
    order = layer.get_parameters("permute_param").order
    order = [*order, *(k for k in range(len(layer.shape)) if k not in order)]
    if sorted(order) != list(range(len(layer.shape))):
        raise layer.refuse(f"orders {len(layer.shape)} axes as {order}")
    layer.last("Transpose", [layer.shape[k] for k in order], perm=order)


def convert_tile(layer: CaffeLayer) -> None:
    """Convert Tile to copies along an axis, one after another."""
    p = layer.get_parameters("tile_param")
    axis = layer.resolve_axis(p.axis)
    repeats = [p.tiles if k == axis else 1 for k in range(len(layer.shape))]
    output_shape = [n * r for n, r in zip(layer.shape, repeats, strict=True)]
    layer.formula("y = Tile (x, repeats)", output_shape, repeats=repeats)


def convert_shuffle_channel(layer: CaffeLayer) -> None:
    """Channels of `group` groups, one of each in turn."""
    group = layer.get_parameters("shuffle_channel_param").group
    batch, channels, *rest = layer.shape
    if not group or channels % group:
        raise layer.refuse(f"cannot part {channels} channels into {group} groups")
    _add_transposed_reshape(
        layer,
        (batch, group, channels // group, *rest),
        (0, 2, 1, *range(3, 3 + len(rest))),
        layer.shape,
    )


def convert_reorg(layer: CaffeLayer) -> None:
    """Darknet's: places become channels; its order is that of the inverse on the same memory, not
    space to depth."""
    p = layer.get_parameters("reorg_param")
    shape = layer.shape
    s = p.stride
    if not s or len(shape) != 4:
        raise layer.refuse(
            "needs a reorg_param with a stride, and a bottom with four axes",
            "forks differ in its default",
        )
    batch, channels, height, width = shape
    if channels % (s * s) or (not p.reverse and (height % s or width % s)):
        raise layer.refuse(f"cannot part {format_shape(shape)} by {s}")
    few = channels // (s * s)
    inner = (batch, few, height, s, width, s)
    order = (0, 3, 5, 1, 2, 4)
    out = (batch, channels * s * s, height // s, width // s)
    if p.reverse:
        inner = (batch, s, s, few, height, width)
        order = (0, 3, 4, 1, 5, 2)
        out = (batch, few, height * s, width * s)
    _add_transposed_reshape(layer, inner, order, out)


def _add_transposed_reshape(layer: CaffeLayer, inner: Shape, order: Shape, out: Shape) -> None:
    """Reshape, transpose, reshape."""
    layer.formula(
        f"""parts = Reshape (x, parts)
        transpose = Transpose <perm = {list(order)}> (parts)
        y = Reshape (transpose, shape)""",
        out,
        parts=inner,
        shape=out,
    )


def convert_upsample(layer: CaffeLayer) -> None:
    """Each place `scale` times along both axes; SegNet's, with a mask as its second bottom, is
    another."""
    scale = layer.get_parameters("upsample_param").scale
    shape = layer.shape
    if not scale or len(shape) != 4:
        raise layer.refuse("needs a scale, and a bottom with four axes")
    how = 'coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    layer.formula(
        f'y = Resize <mode = "nearest", {how}> (x, , scales)',
        (*shape[:2], shape[2] * scale, shape[3] * scale),
        scales=[1.0, 1.0, scale, scale],
    )


def convert_roi_pooling(layer: CaffeLayer) -> None:
    """Fast R-CNN's: the maximum of each cell of each box `(batch, x1, y1, x2, y2)`."""
    p = layer.get_parameters("roi_pooling_param")
    shape, boxes = layer.shapes
    if (
        not (p.pooled_h and p.pooled_w)
        or len(shape) != 4
        or len(boxes) < 2
        or boxes[1] != 5
        or prod(boxes[2:]) != 1
    ):
        raise layer.refuse("needs pooled_h, pooled_w, and boxes of five numbers")
    sizes = f"pooled_shape = {[p.pooled_h, p.pooled_w]}, spatial_scale = {p.spatial_scale}"
    text = f"y = MaxRoiPool <{sizes}> (x, x1)"
    out = (boxes[0], shape[1], p.pooled_h, p.pooled_w)
    if len(boxes) == 2:
        layer.formula(text, out)
    else:
        layer.formula(f"x1 = Reshape (x1, boxes)\n{text}", out, boxes=boxes[:2])


def convert_interp(layer: CaffeLayer) -> None:
    """DeepLab's bilinear resizing, corners aligned."""
    p = layer.get_parameters("interp_param")
    shape = layer.shape
    if len(shape) != 4 or p.pad_beg > 0 or p.pad_end > 0:
        raise layer.refuse("needs four axes, and pads of zero or less")
    inner = [n + p.pad_beg + p.pad_end for n in shape[2:]]
    sizes = inner
    if p.shrink_factor:
        sizes = [(n - 1) // p.shrink_factor + 1 for n in sizes]
    if p.zoom_factor:
        sizes = [n + (n - 1) * (p.zoom_factor - 1) for n in sizes]
    if p.height and p.width and not (p.shrink_factor or p.zoom_factor):
        sizes = [p.height, p.width]
    values: JsonObject = {"sizes": (*shape[:2], *sizes)}
    text = 'y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners">'
    text += " (x, , , sizes)"
    if inner != list(shape[2:]):
        text = f"x = Slice (x, starts, ends, axes)\n{text}"
        ends = [-p.pad_beg + n for n in inner]
        values |= {"starts": [-p.pad_beg] * 2, "ends": ends, "axes": [2, 3]}
    layer.formula(text, values["sizes"], **values)


def convert_arg_max(layer: CaffeLayer) -> None:
    """Find the places of the largest values, or the values, or both.

    Places are floats. The later of equal values come first.
    """
    p = layer.get_parameters("argmax_param")
    shape = layer.shape
    axis = 1 if p.axis is None else layer.resolve_axis(p.axis)
    size = shape[axis] if p.axis is not None else prod(shape[1:])
    if not 1 <= p.top_k <= size:
        raise layer.refuse(f"wants the {p.top_k} largest of {size}")
    flatten = "" if p.axis is not None else "x = Flatten <axis = 1> (x)\n"
    # TopK takes the earlier of equal values, Caffe the later one: so along the reversed axis.
    text = f"""{flatten}reverse = Slice (x, starts, ends, axes, steps)
        top, places = TopK <axis = {axis}> (reverse, k)"""
    values: JsonObject = {
        "starts": [-1],
        "ends": [-size - 1],
        "axes": [axis],
        "steps": [-1],
        "k": [p.top_k],
    }
    index = "\nindex = Cast <to = 1> (places)\nindex = Sub (last, index)"
    out = [*shape]
    out[axis : axis + 1] = [p.top_k]
    if p.axis is not None and p.out_max_val:
        text += "\ny = Identity (top)"
    elif p.axis is not None:
        text += index
        values["last"] = float(size - 1)
    else:
        found = "index"
        text += index
        if p.out_max_val:
            found = "found"
            text += "\nfound = Concat <axis = 1> (index, top)"
        text += f"\ny = Reshape ({found}, shape)"
        out = [shape[0], 1 + bool(p.out_max_val), p.top_k, *[1] * max(len(shape) - 3, 0)]
        values |= {"last": float(size - 1), "shape": out}
    layer.formula(text, out, **values)


def convert_lstm(layer: CaffeLayer) -> None:
    """Caffe's LSTM over `x (T, N, …)` as one Scan; if `cont (T, N)` is 0 a sequence begins.

    Blobs: weights of the input (4·D, I), their bias (4·D), weights of the state (4·D, D); gates i,
    f, o, g.
    """
    p = layer.get_parameters("recurrent_param")
    if p.expose_hidden:
        raise layer.refuse(
            "exposes its hidden state", "subcut reads LSTM with the bottoms x and cont"
        )
    steps, batch, *rest = layer.shape
    size = p.num_output
    if layer.shapes[1] != (steps, batch):
        raise layer.refuse(f"needs a second bottom, cont, of {steps}×{batch}")
    width = prod(rest)
    gates = layer.step(
        """flatten = Flatten <axis = 2> (x)
        gemm = Gemm <transB = 1> (flatten, weight, bias)
        gates = Reshape (gemm, gates)""",
        weight=layer.weight(0, (4 * size, width), "weight", "filter"),
        bias=layer.weight(1, (4 * size,), "bias", "offset"),
        gates=(steps, batch, 4 * size),
    )
    state = layer.weight(2, (4 * size, size), "state", "filter")
    cont = layer.step("cont = Reshape (x1, cont)", cont=(steps, batch, 1))
    zero = layer.constant("zero", np.zeros((batch, size)))
    turned = layer.step("transpose = Transpose <perm = [1, 0]> (state)", state=state)
    body = parser.parse_graph(
        f"""step (float[{batch}, {size}] h, float[{batch}, {size}] c,
              float[{batch}, {4 * size}] x, float[{batch}, 1] cont)
        => (float[{batch}, {size}] h1, float[{batch}, {size}] c1, float[{batch}, {size}] y) {{
            h0 = Mul (h, cont)
            c0 = Mul (c, cont)
            hw = MatMul (h0, weights)
            sum = Add (x, hw)
            i, f, o, g = Split <axis = 1> (sum)
            is = Sigmoid (i)
            fs = Sigmoid (f)
            os = Sigmoid (o)
            gt = Tanh (g)
            kept = Mul (fs, c0)
            new = Mul (is, gt)
            c1 = Add (kept, new)
            ct = Tanh (c1)
            h1 = Mul (os, ct)
            y = Identity (h1)
        }}"""
    )
    body.name = layer.name
    body.node[2].input[1] = turned
    ends = [layer.builder.make_unique(f"{layer.name}/{n}") for n in ("last_h", "last_c")]
    node = helper.make_node(
        "Scan",
        [zero, zero, gates, cont],
        [*ends, *layer.tops],
        name=layer.name,
        num_scan_inputs=2,
        body=body,
    )
    layer.builder.nodes.append(node)
    layer.builder.declare(layer.tops[0], (steps, batch, size))


LAYERS = {
    "ArgMax": convert_arg_max,
    "Concat": convert_concat,
    "Crop": convert_crop,
    "Flatten": convert_flatten,
    "Interp": convert_interp,
    "LSTM": convert_lstm,
    "Permute": convert_permute,
    "ROIPooling": convert_roi_pooling,
    "Reorg": convert_reorg,
    "Reshape": convert_reshape,
    "ShuffleChannel": convert_shuffle_channel,
    "Slice": convert_slice,
    "Split": convert_split,
    "Tile": convert_tile,
    "Upsample": convert_upsample,
}
