"""One judgement of one output: values that cannot be compared are settled before the rule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from subgraph.comparison.criteria import OutputContext, Ruling
from subgraph.comparison.judge import DEFAULT_METRICS, judge, judge_missing, parse_criterion
from subgraph.comparison.pair import Pair
from subgraph.documents import to_json
from subgraph.errors import UsageError
from subgraph.precision import Precision
from subgraph.verdict import NOTHING, Judgement, Signature, Status, Verdict, Worst, join_judgements
from tests.helpers.budget import within
from tests.helpers.facts import has_line
from tests.helpers.refusals import raises

NAN = math.nan
RULE = parse_criterion("threshold")
ONE = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
Y = OutputContext("y")


def never(pair: Pair, context: OutputContext) -> Ruling:
    """A rule that must not be called."""
    raise AssertionError(context.name)


def yes(pair: Pair, context: OutputContext) -> Ruling:
    """A rule that agrees with everything."""
    return Ruling(Status.AGREE)


def test_equal_values_agree() -> None:
    found = judge(ONE, ONE, RULE, Y, sample="cat")
    assert found == Judgement(
        "y",
        Status.AGREE,
        None,
        "agrees",
        "max_rel 0.0 <= 1e-03",
        {"max_abs": 0.0, "max_rel": 0.0, "cosine": 1.0, "mismatch": 0.0},
        None,
        None,
        "cat",
    )


def test_failure_is_measured_and_its_worst_element_named() -> None:
    other = ONE.copy()
    other[1, 0] = 5
    found = judge(ONE, other, RULE, Y)
    assert (found.status, found.signature, found.label) == (Status.FAIL, Signature.MISMATCH, "fail")
    assert found.worst == Worst((1, 0), 3.0, 5.0)
    cosine = pytest.approx(36 / (30 * 46) ** 0.5)
    assert found.errors == {"max_abs": 2.0, "max_rel": 0.5, "cosine": cosine, "mismatch": 0.25}
    assert found.why == "max_rel 0.50 > 1e-03" and to_json(found)["worst"]["index"] == [1, 0]


def test_the_rule_gets_claim_and_noise_and_its_ruling_is_kept() -> None:
    noise: Any = object()

    def rule(pair: Pair, context: OutputContext) -> Ruling:
        assert context == OutputContext("y", Precision.BF16, noise)
        return Ruling(Status.AGREE, "range", "because", noise=0.5, metrics={"r": 3.0})

    found = judge(ONE, ONE, rule, OutputContext("y", Precision.BF16, noise), metrics=("rmse",))
    assert (found.label, found.why, found.noise, found.errors) == (
        "range",
        "because",
        0.5,
        {"rmse": 0.0, "r": 3.0},
    )


@pytest.mark.parametrize(
    ("reference", "candidate", "why"),
    [
        (ONE, ONE[:1], ("1×2", "2×2")),
        (ONE, ONE.reshape(4), ("4", "2×2")),
        (ONE, ONE.reshape(1, 2, 2), ("1×2×2", "2×2")),
        (ONE[0, :1], ONE[:1, :1], ("1×1", "1")),
        (np.zeros((0, 2)), np.zeros((2, 0)), ("2×0", "0×2")),
        (np.array([1]), np.array([1], np.int32), ("int32", "int64")),
        (ONE, ONE.astype(np.float16), ("float16", "float32")),
        (ONE.astype(ml_dtypes.bfloat16), ONE, ("float32", "bfloat16")),
        (np.array([1], ml_dtypes.int4), np.array([1], np.int8), ("int8", "int4")),
        (np.array(["a"], object), ONE[0, :1], ("float32", "string")),
        (ONE, ONE[:1].astype(int), ("1×2", "2×2", "int64", "float32")),
        (ONE, [ONE], ("sequence", "tensor")),
        ([ONE], ONE, ("tensor", "sequence")),
        (ONE, None, ("empty optional", "tensor")),
        (None, ONE, ("tensor", "empty optional")),
        ([ONE], [ONE, ONE], ("sequence of 2", "1")),
    ],
)
def test_another_kind_shape_or_type_fails_before_the_rule(
    reference: Any, candidate: Any, why: tuple[str, ...]
) -> None:
    found = judge(reference, candidate, never, Y)
    assert (found.status, found.signature) == (Status.FAIL, Signature.SHAPE)
    assert has_line(found.why, *why)
    assert found.errors == {} and found.worst is None


@pytest.mark.parametrize("shapes", [((), (1,)), ((1,), ())])
def test_scalar_is_its_one_value(shapes: tuple[tuple[int, ...], ...]) -> None:
    a, b = (np.full(shape, 3.0, np.float32) for shape in shapes)
    assert judge(a, b, RULE, Y).status is Status.AGREE
    found = judge(a, b + np.float32(1), RULE, Y)
    assert found.worst and len(found.worst.index) == len(shapes[0])


def test_the_order_of_bytes_is_no_type() -> None:
    assert judge(ONE, ONE.astype(">f4"), RULE, Y).status is Status.AGREE
    assert judge(np.array(["a"], object), np.array(["a"]), RULE, Y).status is Status.AGREE


@pytest.mark.parametrize("rule", [yes, RULE])
@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 0), np.float32),
        np.array([NAN, np.inf]),
        None,
        [],
        [np.zeros(0)],
        np.zeros(0, object),
    ],
)
def test_nothing_compared_never_agrees(value: Any, rule: Any) -> None:
    found = judge(value, value, rule, Y)
    assert (found.status, found.signature, found.label) == (Status.UNRESOLVED, None, NOTHING)


def test_nan_in_one_of_them() -> None:
    other = ONE.copy()
    other[0, 1] = NAN
    for a, b in ((ONE, other), (other, ONE)):
        found = judge(a, b, RULE, Y)
        assert (found.status, found.signature) == (Status.FAIL, Signature.NAN)
        assert found.worst and found.worst.index == (0, 1) and found.errors["mismatch"] == 0.25
        assert found.errors["max_abs"] == 0, "of what is finite"


@pytest.mark.parametrize(
    "dtype",
    "float16 float32 bfloat16 float8_e4m3fn float8_e5m2 float4_e2m1fn int4 uint4 int2 int8 uint64"
    " bool".split(),
)
def test_every_type_is_judged(dtype: str) -> None:
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    a = np.array([0, 1, 1, 0]).astype(kind)
    b = np.array([0, 1, 0, 0]).astype(kind)
    assert judge(a, a, RULE, Y).status is Status.AGREE
    found = judge(a, b, RULE, Y)
    assert (
        found.status is Status.FAIL
        and found.worst == Worst((2,), 1, 0)
        and found.errors["mismatch"] == 0.25
    )


def test_the_worst_element_of_a_sequence_decides() -> None:
    found = judge([ONE, ONE, ONE], [ONE, ONE * 2, ONE * 3], RULE, Y, sample="s")
    assert (found.name, found.sample, found.status) == ("y", "s", Status.FAIL)
    assert has_line(found.why, "2 of 3", "max_rel 2.0 > 1e-03") and found.errors["max_rel"] == 2.0
    assert has_line(judge([ONE, ONE], [ONE, ONE], RULE, Y).why, "0 of 2", "max_rel 0.0 <= 1e-03")
    assert has_line(judge([ONE, ONE], [ONE, ONE[0]], RULE, Y).why, "1 of 2", "2", "2×2")
    assert judge([ONE[:0], ONE], [ONE[:0], ONE], RULE, Y).status is Status.AGREE


def test_the_elements_of_a_sequence_have_no_noise() -> None:
    def rule(pair: Pair, context: OutputContext) -> Ruling:
        assert context.noise is None and context.claim == Precision.FP16
        return Ruling(Status.AGREE)

    noise: Any = object()
    found = judge([ONE], [ONE], rule, OutputContext("y", Precision.FP16, noise))
    assert found.status is Status.AGREE


def test_output_that_is_missing() -> None:
    found = judge_missing("y", [f"t{i}\x1b" for i in range(10)], "s")
    assert (found.status, found.signature, found.sample) == (Status.FAIL, Signature.MISSING, "s")
    assert has_line(found.why, "t0, t1, t2, t3, t4, t5, t6, t7", "2 more")
    assert has_line(judge_missing("y", ["a"]).why, "no such", "returned a")
    assert has_line(judge_missing("y", []).why, "no such", "none")


def test_unresolved_output_does_not_speak_for_those_that_agree() -> None:
    empty = judge(ONE[:0], ONE[:0], RULE, OutputContext("a"))
    good = judge(ONE, ONE, RULE, OutputContext("b"))
    bad = judge(ONE, ONE * 2, RULE, OutputContext("c"))
    assert join_judgements([empty, good], every=True) == (Status.AGREE, None, good.why)
    assert join_judgements([empty], every=True)[:2] == (Status.UNRESOLVED, None)
    assert join_judgements([empty, good, bad], every=True) == (
        Status.FAIL,
        Signature.MISMATCH,
        bad.why,
    )
    assert Verdict(Status.AGREE, outputs=(empty, good)).label == "agrees"
    assert Verdict(Status.FAIL, outputs=(empty, bad, good)).worst is bad


@pytest.mark.parametrize(
    ("text", "agrees"),
    [
        ("numpy", False),
        ("numpy:rtol=0.5", True),
        (" numpy:rtol=0.5 ", True),
        ("max_rel<0.5", True),
        ("threshold:max_rel<0.5", True),
        ("digits:0", True),
        ("tnn", False),
    ],
)
def test_criterion_becomes_a_rule(text: str, agrees: bool) -> None:
    assert (
        judge(ONE, ONE * np.float32(1.2), parse_criterion(text), Y).status is Status.AGREE
    ) == agrees


def test_rule_of_ones_own_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "own_rule.py"
    path.write_text(
        '"""Mine."""\nfrom subgraph.comparison.criteria import agree\n\ndef rule(text):\n   '
        ' """Agrees."""\n    return lambda pair, subject: agree(f"words: {text}")\n'
    )
    assert judge(ONE, ONE * 2, parse_criterion(str(path)), Y).why == "words: "
    assert judge(ONE, ONE * 2, parse_criterion(f"{path}:a=1:b<2"), Y).why == "words: a=1:b<2"
    path.with_name("empty.py").write_text("")
    with raises(UsageError, "plugin.no-function", "rule"):
        parse_criterion(str(path.with_name("empty.py")))


def test_metric_of_ones_own_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "own_metric.py"
    path.write_text(
        "def measure(reference, candidate):\n    return abs(candidate - reference).sum()\n"
    )
    assert judge(ONE, ONE * 2, RULE, Y, metrics=(str(path),)).errors == {str(path): 10.0}
    assert judge(ONE, ONE * 2, parse_criterion(f"{path}<=10"), Y).status is Status.AGREE
    assert judge(ONE, ONE * 2, parse_criterion(f"{path}<10"), Y).why == f"{path} 10.0 >= 10"


def test_tensor_of_a_megabyte_takes_milliseconds() -> None:
    """About 1 ms, or 5 where every block of memory is new; the limit leaves room for a busy
    machine."""
    reference = np.random.default_rng(0).normal(size=(1, 256, 32, 32)).astype(np.float32)
    candidate = reference * np.float32(1 + 1e-6)
    with within(0.5):
        for _ in range(10):
            judge(reference, candidate, RULE, Y, metrics=DEFAULT_METRICS)
