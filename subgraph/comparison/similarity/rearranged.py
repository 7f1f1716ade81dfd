"""Two tensors -> the ways in which one may hold the other's values in other places; an input -> how it may be misread.

Each way is a pair of equally shaped arrays, most of them views: were it so, the two would be equal. Nothing is compared
here but slices along an axis, to see in which order they stand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from subgraph.types import Array

MOST_AXES = 6  # longer than 1: 719 orders
MOST_SLICES, LONGEST = 512, 4096  # along an axis: where each is compared with each, and where any are compared
PROBES, FEWEST = 64, 8  # elements of a slice that are looked at; of smaller ones many are alike
LISTED = 12  # slices that are told by number
SHORTEST = 4  # an axis along which all but one place may be compared
COLOURS = 3


class Rearrangement(NamedTuple):
    """If `candidate` equals `reference`, then `says` is what happened. Equally shaped."""

    says: str
    reference: Array
    candidate: Array


Far = Callable[["Array", "Array"], "Array"]  # of slices (n, m) from one (m,): numbers (n,), infinite where too far


def ways(reference: Array, candidate: Array, far: Far) -> Iterator[Rearrangement]:
    """All that are tried, of two arrays with equally many elements, any shapes.

    `far` tells how far slices along an axis are from another; it sees only `PROBES` elements of each.
    """
    if reference.shape != candidate.shape:
        shape = "×".join(map(str, candidate.shape)) or "scalar"
        yield Rearrangement(f"the right values in the shape {shape}", reference, candidate.reshape(reference.shape))
    yield from _orders(reference, candidate)
    if reference.shape == candidate.shape:
        for axis, size in enumerate(reference.shape):
            if size > 1:
                yield from _along(reference, candidate, axis, far)


def _orders(a: Array, b: Array) -> Iterator[Rearrangement]:
    """Axes exchanged, and the memory of one order read as another."""
    long = [k for k, size in enumerate(a.shape) if size > 1]
    if len(long) > MOST_AXES:
        return
    for permuted in itertools.permutations(long):
        if list(permuted) == long:
            continue
        order = list(range(a.ndim))
        for place, k in zip(long, permuted, strict=True):
            order[place] = k
        moved = a.transpose(order)
        if [n for n in moved.shape if n > 1] == [n for n in b.shape if n > 1]:
            yield Rearrangement(_exchanged(order), moved, b.reshape(moved.shape))
            continue
        yield Rearrangement(f"laid out {_order(order)}, but not shaped so", moved, b.reshape(moved.shape))
        if a.shape == b.shape:
            other = b.transpose(order)
            yield Rearrangement(f"read as if laid out {_order(order)}", a.reshape(other.shape), other)


def _exchanged(order: Sequence[int]) -> str:
    moved = [k for place, k in enumerate(order) if place != k]
    if len(moved) == 2:
        return f"axes {min(moved)} and {max(moved)} exchanged: transposed"
    return f"axes in the order {','.join(map(str, order))}"


def _order(order: Sequence[int]) -> str:
    """With the names that people use for the layouts of images."""
    names = {
        (0, 2, 3, 1): " (NHWC for NCHW)",
        (0, 3, 1, 2): " (NCHW for NHWC)",
        (1, 2, 0): " (HWC for CHW)",
        (2, 0, 1): " (CHW for HWC)",
    }
    return f"with the axes in the order {','.join(map(str, order))}{names.get(tuple(order), '')}"


# ---------------------------------------------------------------------------------------------------- along an axis


def _along(a: Array, b: Array, axis: int, far: Far) -> Iterator[Rearrangement]:
    """Slices in another order; or all but one of them one place on."""
    order = _slices(a, b, axis, far)
    if order is not None:
        yield Rearrangement(_ordered(order, axis, a.ndim), np.take(a, order, axis), b)
    elif a.shape[axis] >= SHORTEST:
        for step in (1, -1):
            ahead, behind = (a, b) if step > 0 else (b, a)
            front, back = (_part(v, axis, part) for v, part in ((ahead, slice(None, -1)), (behind, slice(1, None))))
            says = f"one place on along axis {axis}: at i stands what belongs at i{'−' if step > 0 else '+'}1"
            yield Rearrangement(says + _meant(axis, a.ndim), *((front, back) if step > 0 else (back, front)))


def _meant(axis: int, rank: int) -> str:
    """What an axis usually is."""
    if axis == 0 and rank > 1:
        return " (one sample off)"
    return " (one pixel off)" if rank == 4 and axis > 1 else ""


def _part(array: Array, axis: int, part: slice) -> Array:
    return array[(slice(None),) * axis + (part,)]


def _slices(a: Array, b: Array, axis: int, far: Far) -> list[int] | None:
    """In which order the reference's slices stand in the candidate; None where they do not, or as they should."""
    size = a.shape[axis]
    if size > LONGEST:
        return None
    rng = np.random.default_rng(0)
    picked = [rng.integers(0, n, PROBES) for n in a.shape]
    rows = np.arange(size)[:, None]
    at = tuple(rows if k == axis else p for k, p in enumerate(picked))
    right, given = a[at].astype(np.float64), b[at].astype(np.float64)
    if size <= MOST_SLICES and a.size >= FEWEST * size:
        order = _matched(right, given, far)
        if order is not None:
            return None if order == sorted(order) else order
    for order in _usual(size):
        if all(math.isfinite(far(right[k : k + 1], row)[0]) for k, row in zip(order, given, strict=True)):
            return order
    return None


