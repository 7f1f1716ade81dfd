"""The differences of two values of one tensor: every difference that subcut computes is computed
here.

`Pair` separates masks from numbers: NaN and infinities are counted, for each side, and never enter
a number. Metrics (`metrics/`) and the largest error are taken over the elements that are finite in
both.

Without a pair, for arrays that may differ in element type: `compute_differences` (element by
element), `compute_scaled_differences` (in units of the reference's scale, clipped),
`compute_relative_l2` (one number).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np

from subgraph import plugins
from subgraph.comparison.metrics import compute_norm
from subgraph.storage.tensors import Value, find_largest
from subgraph.types import Array, frozen
from subgraph.verdict import Worst

# Of ml_dtypes; their numpy kind is not "i" or "u".
SMALL_INTEGERS = frozenset("int2 int4 uint2 uint4".split())
NO_NUMBERS = "OUSTb"  # numpy kinds: strings, bytes and booleans


@frozen
class Pair:
    """Reference and candidate value of one tensor, of equal shape and element type.

    Memory: two float64 copies of the tensor, and their difference as a third.

    Attributes:
        reference: the reference's value, of any shape; numbers (of ml_dtypes too), booleans or
            strings.
        candidate: the candidate's value, as `reference`.
    """

    reference: Array
    candidate: Array

    @property
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
        """Whether a value can be rounded."""
        return self.kind in ("float", "complex")

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.reference.size)

    @cached_property
    def _vectors(self) -> tuple[Array, Array]:
        """Both in one dimension; floats as float64, complex numbers as pairs of float64, the rest
        unchanged."""
        if self.kind != "float":
            return _flatten_array(self.reference), _flatten_array(self.candidate)
        # One block for both: malloc then keeps enough memory for the difference too. Three blocks
        # of 2 MB are returned to the system and faulted in again for every output, which takes five
        # times as long as all arithmetic.
        both = np.empty((2, self.size))
        with np.errstate(all="ignore"):
            both[0] = self.reference.reshape(-1)
            both[1] = self.candidate.reshape(-1)
        return both[0], both[1]

    @cached_property
    def finite(self) -> Array:
        """The elements that are finite in both: booleans, flat, one per element (two per complex
        element)."""
        a, b = self._vectors
        return (
            np.asarray(np.isfinite(a) & np.isfinite(b)) if self.floating else np.ones(a.shape, bool)
        )

    @cached_property
    def values(self) -> tuple[Array, Array]:
        """The elements that are finite in both, flat; float64 if floating. Metrics measure
        these."""
        a, b = self._vectors
        return (a, b) if self.finite.all() else (a[self.finite], b[self.finite])

    @property
    def compared(self) -> int:
        """Number of elements that are finite in both (parts, of complex numbers)."""
        return int(self.values[0].size)

    @property
    def masked(self) -> int:
        """Number of elements where one side is NaN or infinite and the other is something else."""
        return sum(count_nan_only(self)) + sum(count_infinite_only(self))

    @property
    def scale(self) -> float:
        """S: the largest |reference| of the elements that are finite in both; 0 without such."""
        if not _is_numeric(self):
            return 0.0
        # From its largest and smallest value, since |reference| would be another copy.
        reference = self.values[0]
        return max(float(reference.max(initial=0)), -float(reference.min(initial=0)))

    @cached_property
    def difference(self) -> Array:
        """|candidate - reference| of `values`, float64; of integers exact, of booleans and strings
        0 or 1."""
        a, b = self.values
        if not _is_numeric(self):
            return np.asarray(a != b, np.float64)
        # Unsigned and 64-bit integers: larger minus smaller never overflows their width.
        if self.kind == "integer":
            high = np.maximum(a, b)
            low = np.minimum(a, b)
            return np.asarray(high.astype(np.uint64) - low.astype(np.uint64), np.float64)
        # The distance of two finite doubles of opposite sign may be infinite.
        with np.errstate(over="ignore"):
            distance = np.asarray(b - a)
        return np.asarray(np.abs(distance, out=distance))

    def zero_unless_finite(self, values: Array) -> Array:
        """Return values of the elements that are finite in both -> float64, flat, one per element,
        0 if one is not finite.

        Of complex tensors two per element.
        """
        if self.finite.all():
            return values
        placed = np.zeros(self.finite.shape)
        placed[self.finite] = values
        return placed

    @property
    def measurable(self) -> bool:
        """Whether these are numbers, and at least one is finite in both."""
        return _is_numeric(self) and self.compared > 0

    @property
    def error(self) -> float:
        """The largest difference among the elements finite in both."""
        return float(self.difference.max(initial=0.0))

    @property
    def changed(self) -> int:
        """Number of elements that differ at all; NaN equals NaN."""
        if self.kind != "complex":
            masked = 0 if self.finite.all() else int(np.count_nonzero(find_mask_differences(self)))
            return int(np.count_nonzero(self.difference)) + masked
        unequal = find_mask_differences(self)
        unequal[self.finite] = self.difference > 0
        return int(unequal.reshape(-1, 2).any(axis=1).sum())

    def compute_metric(self, names: Iterable[str]) -> dict[str, float]:
        """Return a value by name of metric; NaN if nothing was compared, or the values are not
        numbers.

        Raises:
            UnknownName: no such metric.
            UsageError: a metric given by its path cannot be imported.
        """
        values = {}
        for name in names:
            metric = plugins.load("metrics", name)
            with np.errstate(all="ignore"):
                if hasattr(metric, "of_pair"):
                    values[name] = float(metric.of_pair(self))
                elif self.measurable:
                    values[name] = float(
                        metric.measure(*(v.astype(np.float64, copy=False) for v in self.values))
                    )
                else:
                    values[name] = math.nan
        return values


def find_mask_differences(pair: Pair) -> Array:
    """Return the elements whose NaN or infinity differs: booleans, flat, one per element (two per
    complex element)."""
    if pair.finite.all():
        return np.zeros(pair.finite.shape, bool)
    a, b = pair._vectors
    return np.asarray(~(pair.finite | (a == b) | (np.isnan(a) & np.isnan(b))))


def _is_numeric(pair: Pair) -> bool:
    return pair.kind not in ("string", "boolean")


def count_infinite_only(pair: Pair) -> tuple[int, int]:
    """Return the number of elements that are infinite in the candidate alone, and in the reference
    alone.

    Infinities of opposite sign count as both; an infinity against a NaN counts as neither.
    """
    if pair.finite.all():
        return 0, 0
    a, b = pair._vectors
    unequal = ~(np.isnan(a) | np.isnan(b)) & (a != b)
    return int((unequal & np.isinf(b)).sum()), int((unequal & np.isinf(a)).sum())


def count_nan_only(pair: Pair) -> tuple[int, int]:
    """Return the number of elements that are NaN in the candidate alone, and in the reference
    alone."""
    if pair.finite.all():
        return 0, 0
    a, b = (np.isnan(v) for v in pair._vectors)
    return int((b & ~a).sum()), int((a & ~b).sum())


def compute_relative_error(pair: Pair) -> float:
    """Compute `error` over `scale`; `error` itself if the reference is all zeros."""
    return pair.error / (pair.scale or 1.0)


def find_worst(pair: Pair) -> Worst | None:
    """Return the element that differs most, NaN and infinities before numbers; None if all are
    equal."""
    if not pair.changed:
        return None
    if pair.masked:
        place = int(np.argmax(find_mask_differences(pair)))
    else:
        place = int(np.argmax(pair.difference))
        place = place if pair.finite.all() else int(np.flatnonzero(pair.finite)[place])
    if pair.kind == "complex":
        place //= 2
    index = tuple(int(i) for i in np.unravel_index(place, pair.reference.shape))
    return Worst(index, _to_python(pair.reference[index]), _to_python(pair.candidate[index]))


def pair_if_comparable(reference: Value, candidate: Value) -> Pair | None:
    """Return the pair; None unless both are tensors of equal shape and element type."""
    if not isinstance(reference, np.ndarray) or not isinstance(candidate, np.ndarray):
        return None
    equal = (reference.shape, reference.dtype) == (candidate.shape, candidate.dtype)
    return Pair(reference, candidate) if equal else None


def compute_differences(reference: Array, candidate: Array) -> Array:
    """Return candidate − reference per element, float64; shapes broadcast, types are any real ones.

    0 if both are equal or both NaN; NaN or infinite if NaN or infinity differ.
    """
    with np.errstate(all="ignore"):
        x = reference.astype(np.float64, copy=False)
        y = candidate.astype(np.float64, copy=False)
        distance = y - x
        if np.isfinite(distance).all():
            return np.asarray(distance)
        return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, distance)


def compute_scaled_differences(reference: Array, candidate: Array, limit: float) -> Array:
    """Return (candidate − reference) / max|reference| of two arrays of equal size: flat, float64,
    within ±limit.

    The scale is that of the finite elements, 1 if they are all zero. If NaN or infinity differ:
    `limit`. Strings and booleans: 0 or 1. Complex numbers: pairs of parts.
    """
    x = _flatten_array(reference)
    y = _flatten_array(candidate)
    if x.dtype.kind in NO_NUMBERS:
        return np.asarray(x != y, np.float64)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64, copy=False)
        distance = compute_differences(x, y) / (find_largest(wide[np.isfinite(wide)]) or 1.0)
    return np.where(np.isfinite(distance), np.clip(distance, -limit, limit), limit)


def compute_relative_l2(reference: Array, candidate: Array) -> float:
    """Return |candidate − reference|₂ / |reference|₂ over the finite elements of two real arrays.

    Infinite if shapes or masks differ, if one is not a number, or if the reference is all zeros.
    """
    if reference.shape != candidate.shape or {reference.dtype.kind, candidate.dtype.kind} - set(
        "fiubV"
    ):
        return math.inf
    x, y = (v.astype(np.float64).reshape(-1) for v in (reference, candidate))
    finite = np.isfinite(x)
    if not np.array_equal(finite, np.isfinite(y)):
        return math.inf
    x = x[finite]
    y = y[finite]
    length = compute_norm(x)
    return compute_norm(y - x) / length if length else math.inf


def _flatten_array(array: Array) -> Array:
    """Return an array in one dimension.

    Complex numbers become pairs of float64, and 2- and 4-bit integers become int8.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        return np.asarray(flat.astype(np.complex128).view(np.float64))
    return flat.astype(np.int8) if flat.dtype.name in SMALL_INTEGERS else flat


