"""Two values of one tensor -> what can be said about their difference: masks apart, then numbers over what is finite.

A metric is a file in `metrics/` with `measure(reference, candidate) -> float` over the finite elements. `Pair` prepares
them once: NaN and infinities are counted apart, both ways, and never enter a number.

Memory: two copies of the tensor in float64, and the difference as a third.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from subgraph import plugins
from subgraph.verdict import Worst

if TYPE_CHECKING:
    from subgraph.types import Array


SMALL_INTEGERS = frozenset("int2 int4 uint2 uint4".split())  # of ml_dtypes: numpy takes them for no integers


@dataclass(frozen=True)
class Pair:
    """Reference and candidate value of one tensor, of equal shape and element type.

    Attributes:
        reference, candidate: as they came, any numeric, boolean or string dtype (ml_dtypes' too), any shape.
    """

    reference: Array
    candidate: Array

    @cached_property
    def kind(self) -> str:
        """ "float", "complex", "integer", "boolean" or "string"."""
        dtype = self.reference.dtype
        if dtype.kind in "OUST":
            return "string"
        if dtype.kind == "b":
            return "boolean"
        if dtype.kind in "iu" or dtype.name in SMALL_INTEGERS:
            return "integer"
        return "complex" if np.issubdtype(dtype, np.complexfloating) else "float"

    @property
    def floating(self) -> bool:
        """Is rounding possible at all?"""
        return self.kind in ("float", "complex")

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.reference.size)

    @cached_property
    def _flat(self) -> tuple[Array, Array]:
        """Both in one dimension, float64 for numbers (complex as pairs of parts, 64-bit integers as they are)."""
        if self.kind != "float":
            return _plain(self.reference), _plain(self.candidate)
        # One block for both: malloc then keeps enough for the difference too. Three blocks of 2 MB are given back and
        # faulted in again for every output, which takes five times as long as all arithmetic.
        both = np.empty((2, self.size))
        with np.errstate(all="ignore"):
            both[0], both[1] = self.reference.reshape(-1), self.candidate.reshape(-1)
        return both[0], both[1]

    @cached_property
    def finite(self) -> Array:
        """Where both are finite: booleans, one per element (two per complex element)."""
        a, b = self._flat
        if not self.floating:
            return np.ones(a.shape, bool)
        return np.asarray(np.isfinite(a) & np.isfinite(b))

    @cached_property
    def values(self) -> tuple[Array, Array]:
        """The elements that are finite in both, in one dimension, what metrics measure; float64 where floating."""
        a, b = self._flat
        return (a, b) if self.finite.all() else (a[self.finite], b[self.finite])

    @cached_property
    def compared(self) -> int:
        """How many elements are finite in both."""
        return int(self.values[0].size)

    @cached_property
    def nan_only(self) -> tuple[int, int]:
        """How many elements are NaN in the candidate alone, and in the reference alone."""
        if self.finite.all():
            return 0, 0
        a, b = (np.isnan(v) for v in self._flat)
        return int((b & ~a).sum()), int((a & ~b).sum())

    @cached_property
    def inf_only(self) -> tuple[int, int]:
        """How many elements are infinite in the candidate alone, and in the reference alone; an infinity of the other
        sign counts as both. Beside a NaN, neither."""
        if self.finite.all():
            return 0, 0
        a, b = self._flat
        here = ~(np.isnan(a) | np.isnan(b)) & (a != b)
        return int((here & np.isinf(b)).sum()), int((here & np.isinf(a)).sum())

    @property
    def masked(self) -> int:
        """Elements whose NaN or infinity differs, either way."""
        return sum(self.nan_only) + sum(self.inf_only)

    @cached_property
    def scale(self) -> float:
        """S: the largest |reference| among the elements finite in both; 0 where there is none."""
        if not self._numeric:
            return 0.0
        reference = self.values[0]  # its largest and least value: |reference| would be one more copy
        return max(float(reference.max(initial=0)), -float(reference.min(initial=0)))

    @cached_property
    def difference(self) -> Array:
        """|candidate - reference| of `values`, float64; of integers exact, of booleans and strings 0 or 1."""
        a, b = self.values
        if not self._numeric:
            return np.asarray(a != b, np.float64)
        if self.kind == "integer":  # unsigned and 64-bit integers: larger minus smaller never overflows their width
            high, low = np.maximum(a, b), np.minimum(a, b)
            return np.asarray(high.astype(np.uint64) - low.astype(np.uint64), np.float64)
        with np.errstate(over="ignore"):  # two finite doubles of opposite sign: their distance may be infinite
            distance = np.asarray(b - a)
        return np.asarray(np.abs(distance, out=distance))

    @property
    def _numeric(self) -> bool:
        return self.kind not in ("string", "boolean")

    @property
    def measurable(self) -> bool:
        """Numbers, and at least one of them finite in both."""
        return self._numeric and self.compared > 0

    @cached_property
    def error(self) -> float:
        """The largest difference among the elements finite in both."""
        return float(self.difference.max(initial=0.0))

    @cached_property
    def changed(self) -> int:
        """How many elements differ at all, NaN equal to NaN."""
        if self.kind != "complex":
            masked = 0 if self.finite.all() else int(np.count_nonzero(self._masks))
            return int(np.count_nonzero(self.difference)) + masked
        off = self._masks
        off[self.finite] = self.difference > 0
        return int(off.reshape(-1, 2).any(axis=1).sum())

    @property
    def _masks(self) -> Array:
        """Where NaN or infinity differ: booleans, one per element (two per complex element)."""
        if self.finite.all():
            return np.zeros(self.finite.shape, bool)
        a, b = self._flat
        return np.asarray(~(self.finite | (a == b) | (np.isnan(a) & np.isnan(b))))

    @cached_property
    def worst(self) -> Worst | None:
        """The element that is furthest off: one with another NaN or infinity first; None where all are equal."""
        if not self.changed:
            return None
        if self.masked:
            place = int(np.argmax(self._masks))
        else:
            place = int(np.argmax(self.difference))
            place = place if self.finite.all() else int(np.flatnonzero(self.finite)[place])
        if self.kind == "complex":
            place //= 2
        index = tuple(int(i) for i in np.unravel_index(place, self.reference.shape))
        return Worst(index, _python(self.reference[index]), _python(self.candidate[index]))

    def measured(self, names: Iterable[str]) -> dict[str, float]:
        """The metrics of these names. NaN where one is not defined: nothing was compared, or no numbers.

        Raises:
            UnknownName: no such metric.
            UsageError: a metric given by its path cannot be imported.
        """
        modules = {name: plugins.load("metrics", name) for name in names}
        with np.errstate(all="ignore"):
            return {name: self._measure(module) for name, module in modules.items()}

    def _measure(self, metric: Any) -> float:
        if hasattr(metric, "of_pair"):
            return float(metric.of_pair(self))
        if not self.measurable:
            return math.nan
        return float(metric.measure(*(v.astype(np.float64, copy=False) for v in self.values)))


def _plain(array: Array) -> Array:
    """One dimension; complex numbers as pairs of float64, the rest as they are."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        return np.asarray(flat.astype(np.complex128).view(np.float64))
    return flat.astype(np.int8) if flat.dtype.name in SMALL_INTEGERS else flat


def _python(value: Any) -> float | int | bool | str:
    """A scalar as Python's own."""
    if isinstance(value, (str, bytes)):
        return value if isinstance(value, str) else value.decode(errors="replace")
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.complexfloating):
        return str(complex(value))
    whole = isinstance(value, np.integer) or type(value).__name__ in SMALL_INTEGERS
    return int(value) if whole else float(value)
