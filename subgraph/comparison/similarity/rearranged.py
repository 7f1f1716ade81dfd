"""Rearrangements of a tensor's values: transposed, reshaped, shifted, slices in another order; and misread inputs.

A rearrangement is a pair of equally shaped arrays, most of them views, that would be equal if it had happened; the
caller compares them. Only the order of slices along an axis is found here by comparing values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from subgraph.types import Array

MAX_AXES = 6  # longer than 1: 719 orders
MAX_MATCHED, MAX_SLICES = 512, 4096  # slices along an axis: each compared with each; only usual orders tried
PROBES, MIN_SLICE = 64, 8  # elements of a slice that are compared; smaller slices are often alike
LISTED = 12  # slices that are listed by number
MIN_SHIFTED = 4  # length of an axis along which a shift by one is tried
COLOURS = 3
IMAGE_LAYOUTS = {
    (0, 2, 3, 1): " (NHWC for NCHW)", (0, 3, 1, 2): " (NCHW for NHWC)",
    (1, 2, 0): " (HWC for CHW)", (2, 0, 1): " (CHW for HWC)",
}  # fmt: skip
INPUT_CHANGES = (  # words, scale, offset
    ("128 too low", 1.0, -128.0), ("128 too high: no mean was subtracted", 1.0, 128.0),
    ("127.5 too low", 1.0, -127.5), ("127.5 too high: no mean was subtracted", 1.0, 127.5),
    ("0–1 for 0–255: divided by 255", 1 / 255, 0.0), ("0–255 for 0–1: not divided by 255", 255.0, 0.0),
    ("0–255 for −1…1: not normalised", 127.5, 127.5), ("−1…1 for 0–255: normalised", 1 / 127.5, -1.0),
    ("0–1 for −1…1: not centred", 0.5, 0.5), ("−1…1 for 0–1: centred", 2.0, -1.0),
)  # fmt: skip
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of red, green, blue in 0–1


class Rearrangement(NamedTuple):
    """If `candidate` equals `reference`, then `text` is what happened. Equally shaped."""

    text: str
    reference: Array
    candidate: Array


Distances = Callable[[Array, Array], Array]  # of slices (n, m) from a slice (m,): (n,), infinite if too far


def find_rearrangements(reference: Array, candidate: Array, distances: Distances) -> Iterator[Rearrangement]:
    """All rearrangements worth a comparison, for two arrays of equal size and any shapes.

    `distances` compares slices along an axis, `PROBES` elements of each.
    """
    if reference.shape != candidate.shape:
        shape = "×".join(map(str, candidate.shape)) or "scalar"
        yield Rearrangement(f"the right values in the shape {shape}", reference, candidate.reshape(reference.shape))
    yield from _axes_exchanged(reference, candidate)
    if reference.shape == candidate.shape:
        for axis, size in enumerate(reference.shape):
            if size > 1:
                yield from _slices_moved(reference, candidate, axis, distances)


def _axes_exchanged(a: Array, b: Array) -> Iterator[Rearrangement]:
    """Axes in another order; memory of one order read in another."""
    long = [k for k, size in enumerate(a.shape) if size > 1]
    if len(long) > MAX_AXES:
        return
    for permuted in itertools.islice(itertools.permutations(long), 1, None):  # the first one is the unchanged order
        order = list(range(a.ndim))
        for position, k in zip(long, permuted, strict=True):
            order[position] = k
        moved = a.transpose(order)
        if [n for n in moved.shape if n > 1] == [n for n in b.shape if n > 1]:
            yield Rearrangement(_describe_transpose(order), moved, b.reshape(moved.shape))
            continue
        yield Rearrangement(f"laid out {_describe_layout(order)}, but not shaped so", moved, b.reshape(moved.shape))
        if a.shape == b.shape:
            other = b.transpose(order)
            yield Rearrangement(f"read as if laid out {_describe_layout(order)}", a.reshape(other.shape), other)


def _describe_transpose(order: Sequence[int]) -> str:
    moved = [k for position, k in enumerate(order) if position != k]
    if len(moved) == 2:
        return f"axes {min(moved)} and {max(moved)} exchanged: transposed"
    return f"axes in the order {','.join(map(str, order))}"


def _describe_layout(order: Sequence[int]) -> str:
    return f"with the axes in the order {','.join(map(str, order))}{IMAGE_LAYOUTS.get(tuple(order), '')}"


# ---------------------------------------------------------------------------------------------------- along an axis


def _slices_moved(a: Array, b: Array, axis: int, distances: Distances) -> Iterator[Rearrangement]:
    """Slices along an axis in another order; or shifted by one, without the slice that is lost."""
    order = _slice_order(a, b, axis, distances)
    if order is not None:
        yield Rearrangement(_describe_slices(order, axis, a.ndim), np.take(a, order, axis), b)
    elif a.shape[axis] >= MIN_SHIFTED:
        all_slices = (slice(None),) * axis
        first, last = (*all_slices, slice(None, -1)), (*all_slices, slice(1, None))
        for sign, x, y in (("−", a[first], b[last]), ("+", a[last], b[first])):
            text = f"one place on along axis {axis}: at i stands what belongs at i{sign}1"
            yield Rearrangement(text + _usual_meaning(axis, a.ndim), x, y)


def _usual_meaning(axis: int, rank: int) -> str:
    if axis == 0 and rank > 1:
        return " (one sample off)"
    return " (one pixel off)" if rank == 4 and axis > 1 else ""


def _slice_order(a: Array, b: Array, axis: int, distances: Distances) -> list[int] | None:
    """The order of the reference's slices in the candidate; None if there is none, or if it is unchanged."""
    size = a.shape[axis]
    if size > MAX_SLICES:
        return None
    rng = np.random.default_rng(0)
    probes = [rng.integers(0, n, PROBES) for n in a.shape]
    rows = np.arange(size)[:, None]
    at = tuple(rows if k == axis else probe for k, probe in enumerate(probes))
    x, y = a[at].astype(np.float64), b[at].astype(np.float64)
    if size <= MAX_MATCHED and a.size >= MIN_SLICE * size:
        order = _nearest_order(x, y, distances)
        if order is not None:
            return None if order == sorted(order) else order
    for order in _usual_orders(size):
        if all(math.isfinite(distances(x[k : k + 1], row)[0]) for k, row in zip(order, y, strict=True)):
            return order
    return None