def _to_python(value: Any) -> float | int | bool | str:
    """Return a scalar as Python's own; complex numbers as text."""
    scalar: Any = value.item() if isinstance(value, np.generic) else value
    if isinstance(scalar, complex):
        return str(scalar)
    return scalar.decode(errors="replace") if isinstance(scalar, bytes) else scalar


# ------------------------------------------------------------ classes
# Class scores of reference and candidate -> how often both name the same class. Shown in reports;
# no criterion.
#
# A small error may exchange the two best classes, and a large one may leave them.

MIN_CLASSES = 6  # of five, every one is among the best five
TOP_CLASSES = 5
MAX_SUM_ERROR = 1e-2  # by how much the probabilities of a row may miss 1: float16 rounds each


def compute_agreement(reference: Value, candidate: Value) -> dict[str, float] | None:
    """Return the shares of the samples, 0 to 1, whose classes agree: {"top1": …, "top5": …}.

    Returns None if the two do not look like class scores. Class scores are floats of shape (N, C),
    or (N, C, 1, 1 …), with N ≥ 1 and C ≥ 6; an embedding looks the same.

    top1: the candidate's best class is the reference's best. top5: the reference's best class is
    among the candidate's five best (top-5 accuracy, with the reference as the truth). The best
    class has the largest value and, among equal ones, the lowest index, as in ArgMax and TopK of
    ONNX. If several classes of the reference are equally good, each of them is right; equal values
    of the candidate excuse nothing, or a constant output would be perfect.

    A sample with NaN in the reference is omitted (None if no sample remains); with NaN in the
    candidate alone it disagrees. Complexity: N·C·log C.

    >>> import numpy as np
    >>> scores = np.array([[0.1, 0.2, 0.9, 0.3, 0.0, 0.4]])
    >>> compute_agreement(scores, scores - 0.8 * (scores == 0.9))
    {'top1': 0.0, 'top5': 1.0}
    """
    if (
        not _are_scores(reference)
        or not _are_scores(candidate)
        or reference.shape != candidate.shape
    ):
        return None
    expected, actual = (v.reshape(v.shape[:2]).astype(np.float64) for v in (reference, candidate))
    defined = ~np.isnan(expected).any(axis=1)
    expected = expected[defined]
    actual = actual[defined]
    if not expected.size:
        return None
    # Equal values in the order of their indices.
    order = np.argsort(-actual, axis=1, kind="stable")[:, :TOP_CLASSES]
    hits = np.take_along_axis(expected, order, axis=1) == expected.max(axis=1, keepdims=True)
    hits &= ~np.isnan(actual).any(axis=1, keepdims=True)
    return {"top1": float(hits[:, 0].mean()), "top5": float(hits.any(axis=1).mean())}


def are_probabilities(value: Value) -> bool:
    """Return whether each row of class scores is a distribution, or the logarithms of one. Of a
    pose or of bits no class is the best.

    >>> are_probabilities(np.full((1, 8), 0.125)), are_probabilities(np.arange(8.0)[None])
    (True, False)
    """
    if not _are_scores(value):
        return False
    rows = value.reshape(value.shape[:2]).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return any(
            bool((part >= 0).all() and np.allclose(part.sum(axis=1), 1.0, atol=MAX_SUM_ERROR))
            for part in (rows, np.exp(rows))
        )


def _are_scores(value: Value) -> TypeGuard[Array]:
    """Return whether the value looks like class scores."""
    if not isinstance(value, np.ndarray) or value.ndim < 2:
        return False
    floating = value.dtype.kind == "f" or value.dtype.name.startswith(("bfloat", "float"))
    return (
        floating
        and value.shape[0] > 0
        and value.shape[1] >= MIN_CLASSES
        and set(value.shape[2:]) <= {1}
    )
