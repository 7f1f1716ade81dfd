"""A convolution or pooling -> the window that it moves along each axis, and where that meets the edge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from subgraph.inspection.lint._places import LintNode

WEIGHTED = frozenset(("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv"))


@dataclass(frozen=True)
class Window:
    """One axis. All but `size` are known.

    Attributes:
        size: of the input; None where it is open.
        begin, end: padding.
        auto: NOTSET, VALID, SAME_UPPER or SAME_LOWER; `begin` and `end` are what it comes to, where that is known.
    """

    size: int | None
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    auto: str

    @property
    def span(self) -> int:
        """Cells from the first to the last that a window covers."""
        return self.dilation * (self.kernel - 1) + 1

    def outputs(self, *, ceil: bool) -> int | None:
        """Windows that fit; with `ceil` also one that hangs over the end, if it starts before the padding there."""
        if self.size is None:
            return None
        room = self.size + self.begin + self.end - self.span
        number = (-(-room // self.stride) if ceil else room // self.stride) + 1
        if ceil and (number - 1) * self.stride >= self.size + self.begin:
            number -= 1
        return number


def windows(place: LintNode) -> list[Window] | None:
    """The windows per axis; None where the kernel is unknown, or a part does not fit the others."""
    shape = place.shape(place.input(0))
    kernel = place.attribute("kernel_shape") or _of_weight(place)
    if not kernel or (shape is not None and len(shape) != len(kernel) + 2):
        return None
    rank = len(kernel)
    sizes = shape[2:] if shape else [None] * rank
    strides, dilations = (place.attribute(name, [1] * rank) for name in ("strides", "dilations"))
    pads, auto = place.attribute("pads", [0] * 2 * rank), place.attribute("auto_pad", "NOTSET")
    parts = (kernel, strides, dilations, pads)
    if auto is None or any(part is None or min(part, default=0) < 0 for part in parts):
        return None
    if not len(strides) == len(dilations) == len(pads) / 2 == rank or min(strides) < 1:
        return None
    pairs = list(zip(pads[:rank], pads[rank:], strict=True))
    rows = zip(sizes, kernel, strides, dilations, pairs, strict=True)
    return [_window(*row, auto) for row in rows]


def _of_weight(place: LintNode) -> list[int] | None:
    """The kernel of a convolution that does not name it."""
    k = 3 if place.op == "QLinearConv" else 1
    shape = place.shape(place.input(k)) if place.op in WEIGHTED else None
    return shape[2:] if shape and all(isinstance(d, int) for d in shape[2:]) else None


def _window(size: Any, kernel: int, stride: int, dilation: int, pads: tuple[int, int], auto: str) -> Window:
    size = size if isinstance(size, int) else None
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = _same(size, kernel, stride, dilation, auto) or (0, 0)
    elif auto == "VALID":
        pads = (0, 0)
    return Window(size, kernel, stride, dilation, *pads, auto)


def _same(size: int | None, kernel: int, stride: int, dilation: int, auto: str) -> tuple[int, int] | None:
    """What SAME comes to, where that is known: with stride 1 it does not depend on the size."""
    if size is None and stride > 1:
        return None
    span = dilation * (kernel - 1) + 1
    total = span - 1 if size is None else max((math.ceil(size / stride) - 1) * stride + span - size, 0)
    small, large = total // 2, total - total // 2
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def hanging(all_windows: list[Window]) -> Iterator[Window]:
    """Those whose ceil_mode gives a window more, or may."""
    for w in all_windows:
        if w.auto == "NOTSET" and (w.size is None or w.outputs(ceil=True) != w.outputs(ceil=False)) and w.stride > 1:
            yield w


def text(numbers: list[int]) -> str:
    """`56×56`."""
    return "×".join(map(str, numbers))
