"""Convolution or pooling → the window that it moves along each axis, and the padding there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from subgraph.graph.properties import POOLS, WINDOWS
from subgraph.inspection.lint._places import LintNode
from subgraph.types import frozen


@frozen
class Window:
    """The window along one axis; all lengths in cells.

    Attributes:
        size: The size of the input; None if open.
        kernel: The cells of the window.
        stride: The step between windows.
        dilation: The step between cells of the window.
        begin: The padding before the first cell, also if `auto` determines it; 0 if unknown.
        end: The padding after the last cell, also if `auto` determines it; 0 if unknown.
        auto: NOTSET, VALID, SAME_UPPER or SAME_LOWER.
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
        """Cells from the first to the last that the window covers."""
        return self.dilation * (self.kernel - 1) + 1

    def outputs(self, *, ceil: bool) -> int | None:
        """Return the number of windows; with `ceil` one more can begin before the end padding."""
        if self.size is None:
            return None
        room = self.size + self.begin + self.end - self.span
        number = (-(-room // self.stride) if ceil else room // self.stride) + 1
        if ceil and (number - 1) * self.stride >= self.size + self.begin:
            number -= 1
        return number


def list_windows(node: LintNode) -> list[Window] | None:
    """Return the windows of the spatial axes; None if they are unknown or contradictory."""
    shape = node.shape(node.input(0))
    kernel = node.attribute("kernel_shape")
    if not kernel and node.op in WINDOWS - POOLS:
        kernel = (node.shape(node.input(3 if node.op == "QLinearConv" else 1)) or [])[2:]
    if (
        not kernel
        or not all(isinstance(d, int) for d in kernel)
        or (shape is not None and len(shape) != len(kernel) + 2)
    ):
        return None
    rank = len(kernel)
    sizes = shape[2:] if shape else [None] * rank
    strides, dilations = (node.attribute(name, [1] * rank) for name in ("strides", "dilations"))
    pads = node.attribute("pads", [0] * 2 * rank)
    auto = node.attribute("auto_pad", "NOTSET")
    parts = (kernel, strides, dilations, pads)
    if auto is None or any(part is None or min(part, default=0) < 0 for part in parts):
        return None
    if not len(strides) == len(dilations) == len(pads) / 2 == rank or min(strides) < 1:
        return None
    pairs = list(zip(pads[:rank], pads[rank:], strict=True))
    rows = zip(sizes, kernel, strides, dilations, pairs, strict=True)
    return [_find_window(*row, auto) for row in rows]


def _find_window(
    size: Any, kernel: int, stride: int, dilation: int, pads: tuple[int, int], auto: str
) -> Window:
    size = size if isinstance(size, int) else None
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = _compute_same_pads(size, kernel, stride, dilation, auto) or (0, 0)
    elif auto == "VALID":
        pads = (0, 0)
    return Window(size, kernel, stride, dilation, *pads, auto)


def _compute_same_pads(
    size: int | None, kernel: int, stride: int, dilation: int, auto: str
) -> tuple[int, int] | None:
    """Return the padding of SAME_UPPER or SAME_LOWER; None for an open size and a larger stride."""
    if size is None and stride > 1:
        return None
    total = dilation * (kernel - 1)
    if size is not None:
        total = max((math.ceil(size / stride) - 1) * stride + total + 1 - size, 0)
    small = total // 2
    large = total - total // 2
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def iter_hanging(all_windows: list[Window]) -> Iterator[Window]:
    """Yield the axes to which ceil_mode adds a window, or may add one."""
    for w in all_windows:
        if (
            w.auto == "NOTSET"
            and (w.size is None or w.outputs(ceil=True) != w.outputs(ceil=False))
            and w.stride > 1
        ):
            yield w


def format_window(numbers: list[int]) -> str:
    """Return `56×56`."""
    return "×".join(map(str, numbers))
