"""Masks are counted, numbers are taken over what is finite in both; for every element type."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from subgraph.comparison.pair import (
    Pair,
    compute_differences,
    compute_relative_error,
    compute_relative_l2,
    compute_scaled_differences,
    count_infinite_only,
    count_nan_only,
    find_worst,
    pair_if_comparable,
)
from subgraph.errors import UnknownName
from subgraph.verdict import Worst
from tests.helpers.examples import examples

INF = math.inf
NAN = math.nan
LAW = settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
ANY = st.lists(
    st.tuples(*[st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 1.0, -2.5])] * 2), max_size=8
)


def pair(reference: Any, candidate: Any, dtype: Any = np.float32) -> Pair:
    return Pair(np.array(reference, dtype), np.array(candidate, dtype))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (np.float32, "float"),
        (np.float16, "float"),
        (ml_dtypes.bfloat16, "float"),
        (ml_dtypes.float8_e5m2, "float"),
        (ml_dtypes.float4_e2m1fn, "float"),
        (np.complex64, "complex"),
        (np.int64, "integer"),
        (np.uint8, "integer"),
        (ml_dtypes.int4, "integer"),
        (ml_dtypes.uint4, "integer"),
        (np.bool_, "boolean"),
        (object, "string"),
        (np.str_, "string"),
    ],
)
def test_kinds(dtype: Any, kind: str) -> None:
    values = ["a", "b"] if kind == "string" else [0, 1]
    same = pair(values, values, dtype)
    assert same.kind == kind
    assert (same.changed, same.error, find_worst(same), same.masked, same.compared % 2) == (
        0,
        0.0,
        None,
        0,
        0,
    )
    other = pair(values, values[::-1], dtype)
    worst = find_worst(other)
    assert other.changed == 2 and worst and worst.index == (0,)


@LAW
@given(ANY)
def test_masks_are_counted_both_ways(pairs: list[tuple[float, float]]) -> None:
    p = pair([a for a, _ in pairs], [b for _, b in pairs])
    assert count_nan_only(p) == (
        sum(math.isnan(b) and not math.isnan(a) for a, b in pairs),
        sum(math.isnan(a) and not math.isnan(b) for a, b in pairs),
    )
    plain = [(a, b) for a, b in pairs if not math.isnan(a) and not math.isnan(b) and a != b]
    assert count_infinite_only(p) == (
        sum(math.isinf(b) for _, b in plain),
        sum(math.isinf(a) for a, _ in plain),
    )
    finite = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    assert p.compared == len(finite)
    assert p.error == max((abs(a - b) for a, b in finite), default=0.0)
    assert p.scale == max((abs(a) for a, _ in finite), default=0.0)
    assert p.changed == sum(not (a == b or (math.isnan(a) and math.isnan(b))) for a, b in pairs)
    worst = find_worst(p)
    assert (worst is None) == (p.changed == 0)


@LAW
@given(ANY)
def test_the_worst_is_a_mask_before_it_is_a_number(pairs: list[tuple[float, float]]) -> None:
    p = pair([a for a, _ in pairs], [b for _, b in pairs])
    worst = find_worst(p)
    if worst is None:
        return
    a, b = pairs[worst.index[0]]
    if p.masked:
        assert not (math.isfinite(a) and math.isfinite(b)) and a != b
    else:
        assert abs(a - b) == p.error


def test_the_worst_has_the_index_of_its_array() -> None:
    reference = np.zeros((2, 3, 4), np.float32)
    candidate = reference.copy()
    candidate[1, 2, 0] = -7
    reference[0, 0, 0] = candidate[0, 0, 0] = (
        NAN  # equal NaN: left out, and the places after it stay
    )
    assert find_worst(Pair(reference, candidate)) == Worst((1, 2, 0), 0.0, -7.0)


def test_the_worst_of_complex_numbers() -> None:
    p = pair([[1, 2j]], [[1, 5j]], np.complex64)
    assert find_worst(p) == Worst((0, 1), "2j", "5j") and (p.changed, p.error) == (1, 3.0)
    # one element, two parts
    assert pair([1 + 1j], [2 + 2j], np.complex64).compute_metric(["mismatch"]) == {"mismatch": 1.0}
    assert pair([complex(NAN, 1)], [complex(1, 2)], np.complex64).changed == 1


@pytest.mark.parametrize(
    ("dtype", "a", "b", "error"),
    [
        (np.int64, (1 << 62) + 1, 1 << 62, 1.0),  # float64 holds neither apart
        (np.int64, -(1 << 63), (1 << 63) - 1, 2.0**64),
        (np.uint64, 0, (1 << 64) - 1, 2.0**64),
        (np.int8, -128, 127, 255.0),
        (np.uint8, 0, 255, 255.0),
        (ml_dtypes.int4, -8, 7, 15.0),
        (np.bool_, False, True, 1.0),
    ],
)
def test_differences_of_integers_never_wrap_around(
    dtype: Any, a: int, b: int, error: float
) -> None:
    for p in (pair([a, a], [b, a], dtype), pair([b, a], [a, a], dtype)):
        assert p.error == error and p.changed == 1
        assert p.compute_metric(["mismatch"]) == {"mismatch": 0.5}


def test_two_doubles_may_be_infinitely_far_apart() -> None:
    p = pair([1e308, 1], [-1e308, 2], np.float64)
    worst = find_worst(p)
    assert p.error == INF and worst and worst.index == (0,)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, np.int64])
def test_values_come_back_as_pythons_own(dtype: Any) -> None:
    worst = find_worst(pair([3], [-2], dtype))
    assert worst == Worst((0,), 3, -2) and type(worst.reference) is int
    assert find_worst(pair(["a"], ["b"], object)) == Worst((0,), "a", "b")
    assert find_worst(pair([True], [False], bool)) == Worst((0,), True, False)


def test_strings_and_booleans_have_a_mismatch_and_no_other_metric() -> None:
    found = pair(["a", "b"], ["a", "c"], object).compute_metric(["mismatch", "max_abs", "cosine"])
    assert found["mismatch"] == 0.5 and math.isnan(found["max_abs"]) and math.isnan(found["cosine"])


def test_nothing_to_compare_has_no_metrics() -> None:
    assert all(
        math.isnan(v)
        for v in pair([], []).compute_metric(["mismatch", "max_abs", "max_rel", "rmse"]).values()
    )
    masked = pair([NAN, 1], [NAN, NAN]).compute_metric(["mismatch", "max_abs", "ulp", "kl"])
    assert masked.pop("mismatch") == 0.5 and all(math.isnan(v) for v in masked.values())


def test_metrics_see_only_what_is_finite_in_both() -> None:
    p = pair([1, NAN, INF, 2], [1, 5, 7, 4])
    assert p.compute_metric(["max_abs", "max_rel"]) == {"max_abs": 2.0, "max_rel": 1.0}
    assert p.compute_metric(["mismatch"]) == {"mismatch": 0.75}, "but a NaN is a difference"


def test_infinities_of_either_sign_are_one_changed_element() -> None:
    p = pair([INF], [-INF])
    assert (
        count_infinite_only(p) == (1, 1)
        and p.changed == 1
        and p.compute_metric(["mismatch"]) == {"mismatch": 1.0}
    )


def test_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(UnknownName) as e:
        pair([1], [1]).compute_metric(["max_ab"])
    assert e.value.nearest[0] == "max_abs"


def test_any_layout_in_memory_will_do() -> None:
    whole = np.arange(12, dtype=">f4").reshape(3, 4)
    assert Pair(whole.T, np.ascontiguousarray(whole.T).astype("<f4")).changed == 0


def test_only_tensors_of_one_shape_and_type_are_comparable() -> None:
    ones = np.ones((2, 3), np.float32)
    found = pair_if_comparable(ones, ones * 3)
    assert found and (found.error, compute_relative_error(found)) == (2.0, 2.0)
    for other in (None, [ones], ones.reshape(3, 2), ones.astype(np.float64)):
        assert pair_if_comparable(ones, other) is None and pair_if_comparable(other, ones) is None


def test_differences_are_zero_where_both_are_the_same_mask() -> None:
    a = np.array([NAN, INF, 1, NAN, 2], np.float16)
    b = np.array([NAN, INF, 3, 0, -INF])
    assert np.array_equal(compute_differences(a, b), [0, 0, 2, NAN, -INF], equal_nan=True)
    assert np.array_equal(
        compute_differences(np.array([[1, 2], [3, 4]]), np.array([1, 2])), [[0, 0], [-2, -2]]
    )


def test_scaled_differences_are_clipped() -> None:
    a = np.array([NAN, 4, 2, INF, 0], np.float32)
    b = np.array([NAN, 8, NAN, INF, -99])
    assert compute_scaled_differences(a, b, 10.0).tolist() == [0, 1, 10, 0, -10]
    assert compute_scaled_differences(np.zeros(2), np.array([0.5, 0]), 10.0).tolist() == [0.5, 0]
    assert compute_scaled_differences(np.array([2j]), np.array([1 + 2j]), 10.0).tolist() == [0.5, 0]
    found = compute_scaled_differences(np.array(["a", "b"]), np.array(["a", "c"]), 10.0).tolist()
    assert found == [0, 1]


def test_relative_l2_needs_equal_shapes_and_masks() -> None:
    a = np.array([3, 4, NAN])
    assert compute_relative_l2(a, np.array([3, 9, NAN], np.float32)) == 1.0
    for other in (a[:2], np.array([3, 4, 5]), np.array(["3", "4", "5"])):
        assert compute_relative_l2(a, other) == INF
    assert compute_relative_l2(np.zeros(3), np.zeros(3)) == INF
