"""Padding written otherwise: a separate Pad, folded into the next layer, by Concat, as numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from subgraph.graph.nested import assign, get_attribute
from subgraph.graph.properties import WINDOWS
from subgraph.graph.rewrites._region_model import (
    FLOATS,
    RegionModel,
    Substitution,
    get_argument,
    restrict_to,
)
from subgraph.types import Array

PADDED = WINDOWS - {"ConvTranspose", "DeformConv"}
ZERO_POINT = {"ConvInteger": 2, "QLinearConv": 2}  # input that holds it


@restrict_to(*PADDED)
def _rewrite_explicit(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    pads = _find_pads(source, node)
    if pads is None or get_attribute(node, "auto_pad", "NOTSET") == "NOTSET":
        return ""
    _set_padding(new.copy(node), pads)
    return f"the padding as numbers, not auto_pad={get_attribute(node, 'auto_pad')}, in"


@restrict_to(*PADDED)
def _rewrite_own_pad(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    pads = _find_pads(source, node)
    value = _find_neutral(source, node)
    if not pads or not any(pads) or value is None or any(node.output[1:]):
        return ""
    half = len(pads) // 2
    _pad_before(new, node, pads[:half], pads[half:], value)
    return "a separate Pad before"


@restrict_to("MaxPool")
def _rewrite_floor(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    """Rewrite ceil_mode: rows at the end are added as far as the last window reaches."""
    x = source.shape(node.input[0])
    y = source.shape(node.output[0])
    pads = _find_pads(source, node)
    value = _find_neutral(source, node)
    if (
        not get_attribute(node, "ceil_mode", 0)
        or None in (x, y, pads, value)
        or len(node.output) > 1
    ):
        return ""
    assert x and y and pads and value is not None
    kernel, strides, dilations = _get_window(source, node)
    half = len(kernel)
    need = [(y[k + 2] - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 for k in range(half)]
    more = [max(0, need[k] - x[k + 2] - pads[k]) for k in range(half)]
    _pad_before(new, node, pads[:half], more, value, ceil_mode=0)
    return "a Pad instead of ceil_mode before"


@restrict_to("AveragePool", floats=True)
def _rewrite_mean(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    """Rewrite as the mean of a padded input, times the ratio of all and counted elements."""
    x = source.shape(node.input[0])
    y = source.shape(node.output[0])
    pads = _find_pads(source, node)
    if x is None or y is None or pads is None:
        return ""
    kernel, strides, dilations = _get_window(source, node)
    half = len(kernel)
    counts = np.ones([1, 1, *[1] * len(kernel)])
    more = []
    inside = bool(get_attribute(node, "count_include_pad", 0))
    for k in range(half):
        begins = np.arange(y[k + 2]) * strides[k] - pads[k]
        taps = begins[:, None] + np.arange(kernel[k]) * dilations[k]
        low, high = (-pads[k], x[k + 2] + pads[k + half]) if inside else (0, x[k + 2])
        valid = ((taps >= low) & (taps < high)).sum(axis=1)
        more.append(max(0, int(taps.max()) + 1 - x[k + 2]))
        counts = counts * valid.reshape([-1 if axis == k + 2 else 1 for axis in range(half + 2)])
    factors = np.prod(kernel) / counts
    if not (any(pads) or any(more)) or not np.isfinite(factors).all():
        return ""
    copied = _pad_before(new, node, pads[:half], more, 0.0, ceil_mode=0, count_include_pad=0)
    copied.output[0] = new.name("mean")
    new.formula("Mul(mean, factors)", mean=copied.output[0], factors=factors)
    return "a separate Pad, and a constant that corrects the counts, for"


@restrict_to("ConvTranspose")
def _rewrite_transposed(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    x = source.shape(node.input[0])
    y = source.shape(node.output[0])
    auto_pad = get_attribute(node, "auto_pad", "NOTSET")
    kernel, strides, dilations = _get_window(source, node)
    is_open = auto_pad == "NOTSET" and not get_attribute(node, "output_shape")
    if x is None or y is None or not kernel or is_open:
        return ""
    added = get_attribute(node, "output_padding", [0] * len(kernel))
    reach = [
        strides[k] * (x[k + 2] - 1) + added[k] + (kernel[k] - 1) * dilations[k] + 1
        for k in range(len(kernel))
    ]
    total = [full - y[k + 2] for k, full in enumerate(reach)]
    if min(total) < 0:
        return ""
    _set_padding(new.copy(node), _divide_padding(total, auto_pad), output_shape=None)
    return "the padding as numbers in"


@restrict_to("Pad")
def _rewrite_concat(source: RegionModel, node: NodeProto, new: Substitution) -> str:
    pads = _find_constant_pad(source, node)
    value = _find_fill(source, node)
    shape = source.shape(node.input[0])
    if pads is None or value is None or shape is None or min(pads) < 0 or not any(pads):
        return ""
    x = node.input[0]
    rank = len(shape)
    size = list(shape)
    axes = [axis for axis in range(rank) if pads[axis] or pads[axis + rank]]
    for axis in axes:
        parts = [x]
        for end, length in enumerate((pads[axis], pads[axis + rank])):
            block = np.full([*size[:axis], length, *size[axis + 1 :]], value)
            if length:
                parts.insert(len(parts) * end, new.weight(block))
        output = node.output[0] if axis == axes[-1] else ""
        x = new.node("Concat", parts, output, axis=axis)
        size[axis] += pads[axis] + pads[axis + rank]
    return "a Concat with constants instead of"


def rewrite(source: RegionModel) -> Iterator[tuple[str, ModelProto]]:
    """Yield the model with a Pad that only one Conv or pool reads as an attribute of that."""
    readers = {n.input[0]: (i, n) for i, n in enumerate(source.nodes) if n.op_type in PADDED}
    for i, node in enumerate(source.nodes):
        pads = _find_constant_pad(source, node) if node.op_type == "Pad" else None
        index, reader = readers.get(node.output[0] if node.output else "", (0, None))
        if pads is None or reader is None or source.readers[node.output[0]] != 1:
            continue
        own = _find_pads(source, reader)
        neutral = _find_neutral(source, reader)
        fill = _find_fill(source, node)
        half = len(pads) // 2
        borders = [*pads[:2], *pads[half : half + 2]]
        is_same = neutral is not None and fill is not None and fill == neutral
        if own is None or not is_same or any(borders) or min(pads) < 0:
            continue
        new = Substitution(source, index)
        new.drop(i)
        copied = new.copy(reader)
        copied.input[0] = node.input[0]
        _set_padding(
            copied, [a + b for a, b in zip(own, [*pads[2:half], *pads[half + 2 :]], strict=True)]
        )
        description = f"the padding of {node.name or 'Pad'} inside {reader.name or reader.op_type}"
        yield description, new.model()


def _find_constant_pad(source: RegionModel, node: NodeProto) -> list[int] | None:
    """Find the constant padding of all axes, begins, then ends; None if unknown or
    of another mode."""
    if get_attribute(node, "mode", "constant") != "constant" or get_argument(node, 3):
        return None
    value = source.value(get_argument(node, 1))
    return get_attribute(node, "pads") if value is None else [int(p) for p in value]


def _find_fill(source: RegionModel, node: NodeProto) -> Array | None:
    """Return the value with which a Pad fills; None if it is computed."""
    if name := get_argument(node, 2):
        value = source.value(name)
        return None if value is None else value.reshape(())
    element = source.element(node.input[0]) or TensorProto.FLOAT
    return np.asarray(get_attribute(node, "value", 0.0), helper.tensor_dtype_to_np_dtype(element))


def _find_neutral(source: RegionModel, node: NodeProto) -> float | None:
    """Return the value that a layer's own padding has, as a value of its input; None if no value
    does the same."""
    op = node.op_type
    element = source.element(node.input[0])
    if op == "AveragePool" and not get_attribute(node, "count_include_pad", 0):
        return None
    if op in ZERO_POINT and (name := get_argument(node, ZERO_POINT[op])):
        zero = source.value(name)
        return float(zero.reshape(-1)[0]) if zero is not None and zero.size == 1 else None
    if op == "MaxPool" and element in FLOATS:
        return -np.inf
    return -128.0 if op == "MaxPool" and element == TensorProto.INT8 else 0.0


def _get_window(source: RegionModel, node: NodeProto) -> tuple[list[int], list[int], list[int]]:
    """Return kernel, strides and dilations."""
    position = 3 if node.op_type == "QLinearConv" else 1
    kernel = (
        get_attribute(node, "kernel_shape")
        or (source.shape(get_argument(node, position)) or [])[2:]
    )
    ones = [1] * len(kernel)
    return kernel, get_attribute(node, "strides", ones), get_attribute(node, "dilations", ones)


def _find_pads(source: RegionModel, node: NodeProto) -> list[int] | None:
    """Find the padding of the spatial axes, begins, then ends, also of auto_pad;
    None if unknown."""
    auto_pad = get_attribute(node, "auto_pad", "NOTSET")
    kernel, strides, dilations = _get_window(source, node)
    if not kernel:
        return None
    pads: list[int] | None = get_attribute(node, "pads")
    if auto_pad in ("NOTSET", "VALID"):
        return pads if pads and auto_pad == "NOTSET" else [0] * 2 * len(kernel)
    if (x := source.shape(node.input[0])) is None:
        return None
    total = []
    for k, size in enumerate(x[2:]):
        last = (-(-size // strides[k]) - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1
        total.append(max(0, last - size))
    return _divide_padding(total, auto_pad)


def _divide_padding(total: list[int], auto_pad: str) -> list[int]:
    """Divide the padding of each axis between begin and end; an odd element is at one of them."""
    less = [t // 2 for t in total]
    more = [t - t // 2 for t in total]
    return [*less, *more] if auto_pad == "SAME_UPPER" else [*more, *less]


def _pad_before(
    new: Substitution,
    node: NodeProto,
    begins: list[int],
    ends: list[int],
    value: float,
    **others: int,
) -> NodeProto:
    """Append a Pad of the spatial axes and a copy of the node that reads it without padding."""
    x = node.input[0]
    pads = [0, 0, *begins, 0, 0, *ends]
    if new.opset < 11:
        padded = new.node("Pad", [x], pads=pads, value=float(value), mode="constant")
    else:
        constant = new.weight(np.array(value), new.source.element(x))
        padded = new.node("Pad", [x, new.integers(pads), constant])
    copied = new.copy(node)
    copied.input[0] = padded
    _set_padding(copied, [0] * len(begins + ends), **others)
    return copied


def _set_padding(node: NodeProto, pads: list[int], **others: int | None) -> None:
    """Write attributes of a node, and remove auto_pad and those that are None."""
    values = {"auto_pad": None, "pads": pads, **others}
    kept = [a for a in node.attribute if a.name not in values]
    written = [helper.make_attribute(k, v) for k, v in values.items() if v is not None]
    assign(node.attribute, [*kept, *written])


FORMS = [
    _rewrite_explicit,
    _rewrite_transposed,
    _rewrite_own_pad,
    _rewrite_floor,
    _rewrite_mean,
    _rewrite_concat,
]
