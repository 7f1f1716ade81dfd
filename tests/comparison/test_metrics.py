"""Every metric of the folder keeps the contract, and equals its formula written out in plain
Python."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from subgraph import plugins
from subgraph.comparison.metrics import compute_norm
from subgraph.comparison.pair import Pair
from tests.helpers.examples import examples

NAMES = plugins.list_names("metrics")
METRICS = {name: plugins.load("metrics", name) for name in NAMES}
LAW = settings(max_examples=examples(120), deadline=None, database=None, derandomize=True)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
MILD = st.floats(-1e6, 1e6, width=32).map(lambda x: 0.0 if abs(x) < 1e-6 else x)
TWO_FINITE = st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=12)
TWO_MILD = st.lists(st.tuples(MILD, MILD), min_size=1, max_size=12)


def measured(name: str, reference: Any, candidate: Any) -> float:
    """As `Pair` calls a metric: float64, numpy's warnings off."""
    a = np.asarray(reference, np.float64)
    b = np.asarray(candidate, np.float64)
    with np.errstate(all="ignore"):
        return float(METRICS[name].measure(a, b))


def test_the_metrics_that_people_ask_for_are_there() -> None:
    assert {*"max_abs max_rel mean_abs rmse rel_l2 cosine sqnr kl ulp mismatch".split()} <= set(
        NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_explains_itself(name: str) -> None:
    assert len(plugins.read_help("metrics", name)) > 20
    text = METRICS[name].measure.__doc__ or ""
    # its formula, and what NaN means
    assert any(sign in text for sign in "|Σ≠") and ("NaN" in text)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NAMES)
@LAW
@given(st.lists(FINITE, min_size=1, max_size=12))
def test_equal_arrays_give_the_ideal(name: str, values: list[float]) -> None:
    ideal = getattr(METRICS[name], "IDEAL", 0.0)
    assert measured(name, values, values) == pytest.approx(ideal, abs=1e-15)
    pair = Pair(np.array(values), np.array(values))
    assert pair.compute_metric([name]) == {name: pytest.approx(ideal, abs=1e-15)}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NAMES)
@LAW
@given(TWO_FINITE)
@example([(1.7e308, -1.7e308), (-1.7e308, 1.7e308)])
@example([(5e-324, -5e-324), (0.0, 5e-324)])
@example([(0.0, 5e-324)])
def test_any_finite_arrays_have_a_number(name: str, pairs: list[tuple[float, float]]) -> None:
    """Where NaN is allowed is checked below, on mild numbers."""
    a, b = np.array(pairs).T
    kept = a.copy(), b.copy()
    assert isinstance(measured(name, a, b), float)
    assert (kept[0] == a).all() and (kept[1] == b).all(), "its arguments are not its own"


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NAMES)
@LAW
@given(TWO_MILD)
def test_nan_only_where_it_is_documented(name: str, pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    value = measured(name, a, b)
    if name == "cosine":
        assert math.isnan(value) == (a.any() != b.any())
    elif math.isnan(value):
        pytest.fail(f"{name} of {a} and {b}")


@pytest.mark.parametrize(
    "name", [name for name in NAMES if getattr(METRICS[name], "SYMMETRIC", False)]
)
@LAW
@given(TWO_FINITE)
def test_metrics_declared_symmetric_are(name: str, pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs).T
    assert measured(name, a, b) == pytest.approx(measured(name, b, a), rel=1e-12, nan_ok=True)


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NAMES)
@LAW
@given(TWO_MILD)
def test_of_pair_equals_measure(name: str, pairs: list[tuple[float, float]]) -> None:
    """For float64, except that the unit of `ulp` depends on the type."""
    a, b = np.array(pairs).T
    if name == "ulp":  # zero has the smallest unit of its type
        a[a == 0] = 1.0
    (found,) = Pair(a, b).compute_metric([name]).values()
    factor = 2.0**29 if name == "ulp" else 1
    assert found == pytest.approx(measured(name, a, b) * factor, nan_ok=True)


# Each formula, element by element, with Python's own floats.
Plain = Sequence[float]


def plain_kl(reference: Plain, candidate: Plain) -> float:
    def distribution(values: Plain) -> list[float]:
        low = min(values)
        high = max(values)
        scaled = [max((x - low) / (high - low) if high != low else 1.0, 2**-23) for x in values]
        return [x / math.fsum(scaled) for x in scaled]

    p = distribution(candidate)
    q = distribution(reference)
    return max(0.0, math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True)))


def plain_ulp(reference: Plain, candidate: Plain) -> float:
    def unit(x: float) -> float:
        """The step from |x|, truncated to a float32, to the next one; from its bits."""
        bits: int = struct.unpack("<I", struct.pack("<f", abs(x)))[0]
        (down,), (up,) = (struct.unpack("<f", struct.pack("<I", b)) for b in (bits, bits + 1))
        return float(up - down)

    return max(abs(c - r) / unit(r) for r, c in zip(reference, candidate, strict=True))


def each(reference: Plain, candidate: Plain) -> list[float]:
    return [abs(c - r) for r, c in zip(reference, candidate, strict=True)]


def length(values: Plain) -> float:
    return math.sqrt(math.fsum(x * x for x in values))


