"""Every criterion of the folder keeps the contract; each accepts values up to its own limit, and no
others.

Covers `comparison.criteria.digits`, `comparison.criteria.mnn`, `comparison.criteria.msaccucmp`,
`comparison.criteria.numpy`, `comparison.criteria.threshold` and `comparison.criteria.tnn`.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from subgraph import plugins
from subgraph.comparison.criteria import OutputContext, Ruling, format_beside, settle
from subgraph.comparison.judge import parse_criterion
from subgraph.comparison.pair import Pair
from subgraph.errors import UsageError
from subgraph.verdict import Signature, Status
from tests.helpers.examples import examples
from tests.helpers.facts import has_line

NAMES = plugins.list_names("criteria")
LAW = settings(max_examples=examples(100), deadline=None, database=None, derandomize=True)
NAN = math.nan
INF = math.inf
FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=32)
TYPES = [
    np.float32,
    np.float16,
    np.float64,
    ml_dtypes.bfloat16,
    np.complex64,
    np.int64,
    np.int8,
    ml_dtypes.int4,
    bool,
]


def judged(options: str, reference: Any, candidate: Any, dtype: Any = np.float64) -> Ruling:
    """The ruling of a criterion on two arrays, without noise."""
    pair = Pair(np.array(reference, dtype), np.array(candidate, dtype))
    return parse_criterion(options)(pair, OutputContext("y", noise=None))


def is_accepted(options: str, reference: Any, candidate: Any, dtype: Any = np.float64) -> bool:
    """Does it agree, or else fail? Checks that label, reason and signature are there."""
    ruling = judged(options, reference, candidate, dtype)
    assert ruling.status is not Status.UNRESOLVED
    assert ruling.label and ruling.why and "\n" not in ruling.why
    assert (ruling.signature is None) == (ruling.status is Status.AGREE)
    return ruling.status is Status.AGREE


def does_not_agree(options: str, reference: Any, candidate: Any, dtype: Any = np.float64) -> bool:
    """Does it fail, or stay unresolved without noise?"""
    ruling = judged(options, reference, candidate, dtype)
    return ruling.status is not Status.AGREE and bool(ruling.why)


@pytest.mark.parametrize("name", NAMES)
def test_it_explains_itself(name: str) -> None:
    assert len(plugins.read_help("criteria", name)) > 20
    assert plugins.load("criteria", name).rule.__doc__


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", TYPES)
def test_equal_values_agree(name: str, dtype: Any) -> None:
    for values in ([1, 0, 1], [0, 0], [1]):
        assert is_accepted(name, values, values, dtype)


@pytest.mark.parametrize("name", NAMES)
def test_equal_strings_agree_and_others_do_not(name: str) -> None:
    assert is_accepted(name, ["a", "b"], ["a", "b"], object)
    assert does_not_agree(name, ["a", "b"], ["a", "c"], object)


@pytest.mark.parametrize("name", NAMES)
@LAW
@given(st.lists(FLOATS, min_size=1, max_size=8), st.data())
def test_nan_or_infinity_on_one_side_fails(
    name: str, values: list[float], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(values) - 1))
    odd = data.draw(st.sampled_from([NAN, INF, -INF]))
    other = data.draw(st.sampled_from([v for v in (NAN, INF, -INF, 1.0) if repr(v) != repr(odd)]))
    left = list(values)
    right = list(values)
    left[place], right[place] = odd, other
    for a, b in ((left, right), (right, left)):
        ruling = judged(name, a, b, np.float32)
        assert (ruling.status, ruling.signature) == (Status.FAIL, Signature.NAN)
        assert "NaN" in ruling.why or "nfinit" in ruling.why


@pytest.mark.parametrize("name", NAMES)
@LAW
@given(st.lists(FLOATS, min_size=1, max_size=8))
def test_equal_masks_agree_where_a_number_was_compared(name: str, values: list[float]) -> None:
    ruling = judged(name, values, values, np.float32)
    assert ruling.status is (
        Status.AGREE if np.isfinite(np.array(values)).any() else Status.UNRESOLVED
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool, object])
def test_no_elements_never_agree(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    ruling = judged(name, np.zeros(shape), np.zeros(shape), dtype)
    assert ruling.status is Status.UNRESOLVED and has_line(ruling.why, "nothing")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("values", [[NAN, NAN], [INF, -INF]])
def test_nothing_finite_never_agrees(name: str, values: list[float]) -> None:
    assert judged(name, values, values).status is Status.UNRESOLVED


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, ml_dtypes.int4])
def test_integer_far_off_does_not_agree(name: str, dtype: Any) -> None:
    assert does_not_agree(name, [7, 1, 5], [0, 1, 5], dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool])
def test_integers_and_booleans_are_not_rounded(name: str, dtype: Any) -> None:
    assert does_not_agree(name, [1, 0, 1, 1], [1, 1, 1, 1], dtype)


@pytest.mark.parametrize("name", NAMES)
def test_gross_error_does_not_agree(name: str) -> None:
    values = np.linspace(-3, 3, 50)
    assert does_not_agree(name, values, -values, np.float32)
    assert does_not_agree(name, values, values * 0, np.float32)
    assert does_not_agree(name, values, values[::-1].copy(), np.float32)


@pytest.mark.parametrize("name", NAMES)
@LAW
@given(
    st.lists(
        st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2), min_size=1, max_size=8
    )
)
def test_any_finite_arrays_are_judged(name: str, pairs: list[tuple[float, float]]) -> None:
    assert judged(name, [a for a, _ in pairs], [b for _, b in pairs]).why


@pytest.mark.parametrize("name", NAMES)
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(UsageError) as e:
        parse_criterion(f"{name}:such nonsense as this")
    assert "such nonsense" in e.value.what and name in e.value.hint + e.value.what


# What each limit means, from both sides.


@LAW
@given(
    st.lists(st.tuples(*[st.floats(-1e3, 1e3, width=32)] * 2), min_size=1, max_size=6),
    st.sampled_from([0.0, 1e-3, 0.5]),
    st.sampled_from([0.0, 1e-5, 2.0]),
)
def test_numpy_is_allclose(pairs: list[tuple[float, float]], rtol: float, atol: float) -> None:
    a, b = np.array(pairs).T
    assert is_accepted(f"numpy:rtol={rtol},atol={atol}", a, b) == np.allclose(
        b, a, rtol=rtol, atol=atol
    )


def test_numpy_names_the_element_furthest_beyond_its_limit() -> None:
    ruling = judged("numpy", [1.0, 100.0, 0.0], [1.0021, 100.05, 2e-5])
    assert has_line(ruling.why, "2 of 3", "1e-05", "1e-03", "2.1e-03", "1.0")
    why = judged("numpy", [100.0, 0.0], [100.2, 0.19]).why
    assert has_line(why, "1.9e-01", "1.0e-05"), "furthest beyond, not off"
    assert is_accepted("numpy:rtol=0,atol=inf", [1.0], [9.0])


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("numpy", "rtol rtol= rtol=x rtol=-1 rtol=nan tol=1 1e-3 rtol=1;atol=2", "atol=1e-5"),
        ("digits", "-1 1.5 x 18 ² 1e3", "from 0 to 17"),
    ],
)
def test_other_options_are_refused_with_an_example(name: str, options: str, hint: str) -> None:
    for option in options.split():
        with pytest.raises(UsageError) as e:
            parse_criterion(f"{name}:{option}")
        assert hint in e.value.hint, option


@pytest.mark.parametrize(
    ("options", "candidate", "agrees"),
    [
        ("max_abs<0.5", 1.25, True),
        ("max_abs<0.25", 1.25, False),
        ("max_abs<=0.25", 1.25, True),
        ("max_abs>0.25", 1.25, False),
        ("max_abs>=0.25", 1.25, True),
        ("max-abs<1", 1.25, True),
        ("threshold:max_abs<1,rmse<1", 1.25, True),
        ("threshold:max_abs<1,rmse<0.1", 1.25, False),
        ("threshold: max_abs < 1 , sqnr > 3 ", 1.25, True),
        ("sqnr>13", 1.25, False),
        ("sqnr>12", 1.25, True),
        ("cosine>=1", 1.25, True),
        ("threshold", 1.0009, True),
        ("threshold", 1.0011, False),
        ("max_abs<inf", 1.25, True),
    ],
)
def test_thresholds_hold_or_not(options: str, candidate: float, agrees: bool) -> None:
    assert is_accepted(options, [1.0, 0.0], [candidate, 0.0]) == agrees


def test_thresholds_name_the_limits_that_do_not_hold() -> None:
    assert judged("max_abs<1e-3,cosine>0.9", [1.0], [1.0213]).why == "max_abs 2.1e-02 >= 1e-03"
    assert judged("max_abs<=1e-3", [1.0], [1.0213]).why == "max_abs 2.1e-02 > 1e-03"
    assert has_line(
        judged("max_abs<1,cosine>0.9", [1.0], [1.0213]).why,
        "max_abs 2.1e-02 < 1",
        "cosine 1.0 > 0.9",
    )
    assert has_line(judged("cosine>0.9", [1.0, 2.0], [0.0, 0.0]).why, "cosine", "> 0.9")


def test_metric_that_is_not_defined_holds_no_limit() -> None:
    for options in ("cosine>-2", "cosine<2", "cosine<=2,max_abs<9"):
        assert not is_accepted(options, [1.0, 2.0], [0.0, 0.0])


@pytest.mark.parametrize(
    "options", ["cosine>", ">1", "cosine>high", "cosine>nan", "cosine=>1", "cosine>1,", "a>1>2"]
)
def test_thresholds_refuse_other_options(options: str) -> None:
    with pytest.raises(UsageError):
        parse_criterion(options)
    with pytest.raises(UsageError):
        parse_criterion(f"threshold:{options}")


def test_class_must_be_equal_unless_limited() -> None:
    """The cosine of any two positive numbers is 1."""
    assert not is_accepted("cosine>0.999", [284], [285], np.int64)
    assert not is_accepted("max_abs<1e-3,cosine>0.99", [284], [285], np.int64)
    assert is_accepted("max_abs<=1", [284], [285], np.int64)
    assert is_accepted("mismatch<0.5", [True, False, True], [True, True, True], bool)
    assert not is_accepted("max_abs<0.5", ["a"], ["b"], object) and is_accepted(
        "max_abs<=1", ["a"], ["b"], object
    )
    assert not is_accepted("cosine>0.9", [True, True], [True, False], bool)


@pytest.mark.parametrize(
    ("name", "reference", "candidate", "agrees"),
    [
        # tnn needs both limits broken
        ("tnn", [1.0], [1.0100], True),  # 0.01 / 2.01 < 0.005
        ("tnn", [1.0], [1.0102], False),
        ("tnn", [0.01], [0.0109], True),  # far off relatively, yet by less than 1e-3
        ("tnn", [0.01], [0.0111], False),
        ("tnn", [0.0], [0.0], True),
        ("tnn", [0.0], [0.002], False),
        ("tnn", [1.0, 1.0], [-1.0, 1.0], False),
        ("tnn", [1.7e308], [-1.7e308], False),
        ("tnn", [1.7e308], [1.6e308], False),
        # mnn is relative to the largest
        ("mnn", [100.0, 0.0], [99.0, 0.0], True),
        ("mnn", [100.0, 0.0], [100.0, 1.01], False),
        ("mnn", [1e-9], [1.0009e-6], True),  # the scale counts as 1e-4 at least
        ("mnn", [1e-9], [1.1e-6], False),
    ],
)
def test_tnn_and_mnn_have_the_limits_of_their_tools(
    name: str, reference: list[float], candidate: list[float], agrees: bool
) -> None:
    assert is_accepted(name, reference, candidate) == agrees


@pytest.mark.parametrize(
    ("dtype", "by_one"), [(np.int8, True), (np.int32, True), (np.int64, False), (np.uint8, False)]
)
def test_tnn_lets_quantized_values_be_off_by_one(dtype: Any, by_one: bool) -> None:
    assert is_accepted("tnn", [100, 5], [101, 5], dtype) == by_one
    assert not is_accepted("tnn", [100, 5], [102, 5], dtype)


def test_tnn_names_its_numbers() -> None:
    why = judged("tnn", [1.0, 2.0, 3.0], [1.0, 2.1, 3.5]).why
    assert has_line(why, "2 of 3", "0.005", "7.7e-02", "0.50 > 1e-03")


@pytest.mark.parametrize(
    ("options", "candidate", "agrees"),
    [
        ("digits", 1.000009, True),
        ("digits", 1.000011, False),
        ("digits:2", 1.009, True),
        ("digits:2", 1.011, False),
        ("digits:0", 1.9, True),
        ("digits:0", 2.0, False),
    ],
)
def test_digits_are_behind_the_point(options: str, candidate: float, agrees: bool) -> None:
    assert is_accepted(options, [1.0], [candidate]) == agrees
    assert is_accepted(options, [1.0 - candidate], [0.0]) == agrees


def test_digits_do_not_depend_on_where_rounding_would_cut() -> None:
    assert is_accepted("digits:3", [0.4999999], [0.5000001])


def test_each_threshold_of_msaccucmp() -> None:
    ramp = np.linspace(1, 2, 101)
    assert is_accepted("msaccucmp", ramp, ramp * 1.001)
    assert "rel_l2" in judged("msaccucmp", ramp, ramp * 1.06).why
    assert "cosine" in judged("msaccucmp", ramp, ramp * np.where(np.arange(101) % 2, 0.8, 1.2)).why
    assert "rmse" in judged("msaccucmp", ramp * 1e3, ramp * 1e3 + 1.1).why
    assert "kl" in judged("msaccucmp", [0, 0.1, 1], [0.2, 0.1, 1.0]).why
    tiny = np.array([1e-9, 1.0, 1.0])
    assert judged("msaccucmp", tiny, [1.1e-8, 1.0, 1.0]).why == "mean_rel 3.3 > 1"


def test_msaccucmp_at_zero() -> None:
    assert is_accepted("msaccucmp", [0.0, 0.0], [1e-20, 1e-20])
    assert has_line(judged("msaccucmp", [0.0, 0.0], [0.1, 0.1]).why, "cosine", "defined")
    assert has_line(judged("msaccucmp", [0.1, 0.1], [0.0, 0.0]).why, "cosine", "defined")
    assert "cosine" not in judged("msaccucmp", [0.1], [0.0]).why, "one element has no direction"


def test_settled_without_a_rule() -> None:
    integers = Pair(np.array([1, 2]), np.array([1, 3]))
    assert settle(integers) and settle(integers, exact=False) is None
    assert settle(Pair(np.array([1.0]), np.array([2.0]))) is None
    masked = settle(Pair(np.array([NAN, 1, INF, INF]), np.array([1, NAN, -INF, INF])), exact=False)
    assert masked and masked.signature is Signature.NAN
    assert has_line(
        masked.why,
        "NaN: 1",
        "candidate",
        "1",
        "reference",
        "infinite: 1",
        *"candidate 1 reference 4".split(),
    )


@LAW
@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_number_is_shown_on_its_side_of_the_limit(value: float, limit: float) -> None:
    number = float(format_beside(value, limit))
    assert (number < limit, number > limit) == (value < limit, value > limit)
