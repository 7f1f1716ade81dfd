"""Scales by channel, and ranges chosen anew. Covers `plan.cures`."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from subgraph.plan import cures
from subgraph.plan.places import Quantized
from subgraph.storage.scale import Scale
from subgraph.types import Array

FORMS = [Quantized(Scale((0.5,), (3,)), "uint8"), Quantized(Scale((0.5,), (0,)), "int8")]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1), st.sampled_from(FORMS))
def test_a_range_over_all_values_clips_none_and_holds_zero(values: list[float], form: Quantized) -> None:
    array: Array = np.array(values, np.float32)
    found = cures._range(iter([array[:1], array]), 0.0)
    assert found and found[0] <= 0 <= found[1]
    over = cures._over(form, *found)
    if over == form:  # all values are 0, or too small for a step
        assert found[1] - found[0] < 1e-30
        return
    assert isinstance(over, Quantized)
    off = np.abs(over.scale.dequantize(over.scale.quantize(array, over.dtype)) - array)
    assert np.all(off <= 1.01 * over.scale.step[0]), "the zero point is a whole number: a step may be lost at an end"


def test_a_range_over_most_values_leaves_outliers_out() -> None:
    array: Array = np.linspace(-1, 1, 100_001, dtype=np.float32)
    array[0], array[-1] = -1000, np.inf
    low, high = cures._range(iter([array]), cures.CLIPPED["percentile"]) or (0.0, 0.0)
    assert abs(low + 1) < 1e-3 and abs(high - 1) < 1e-3
    assert (cures._range(iter([array]), 0.0) or (0.0, 0.0))[0] == -1000


def test_a_tensor_of_nothing_has_no_range() -> None:
    assert cures._range(iter([np.zeros(0, np.float32), np.full(3, np.nan, np.float32)]), 0.0) is None
    assert cures._range(iter([]), 1e-4) is None
