"""Pictures of a tensor's values: what is drawn, of which elements, and of values that are not
numbers."""

from __future__ import annotations

import base64
import math

import ml_dtypes
import numpy as np
import pytest

from subgraph.drawing import tensor

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "shape",
    [(), (0,), (1,), (7,), (100,), (3, 4), (5, 200), (2, 3, 4), (2, 3, 50, 60), (1, 2, 3, 4, 5)],
)
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int64, np.bool_]
)
def test_every_shape_and_type(shape: tuple[int, ...], dtype: type) -> None:
    a: np.ndarray = (RNG.standard_normal(shape) * 10).astype(dtype)
    b = np.asarray(a, copy=True)
    assert tensor.find_worst_elements(a, b) == []
    assert not any(tensor.compute_plane_errors(a, b))
    assert tensor.compute_statistics(a).nans == 0


def test_difference_is_marked_at_its_place() -> None:
    """In the plane that holds the largest, at its place; worst first, index and values as they
    are."""
    a = np.zeros((2, 3, 10, 10), np.float32)
    b = a.copy()
    b[1, 2, 4, 5], b[0, 1, 0, 0] = -3, 1
    assert tensor.compute_plane_errors(a, b) == [0, 1, 0, 0, 0, 3]
    assert [(w.index, w.reference, w.given, w.error) for w in tensor.find_worst_elements(a, b)] == [
        ((1, 2, 4, 5), 0.0, -3.0, 3.0),
        ((0, 1, 0, 0), 0.0, 1.0, -1.0),
    ]


def test_equal_values_are_drawn_alike_and_any_difference_is_seen() -> None:
    """The candidate's one spike would make a map with its own scale paler everywhere else."""
    a = RNG.standard_normal((1, 2, 56, 56)).astype(np.float32)
    b = a.copy()
    b[0, 1, 20, 30], b[0, 1, 5, 5] = (
        9 * abs(a).max(),
        np.nextafter(a[0, 1, 5, 5], np.float32(np.inf)),
    )
    different = {(20, 30), (5, 5)}
    cells = tensor.map_cells(a, b, 1)
    given, reference, difference = (
        np.frombuffer(base64.b64decode(text or ""), "<f4").reshape(56, 56)
        for text in (cells.given, cells.reference, cells.difference)
    )
    assert cells.equal == 3134 and (given == b[0, 1]).all() and (reference == a[0, 1]).all()
    assert {
        (int(i), int(j)) for i, j in np.argwhere(difference)
    } == different and cells.scale == 9 * abs(a).max()
    assert tensor.compute_plane_errors(a, b) == [0.0, cells.far]


def test_difference_below_the_least_float32_is_one() -> None:
    a = np.zeros((2, 2))
    b = np.array([[0, 1e-300], [-0.0, np.nan]])
    cells = tensor.map_cells(a, b)
    found = np.frombuffer(base64.b64decode(cells.difference or ""), "<f4")
    assert (
        (found[0], found[2]) == (0, 0) and found[1] > 0 and np.isnan(found[3]) and cells.equal == 2
    )


def test_non_finite_value_is_the_worst() -> None:
    a = np.ones((4, 4), np.float32)
    b = a.copy()
    b[1, 1], b[2, 2], a[3, 3], b[3, 3] = np.nan, np.inf, np.nan, np.nan
    worst = tensor.find_worst_elements(a, b)
    # both NaN is not a difference
    assert [(w.index, str(w.given)) for w in worst] == [((1, 1), "nan"), ((2, 2), "inf")]
    found = tensor.compute_statistics(b)
    assert (found.nans, found.infs, found.least, found.most) == (2, 1, 1.0, 1.0)
    none = tensor.compute_statistics(np.full(3, np.nan, np.float32))
    assert (none.least, none.mean, none.zeros) == (None, None, 0.0)


def test_large_tensor_gives_a_small_picture_and_no_spike_is_lost() -> None:
    a = np.zeros((1, 1, 1000, 1000), np.float32)
    b = a.copy()
    b[0, 0, 777, 333] = 1
    cells = tensor.map_cells(a, b)
    given = np.frombuffer(base64.b64decode(cells.given or ""), "<f4")
    assert (len(given), cells.rows, int(np.count_nonzero(given))) == (112 * 112, 112, 1)
    noise = RNG.standard_normal(a.shape).astype(np.float32)
    assert not math.isnan(tensor.compute_statistics(noise).mean or 0)