def _usual_orders(size: int) -> Iterator[list[int]]:
    """Orders that mistakes make: backwards, rolled, BGRA."""
    yield list(range(size))[::-1]
    yield [size - 1, *range(size - 1)]
    yield [*range(1, size), 0]
    if size == COLOURS + 1:
        yield [2, 1, 0, 3]


def _nearest_order(x: Array, y: Array, distances: Distances) -> list[int] | None:
    """For each slice of y the nearest of x, preferably that at its own place; None unless each of x is used once."""
    order = []
    for k, row in enumerate(y):
        distance = distances(x, row)
        nearest = int(np.argmin(distance))
        if not np.isfinite(distance[nearest]):
            return None
        order.append(k if distance[k] == distance[nearest] else nearest)
    return order if sorted(order) == list(range(len(order))) else None


def _describe_slices(order: Sequence[int], axis: int, rank: int) -> str:
    size = len(order)
    if list(order) == list(range(size))[::-1]:
        if size == COLOURS and axis in (1, rank - 1):
            return f"channels 0 and 2 of axis {axis} exchanged: RGB for BGR"
        return f"axis {axis} backwards"
    if list(order) == [2, 1, 0, 3]:
        return f"channels 0 and 2 of axis {axis} exchanged: RGBA for BGRA"
    sign = {size - 1: "−", 1: "+"}.get(order[0], "")
    if sign and all((b - a) % size == 1 for a, b in itertools.pairwise(order)):
        return f"rolled by one along axis {axis}: at i stands what belongs at i{sign}1{_usual_meaning(axis, rank)}"
    return f"axis {axis} in the order {','.join(map(str, order[:LISTED]))}{' …' if size > LISTED else ''}"


# ---------------------------------------------------------------------------------------------------- inputs


def misreadings(x: Array) -> Iterator[tuple[str, Array]]:
    """Usual mistakes in feeding an input: images as BGR, as NHWC, not normalised.

    Each in words that go on "the input is …", and as the values that were read then, in the shape and type of `x`.
    """
    colours = [axis for axis in dict.fromkeys((1, x.ndim - 1)) if x.ndim > 2 and x.shape[axis] == COLOURS]
    for axis in colours:
        yield f"RGB for BGR: channels 0 and 2 of axis {axis} exchanged", np.flip(x, axis)
    if x.ndim == 4:
        yield from _taken_for_another_layout(x)
    if x.ndim > 1 and x.shape[-1] == x.shape[-2] > 1:
        yield "transposed: the last two axes exchanged", x.swapaxes(-1, -2)
    if x.dtype.kind in "iub":
        return
    for text, scale, offset in INPUT_CHANGES:
        yield text, np.asarray(x * x.dtype.type(scale) + x.dtype.type(offset))
    for axis in colours[:1]:
        sizes = [COLOURS if k == axis else 1 for k in range(x.ndim)]
        mean, std = (np.asarray(v, x.dtype).reshape(sizes) for v in (IMAGENET_MEAN, IMAGENET_STD))
        plain = x * std + mean
        yield "0–1: ImageNet's mean and deviation were not applied", plain
        yield "0–255: ImageNet's mean and deviation were not applied", plain * x.dtype.type(255)


def _taken_for_another_layout(x: Array) -> Iterator[tuple[str, Array]]:
    """Bytes in one order of axes, read in another one; an image's channels are few."""
    last = x.shape[-1] <= COLOURS + 1 < x.shape[1]
    own, other, order = ("NHWC", "NCHW", (0, 3, 1, 2)) if last else ("NCHW", "NHWC", (0, 2, 3, 1))
    moved = x.transpose(order)
    if moved.shape != x.shape:
        yield f"laid out {other}, but read as {own}", moved.reshape(x.shape)
        yield f"laid out {own}, but read as {other}", x.reshape(moved.shape).transpose(np.argsort(order))
