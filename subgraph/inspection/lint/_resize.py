"""Resize → per axis, the input coordinates that each output cell reads (onnx/docs/Operators.md, Resize-19)."""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from subgraph.inspection.lint._places import LintNode

NOMINAL_SIZE = 8  # cells assumed for an axis of open size if its scale is known
MAX_OUTPUT = 4096  # cells of an output axis; longer ones are not checked
CLOSE = 1e-6  # cells
BATCH_AND_CHANNELS = 2  # the first axes: assumed to keep their size if nothing is known of them

# coordinate_transformation_mode → input position of output cell x; n, m: sizes of input and output,
# s: scale.
COORDINATES: dict[str, Callable[[int, int, int, float], float]] = {
    "half_pixel": lambda x, n, m, s: (x + 0.5) / s - 0.5,
    "half_pixel_symmetric": lambda x, n, m, s: n / 2 * (1 - m / (s * n)) + (x + 0.5) / s - 0.5,
    "pytorch_half_pixel": lambda x, n, m, s: (x + 0.5) / s - 0.5 if m > 1 else 0.0,
    "align_corners": lambda x, n, m, s: x * (n - 1) / (m - 1) if m > 1 else 0.0,
    "asymmetric": lambda x, n, m, s: x / s,
    "tf_half_pixel_for_nn": lambda x, n, m, s: (x + 0.5) / s,
}
ROUNDED: dict[str, Callable[[float], float]] = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}


@dataclass(frozen=True)
class Axis:
    """Sizes of input and output along one axis, in cells, and the scale."""

    size: int
    out: int
    scale: float

    def reads(self, mode: str) -> list[float]:
        """Input position that each output cell reads, clipped to the input."""
        at = COORDINATES[mode]
        return [
            min(max(at(x, self.size, self.out, self.scale), 0), self.size - 1)
            for x in range(self.out)
        ]

    def picks(self, mode: str, nearest: str) -> list[int]:
        """Input cell that each output cell copies in mode nearest."""
        at = COORDINATES[mode]
        to = ROUNDED[nearest]
        raw = (to(at(x, self.size, self.out, self.scale)) for x in range(self.out))
        return [min(max(int(i), 0), self.size - 1) for i in raw]


def axes(node: LintNode) -> list[Axis] | None:
    """The axes whose size changes; None if sizes and scales are unknown."""
    shape = node.shape(node.input(0))
    out = node.shape(node.output(0))
    scales = _per_axis(node, 2, len(shape) if shape else None)
    sizes = _per_axis(node, 3, len(shape) if shape else None)
    count = len(shape or out or scales or sizes or ())
    ends = sizes or out or [None] * count
    changing = []
    for k, (n, m, s) in enumerate(
        zip(shape or [None] * count, ends, scales or [None] * count, strict=False)
    ):
        axis = _axis(n, m, s)
        if axis is None and k >= BATCH_AND_CHANNELS:
            return None
        if axis and (axis.out != axis.size or axis.scale != 1):
            changing.append(axis)
    return changing if count else None


def _per_axis(node: LintNode, k: int, rank: int | None) -> list[float | None] | None:
    """Input `k`, scales (2) or sizes (3), for all axes; those that `axes` leaves out have scale 1 or size None."""  # noqa: E501
    array = node.constant(k)
    if array is None or not array.size:
        return None
    values: list[float | None] = [float(v) for v in array.ravel()]
    listed = node.attribute("axes", [])
    if not listed:
        return values
    if rank is None or len(listed) != len(values):
        return None
    whole: list[float | None] = [1.0 if k == 2 else None] * rank
    for axis, value in zip(listed, values, strict=True):
        whole[axis] = value
    return whole


def _axis(size: object, out: object, scale: float | None) -> Axis | None:
    """An axis from those of size, output size and scale that are known; None if they do not suffice.

    An open size that has the same symbol in input and output does not change.
    """  # noqa: E501
    if isinstance(size, int) and scale is None and isinstance(out, int | float):
        return Axis(size, int(out), out / size) if size > 0 and 0 < out <= MAX_OUTPUT else None
    if scale:
        n = size if isinstance(size, int) else NOMINAL_SIZE
        m = math.floor(n * scale)
        return Axis(n, m, scale) if n > 0 and 0 < m <= MAX_OUTPUT else None
    return Axis(1, 1, 1.0) if isinstance(out, str) and out == size else None
