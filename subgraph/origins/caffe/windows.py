"""Layers that slide a window over a picture: convolution, its transpose, pooling. Each function
converts one type."""

from __future__ import annotations

from subgraph.origins.caffe.builder import CaffeLayer
from subgraph.origins.caffe.fields import Parameters
from subgraph.types import JsonObject


def _find_per_axis(
    layer: CaffeLayer, p: Parameters, name: str, axes: int, default: int | None
) -> list[int]:
    """`kernel_size`, `pad` or `stride` along each spatial axis: one number, one per axis, or `_h`
    and `_w`."""
    stem = name.removesuffix("_size")
    both = (
        [getattr(p, f"{stem}_{side}", None) for side in "hw"]
        if name != "dilation"
        else [None, None]
    )
    if both != [None, None]:
        values = [default if n is None else n for n in both]
    else:
        given = getattr(p, name)
        values = given if isinstance(given, list) else [given]
        values = (values or [default]) * (axes if len(values) < 2 else 1)
    found = [n for n in values if n is not None]
    if not len(found) == len(values) == axes:
        raise layer.refuse(f"gives {name} for {len(found)} of {axes} axes")
    if name != "pad" and min(found) < 1:
        raise layer.refuse(f"has a {name} of 0")
    return found


def _find_window(
    layer: CaffeLayer, p: Parameters
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Kernel, stride, pad and dilation along each spatial axis."""
    axes = len(layer.shape) - 2
    if axes < 1 or layer.axis(p.axis) != 1:
        raise layer.refuse("must have its channels on axis 1, and axes behind it")
    kernel = _find_per_axis(layer, p, "kernel_size", axes, None)
    return (
        kernel,
        *(
            _find_per_axis(layer, p, n, axes, d)
            for n, d in (("stride", 1), ("pad", 0), ("dilation", 1))
        ),
    )  # type: ignore[return-value]


def _find_groups(layer: CaffeLayer, p: Parameters) -> int:
    channels = layer.shape[1]
    outputs = p.num_output
    depthwise = layer.text.type in ("ConvolutionDepthwise", "DepthwiseConvolution") and p.group == 1
    groups: int = channels if depthwise else p.group
    if not outputs or not groups or channels % groups or outputs % groups:
        raise layer.refuse(
            f"cannot split {channels} channels and {outputs} outputs into {groups} groups"
        )
    return groups


def convert_convolution(layer: CaffeLayer) -> None:
    """Weights `(outputs, channels / groups, *kernel)`; of a Deconvolution `(channels, outputs /
    groups, *kernel)`."""
    p = layer.parameters("convolution_param")
    (kernel, stride, pad, dilation), groups = _find_window(layer, p), _find_groups(layer, p)
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
    attributes = {
        "kernel_shape": kernel,
        "strides": stride,
        "pads": pad * 2,
        "dilations": dilation,
        "group": groups,
    }
    op = "ConvTranspose" if backwards else "Conv"
    layer.last(op, inputs, (layer.shape[0], outputs, *sizes), **attributes)


def convert_pooling(layer: CaffeLayer) -> None:
    """Caffe rounds the size up, and an average counts the padding, but not what a last window has
    beyond it."""
    p = layer.parameters("pooling_param")
    if p.pool not in ("MAX", "AVE", "0", "1"):
        raise layer.refuse(f"pools by {p.pool}", "known: MAX, AVE")
    if len(layer.shape) != 4:
        raise layer.refuse("pools over two axes: its bottom must have four")
    op = "MaxPool" if p.pool in ("MAX", "0") else "AveragePool"
    shape = layer.shape
    if p.global_pooling:
        layer.last(f"Global{op}", layer.bottoms, (*shape[:2], 1, 1))
        return
    kernel, stride, pad = (
        _find_per_axis(layer, p, n, 2, d)
        for n, d in (("kernel_size", None), ("stride", 1), ("pad", 0))
    )
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
        raise layer.refuse("has a last window that lies outside of its bottom")
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
    """The node, in the plainest form that gives these sizes."""
    tensor = layer.bottoms[0]
    places = layer.shape[2:]
    spans = [n + 2 * q - k for n, k, q in zip(places, kernel, pad, strict=True)]
    floor = sizes == [span // s + 1 for span, s in zip(spans, stride, strict=True)]
    ceil = sizes == [-(-span // s) + 1 for span, s in zip(spans, stride, strict=True)]
    attributes: JsonObject = {"kernel_shape": kernel, "strides": stride, "pads": pad * 2}
    if op == "AveragePool" and any(pad):
        if floor:
            attributes["count_include_pad"] = 1
        else:  # runtimes differ in what they count where padding and rounding up meet
            tensor = layer.formula("pad = Pad (x, pads)", pads=[0, 0, *pad, 0, 0, *pad])
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
    layer.last(op, [tensor], (*layer.shape[:2], *sizes), **attributes)


LAYERS = {
    "Convolution": convert_convolution,
    "ConvolutionDepthwise": convert_convolution,
    "Deconvolution": convert_convolution,
    "DepthwiseConvolution": convert_convolution,
    "Pooling": convert_pooling,
}
