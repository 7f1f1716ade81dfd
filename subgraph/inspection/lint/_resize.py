"""A Resize -> the input coordinates that each output cell reads, axis by axis (onnx/docs/Operators.md, Resize-19)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from subgraph.inspection.lint._places import LintNode

NOMINAL = 8  # cells of an axis whose size is open, where the scale alone is known
LONGEST = 4096  # cells of an output axis that are looked at
CLOSE = 1e-6  # cells
BATCH_AND_CHANNELS = 2  # the first axes: where nothing is known of them, they stay as they are

# coordinate_transformation_mode → position in the input of output cell x; n, m: sizes of input and output, s: scale.
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
    """Sizes of input and output along one axis, and the scale between."""

    size: int
    out: int
    scale: float

    def reads(self, mode: str) -> list[float]:
        """The position that each output cell reads, within the input."""
        at = COORDINATES[mode]
        return [min(max(at(x, self.size, self.out, self.scale), 0), self.size - 1) for x in range(self.out)]

    def picks(self, mode: str, nearest: str) -> list[int]:
        """The cell that each output cell takes, where nothing is interpolated."""
        at, to = COORDINATES[mode], ROUNDED[nearest]
        raw = (to(at(x, self.size, self.out, self.scale)) for x in range(self.out))
        return [min(max(int(i), 0), self.size - 1) for i in raw]


def axes(place: LintNode) -> list[Axis] | None:
    """The axes that change; None where neither sizes nor scales are known."""
    shape, out = place.shape(place.input(0)), place.shape(str(place.node.output[0]))
    scales = _per_axis(place, 2, len(shape) if shape else None)
    sizes = _per_axis(place, 3, len(shape) if shape else None)
    count = len(shape or out or scales or sizes or ())
    ends = sizes or out or [None] * count
    found = []
    for k, (n, m, s) in enumerate(zip(shape or [None] * count, ends, scales or [None] * count, strict=False)):
        axis = _axis(n, m, s)
        if axis is None and k >= BATCH_AND_CHANNELS:
            return None
        if axis and (axis.out != axis.size or axis.scale != 1):
            found.append(axis)
    return found if count else None


def _per_axis(place: LintNode, k: int, rank: int | None) -> list[float | None] | None:
    """Scales (k = 2) or sizes (k = 3) for all axes: what `axes` leaves out stays as it is (scale 1, size unknown)."""
    array = place.constant(k)
    if array is None or not array.size:
        return None
    values: list[float | None] = [float(v) for v in array.ravel()]
    listed = place.attribute("axes", [])
    if not listed:
        return values
    if rank is None or len(listed) != len(values):
        return None
    whole: list[float | None] = [1.0 if k == 2 else None] * rank
    for axis, value in zip(listed, values, strict=True):
        whole[axis] = value
    return whole


def _axis(size: object, out: object, scale: float | None) -> Axis | None:
    """An axis from what is known of it; one of which nothing is known, but that its ends are the same, does not change.

    None where it cannot be told.
    """
    if isinstance(size, int) and scale is None and isinstance(out, int | float):
        return Axis(size, int(out), out / size) if size > 0 and 0 < out <= LONGEST else None
    if scale:
        n = size if isinstance(size, int) else NOMINAL
        m = math.floor(n * scale)
        return Axis(n, m, scale) if n > 0 and 0 < m <= LONGEST else None
    return Axis(1, 1, 1.0) if isinstance(out, str) and out == size else None
