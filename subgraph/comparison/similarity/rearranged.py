"""Rearrangements of a tensor's values: transposed, reshaped, colors swapped; and misread inputs.

A rearrangement is a pair of equally shaped arrays, most of them views, that would be equal if it
had happened; the caller compares them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from subgraph.types import Array

MAX_AXES = 6  # longer than 1: 719 orders
COLORS = 3
# By the length of the axis.
SWAPPED = {
    3: ([2, 1, 0], "RGB for BGR"),
    4: ([2, 1, 0, 3], "RGBA for BGRA"),
}
IMAGE_LAYOUTS = {
    (0, 2, 3, 1): " (NHWC for NCHW)",
    (0, 3, 1, 2): " (NCHW for NHWC)",
    (1, 2, 0): " (HWC for CHW)",
    (2, 0, 1): " (CHW for HWC)",
}
INPUT_CHANGES = (  # words, scale, offset
    ("128 too low", 1.0, -128.0),
    ("128 too high: no mean was subtracted", 1.0, 128.0),
    ("0–1 for 0–255: divided by 255", 1 / 255, 0.0),
    ("0–255 for 0–1: not divided by 255", 255.0, 0.0),
)


class Rearrangement(NamedTuple):
    """Two equally shaped arrays; if they are equal, then `text` describes the change."""

    text: str
    reference: Array
    candidate: Array


def find_rearrangements(reference: Array, candidate: Array) -> Iterator[Rearrangement]:
    """Yield all rearrangements worth a comparison, for two arrays of equal size and any shapes."""
    if reference.shape != candidate.shape:
        shape = "×".join(map(str, candidate.shape)) or "scalar"
        yield Rearrangement(
            f"the right values in the shape {shape}", reference, candidate.reshape(reference.shape)
        )
    yield from _iter_axis_orders(reference, candidate)
    if reference.shape == candidate.shape:
        for axis in dict.fromkeys((1, reference.ndim - 1)):
            if reference.ndim > 1 and reference.shape[axis] in SWAPPED:
                order, words = SWAPPED[reference.shape[axis]]
                text = f"channels 0 and 2 of axis {axis} exchanged: {words}"
                yield Rearrangement(text, np.take(reference, order, axis), candidate)


def _iter_axis_orders(a: Array, b: Array) -> Iterator[Rearrangement]:
    """Yield axes in another order, and memory of one order that is read in another."""
    long = [k for k, size in enumerate(a.shape) if size > 1]
    if len(long) > MAX_AXES:
        return
    # The first one is the unchanged order.
    for permuted in itertools.islice(itertools.permutations(long), 1, None):
        order = list(range(a.ndim))
        for position, k in zip(long, permuted, strict=True):
            order[position] = k
        moved = a.transpose(order)
        if [n for n in moved.shape if n > 1] == [n for n in b.shape if n > 1]:
            places = [k for position, k in enumerate(order) if position != k]
            text = f"axes in the order {','.join(map(str, order))}"
            if len(places) == 2:
                text = f"axes {min(places)} and {max(places)} exchanged: transposed"
            yield Rearrangement(text, moved, b.reshape(moved.shape))
            continue
        yield Rearrangement(
            f"laid out {_describe_layout(order)}, but not shaped so", moved, b.reshape(moved.shape)
        )
        if a.shape == b.shape:
            transposed = b.transpose(order)
            yield Rearrangement(
                f"read as if laid out {_describe_layout(order)}",
                a.reshape(transposed.shape),
                transposed,
            )


def _describe_layout(order: Sequence[int]) -> str:
    return (
        "with the axes in the order"
        f" {','.join(map(str, order))}{IMAGE_LAYOUTS.get(tuple(order), '')}"
    )


# ------------------------------------------------------------ inputs


def iter_misreadings(x: Array) -> Iterator[tuple[str, Array]]:
    """Yield usual mistakes in feeding an input.

    Images as BGR, as NHWC, with or without a mean of 128, divided by 255, as integers, or not at
    all.

    Each is a text that continues "the input is …", and the values that were read then, in the shape
    and type of `x`.
    """
    for axis in dict.fromkeys((1, x.ndim - 1)):
        if x.ndim > 2 and x.shape[axis] == COLORS:
            yield f"RGB for BGR: channels 0 and 2 of axis {axis} exchanged", np.flip(x, axis)
    if x.ndim == 4:
        last = x.shape[-1] <= COLORS + 1 < x.shape[1]
        own, other, order = (
            ("NHWC", "NCHW", (0, 3, 1, 2)) if last else ("NCHW", "NHWC", (0, 2, 3, 1))
        )
        moved = x.transpose(order)
        if moved.shape != x.shape and not np.array_equal(moved.reshape(-1), x.reshape(-1)):
            yield f"laid out {other}, but read as {own}", moved.reshape(x.shape)
            yield (
                f"laid out {own}, but read as {other}",
                x.reshape(moved.shape).transpose(np.argsort(order)),
            )
    if x.dtype.kind in "fV" and x.astype(np.float64).any():
        yield "not passed on: zeros are read in their place", np.zeros_like(x)
    if x.dtype.kind not in "iub":
        for text, scale, offset in INPUT_CHANGES:
            yield text, np.asarray(x * x.dtype.type(scale) + x.dtype.type(offset))
        codes = np.clip(np.rint(x), 0, 255)
        if not np.array_equal(codes, x):
            yield "rounded to the integers of uint8", codes
