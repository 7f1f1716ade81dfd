"""msaccucmp's ten numbers; its CSV's rows."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from subgraph.recordings.msaccucmp import (
    ALGORITHMS,
    COSINE,
    EXEMPT,
    HEAD,
    REASON,
    AccuracyRow,
    format_cells,
    has_overflow,
    is_precision_error,
    measure,
)
from subgraph.text import FORMULA
from tests.helpers.examples import examples
from tests.helpers.facts import has_line

NAN = math.nan
INF = math.inf
LAW = settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
MILD = st.floats(-1000, 1000, width=32)
ANY = st.floats(width=64)
TWO = st.lists(st.tuples(MILD, MILD), min_size=2, max_size=12)


def found(mine: Any, golden: Any, dtype: Any = np.float32) -> dict[str, float | str]:
    return measure(np.array(mine, dtype), np.array(golden, dtype))


def test_the_ten_numbers() -> None:
    assert found([1.0, 3.0, 0.0, 4.0], [2.0, 3.0, 0.0, 2.0]) == {
        "CosineSimilarity": pytest.approx(19 / math.sqrt(26 * 17)),
        "MaxAbsoluteError": 2.0,
        "AccumulatedRelativeError": 1.5,
        "RelativeEuclideanDistance": pytest.approx(math.sqrt(5 / 17)),
        "KullbackLeiblerDivergence": pytest.approx(0.1264, abs=1e-4),
        "StandardDeviation": "(2.000;1.581),(1.750;1.090)",
        "MeanAbsoluteError": 0.75,
        "RootMeanSquareError": pytest.approx(math.sqrt(5 / 4)),
        "MaxRelativeError": 1.0,
        "MeanRelativeError": 0.375,
        REASON: "",
    }


def test_the_deviation_hides_what_is_small() -> None:
    assert found([9e-4, 9e-4], [1e-3, 1.2e-3])["StandardDeviation"] == "(0.000;0.000),(0.001;0.000)"


@LAW
@given(
    st.lists(st.tuples(ANY, ANY), min_size=1, max_size=8),
    st.sampled_from([np.float64, np.float32, np.float16]),
)
@example([(INF, 1.0)], np.float32)
@example([(1e300, -1e300), (1.0, NAN)], np.float64)
def test_any_two_arrays_have_ten_cells(pairs: list[tuple[float, float]], dtype: Any) -> None:
    """And no warning; and the arrays stay as they are."""
    with np.errstate(all="ignore"):
        x, y = np.array(pairs).T.astype(dtype)
    kept = x.tobytes(), y.tobytes()
    values = measure(x, y)
    assert tuple(values) == (*ALGORITHMS, REASON)
    assert kept == (x.tobytes(), y.tobytes())
    shown = values[COSINE]
    assert isinstance(shown, float) and not shown > 1
    assert is_precision_error(values) in (True, False)


def test_zeros_are_as_in_msaccucmp() -> None:
    assert found([0, 0], [0, 0])[COSINE] == 1.0
    assert math.isnan(float(found([0, 0], [1, 2])[COSINE])) and math.isnan(
        float(found([1, 2], [0, 0])[COSINE])
    )
    assert found([1, 2], [0, 0])["RelativeEuclideanDistance"] == 0.0
    assert found([1, 2], [0, 0])["MeanRelativeError"] == 0.0


def test_scalar_is_alike_whatever_it_is() -> None:
    values = measure(np.full((1, 1), 3.0), np.full((1, 1), -5.0))
    assert (values[COSINE], values["MaxAbsoluteError"]) == (1.0, 8.0)


def test_both_sides_are_cast_to_float32() -> None:
    assert found([1.0, 2.0], [1.0 + 1e-12, 2.0], np.float64)["MaxAbsoluteError"] == 0.0
    assert found([2**24 + 1, 0], [2**24, 0], np.int64)["MaxAbsoluteError"] == 0.0


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn, np.complex64, np.uint8]
)
def test_any_numbers_do(dtype: Any) -> None:
    assert found([1, 2, 3], [1, 2, 1], dtype)["MaxAbsoluteError"] == 2.0
    assert found([True, False], [True, True], bool)["MaxAbsoluteError"] == 1.0


@pytest.mark.parametrize(
    ("mine", "golden"),
    [
        (np.zeros(3), np.zeros(4)),
        (np.zeros(0), np.zeros(0)),
        (np.array(["a"]), np.array(["a"])),
        (np.array([NAN, 1.0]), np.ones(2)),
        (np.array([NAN]), np.array([NAN])),
    ],
)
def test_incomparable_tensor_has_a_reason(mine: Any, golden: Any) -> None:
    values = measure(mine, golden)
    assert values[REASON] and all(math.isnan(float(values[n])) for n in ALGORITHMS)


def test_the_shapes_may_differ_where_the_sizes_do_not() -> None:
    assert measure(np.arange(6).reshape(2, 3), np.arange(6))["MaxAbsoluteError"] == 0.0


GOOD: dict[str, float | str] = {
    "CosineSimilarity": 0.99,
    "RelativeEuclideanDistance": 0.05,
    "KullbackLeiblerDivergence": 0.005,
    "RootMeanSquareError": 1.0,
    "MeanRelativeError": 1.0,
}


def test_limit_itself_is_not_beyond() -> None:
    assert not is_precision_error(GOOD)
    for name, value in GOOD.items():
        sign = -1 if name == COSINE else 1
        assert is_precision_error({**GOOD, name: float(value) + sign * 2e-6}), name
        # six decimals are all that is known
        assert not is_precision_error({**GOOD, name: float(value) + sign * 4e-7})


def test_nan_is_not_beyond() -> None:
    assert not is_precision_error({})
    assert not any(is_precision_error({**GOOD, name: NAN}) for name in GOOD)
    assert not is_precision_error({**GOOD, COSINE: NAN, "RootMeanSquareError": 100.0})
    assert is_precision_error(
        {**GOOD, "KullbackLeiblerDivergence": NAN, "RootMeanSquareError": INF}
    )


LINE = AccuracyRow(
    4,
    "Conv2D",
    "c1",
    "float16",
    "conv1",
    "float32",
    "c1:output:0",
    (1, 8),
    False,
    found([1, 2], [1, 3]),
)


def row(line: AccuracyRow) -> dict[str, str]:
    """DataType and Address occur twice: the last ones stay."""
    return dict(zip(HEAD, format_cells(line), strict=True))


def test_row_has_the_columns_of_the_head() -> None:
    assert len(HEAD) == 25 and HEAD.count("DataType") == HEAD.count("Address") == 2
    assert HEAD[11:21] == ALGORITHMS
    found = format_cells(LINE)
    assert found[:11] == "4 Conv2D c1 float16 NaN conv1 float32 NaN c1:output:0 [1,8] NO".split()
    assert format_cells(LINE)[11:13] == ["0.989949", "1.000000"]
    assert format_cells(LINE)[21:] == ["", "NO", "NO", "YES"]
    assert row(LINE)["StandardDeviation"] == "(1.500;0.500),(2.000;1.000)"


def test_op_of_the_device_alone_has_nan_cells() -> None:
    line = AccuracyRow(
        5, "TransData", "t", "float16", "*", "NaN", "t:output:0", reason="no golden tensor"
    )
    assert format_cells(line)[9:21] == ["NaN"] * 12
    reason, *flags = format_cells(line)[21:]
    assert has_line(reason, "no golden")
    assert flags == ["YES", "NO", "NO"]


def test_some_op_types_are_never_an_error() -> None:
    assert row(replace(LINE, is_output=True))["IsOutputNode"] == "YES"
    for op_type in EXEMPT:
        assert row(replace(LINE, op_type=op_type))["IsPrecisionError"] == "NO"


def test_the_reason_is_the_lines_or_the_numbers() -> None:
    values = found([NAN], [1])
    assert "NaN" in row(replace(LINE, values=values))[REASON]
    assert row(replace(LINE, values=values, reason="other"))[REASON] == "other"


@pytest.mark.parametrize("name", ["=1+2", "+a", "-a", "@a", "\t=a", "\r=a", "\x1b=a"])
def test_no_name_starts_a_formula(name: str) -> None:
    line = replace(
        LINE, op_type=name, mine=name, golden=name, tensor_index=f"{name}:output:0", reason=name
    )
    shown = format_cells(line)
    assert not any(cell.startswith(FORMULA) for cell in shown)
    assert sum(cell.startswith("'") for cell in shown) == 5


def test_negative_number_stays_a_number() -> None:
    assert row(replace(LINE, values=found([1, 0], [-1, 0])))[COSINE] == "-1.000000"


@pytest.mark.slow
@LAW
@given(
    st.text(),
    st.text(),
    st.none() | st.lists(st.integers(0, 9)).map(tuple),
    st.none() | st.booleans(),
    TWO,
)
def test_any_row_is_read_back(
    name: str,
    reason: str,
    shape: tuple[int, ...] | None,
    overflow: bool | None,
    pairs: list[tuple[float, float]],
) -> None:
    values = found(*zip(*pairs, strict=True))
    made = format_cells(
        AccuracyRow(0, name, name, name, name, name, name, shape, overflow, values, reason)
    )
    out = io.StringIO()
    csv.writer(out).writerow(made)
    (back,) = csv.reader(io.StringIO(out.getvalue()))
    assert back == made and len(made) == len(HEAD)
    assert not any(cell.startswith(FORMULA) for cell in (*made[:11], made[21]))
    assert [float(v) for v in made[11:16]] == pytest.approx(
        [float(values[n]) for n in ALGORITHMS[:5]], rel=1e-15, abs=5.1e-7, nan_ok=True
    )


def test_float16_overflows_at_its_largest_number() -> None:
    for values, over in (
        ([65504.0, 1.0], True),
        ([-65504.0], True),
        ([INF], True),
        ([-INF, 0.0], True),
        ([65472.0], False),
        ([5e-8], False),
        ([], False),
        ([NAN, 1.0], False),
        ([NAN, INF], False),
    ):
        assert has_overflow(np.array(values, np.float16), "float16") is over, values
    assert not has_overflow(np.array([1e9]), "float32") and not has_overflow(
        np.array([INF]), "bfloat16"
    )
