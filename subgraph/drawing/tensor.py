"""The values of a tensor in the reference and in a candidate → the cells of a heat map, and the
elements that differ most.

Reference and candidate have one scale, so that equal values look alike; the difference has its own.
Complexity: a few passes over the values.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from subgraph.types import Array, frozen

MAX_MAP_CELLS = 112  # cells of `map_cells`, along each side
MAX_WORST_ELEMENTS = 10
ROW_ELEMENTS = 32  # elements of a vector in one row of its map


@frozen
class DifferingElement:
    """An element, both values and their difference."""

    index: tuple[int, ...]
    reference: float
    given: float
    error: float


@frozen
class Statistics:
    """Statistics of a tensor.

    Attributes:
        least: The least finite value; None without finite values.
        most: The greatest finite value; None without finite values.
        mean: The mean of the finite values; None without finite values.
        zeros: The share of zeros.
        nans: The number of NaN.
        infs: The number of infinities.
    """

    least: float | None
    most: float | None
    mean: float | None
    zeros: float
    nans: int
    infs: int


def compute_statistics(values: Array) -> Statistics:
    """Return statistics of a tensor; bool and integers count as numbers."""
    x = _as_numbers(values).ravel()
    fine = x[np.isfinite(x)]
    least, most, mean = (
        map(float, (fine.min(), fine.max(), fine.mean())) if fine.size else [None] * 3
    )
    return Statistics(
        least,
        most,
        mean,
        float((x == 0).mean()) if x.size else 0.0,
        int(np.isnan(x).sum()),
        int(np.isinf(x).sum()),
    )


def count_planes(shape: Sequence[int]) -> int:
    """Return the number of maps of a tensor: one for each index of all but its last two axes."""
    return math.prod(shape[:-2]) if len(shape) > 2 else 1


def compute_plane_errors(reference: Array, candidate: Array) -> list[float]:
    """Return the largest difference per plane; infinite if only one side is NaN or infinite."""
    if not reference.size:
        return []
    far = _compute_difference(reference, candidate).reshape(count_planes(reference.shape), -1)
    errors: list[float] = far.max(axis=1).tolist()
    return errors


@frozen
class MapCells:
    """A plane as numbers, in rows: float32, little-endian, in base64; NaN if an element is not
    finite.

    Attributes:
        shape: The shape of the plane.
        rows: The number of rows of cells, up to `MAX_MAP_CELLS`. A cell has the element of largest
            magnitude in its part of the plane.
        columns: The number of columns of cells, up to `MAX_MAP_CELLS`.
        scale: The largest finite magnitude on both sides.
        reference: The cells of the reference.
        given: The cells of the candidate.
        difference: The cells of the difference; 0 only if all elements of the cell are equal, bit
            by bit but for the sign of 0 and NaN.
        far: The largest difference.
        equal: The number of equal elements of the plane.
    """

    shape: Sequence[int]
    rows: int
    columns: int
    scale: float
    reference: str
    given: str | None = None
    difference: str | None = None
    far: float = 0.0
    equal: int = 0


def map_cells(reference: Array, candidate: Array | None, plane: int = 0) -> MapCells:
    """Return one plane of both sides and their difference, for a page that paints it."""
    matrix = _select_plane(_as_numbers(reference), plane)
    if not matrix.size:
        return MapCells(matrix.shape, 0, 0, 0.0, "")
    cells = _reduce_to_cells(matrix)
    if candidate is None:
        return MapCells(matrix.shape, len(cells), len(cells[0]), _find_scale(matrix), _pack(cells))
    candidate_matrix = _select_plane(_as_numbers(candidate), plane)
    far = _select_plane(_compute_difference(reference, candidate), plane)
    return MapCells(
        matrix.shape,
        len(cells),
        len(cells[0]),
        _find_scale(matrix, candidate_matrix),
        _pack(cells),
        _pack(_reduce_to_cells(candidate_matrix)),
        _pack(_reduce_to_cells(far)),
        _find_scale(far),
        int((far == 0).sum()),
    )


def find_worst_elements(reference: Array, candidate: Array) -> list[DifferingElement]:
    """Return the elements that differ most, worst first; equal ones are omitted."""
    far = _compute_difference(reference, candidate).ravel()
    number = min(MAX_WORST_ELEMENTS, far.size)
    order = np.argpartition(-far, number - 1)[:number] if number else np.zeros(0, int)
    order = order[np.argsort(-far[order], kind="stable")]
    a = _as_numbers(reference).ravel()
    b = _as_numbers(candidate).ravel()
    return [
        DifferingElement(
            tuple(map(int, np.unravel_index(i, reference.shape))),
            float(a[i]),
            float(b[i]),
            float(a[i] - b[i]),
        )
        for i in order
        if far[i] > 0
    ]


# ------------------------------------------------------------ numbers


def _as_numbers(values: Array) -> Array:
    """Return values as float64, which holds all types of ONNX but complex numbers and texts."""
    return np.asarray(values).astype(np.float64)


def _compute_difference(reference: Array, candidate: Array) -> Array:
    """Return |a − b|; 0 if both are equal or NaN; infinite if one is NaN, or infinity meets another
    value."""
    a = _as_numbers(reference)
    b = _as_numbers(candidate)
    with np.errstate(invalid="ignore"):
        far = np.abs(a - b)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(alike, 0.0, np.where(np.isnan(far), np.inf, far))


def _select_plane(values: Array, plane: int) -> Array:
    """Return a matrix: the last two axes at one index of the others; a vector in rows of
    `ROW_ELEMENTS`."""
    if values.ndim > 2:
        return np.asarray(values.reshape(-1, *values.shape[-2:])[plane])
    if values.ndim == 2:
        return values
    flat = values.ravel()
    if flat.size <= ROW_ELEMENTS:
        return flat[None]
    return np.pad(flat, (0, -flat.size % ROW_ELEMENTS)).reshape(-1, ROW_ELEMENTS)


def _find_scale(*matrices: Array) -> float:
    """Return the largest finite magnitude; 0 without any."""
    return max(
        (float(abs(fine).max()) for m in matrices if (fine := m[np.isfinite(m)]).size), default=0.0
    )


def _reduce_to_cells(matrix: Array) -> Array:
    """Reduce a matrix to `MAX_MAP_CELLS` cells each way: the value of largest magnitude, NaN if one
    is not finite."""
    odd = ~np.isfinite(matrix)
    fine = np.where(odd, 0.0, matrix)
    rows, columns = (
        np.linspace(0, n, min(n, MAX_MAP_CELLS) + 1).astype(int)[:-1] for n in matrix.shape
    )

    def reduce_over(x: Array, reduction: Any) -> Array:
        of_rows = reduction.reduceat(x, rows, axis=0)
        return np.asarray(reduction.reduceat(of_rows, columns, axis=1))

    high = reduce_over(fine, np.maximum)
    low = reduce_over(fine, np.minimum)
    return np.where(reduce_over(odd, np.logical_or), np.nan, np.where(high >= -low, high, low))


def _pack(cells: Array) -> str:
    """Encode cells as float32; values other than 0 stay other than 0."""
    with np.errstate(over="ignore"):
        small = cells.astype("<f4")
    small[(small == 0) & (cells != 0)] = np.finfo(np.float32).smallest_subnormal
    return base64.b64encode(small.tobytes()).decode()
