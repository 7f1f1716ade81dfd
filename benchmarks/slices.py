"""Slices of a tensor: how far the worst one is off, and faults put into one of them.

A scale for a whole tensor hides a fault of a part: boxes beside scores, one channel, one token.
What is measured here knows nothing of noise or of any criterion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SMALLEST = 4  # elements of a slice
UNIT = 0.05  # of values that all lie in 0 … 1, no slice has a smaller scale
MIN = 1e-4  # of the tensor's scale: no slice has a smaller one
ERRORS = (0.5, 0.1, 0.02, 0.011)  # of the slice's scale
KINDS = ("bias", "gain", "scale", "swapped", "token", "flat")
WHOLE = -1  # an axis: all of the tensor


@dataclass(frozen=True)
class Slice:
    """An index of an axis, or the whole tensor."""

    axis: int = WHOLE
    index: int = 0

    def of(self, values: Array) -> Array:
        """A view of these elements."""
        return values if self.axis == WHOLE else values[(slice(None),) * self.axis + (self.index,)]

    def __str__(self) -> str:
        return "whole" if self.axis == WHOLE else f"{self.index} of axis {self.axis}"


def slices(reference: Array) -> list[Slice]:
    """The whole tensor, and each index of each axis; on a distribution, the axis of its classes is
    left out."""
    classes = _classes(reference)
    axes = [
        a
        for a, n in enumerate(reference.shape)
        if n > 1 and a != classes and reference.size // n >= SMALLEST
    ]
    return [Slice(), *(Slice(axis, k) for axis in axes for k in range(reference.shape[axis]))]


def _classes(reference: Array) -> int | None:
    """The last axis along which values sum to 1."""
    if not reference.size or reference.min() < 0:
        return None
    axes = [
        a
        for a, n in enumerate(reference.shape)
        if n > 1 and np.abs(reference.sum(a) - 1).max() <= 1e-3
    ]
    return axes[-1] if axes else None


def worst_slice(reference: Array, candidate: Array) -> tuple[float, str]:
    """The largest error of a slice over its scale, and which; infinite where shapes differ or NaN
    comes in."""
    a, b = (np.asarray(x, np.float64) for x in (reference, candidate))
    if a.shape != b.shape or not np.isfinite(b).all():
        return np.inf, "shape" if a.shape != b.shape else "not finite"
    difference = np.abs(b - a)
    worst = (0.0, "")
    for each in slices(a):
        error = float(each.of(difference).max(initial=0)) / (_scale(a, each) or 1.0)
        worst = max(worst, (error, str(each)))
    return worst


def _scale(values: Array, each: Slice) -> float:
    """The largest value of a slice, or what counts as its scale where that is tiny."""
    least = MIN * float(np.abs(values).max(initial=0))
    if values.size and values.min() >= 0 and values.max() <= 1:
        least = max(least, UNIT)
    return max(float(np.abs(each.of(values)).max(initial=0)), least)


def faults(values: Array, rng: np.random.Generator) -> Iterator[tuple[str, float, Array]]:
    """Kind, size and the values with a fault in one slice: as kernels and converters make them.

    bias: a class or channel is shifted. gain: it is scaled (0.5: by half). scale: all values times
    1.5 … 1.011. swapped: two indices of an axis change places. token: one takes another's values.
    flat: a slice is constant.
    """
    parts = [each for each in slices(values) if each.axis != WHOLE]
    part = parts[rng.integers(len(parts))] if parts else Slice()
    other = replace(part, index=int(rng.integers(values.shape[part.axis]))) if parts else part
    for size in ERRORS:
        shift = size * _scale(values, part)
        yield "bias", size, _changed(values, part, part.of(values) + shift)
        yield "gain", size, _changed(values, part, part.of(values) * (1 - size))
        yield "scale", size, _changed(values, Slice(), values * (1 + size))
    if other.index != part.index:
        swapped = _changed(values, part, other.of(values))
        yield "swapped", 1.0, _changed(swapped, other, part.of(values))
        yield "token", 1.0, swapped
    yield "flat", 1.0, _changed(values, part, np.full_like(part.of(values), part.of(values).mean()))


def _changed(values: Array, part: Slice, into: Array) -> Array:
    found = values.copy()
    part.of(found)[...] = into
    return found
