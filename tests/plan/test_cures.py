"""Scales by channel, and ranges chosen anew. Covers `plan.cures`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from subgraph.plan import cures
from subgraph.plan.places import Quantized
from subgraph.storage.scale import Scale
from subgraph.types import Array

FORMS = [Quantized(Scale((0.5,), (3,)), "uint8"), Quantized(Scale((0.5,), (0,)), "int8")]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1), st.sampled_from(FORMS))
def test_a_range_over_all_values_clips_none_and_holds_zero(values: list[float], form: Quantized) -> None:
    array: Array = np.array(values, np.float32)
    found = cures._quantiles(cures._values(iter([array[:1], array])), 0.0)
    assert found[0] <= 0 <= found[1]
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
    values = cures._values(iter([array]))
    low, high = cures._quantiles(values, cures.CLIPPED["percentile"])
    assert abs(low + 1) < 1e-3 and abs(high - 1) < 1e-3
    assert cures._quantiles(values, 0.0)[0] == -1000


def test_a_tensor_of_nothing_has_no_range() -> None:
    empty: Array = np.zeros(0, np.float32)
    assert not cures._values(iter([empty, np.full(3, np.nan, np.float32)])).size
    assert not cures._values(iter([])).size


@pytest.mark.parametrize("sign", [1, -1])
def test_the_range_of_least_entropy_leaves_the_rare_and_far_out(sign: int) -> None:
    """A bell with a few values eight times as far: the step falls to a third; without them nearly all is kept."""
    rng = np.random.default_rng(0)
    bell = rng.standard_normal(200_000)
    low, high = cures._least_entropy(bell)
    assert 3 < high <= bell.max() and bell.min() <= low < -3
    far = np.concatenate([np.abs(bell), np.full(5, 40.0)]) * sign
    low, high = sorted(np.abs(cures._least_entropy(far)))
    assert low == 0 and 3 < high < 13
    values = np.clip(far, -high, high)
    assert np.mean((far - np.round(values / high * 255) * high / 255) ** 2) < 0.5


@example([5e-324])
@example([0.0])
@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_any_range_of_least_entropy_lies_within_the_values_and_holds_zero(values: list[float]) -> None:
    low, high = cures._least_entropy(np.array(values))
    assert min(0.0, *values, 0.0) <= low <= 0 <= high <= max(0.0, *values, 0.0)
