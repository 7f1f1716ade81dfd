"""A recorded array -> the tensor that it is: ways to have its shape, its element type, what printing rounded off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from subgraph.storage.layouts import axis_orders
from subgraph.storage.tensors import np_dtype, shape_text

if TYPE_CHECKING:
    from subgraph.types import Array

IMAGE = 4  # axes of what has channels
BLOCKS = 32  # of an outline
SLACK = 1e-6  # of rounding
NHWC, PADDED = "as NHWC", "padding cut off"


def fits(
    array: Array, shape: tuple[int, ...], loose: bool = False, last: bool | None = False
) -> Iterator[tuple[str, Array]]:
    """The ways in which an array can have a tensor's shape, the likeliest first: (what was done, the array).

    `loose`: its own shape says nothing. `last`: such files hold channels last; None: try both. Where channels last look
    like channels first (1×8×8×8), the shape says nothing either; that files hold images so says nothing of other ranks.
    """
    nhwc = (shape[0], *shape[2:], shape[1]) if len(shape) > 2 else ()
    if ((loose or array.ndim == 1) and array.size == math.prod(shape)) or array.shape == shape == nhwc:
        if last is not True or len(shape) != IMAGE:
            yield "", array.reshape(shape)
        if last is not False and nhwc:
            yield NHWC, _from_last(array.reshape(nhwc))
    elif _squeezed(array.shape) == _squeezed(shape):
        yield "", array.reshape(shape)
    elif array.shape == nhwc:
        yield NHWC, _from_last(array)
    elif orders := list(axis_orders(array.shape, shape)):
        yield from ((f"transposed {order}", array.transpose(order)) for order in orders)
    elif array.ndim == len(shape) and all(a >= s for a, s in zip(array.shape, shape, strict=True)):
        yield PADDED, array[tuple(slice(0, s) for s in shape)]


def _from_last(array: Array) -> Array:
    return array.transpose((0, array.ndim - 1, *range(1, array.ndim - 1)))


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(s for s in shape if s != 1)


def fitted(array: Array, right: Array, fit: str) -> Array:
    """An array in the shape of the tensor that it is, in the way that was found to fit."""
    for loose in (False, True):
        for way, found in fits(array, right.shape, loose, None):
            if way == fit:
                return found
    return array


def misfit(array: Array, right: Array, fit: str) -> str:
    """Why values cannot be beside the reference's: "" where they can."""
    if fit not in {way for loose in (False, True) for way, _ in fits(array, right.shape, loose, None)}:
        have = f"{array.size} values of {array.dtype.name}" if array.ndim == 1 else f"shape {shape_text(array.shape)}"
        return f"it has {have}, the model {right.dtype.name} {shape_text(right.shape)}: another type, or another tensor"
    if array.dtype.kind in "iub" and right.dtype.kind not in "iub":
        return f"it holds {array.dtype.name} without a scale, the model {right.dtype.name}"
    return ""


def cast(array: Array, right: Array) -> Array:
    """In the reference's element type, floats of any width and integers that lose nothing."""
    import numpy as np

    if array.dtype == right.dtype:
        return array
    with np.errstate(all="ignore"):
        found: Array = array.astype(np_dtype(right.dtype.name))
        return found


def printed(right: Array, given: Array, step: float) -> Array:
    """What a text file rounds away raises no alarm: within half of its last digit, and one rounding to the element type
    when it is read, a value is the reference's."""
    import numpy as np

    if not step or given.shape != right.shape or right.dtype.kind != "f":
        return given
    with np.errstate(all="ignore"):
        wide = right.astype(np.float64)
        apart = np.abs(given.astype(np.float64) - wide)
        return np.where(apart <= step / 2 + np.finfo(right.dtype).eps * np.abs(wide), right, given)


def floats(array: Array, right: Array) -> bool:
    """Floats of any kind on both sides?"""
    return "float" in array.dtype.name and "float" in right.dtype.name


def or_far(apart: float) -> float:
    """A distance; infinite where it cannot be told."""
    return math.inf if math.isnan(apart) else apart


class BlockSums:
    """Which of many arrays may be near another one, whatever the order of its axes: a look at a few sums each.

    Block sums of the sorted values, each over the root of its count, lie no further apart than the arrays themselves.
    """

    def __init__(self, arrays: Iterable[tuple[str, Array]]) -> None:
        import numpy as np

        found: dict[int, list[tuple[str, Array]]] = {}
        for name, array in arrays:
            found.setdefault(array.size, []).append((name, _outline(array)))
        self._rows = {size: ([n for n, _ in some], np.stack([o for _, o in some])) for size, some in found.items()}

    def near(self, array: Array, share: float) -> list[str]:
        """Those that may differ by at most this share of themselves."""
        import numpy as np

        names, rows = self._rows.get(array.size, ([], None))
        if rows is None or array.dtype.kind not in "fiubV":
            return []
        own = _outline(array)
        with np.errstate(all="ignore"):
            far = np.sqrt(((rows[:, 1:] - own[1:]) ** 2).sum(axis=1)) > share * rows[:, 0] * (1 + SLACK)
        return [n for n, beyond in zip(names, far, strict=True) if not beyond]


def _outline(array: Array) -> Array:
    """Its length, and sums of blocks."""
    import numpy as np

    with np.errstate(all="ignore"):
        flat = np.sort(array.reshape(-1).astype(np.float64))
        starts = np.linspace(0, flat.size, min(BLOCKS, flat.size), endpoint=False, dtype=int)
        sums = np.add.reduceat(flat, starts) / np.sqrt(np.diff([*starts, flat.size]))
        return np.concatenate(([np.sqrt(flat @ flat)], sums))
