"""msaccucmp's ten numbers, each written out in plain Python; its CSV's rows; its advice."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from subgraph.comparison.pair import Pair
from subgraph.recordings.msaccucmp import (
    ALGORITHMS,
    COSINE,
    EXEMPT,
    HEAD,
    METRICS,
    REASON,
    AccuracyRow,
    advise,
    beyond,
    cells,
    measure,
    overflows,
)
from subgraph.text import FORMULA
from tests.helpers.examples import examples

NAN, INF = math.nan, math.inf
LAW = settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
MILD = st.floats(-1000, 1000, width=32).map(lambda x: 0.0 if abs(x) < 1e-3 else x)
TWO = st.lists(st.tuples(MILD, MILD), min_size=2, max_size=12)
ANY = st.floats(width=64)


def found(mine: Any, golden: Any, dtype: Any = np.float32) -> dict[str, float | str]:
    return measure(np.array(mine, dtype), np.array(golden, dtype))


# Each formula, element by element, with Python's own floats: x is the device's, y the golden one.
Plain = Sequence[float]


def length(values: Plain) -> float:
    return math.sqrt(math.fsum(v * v for v in values))


def off(x: Plain, y: Plain) -> list[float]:
    return [abs(a - b) for a, b in zip(x, y, strict=True)]


def relative(x: Plain, y: Plain) -> list[float]:
    return [abs(a - b) / abs(b) if b else 0.0 for a, b in zip(x, y, strict=True)]


def cosine(x: Plain, y: Plain) -> float:
    if not length(x) or not length(y):
        return 1.0 if length(x) == length(y) else NAN
    return math.fsum(a * b for a, b in zip(x, y, strict=True)) / length(x) / length(y)


def divergence(x: Plain, y: Plain) -> float:
    def distribution(values: Plain) -> list[float]:
        low, high = min(values), max(values)
        scaled = [max((v - low) / (high - low), 2**-23) if high != low else 1.0 for v in values]
        return [v / math.fsum(scaled) for v in scaled]

    return math.fsum(p * math.log(p / q) for p, q in zip(distribution(x), distribution(y), strict=True))


PLAIN: dict[str, Callable[[Plain, Plain], float]] = {
    "CosineSimilarity": cosine,
    "MaxAbsoluteError": lambda x, y: max(off(x, y)),
    "AccumulatedRelativeError": lambda x, y: math.fsum(relative(x, y)),
    "RelativeEuclideanDistance": lambda x, y: length(off(x, y)) / length(y) if any(y) else 0.0,
    "KullbackLeiblerDivergence": divergence,
    "MeanAbsoluteError": lambda x, y: math.fsum(off(x, y)) / len(x),
    "RootMeanSquareError": lambda x, y: length(off(x, y)) / math.sqrt(len(x)),
    "MaxRelativeError": lambda x, y: max(relative(x, y)),
    "MeanRelativeError": lambda x, y: math.fsum(relative(x, y)) / len(x),
}


@pytest.mark.parametrize("name", PLAIN)
@LAW
@given(TWO)
@example([(0.0, 0.0), (0.0, 0.0)])
@example([(1.0, 0.0), (2.0, 0.0)])
@example([(0.0, 1.0), (0.0, 2.0)])
@example([(5.0, 3.0), (5.0, 3.0)])
def test_each_number_is_its_formula(name: str, pairs: list[tuple[float, float]]) -> None:
    x, y = zip(*pairs, strict=True)
    # float32: a sum of 12 quotients of up to 1e6, each less one
    assert found(x, y)[name] == pytest.approx(PLAIN[name](x, y), rel=1e-4, abs=1e-4, nan_ok=True)


@LAW
@given(TWO)
def test_the_deviation_is_a_text_of_both_sides(pairs: list[tuple[float, float]]) -> None:
    x, y = zip(*pairs, strict=True)
    text = found(x, y)["StandardDeviation"]
    assert isinstance(text, str) and text[0] == "(" and text[-1] == ")" and text.count(";") == 2
    for side, values in zip(text[1:-1].split("),("), (x, y), strict=True):
        mean = math.fsum(values) / len(values)
        deviation = length([v - mean for v in values]) / math.sqrt(len(values))
        for printed, value in zip(side.split(";"), (mean, deviation), strict=True):
            assert len(printed.partition(".")[2]) == 3
            assert float(printed) == pytest.approx(value if abs(value) >= 1e-3 else 0.0, abs=1.1e-3)


def test_the_deviation_hides_what_is_small() -> None:
    assert found([9e-4, 9e-4], [1e-3, 1.2e-3])["StandardDeviation"] == "(0.000;0.000),(0.001;0.000)"


@LAW
@given(TWO.filter(lambda pairs: any(a for a, _ in pairs) and any(b for _, b in pairs)))
def test_of_mild_values_our_metrics_say_the_same(pairs: list[tuple[float, float]]) -> None:
    x, y = np.array(pairs, np.float32).T
    ours = Pair(y, x).metrics([*METRICS, "max_abs", "mean_abs"])
    theirs = measure(x, y)
    names = {**METRICS, "max_abs": "MaxAbsoluteError", "mean_abs": "MeanAbsoluteError"}
    for metric, column in names.items():
        assert theirs[column] == pytest.approx(ours[metric], rel=1e-4, abs=1e-4), metric


@LAW
@given(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=8), st.sampled_from([np.float64, np.float32, np.float16]))
@example([(INF, 1.0)], np.float32)
@example([(1e300, -1e300), (1.0, NAN)], np.float64)
def test_any_two_arrays_have_ten_cells(pairs: list[tuple[float, float]], dtype: Any) -> None:
    """And no warning; and the arrays stay as they are."""
    with np.errstate(all="ignore"):
        x, y = np.array(pairs).T.astype(dtype)
    kept = x.tobytes(), y.tobytes()
    values = measure(x, y)
    assert tuple(values) == (*ALGORITHMS, REASON)
    assert {name for name, v in values.items() if isinstance(v, str)} == {"StandardDeviation", REASON}
    assert kept == (x.tobytes(), y.tobytes())
    shown = values[COSINE]
    assert isinstance(shown, float) and not shown > 1
    assert beyond(values) in (True, False)


def test_both_zero_is_alike_and_one_zero_is_not_defined() -> None:
    assert found([0, 0], [0, 0])[COSINE] == 1.0
    for x, y, side in (([0, 0], [1, 2], "NPUDump"), ([1, 2], [0, 0], "GroundTruth")):
        values = found(x, y)
        assert math.isnan(float(values[COSINE])) and side in str(values[REASON])
    assert found([1, 2], [0, 0])["RelativeEuclideanDistance"] == 0.0
    assert found([1, 2], [0, 0])["MeanRelativeError"] == 0.0


def test_short_vectors_are_zero_only_together() -> None:
    assert found([1e-17, 0], [0, 1e-17])[COSINE] == 1.0
    assert found([1e-17, 0], [0, 1.0])[COSINE] == 0.0
    assert found([1.0, 0], [1e-17, 0])["RelativeEuclideanDistance"] == 0.0


def test_rounding_does_not_lift_a_cosine_over_1() -> None:
    draw = np.random.default_rng(0)
    values = {measure(x, x)[COSINE] for x in draw.standard_normal((50, 100)).astype(np.float32)}
    assert max(map(float, values)) == 1.0 and min(map(float, values)) > 1 - 1e-6


def test_a_golden_value_within_eps_has_no_relative_error() -> None:
    values = found([1.0, 3.0], [2.0**-53, 2.0])
    assert [values[n] for n in ALGORITHMS if "Relative" in n and "Error" in n] == [0.5, 0.5, 0.25]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_scalar_is_alike_whatever_it_is(shape: tuple[int, ...]) -> None:
    values = measure(np.full(shape, 3.0), np.full(shape, -5.0))
    assert (values[COSINE], values[REASON], values["MaxAbsoluteError"]) == (1.0, "This tensor is scalar.", 8.0)


def test_constant_arrays_have_no_divergence() -> None:
    assert found([5, 5, 5], [-2, -2, -2])["KullbackLeiblerDivergence"] == 0.0


def test_it_is_computed_in_float32() -> None:
    """A mask's -3e38 has no square there; a float64's last digits are gone."""
    values = found([-3e38, 1.0], [-3e38, 1.0])
    assert values[COSINE] == values["RelativeEuclideanDistance"] == 0.0 and beyond(values)
    assert math.isnan(float(found([3e38, 1.0], [-3e38, 1.0])["RelativeEuclideanDistance"]))
    assert found([1.0, 2.0], [1.0 + 1e-12, 2.0], np.float64)["MaxAbsoluteError"] == 0.0
    assert found([2**24 + 1, 0], [2**24, 0], np.int64)["MaxAbsoluteError"] == 0.0


def test_a_nan_goes_through() -> None:
    values = found([NAN, 1.0], [1.0, 1.0])
    assert all(math.isnan(float(values[n])) for n in ALGORITHMS if n != "StandardDeviation")
    assert values["StandardDeviation"] == "(nan;nan),(1.000;0.000)"


def test_booleans_have_a_cosine_alone() -> None:
    values = found([True, False], [True, True], bool)
    assert values[COSINE] == pytest.approx(math.sqrt(0.5)) and values[REASON]
    assert all(math.isnan(float(values[n])) for n in ALGORITHMS[1:])
    assert found([True, False], [False, False], bool)["RelativeEuclideanDistance"] == 0.0
    assert measure(np.array([True, False]), np.array([1.0, 0.0]))["MaxAbsoluteError"] == 0.0


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn, np.complex64, np.uint8])
def test_any_numbers_do(dtype: Any) -> None:
    assert found([1, 2, 3], [1, 2, 1], dtype)["MaxAbsoluteError"] == 2.0


@pytest.mark.parametrize(
    ("mine", "golden"), [(np.zeros(3), np.zeros(4)), (np.zeros(0), np.zeros(0)), (np.array(["a"]), np.array(["a"]))]
)
def test_what_cannot_be_compared_says_why(mine: Any, golden: Any) -> None:
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


def test_a_limit_itself_is_not_beyond() -> None:
    assert not beyond(GOOD)
    for name, value in GOOD.items():
        sign = -1 if name == COSINE else 1
        assert beyond({**GOOD, name: float(value) + sign * 2e-6}), name
        assert not beyond({**GOOD, name: float(value) + sign * 4e-7}), "six decimals are all that is known"


def test_nan_is_not_beyond() -> None:
    assert not beyond({})
    assert not any(beyond({**GOOD, name: NAN}) for name in GOOD)
    assert not beyond({**GOOD, COSINE: NAN, "RootMeanSquareError": 100.0})
    assert beyond({**GOOD, "KullbackLeiblerDivergence": NAN, "RootMeanSquareError": INF})


LINE = AccuracyRow(
    4, "Conv2D", "c1", "float16", "conv1", "float32", "c1:output:0", (1, 8), False, found([1, 2], [1, 3])
)


def row(line: AccuracyRow) -> dict[str, str]:
    """DataType and Address occur twice: the last ones stay."""
    return dict(zip(HEAD, cells(line), strict=True))


def test_a_row_has_the_columns_of_the_head() -> None:
    assert len(HEAD) == 25 and HEAD.count("DataType") == HEAD.count("Address") == 2
    assert HEAD[11:21] == ALGORITHMS
    assert cells(LINE)[:11] == "4 Conv2D c1 float16 NaN conv1 float32 NaN c1:output:0 [1,8] NO".split()
    assert cells(LINE)[11:13] == ["0.989949", "1.000000"]
    assert cells(LINE)[21:] == ["", "NO", "NO", "YES"]
    assert row(LINE)["StandardDeviation"] == "(1.500;0.500),(2.000;1.000)"


def test_an_op_of_the_device_alone_has_nan_cells() -> None:
    line = AccuracyRow(5, "TransData", "t", "float16", "*", "NaN", "t:output:0", reason="no golden tensor")
    assert cells(line)[9:21] == ["NaN"] * 12
    assert cells(line)[21:] == ["no golden tensor", "YES", "NO", "NO"]


def test_some_op_types_are_never_an_error() -> None:
    assert row(replace(LINE, is_output=True))["IsOutputNode"] == "YES"
    for op_type in EXEMPT:
        assert row(replace(LINE, op_type=op_type))["IsPrecisionError"] == "NO"


def test_the_reason_is_the_lines_or_the_numbers() -> None:
    values = found([1], [1])
    assert row(replace(LINE, values=values))[REASON] == "This tensor is scalar."
    assert row(replace(LINE, values=values, reason="other"))[REASON] == "other"


@pytest.mark.parametrize("name", ["=1+2", "+a", "-a", "@a", "\t=a", "\r=a", "\x1b=a"])
def test_no_name_starts_a_formula(name: str) -> None:
    line = replace(LINE, op_type=name, mine=name, golden=name, tensor_index=f"{name}:output:0", reason=name)
    shown = cells(line)
    assert not any(cell.startswith(FORMULA) for cell in shown)
    assert sum(cell.startswith("'") for cell in shown) == 5


def test_a_negative_number_stays_a_number() -> None:
    assert row(replace(LINE, values=found([1, 0], [-1, 0])))[COSINE] == "-1.000000"


@LAW
@given(st.text(), st.text(), st.none() | st.lists(st.integers(0, 9)).map(tuple), st.none() | st.booleans(), TWO)
def test_any_row_is_read_back(
    name: str, reason: str, shape: tuple[int, ...] | None, overflow: bool | None, pairs: list[tuple[float, float]]
) -> None:
    values = found(*zip(*pairs, strict=True))
    made = cells(AccuracyRow(0, name, name, name, name, name, name, shape, overflow, values, reason))
    out = io.StringIO()
    csv.writer(out).writerow(made)
    (back,) = csv.reader(io.StringIO(out.getvalue()))
    assert back == made and len(made) == len(HEAD)
    assert not any(cell.startswith(FORMULA) for cell in (*made[:11], made[21]))
    assert [float(v) for v in made[11:16]] == pytest.approx(
        [float(values[n]) for n in ALGORITHMS[:5]], abs=5.1e-7, nan_ok=True
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
        assert overflows(np.array(values, np.float16), "float16") is over, values
    assert not overflows(np.array([1e9]), "float32") and not overflows(np.array([INF]), "bfloat16")


def lines(*cosines: float) -> list[AccuracyRow]:
    """Of a model whose first op is its input."""
    return [
        AccuracyRow(k, "Relu" if k else "Data", f"op{k}", "float16", f"g{k}", "float32", f"op{k}:output:0",
             values={COSINE: cosine}, is_input=not k)
        for k, cosine in enumerate(cosines)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cosines", "kind", "verdict", "index"),
    [
        ((1.0, 0.99, 1.0), "Global Consistency", "OK", None),
        ((1.0, 0.9899999, 1.0), "Global Consistency", "OK", None),
        ((1.0, 0.98, 0.97, 0.5), "Global Consistency", "PROBLEM", 1),
        ((1.0, 0.98, 1.0, 0.5, NAN), "Global Consistency", "PROBLEM", 1),
        ((1.0, 1.0, 0.9, 0.99), "Global Consistency", "DEVIATION", 2),
        ((1.0, 1.0, 0.9, 0.99, NAN), "Global Consistency", "DEVIATION", 2),
        ((0.9, 1.0, 1.0), "Input Inconsistent", "PROBLEM", 0),
        ((NAN, 1.0, 0.5), "Global Consistency", "PROBLEM", 2),
        ((NAN, NAN), "NA", "NA", None),
        ((), "NA", "NA", None),
    ],
)
def test_the_advice(cosines: tuple[float, ...], kind: str, verdict: str, index: int | None) -> None:
    advice = advise(lines(*cosines))
    assert (advice.kind, advice.verdict) == (kind, verdict)
    assert advice.tensor == (None if index is None else f"op{index}:output:0")
    assert advice.says and "\n" not in advice.says


def test_an_overflow_is_told_first() -> None:
    some = lines(0.5, 0.5, NAN)
    some[2] = replace(some[2], overflow=True)
    advice = advise(some)
    assert (advice.kind, advice.verdict, advice.tensor) == ("FP16 Overflow", "PROBLEM", "op2:output:0")
    some[1] = replace(some[1], overflow=False)
    assert advise(some).tensor == "op2:output:0"


def test_a_name_in_the_advice_is_clean() -> None:
    some = [replace(line, mine="a\x1b[31m\n", tensor_index="a\x1b\n:output:0") for line in lines(1.0, 0.5, 0.5)]
    for one in (some, [replace(some[1], is_input=True)], [replace(some[1], overflow=True)]):
        assert not {"\x1b", "\n"} & set(advise(one).says)