PLAIN: dict[str, Callable[[Plain, Plain], float]] = {
    "max_abs": lambda r, c: max(each(r, c)),
    "max_rel": lambda r, c: max(each(r, c)) / max(map(abs, r)),
    "mean_abs": lambda r, c: math.fsum(each(r, c)) / len(r),
    "mean_rel": lambda r, c: (
        math.fsum(abs(y / x - 1) for x, y in zip(r, c, strict=True) if x) / len(r)
    ),
    "rmse": lambda r, c: length(each(r, c)) / math.sqrt(len(r)),
    "rel_l2": lambda r, c: length(each(r, c)) / length(r),
    "cosine": lambda r, c: (
        math.fsum(x * y for x, y in zip(r, c, strict=True)) / length(r) / length(c)
    ),
    "sqnr": lambda r, c: 10 * math.log10(length(r) ** 2 / length(each(r, c)) ** 2),
    "kl": plain_kl,
    "ulp": plain_ulp,
    "mismatch": lambda r, c: sum(x != y for x, y in zip(r, c, strict=True)) / len(r),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", PLAIN)
@LAW
@given(TWO_MILD)
@example([(1.0, 1.5), (-2.0, -2.0), (0.0, 3.0)])
@example([(3.0, 3.0), (3.0, 4.0)])
def test_it_is_its_formula(name: str, pairs: list[tuple[float, float]]) -> None:
    r, c = [list(v) for v in zip(*pairs, strict=True)]
    if not any(r) or not any(c) or r == c:
        return  # corner cases have tests of their own
    assert measured(name, r, c) == pytest.approx(PLAIN[name](r, c), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "reference", "candidate", "value"),
    [
        ("max_abs", [1, 2], [1, 5], 3),
        ("max_abs", [1.7e308], [-1.7e308], math.inf),
        ("max_rel", [1, -4], [1, -2], 0.5),
        ("max_rel", [0, 0], [0, 1e-30], math.inf),
        ("mean_abs", [0, 0], [1, -2], 1.5),
        ("mean_rel", [2, 0], [3, 9], 0.25),
        ("mean_rel", [2**-53, 1], [5, 1], 0),  # below float64's eps is zero
        ("rmse", [0, 0], [3, 4], 12.5**0.5),
        ("rmse", [0, 0], [3e200, 4e200], 12.5**0.5 * 1e200),
        ("rel_l2", [3, 4], [3, 5], 0.2),
        ("rel_l2", [0, 0], [0, 1], math.inf),
        ("cosine", [1, 0], [0, 1], 0),
        ("cosine", [1, 2], [-2, -4], -1),
        ("cosine", [1e-200, 0], [1e-200, 1e-200], 0.5**0.5),
        ("cosine", [0, 0], [0, 1], math.nan),
        ("cosine", [0, 1], [0, 0], math.nan),
        ("sqnr", [10, 0], [11, 0], 20),
        ("sqnr", [0, 0], [1, 0], -math.inf),
        ("kl", [-1, 0, 1], [5, 8, 11], 0),  # blind to factor and offset
        ("kl", [7, 7], [-3, -3], 0),
        ("kl", [1, 1], [0, 1], math.log(2)),  # (0, 1) against (½, ½), but for the floor
        ("kl", [-1.7e308, 1.7e308], [0, 1], 0),
        ("ulp", [1.0], [1 + 2**-23], 1),
        # the unit is the reference's, the step below it is half as wide
        ("ulp", [2.0], [2 - 2**-23], 0.5),
        ("ulp", [0.0], [2**-149], 1),
        ("ulp", [2**-149], [2**-148], 1),
        ("mismatch", [0.0, 1, 2, 3], [-0.0, 1, 2, 4], 0.25),
    ],
)
def test_corners(name: str, reference: list[float], candidate: list[float], value: float) -> None:
    assert measured(name, reference, candidate) == pytest.approx(value, abs=1e-5, nan_ok=True)


TYPES = [
    np.float16,
    np.float32,
    np.float64,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("start", [1.0, 1.5, 0.25, 0.0])
def test_last_bit_is_one_ulp_in_every_type(dtype: Any, start: float) -> None:
    one = np.array([1.0, start], dtype)
    bits = one.view(f"u{one.dtype.itemsize}").copy()
    bits[1] += 1
    assert Pair(one, bits.view(one.dtype)).compute_metric(["ulp"]) == {"ulp": 1.0}


def test_ulp_of_integers_is_one() -> None:
    assert Pair(np.array([1, 9]), np.array([1, 2])).compute_metric(["ulp"]) == {"ulp": 7.0}


def test_ulp_of_complex_numbers_is_that_of_their_parts() -> None:
    one = np.array([1 + 1j], np.complex64)
    assert Pair(one, one + np.complex64(2**-22 * 1j)).compute_metric(["ulp"]) == {"ulp": 2.0}


@LAW
@given(st.lists(FINITE, max_size=12))
@example([1e300, 1e300])
@example([1e-300, 1e-300])
def test_the_norm_does_not_overflow_or_underflow(values: list[float]) -> None:
    assert compute_norm(np.array(values)) == pytest.approx(math.hypot(*values), rel=1e-12, abs=0)
