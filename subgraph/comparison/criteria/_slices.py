"""Slices of a tensor: the full tensor, and every index of every axis. For the criterion `noise`.

Insight: one tensor can hold boxes of 0 … 320 and scores of 0 … 1. An error is judged by the scale
of its slice, or the boxes would excuse any error of the scores.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from subgraph.comparison.criteria import MIN_ELEMENTS
from subgraph.types import Array, Shape, frozen

MAX_SUM_ERROR = 1e-3  # the largest distance of a distribution's sum from 1


@frozen
class Slices:
    """The full tensor, then for each axis each index. Axes of length 1 count as dropped.

    Results over slices are float64 vectors of that order, `(1 + sum of lengths,)`; 1-D tensors and
    `[1, N]` have only the full tensor. Slices of fewer than 4 elements are omitted.

    Attributes:
        shape: of the tensor.
        axes: axes whose indices are slices.
        sizes: the number of elements of each slice that count.
    """

    shape: Shape
    axes: Sequence[int]
    sizes: Array

    def largest(self, values: Array) -> Array:
        """Return the largest value of each slice; `values`: flat, not negative, 0 if an element
        does not count.

        Complexity: at most 4 passes over the elements, whatever the number of axes: what is left of
        an axis is reduced before the next one.
        """
        parts = list(_iter_reduced(values, np.maximum, self.shape, self.axes))
        maximum = (parts[0] if parts else values).max(initial=0.0)
        return np.asarray(np.concatenate([[maximum], *parts]), np.float64)

    @property
    def widening(self) -> Array:
        """1 + 8/|s| per slice, 1 for the full tensor.

        A few draws seldom show the largest noise of a few elements.
        """
        wide = 1 + 8 / np.maximum(self.sizes, 1)
        wide[0] = 1.0
        return wide

    @property
    def judged(self) -> Array:
        """The slices that are judged, booleans: the full tensor, and those of enough elements that
        count."""
        enough = self.sizes >= MIN_ELEMENTS
        enough[0] = True
        return enough

    def find_most_specific(self, ratios: Array) -> int:
        """Find the place that locates an error best.

        It is the worst index of the axis with the fewest indices beyond their limits, if these are
        at most half of the axis: an error in one channel is in nearly every row and column, too.
        Else it is the full tensor, if that is beyond its limit.

        Args:
            ratios: The error of each slice divided by its limit; 1 is allowed.
        """
        candidates = [(math.inf, 0.0, 0 if ratios[0] > 1 else int(np.argmax(ratios)))]
        first = 1
        for length in map(self.shape.__getitem__, self.axes):
            part = ratios[first : first + length]
            beyond = int((part > 1).sum())
            worst = int(np.argmax(part))
            if 0 < beyond <= length / 2:
                candidates.append((beyond, -float(part[worst]), first + worst))
            first += length
        return min(candidates)[2]

    def name(self, place: int, whole: str) -> str:
        """Return `index 5 of axis 1` for a position in the results; for 0 the name of the full
        tensor."""
        place -= 1
        if place < 0:
            return whole
        for axis in self.axes:
            if place < self.shape[axis]:
                return f"index {place} of axis {axis}"
            place -= self.shape[axis]
        raise IndexError("there is no such slice")


def find_slices(shape: Shape, left_out: Collection[int | None], counted: Array | None) -> Slices:
    """Return the slices of a tensor.

    Args:
        shape: Of the tensor.
        left_out: Axes whose indices are not slices: the classes of a distribution.
        counted: The elements that count: booleans, flat. None for all.
    """
    size = int(np.prod(shape))
    axes = [
        a for a, n in enumerate(shape) if n > 1 and a not in left_out and size // n >= MIN_ELEMENTS
    ]
    if counted is None:
        parts = [np.full(shape[a], size / shape[a]) for a in axes]
    else:
        counts = counted.astype(np.int64)
        size = int(counts.sum())
        parts = list(_iter_reduced(counts, np.add, shape, axes))
    return Slices(shape, axes, np.asarray(np.concatenate([[size], *parts]), np.float64))


def _iter_reduced(
    values: Array, reduce: np.ufunc, shape: Shape, axes: Sequence[int]
) -> Iterator[Array]:
    """Yield the reduction of each slice, axis by axis."""
    wanted = set(axes)
    reduced = values.reshape([n for n in shape if n != 1])
    for axis in (a for a, n in enumerate(shape) if n != 1):
        if axis in wanted:
            yield np.asarray(reduce.reduce(reduced.reshape(reduced.shape[0], -1), axis=1))
        if not (wanted := wanted - {axis}):
            return
        reduced = reduce.reduce(reduced, axis=0)


def find_probability_axis(values: Array) -> int | None:
    """Return the last axis along which values are a distribution, None without such an axis.

    The values of a distribution are not negative, and have a sum of 1 ± 1e-3. An axis of length 1
    is not counted. Complexity: a pass per axis if all values are within 0 … 1.
    """
    if not values.size or values.min() < 0 or not values.max() <= 1 + MAX_SUM_ERROR:
        return None
    return _find_last_axis(values, [a for a, n in enumerate(values.shape) if n > 1])


def find_log_probability_axis(values: Array) -> int | None:
    """Return the axis along which exp(values) are a distribution, as after LogSoftmax, or None."""
    if not values.size or not -np.inf < values.max() <= MAX_SUM_ERROR:
        return None
    axes = [a for a, n in enumerate(values.shape) if n > 1]
    if axes:
        return _find_last_axis(np.exp(values.astype(np.float64)), axes)
    return None


def _find_last_axis(probabilities: Array, axes: Sequence[int]) -> int | None:
    for axis in reversed(axes):
        first = probabilities[
            tuple(slice(None) if a == axis else slice(1) for a in range(probabilities.ndim))
        ]
        # One sum rules nearly every other tensor out.
        if abs(float(first.sum(dtype=np.float64)) - 1) <= MAX_SUM_ERROR:
            sums = probabilities.sum(axis, dtype=np.float64)
            if bool((np.abs(sums - 1) <= MAX_SUM_ERROR).all()):
                return axis
    return None
