"""Layouts of devices: each against its definition, value by value, and back."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from subgraph.errors import InputError
from subgraph.storage import layouts
from subgraph.types import Array
from tests.helpers.examples import examples
from tests.helpers.refusals import raises

SIDES = st.integers(1, 5)


def naive(array: Array, layout: str, c0: int) -> Array:
    """One value at a time, after the definition of each layout."""
    if layout == "FRACTAL_NZ":
        *b, n, c = array.shape
        out = np.zeros((*b, -(-c // c0), -(-n // 16), 16, c0), array.dtype)
        for *above, i, j in np.ndindex(array.shape):
            out[(*above, j // c0, i // 16, i % 16, j % c0)] = array[(*above, i, j)]
        return out
    n, c, h, w = array.shape
    if layout == "FRACTAL_Z":
        out = np.zeros((-(-c // c0) * h * w, -(-n // 16), 16, c0), array.dtype)
        for i, j, y, x in np.ndindex(array.shape):
            out[(j // c0) * h * w + y * w + x, i // 16, i % 16, j % c0] = array[i, j, y, x]
        return out
    c1 = -(-c // c0)
    sizes = {"N": n, "C": c, "H": h, "W": w, "C1": c1, "C0": c0}
    parts = re.findall("C[01]|[NCHW]", layout)
    out = np.zeros([sizes[part] for part in parts], array.dtype)
    for i, j, y, x in np.ndindex(array.shape):
        at = {"N": i, "C": j, "H": y, "W": x, "C1": j // c0, "C0": j % c0}
        out[tuple(at[part] for part in parts)] = array[i, j, y, x]
    return out


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(
        ["NC1HWC0", "NHWC1C0", "C1HWNC0", "FRACTAL_Z", "FRACTAL_NZ", "NHWC", "HWCN", "CHWN"]
    ),
    st.tuples(st.integers(1, 20), st.integers(1, 40), st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([16, 32, 8]),
)
def test_layouts_there_and_back(layout: str, shape: tuple[int, ...], c0: int) -> None:
    array = (np.arange(math.prod(shape)) + 1).reshape(shape)
    if layout == "FRACTAL_NZ":
        array = array.reshape(shape[2], shape[3], shape[0], shape[1])
    stored = layouts.from_model(array, layout, c0)
    want = naive(array, layout, c0)
    assert stored.shape == want.shape == layouts.compute_stored_shape(array.shape, layout, c0)
    assert np.array_equal(stored, want)
    assert np.array_equal(layouts.to_model(stored, layout, array.shape), array)
    turned = {"NHWC": "NHWC", "HWCN": "HWCN"}.get(layout)
    if turned:
        assert layouts.to_model(stored, layout, stored.shape, turned) is stored
    # without a shape: blocks stay filled up with zeros
    if layout in ("NC1HWC0", "C1HWNC0", "NHWC1C0"):
        full = layouts.to_model(stored, layout)
        assert np.array_equal(full[:, : shape[1]], array) and not full[:, shape[1] :].any()
        nhwc = layouts.to_model(stored, layout, tuple(array.transpose(0, 2, 3, 1).shape), "NHWC")
        assert np.array_equal(nhwc, array.transpose(0, 2, 3, 1))


@settings(max_examples=examples(20), deadline=None)
@given(
    st.sampled_from(["NDC1HWC0", "FRACTAL_Z_3D", "NDHWC", "DHWCN"]),
    st.tuples(SIDES, SIDES, SIDES, SIDES, SIDES),
)
def test_layouts_of_five_axes(layout: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    stored = layouts.from_model(array, layout)
    assert np.array_equal(layouts.to_model(stored, layout, shape), array)
    if layout == "NDC1HWC0":
        n, c, d, h, w = (s - 1 for s in shape)
        assert stored[n, d, c // 16, h, w, c % 16] == array[n, c, d, h, w]


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_tensors_of_few_axes(shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    for layout in ("FRACTAL_NZ", *(["NC1HWC0"] if len(shape) < 5 else [])):
        stored = layouts.from_model(array, layout)
        assert np.array_equal(layouts.to_model(stored, layout, shape), array)


@pytest.mark.parametrize(
    ("layout", "stored", "shape", "code", "about"),
    [
        ("NC1HWC0", (1, 2, 3, 4), None, "layout.wrong-shape", "5 dimensions"),
        ("NC1HWC0", (1, 1, 4, 4, 16), (1, 17, 4, 4), "layout.wrong-shape", "[1, 17, 4, 4]"),
        ("NC1HWC0", (1, 1, 4, 4, 16), (1, 3, 5, 4), "layout.wrong-shape", "not fill"),
        ("NC1HWC0", (1, 1, 4, 4, 16), (1, 3, 1, 4, 4), "layout.wrong-shape", "no layout"),
        ("FRACTAL_Z", (9, 1, 16, 16), None, "layout.no-shape", "FRACTAL_Z"),
        ("FRACTAL_Z", (9, 1, 16, 16), (16, 16, 2, 2), "layout.wrong-shape", "not fill"),
        ("NHWC", (1, 4, 4, 3), (1, 3, 4, 5), "layout.wrong-shape", "not fill"),
        ("ND", (2, 3), (7,), "layout.wrong-shape", "not fill"),
        ("HASHTABLE", (2, 3), None, "layout.unsupported", "HASHTABLE"),
        ("C1HWNCoC0", (1, 1, 1, 1, 16, 16), (1, 1, 1, 1), "layout.unsupported", "C1HWNCoC0"),
    ],
)
def test_layouts_that_do_not_fit(
    layout: str, stored: tuple[int, ...], shape: tuple[int, ...] | None, code: str, about: str
) -> None:
    with raises(InputError, code, about):
        layouts.to_model(np.zeros(stored), layout, shape)


@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4))
def test_order_of_axes_gives_the_wanted_shape(order: list[int], shape: list[int]) -> None:
    array = np.zeros(shape)
    orders = list(layouts.iter_axis_orders(shape, array.transpose(order).shape))
    assert tuple(order) in orders and orders == sorted(set(orders))
    assert all(array.transpose(o).shape == array.transpose(order).shape for o in orders)
    assert not list(layouts.iter_axis_orders((1,) * 7, (1,) * 7)) and not list(
        layouts.iter_axis_orders(shape, shape[1:])
    )