def _usual(size: int) -> Iterator[list[int]]:
    """Orders that mistakes make: backwards, rolled, BGRA."""
    yield list(range(size))[::-1]
    yield [size - 1, *range(size - 1)]
    yield [*range(1, size), 0]
    if size == COLOURS + 1:
        yield [2, 1, 0, 3]


def _matched(right: Array, given: Array, far: Far) -> list[int] | None:
    """The nearest of each, itself before others; None where one is missing or meant twice."""
    order = []
    for k, row in enumerate(given):
        distance = far(right, row)
        nearest = int(np.argmin(distance))
        if not np.isfinite(distance[nearest]):
            return None
        order.append(k if distance[k] == distance[nearest] else nearest)
    return order if sorted(order) == list(range(len(order))) else None


def _ordered(order: Sequence[int], axis: int, rank: int) -> str:
    size = len(order)
    if list(order) == list(range(size))[::-1]:
        if size == COLOURS and axis in (1, rank - 1):
            return f"channels 0 and 2 of axis {axis} exchanged: RGB for BGR"
        return f"axis {axis} backwards"
    if list(order) == [2, 1, 0, 3]:
        return f"channels 0 and 2 of axis {axis} exchanged: RGBA for BGRA"
    turned = {size - 1: "−", 1: "+"}.get(order[0], "")
    if turned and all((b - a) % size == 1 for a, b in itertools.pairwise(order)):
        return f"rolled by one along axis {axis}: at i stands what belongs at i{turned}1{_meant(axis, rank)}"
    shown = ",".join(map(str, order[:LISTED])) + (" …" if size > LISTED else "")
    return f"axis {axis} in the order {shown}"


# ---------------------------------------------------------------------------------------------------- inputs


def misreadings(x: Array) -> Iterator[tuple[str, Array]]:
    """What a program may make of an input by mistake: images as BGR, as NHWC, not normalised. Floats, of x's shape."""
    for axis in dict.fromkeys((1, x.ndim - 1)) if x.ndim > 2 else ():
        if x.shape[axis] == COLOURS:
            yield f"channels 0 and 2 of axis {axis} exchanged: RGB for BGR", np.flip(x, axis)
    if x.ndim == 4:
        for order in ((0, 2, 3, 1), (0, 3, 1, 2)):
            moved = x.transpose(order)
            if moved.shape != x.shape:
                yield f"laid out {_order(order)}, but not shaped so", moved.reshape(x.shape)
                back = tuple(order.index(k) for k in range(4))
                size = [x.shape[k] for k in order]
                yield f"read as if laid out {_order(order)}", x.reshape(size).transpose(back)
    if x.ndim > 1 and x.shape[-1] == x.shape[-2] > 1:
        yield "the last two axes exchanged: transposed", x.swapaxes(-1, -2)
    for says, scale, offset in SHIFTED:
        yield says, np.asarray(x * x.dtype.type(scale) + x.dtype.type(offset))


SHIFTED = (
    ("128 too low", 1.0, -128.0),
    ("128 too high", 1.0, 128.0),
    ("127.5 too low", 1.0, -127.5),
    ("divided by 255", 1 / 255, 0.0),
    ("multiplied by 255", 255.0, 0.0),
)
