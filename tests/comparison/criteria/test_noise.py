"""The default criterion: errors that rounding explains agree, others fail, and what is not known is
unresolved.

Covers `comparison.criteria.noise` and `comparison.criteria._decisions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from subgraph.comparison import RANKS
from subgraph.comparison.criteria import OutputContext, QuantizedValues, Ranking, Ruling, _floats
from subgraph.comparison.criteria.noise import rule
from subgraph.comparison.pair import Pair
from subgraph.errors import ModelError, UsageError
from subgraph.precision import Precision
from subgraph.verdict import Signature, Status
from tests.helpers.captured_region import LEVELS, CapturedRegion, Make, f32, normal
from tests.helpers.examples import examples
from tests.helpers.facts import has_line

FP32 = Precision.FP32
FP16 = Precision.FP16
BF16 = Precision.BF16
INT8 = Precision.INT8

Array = np.ndarray[Any, Any]
LAW = settings(max_examples=examples(60), deadline=None, database=None, derandomize=True)
AGREE = Status.AGREE
FAIL = Status.FAIL
UNRESOLVED = Status.UNRESOLVED
NAN = np.nan
INF = np.inf
LOST = "fail, precision"


@dataclass
class FakeNoise:
    """Noise with given values, which counts its perturbed runs."""

    runs: list[Array] = field(default_factory=list)
    rounded_values: Array | None = None
    coarse: str = "float32"
    choice: bool = False
    steps: bool = False
    op: str = "Mul"
    ranked: Ranking | None = None
    calls: int = 0
    broken_ties: list[Array] = field(default_factory=list)
    codes: bool = False
    ranks: bool = False
    foreign: bool = False
    own_steps: bool = False
    step: float = 0.0
    quantized: QuantizedValues | None = None

    def perturb(self, claim: Precision, count: int) -> list[Array]:
        self.calls += 1
        return self.runs

    def break_ties(self, claim: Precision, count: int, times: float) -> list[Array]:
        return self.broken_ties

    def round_nodes(self, claim: Precision) -> Array:
        if self.rounded_values is None:
            raise ModelError("it does not run")
        return self.rounded_values

    def op_type(self) -> str:
        return self.op

    def coarsest_type(self) -> str:
        return self.coarse

    def depends_on_choice(self) -> bool:
        return self.choice

    def depends_on_ranks(self) -> bool:
        return self.ranks

    def depends_on_steps(self) -> bool:
        return self.steps

    def quantizes(self) -> bool:
        return self.own_steps

    def half_step(self) -> float:
        return self.step / 2

    def find_quantized_values(self) -> QuantizedValues | None:
        return self.quantized

    def are_codes(self) -> bool:
        return self.codes

    def is_foreign(self) -> bool:
        return self.foreign

    def ranking(self, claim: Precision) -> Ranking | None:
        return self.ranked


def judged(
    reference: Any,
    candidate: Any,
    noise: FakeNoise | None = None,
    claim: Precision = FP32,
    options: str = "",
    output: bool = False,
    name: str = "y",
) -> Ruling:
    """`output`: the tensor is one of the model's outputs."""
    context = OutputContext(name, claim, noise, output)
    return rule(options)(Pair(np.asarray(reference), np.asarray(candidate)), context)


X = f32([1, 2, 4])


# ------------------------------------------------------------ floats


@LAW
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=6),
    st.sampled_from([FP32, FP16, INT8]),
)
def test_equal_values_agree_and_cost_nothing(values: list[float], claim: Precision) -> None:
    x = f32(values)
    noise = FakeNoise()
    assert judged(x, x.copy(), noise, claim).status is AGREE and noise.calls == 0


@LAW
@given(st.floats(1e-9, 10), st.floats(1, 100), st.sampled_from([FP32, FP16, BF16, INT8]))
def test_where_an_error_fails_a_larger_one_does(
    error: float, times: float, claim: Precision
) -> None:
    noise = FakeNoise([X + np.float32(1e-4)], rounded_values=X)
    ratings = [judged(X, X + np.float32(e), noise, claim).status for e in (error, error * times)]
    assert ratings != [FAIL, AGREE]


# ------------------------------------------------------------ codes beside what is quantized

MIDDLES = np.arange(-100, 100) + 0.5
CODES = np.ceil(MIDDLES).astype(np.int8)


def quantized(exact: Any, *, is_coarse: bool = False, runs: Sequence[Array] = ()) -> FakeNoise:
    values = QuantizedValues(np.asarray(exact, np.float64), 0.5, 3, is_coarse)
    return FakeNoise(list(runs), quantized=values)


def test_codes_at_ties_agree_however_many_move_one_way() -> None:
    assert judged(CODES, CODES - 1, quantized(MIDDLES)).status is AGREE


@pytest.mark.parametrize(("away", "status"), [(0.54, AGREE), (0.56, FAIL)])
def test_code_is_right_within_half_a_step_and_a_tie(away: float, status: Status) -> None:
    exact = CODES - 1 + away
    assert judged(CODES, CODES - 1, quantized(exact, runs=[CODES])).status is status


def test_dequantized_codes_are_judged_in_steps() -> None:
    real = (CODES.astype(np.float32) - 3) * 0.5
    assert judged(real, real - 0.5, quantized(MIDDLES)).status is AGREE
    assert judged(real, real - 0.75, quantized(MIDDLES, runs=[real])).status is FAIL


@pytest.mark.parametrize(("is_coarse", "status"), [(True, AGREE), (False, FAIL)])
def test_operators_whose_kernels_are_tables_have_a_step_more(
    is_coarse: bool, status: Status
) -> None:
    noise = quantized(MIDDLES, is_coarse=is_coarse, runs=[CODES])
    assert judged(CODES, CODES + 1, noise).status is status


def test_candidate_that_declares_int8_has_a_step_more() -> None:
    context = OutputContext("y", FP32, quantized(MIDDLES, runs=[CODES]), has_fixed_point=True)
    assert rule("")(Pair(CODES, CODES + 1), context).status is AGREE
    assert rule("")(Pair(CODES, CODES + 2), context).status is FAIL


def test_lower_precision_allows_the_rounding_of_what_is_quantized() -> None:
    noise = quantized(MIDDLES + 0.2, runs=[CODES])
    assert judged(CODES, CODES - 1, noise, BF16).status is AGREE
    assert judged(CODES, CODES - 1, noise, FP32).status is FAIL


@pytest.mark.parametrize(("wrong", "status"), [(20, AGREE), (21, FAIL)])
def test_codes_may_be_wrong_in_twice_as_many_elements_as_in_perturbed_runs(
    wrong: int, status: Status
) -> None:
    run, found = CODES.copy(), CODES.copy()
    run[:10] += 2
    found[:wrong] += 2
    assert judged(CODES, found, quantized(MIDDLES, runs=[run])).status is status


SCORES = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32) * 4
LATER = np.triu(np.ones((8, 8), bool), 1)
MASKS = [-1e4, -1e9, float(np.finfo(np.float32).min)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("claim", [FP32, FP16, INT8])
@pytest.mark.parametrize(
    "wrong",
    [lambda x: x / 2, np.negative, np.zeros_like, np.roll],
    ids=["half", "sign", "0", "moved"],
)
def test_scores_are_judged_by_their_own_scale_and_not_by_their_masks(
    mask: float, claim: Precision, wrong: Any
) -> None:
    """−10⁴ in a tensor must not excuse scores that are off by all that they are."""

    def masked(scores: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.where(
                LATER, np.maximum(scores + np.float32(mask), np.finfo(np.float32).min), scores
            )

    right = masked(SCORES)
    bad = masked(wrong(SCORES, 1) if wrong is np.roll else wrong(SCORES))
    noise = FakeNoise([right + np.where(LATER, 0, np.float32(1e-5))], rounded_values=right)
    assert judged(right, bad, noise, claim).status is FAIL
    assert judged(right, bad).status is FAIL
    near = masked(SCORES * np.float32(1 + 1e-6))
    assert judged(right, near, noise, claim).status is AGREE


def test_mask_that_is_wrong_fails() -> None:
    right = np.where(LATER, np.float32(-1e4), SCORES)
    noise = FakeNoise([right])
    assert judged(right, np.where(LATER, SCORES, right), noise).status is FAIL
    assert judged(right, np.where(LATER, np.float32(-1e3), right), noise).status is FAIL
    # a mask is as good as another
    assert judged(right, right + np.where(LATER, np.float32(1), 0), noise).status is AGREE


def test_error_that_noise_explains_only_because_it_explains_anything_is_unresolved() -> None:
    noise = FakeNoise([X * 3], rounded_values=X * 9)
    assert judged(X, X * np.float32(1.3), noise, INT8).status is AGREE
    assert judged(X, -X, noise, INT8).status is UNRESOLVED
    for claim, output in ((FP32, False), (INT8, True)):
        found = judged(X, -X, noise, claim, output=output)
        assert (found.status, found.signature, found.label) == (
            FAIL,
            Signature.PRECISION,
            "fail, precision",
        )


def test_within_the_floor_nothing_is_run() -> None:
    noise = FakeNoise()
    assert judged(X, X + np.float32(0.003), noise).label == "agrees" and noise.calls == 0
    assert judged(X, X + np.float32(0.003), None).status is AGREE


def test_ten_times_the_noise_is_the_limit() -> None:
    noise = FakeNoise([X + np.float32(0.003)])
    inside, outside = (judged(X, X + np.float32(e), noise) for e in (0.0299, 0.0301))
    assert (inside.status, inside.label) == (AGREE, "agrees")
    assert (outside.status, outside.label, outside.signature) == (FAIL, "fail", Signature.MISMATCH)
    assert (
        inside.noise == pytest.approx(0.003, rel=1e-3) and 9.9 < inside.metrics["noise_ratio"] < 10
    )
    assert has_line(outside.why, "0.03", "0.753 %", "4", "0.75 %")


def test_ties_may_break_but_not_behind_a_choice() -> None:
    y = np.full(8, 0.125, np.float32)
    off = np.eye(8, dtype=np.float32)[0]
    noise = FakeNoise(runs=[y], broken_ties=[np.eye(8, dtype=np.float32)[3]])
    # beyond the cap, such an excuse would hide any bug
    assert judged(y, off, noise).status is Status.UNRESOLVED
    slight = FakeNoise(runs=[y], broken_ties=[y + np.eye(8, dtype=np.float32)[3] / 1000])
    assert judged(y, y + off / 1000, slight).label == "ties"
    assert judged(y, 2 * off, noise).status is Status.FAIL, "farther than broken ties move it"
    # as far, but everywhere
    assert judged(y, np.full(8, 0.9, np.float32), noise).status is Status.FAIL
    assert judged(y, off, FakeNoise(runs=[y])).status is Status.FAIL, "no ties"
    assert judged(y, off, replace(noise, choice=True)).status is Status.FAIL
    for claim in (FP16, INT8):
        found = judged(y, off, noise, claim, output=True)
        assert found.signature is Signature.PRECISION, "explained, and of no use"


def test_order_that_rounding_changes_is_no_lost_precision() -> None:
    """Behind TopK of near scores, rows are exchanged in a healthy int8 detector."""
    noise = FakeNoise([f32([2, 1, 4])], choice=True)
    lost = judged(X, f32([2, 1, 4]), noise, INT8, output=True)
    assert lost.signature is Signature.PRECISION
    found = judged(X, f32([2, 1, 4]), replace(noise, ranks=True), INT8, output=True)
    assert (found.status, found.label) == (Status.UNRESOLVED, RANKS)
    far = judged(X, f32([9, 1, 4]), replace(noise, ranks=True), INT8, output=True)
    assert far.status is Status.FAIL


def test_runs_with_broken_ties_that_fail_excuse_nothing() -> None:
    """They once made a wrong output "unresolved": NaN in a run that could only have excused the
    error."""

    class Broken(FakeNoise):
        def break_ties(self, claim: Precision, count: int, times: float) -> list[Array]:
            raise ModelError("all runs computed NaN")

    assert judged(X, 2 * X, Broken([X])).status is FAIL


def test_floats_of_operators_that_cannot_be_perturbed_are_judged_without_noise() -> None:
    """They once were unresolved, however far off: a fault in a TensorFlow Lite model of floats was
    never found."""

    class Broken(FakeNoise):
        def perturb(self, claim: Precision, count: int) -> list[Array]:
            raise ModelError("it takes no such operator")

    assert judged(X, 1.5 * X, Broken(foreign=True)).status is FAIL
    assert judged(X, X + np.float32(1e-4), Broken(foreign=True)).status is AGREE
    assert judged(X, 1.001 * X, Broken(foreign=True), FP16).status is AGREE


def test_options_replace_k_and_floor() -> None:
    noise = FakeNoise([X + np.float32(0.01)])
    assert judged(X, X + np.float32(0.05), noise, options="k=4").signature is Signature.MISMATCH
    assert judged(X, X + np.float32(0.05), noise).signature is Signature.PRECISION
    assert judged(X, X + np.float32(0.05), noise, options="k=4,floor=0.1").status is AGREE
    for wrong in ("k", "k=x", "k=0", "floor=-1", "eps=3", "k=1,k=2", "k=nan"):
        with pytest.raises(UsageError) as error:
            rule(wrong)
        assert error.value.code in ("criterion.malformed", "criterion.out-of-range")


def test_without_the_floor_what_it_would_excuse_fails() -> None:
    """`noise:floor=0` once said "209 × noise, but within 0.001 of the scale", and agreed."""
    quiet = FakeNoise([X])
    found = judged(X, X + np.float32(0.002), quiet, options="floor=0")
    assert (found.status, found.label) == (FAIL, "approximate kernel")
    assert judged(X, X + np.float32(0.01), quiet, options="floor=0").label == "fail"
    # eps of bf16 is 4e-3 of the scale
    assert judged(X, X + np.float32(0.02), quiet, BF16).status is AGREE
    assert judged(X, X + np.float32(0.1), FakeNoise([X], rounded_values=X), BF16).status is FAIL


def test_reduced_precision_is_told_from_agreement() -> None:
    low = FakeNoise([X + np.float32(0.2)])
    assert [judged(X, X + np.float32(e), low, FP16).label for e in (0.1, 0.007)] == [
        "precision",
        "agrees",
    ]


def test_rounding_after_every_node_explains_what_relative_noise_does_not_and_limits_it() -> None:
    """Underflow escapes relative noise; and noise that moves the output far beyond what rounding
    does is too much."""
    near = FakeNoise([X], rounded_values=X + np.float32(0.1))
    assert judged(X, X + np.float32(0.29), near, FP16).label == "precision" and near.calls == 0
    assert judged(X, X + np.float32(0.29), near, FP32).status is FAIL
    assert judged(X, X + np.float32(0.31), near, FP16).status is FAIL
    loud = FakeNoise([X + np.float32(1)], rounded_values=X + np.float32(0.01))
    assert [judged(X, X + np.float32(e), loud, FP16).status for e in (0.3, 0.4)] == [AGREE, FAIL]
    unknown = FakeNoise([X + np.float32(1)])
    # no model rounded after every node
    assert judged(X, X + np.float32(0.4), unknown, FP16).status is AGREE


def test_float16_model_is_held_to_float16_though_the_candidate_claims_more() -> None:
    half = X.astype(np.float16)
    off = half + np.float16(2**-8)
    assert judged(half, off, FakeNoise([half], coarse="float16")).status is AGREE
    assert judged(half, off, None).status is AGREE
    assert judged(half, half + np.float16(0.1), FakeNoise([half], coarse="float16")).status is FAIL


def test_all_zeros_have_only_the_noise_of_perturbed_runs() -> None:
    zero = np.zeros(3, np.float32)
    assert judged(zero, zero + np.float32(1e-9), FakeNoise([zero])).status is FAIL
    found = judged(zero, zero + np.float32(1e-9), FakeNoise([zero + np.float32(1e-9)]))
    assert found.status is AGREE


# ------------------------------------------------------------ masks


@pytest.mark.parametrize("claim", [FP32, FP16, BF16, INT8])
@pytest.mark.parametrize(("a", "b"), [(NAN, 1), (INF, 1), (INF, -INF), (NAN, INF), (INF, NAN)])
def test_mask_of_the_reference_alone_is_never_excused(a: float, b: float, claim: Precision) -> None:
    found = judged(
        f32([a, 1]), f32([b, 1]), FakeNoise([X[:2]], rounded_values=f32([INF, 1])), claim
    )
    assert (found.status, found.signature) == (FAIL, Signature.NAN)


def test_range_excuses_values_beyond_the_type() -> None:
    x = f32([1e5, 1])
    y = f32([INF, 1])
    assert (
        judged(x, y, FakeNoise(), FP16).label == "range"
        and judged(x, y, FakeNoise(), FP16).status is AGREE
    )
    assert judged(x, y, None, FP16).label == "range"
    for claim in (FP32, BF16, INT8):
        assert judged(x, y, FakeNoise([x], rounded_values=x), claim).signature is Signature.NAN


def test_range_excuses_overflow_inside_the_region() -> None:
    x = f32([5, 1])
    y = f32([NAN, 1])
    assert judged(x, y, FakeNoise(rounded_values=f32([INF, 1])), FP16).label == "range"
    assert judged(x, y, FakeNoise(rounded_values=f32([5, 1])), FP16).status is FAIL
    assert judged(x, y, FakeNoise(rounded_values=f32([5, NAN])), FP16).status is FAIL
    assert judged(x, y, None, FP16).status is UNRESOLVED
    lost = judged(x, y, FakeNoise(rounded_values=f32([INF, 1])), FP16, output=True)
    assert (lost.status, lost.signature) == (FAIL, Signature.PRECISION), "nobody can use a NaN"
    assert judged(f32([1e5, 1]), f32([INF, 1]), FakeNoise(), FP16).label == "range"
    lost = judged(f32([1e5, 1]), f32([INF, 1]), FakeNoise(), FP16, output=True)
    assert (lost.status, lost.signature) == (FAIL, Signature.PRECISION), "nor an infinity"
    lowest = float(np.finfo(np.float32).min)
    masked = judged(f32([lowest, 1]), f32([-INF, 1]), FakeNoise(), FP16, output=True)
    assert masked.label == "range", "a mask is one"


@pytest.mark.parametrize("claim", [FP16, BF16, INT8])
def test_where_the_precision_itself_destroys_an_output_no_bug_is_claimed(claim: Precision) -> None:
    """A batch normalization divides by sqrt(9.8e7), which float16 does not hold: converters clip
    that, and rounding makes it infinite. The candidate is off where the rounded reference is
    not."""
    y = f32([9, 0, 5])
    off = f32([9, 40, 5])
    rounded = f32([9, 0, 0])
    found = judged(y, off, FakeNoise([y], rounded_values=rounded), claim, output=True)
    assert (found.label, found.signature) == (LOST, Signature.PRECISION)
    assert has_line(found.why, "9", f"{claim}", "56 %")
    for noise, output in (
        (FakeNoise([y], rounded_values=y), True),
        (FakeNoise([y], rounded_values=rounded), False),
    ):
        found = judged(y, off, noise, claim, output=output)
        assert found.signature is Signature.MISMATCH, "it may be a bug"


def test_where_the_precision_overflows_any_error_is_explained() -> None:
    y = f32([5, 1])
    rounded = f32([NAN, 1])
    found = judged(y, f32([90, 1]), FakeNoise([y], rounded_values=rounded), FP16, output=True)
    assert found.label == LOST
    far = judged(
        f32([5, 1]), f32([5, 90]), FakeNoise([y], rounded_values=rounded), FP16, output=True
    )
    assert far.label == LOST
    found = judged(y, f32([90, 1]), FakeNoise([y], rounded_values=rounded), FP16)
    assert found.status is UNRESOLVED
    assert judged(y, f32([5, 9]), FakeNoise([y], rounded_values=y), FP16).status is FAIL


def test_rounding_after_every_node_counts_in_int8_too() -> None:
    near = FakeNoise([X], rounded_values=X + np.float32(0.1))
    assert judged(X, X + np.float32(0.25), near, INT8).status is AGREE and near.calls == 0
    assert judged(X, X + np.float32(0.5), near, INT8).status is FAIL


def test_values_beside_an_overflow_are_still_judged() -> None:
    x = f32([1e5, 1])
    found = judged(x, f32([INF, 3]), FakeNoise([x], rounded_values=f32([INF, 1])), FP16)
    assert found.status is FAIL
    # nothing was ranked
    assert judged(f32([1e5]), f32([INF]), FakeNoise(), FP16).status is UNRESOLVED


def test_missing_noise_is_unresolved_only_where_it_matters() -> None:
    class Broken(FakeNoise):
        def perturb(self, claim: Precision, count: int) -> list[Array]:
            raise ModelError("it does not run")

    assert judged(X, X, Broken()).status is AGREE
    found = [
        judged(X, X * np.float32(1 + e), Broken(), options="floor=0") for e in (5e-6, 5e-3, 0.1)
    ]
    assert [ruling.status for ruling in found] == [AGREE, UNRESOLVED, FAIL]
    assert all(has_line(ruling.why, "not run") for ruling in found[1:])
    halves = [judged(X, X * np.float32(1 + e), Broken(), FP16).status for e in (1e-4, 0.05, 0.5)]
    assert halves == [AGREE, UNRESOLVED, FAIL]


def test_changed_winner_is_unresolved_where_noise_is_not_known() -> None:
    class Broken(FakeNoise):
        def perturb(self, claim: Precision, count: int) -> list[Array]:
            raise ModelError("it does not run")

    logits, other = np.zeros((2, 1, 1000), np.float32)
    # within three of float16's roundings
    logits[0, :2], other[0, :2] = ((1.0, 1.0015), (1.0013, 1.0002))
    found = judged(logits, other, Broken(), FP16, output=True, name="logits")
    assert found.status is UNRESOLVED, found


def test_without_noise() -> None:
    assert judged(X, X + np.float32(0.1)).status is FAIL
    assert [judged(X, X + np.float32(e), None, BF16).status for e in (0.01, 0.1, 5)] == [
        AGREE,
        UNRESOLVED,
        FAIL,
    ]
    lost = judged(X, X + np.float32(1), None, BF16, output=True)
    assert lost.signature is Signature.PRECISION and has_line(lost.why, "rounding", "20 %")
    rows = f32([[1, 2, 3, 4], [100, 200, 300, 400]])
    assert has_line(
        judged(rows, rows + f32([[0.1], [0]])).why, "0.1", "index 0", "axis 0", "2.5 %", "4"
    )
    assert has_line(
        judged(rows * 1j, (rows + f32([[0.1], [0]])) * 1j).why,
        "0.1",
        "index 0",
        "axis 0",
        "2.5 %",
        "4",
    )
    assert [judged([1, 2, 3, 4], b).status for b in ([1, 2, 3, 9], [9, 9, 9, 4])] == [
        UNRESOLVED,
        FAIL,
    ]


# ------------------------------------------------------------ no floats


def test_values_without_rounding_must_be_equal() -> None:
    ids = np.arange(1000)
    assert judged(ids, ids, FakeNoise()).status is AGREE
    assert judged(ids, np.r_[1, ids[1:]], FakeNoise([ids])).status is FAIL


def test_booleans_may_change_as_often_as_in_perturbed_runs() -> None:
    x = np.zeros(1000, bool)
    some = np.arange(1000)
    quiet = FakeNoise([x] * 8, choice=True)
    loud = FakeNoise([some < 10] * 8, choice=True)
    assert [judged(x, some < n, quiet).status for n in (1, 2)] == [AGREE, FAIL]
    assert [judged(x, some < n, loud).status for n in (21, 22)] == [AGREE, FAIL]
    # one of five is not rare
    assert judged(x[:5], some[:5] < 1, FakeNoise([x[:5]] * 8, choice=True)).status is FAIL


def test_quantized_values_may_be_a_step_off() -> None:
    x = np.full(1000, 100, np.uint8)
    step = (np.arange(1000) < 10).astype(np.uint8)
    noise = FakeNoise([x + step] * 8, steps=True)
    assert judged(x, x - step, noise).status is AGREE
    assert judged(x, x + step * 2, noise).status is AGREE
    assert judged(x, x + step * 3, noise).status is FAIL
    assert judged(x, x + np.uint8(1), noise).status is FAIL, "all of them"
    one = np.eye(1, 1000, dtype=np.uint8)[0]
    assert [
        judged(x, x + one * np.uint8(k), FakeNoise([x] * 8, steps=True)).status for k in (1, 2, 90)
    ] == [AGREE, FAIL, FAIL]


def test_indices_may_differ_where_noise_cannot_tell_the_values_apart() -> None:
    v = f32([[1, 1.0001, 5, 5]])
    noise = FakeNoise(ranked=Ranking(v, np.full(v.shape, 1e-4), 1), choice=True, op="TopK")
    for index, status in (
        ([[0]], AGREE),
        ([[1]], AGREE),
        ([[2]], FAIL),
        ([[-1]], FAIL),
        ([[4]], FAIL),
    ):
        assert judged(np.array([[1]]), np.array(index), noise).status is status
    # equal: ONNX takes the first
    assert judged(np.array([[2, 3]]), np.array([[3, 2]]), noise).status is FAIL
    assert judged(np.array([[1, 0]]), np.array([[0, 0]]), noise).status is FAIL, "twice the same"
    assert judged(np.array([1]), np.array([0]), noise).status is AGREE, "keepdims=0"


def test_suppressed_boxes_are_sets() -> None:
    x = np.array([[0, 0, k] for k in range(10)])
    other = np.r_[x[:9], [[0, 0, 77]]]
    noise = FakeNoise([other], choice=True, op="NonMaxSuppression")
    assert (
        judged(x, x[::-1].copy(), noise).status is AGREE and judged(x, other, noise).status is AGREE
    )
    assert judged(x, np.r_[x[:7], other[9:], other[9:] + 1, other[9:] + 2], noise).status is FAIL


def test_behind_a_choice_jumps_hide_no_bug() -> None:
    """Perturbed runs exchange two of 1,000 values. So may a candidate, but not scale all of them,
    or jump further."""
    x = normal(1000)
    swapped = x.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    noise = FakeNoise([swapped] * 8, choice=True)
    assert judged(x, swapped, noise).status is AGREE
    assert judged(x, x * np.float32(1.1), noise).status is FAIL
    assert judged(x, np.r_[x[:1] + 100, x[1:]], noise).status is FAIL
    assert judged(x, np.r_[x[:1] + 100, x[1:]], FakeNoise([x] * 8, choice=True)).status is FAIL
    assert judged(x, np.r_[x[500:], x[:500]], noise).status is FAIL


# ------------------------------------------------------------ networks

REGIONS: dict[str, tuple[str, dict[str, Array], dict[str, Any]]] = {
    "softmax": (
        "g (float[8,64] x) => (float[8,64] y) { a = Mul(x, w) y = Softmax(a) }",
        {"x": normal(8, 64)},
        {"w": np.float32(9)},
    ),
    "layernorm": (
        """g (float[8,64] x) => (float[8,64] y) {
        m = ReduceMean <axes=[1]> (x) d = Sub(x, m) s = Mul(d, d) v = ReduceMean <axes=[1]> (s) e = Add(v, eps)
        q = Sqrt(e) n = Div(d, q) y = Mul(n, w) }""",  # noqa: E501
        {"x": normal(8, 64)},
        {"w": normal(64), "eps": np.float32(1e-5)},
    ),
    "gelu": (
        """g (float[8,64] x) => (float[8,64] y) {
        a = Div(x, r) e = Erf(a) b = Add(e, one) c = Mul(x, b) y = Mul(c, half) }""",
        {"x": normal(8, 64)},
        {"r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)},
    ),
    "lstm": (
        "g (float[7,2,5] x) => (float[7,1,2,6] y) { y, h, c = LSTM <hidden_size=6> (x, w, r) }",
        {"x": normal(7, 2, 5)},
        {"w": normal(1, 24, 5), "r": normal(1, 24, 6)},
    ),
    "conv": (
        """g (float[1,3,9,9] x) => (float[1,4,9,9] y) {
        a = Conv <pads=[1,1,1,1]> (x, w) b = BatchNormalization(a, s, s, m, v) y = Relu(b) }""",
        {"x": normal(1, 3, 9, 9)},
        {
            "w": normal(4, 3, 3, 3),
            "s": np.abs(normal(4)),
            "m": normal(4),
            "v": np.abs(normal(4)) + 1,
        },
    ),
    "cancelling": (
        "g (float[64] x) => (float[64] y) { a = Add(x, big) b = Sub(a, big) y = Mul(b, b) }",
        {"x": normal(64)},
        {"big": np.float32(1e6)},
    ),
    "argmax": (
        "g (float[8,64] x) => (int64[8,1] y) { a = MatMul(x, w) y = ArgMax <axis=1> (a) }",
        {"x": normal(8, 64)},
        {"w": normal(64, 64, seed=1)},
    ),
}


@pytest.mark.parametrize("name", REGIONS)
def test_healthy_regions_agree_at_every_level_and_injected_errors_do_not(
    make: Make, name: str
) -> None:
    text, feeds, weights = REGIONS[name]
    region = make(text, feeds, **weights)
    for level in LEVELS:
        for options in ("", "floor=0"):
            found = region.judge(region.candidate(level)["y"], options=options)
            assert (found.status, found.label) == (AGREE, "agrees"), (level, found)
    _check_injected_errors(region)


def _check_injected_errors(region: CapturedRegion) -> None:
    y = region.reference("y")
    wrong = y.copy()
    wrong.flat[3] += y.dtype.type(np.abs(y).max() / 2 + 1)
    assert region.judge(wrong).status is FAIL
    assert region.judge(np.roll(y, 1)).status is FAIL
    if y.dtype.kind == "f":
        blank = y.copy()
        blank.flat[0] = NAN
        assert region.judge(blank).signature is Signature.NAN


def test_cast_to_float16_excuses_nothing_of_what_is_not_behind_it(make: Make) -> None:
    """All of the region was judged as float16: an error of 1e-3 agreed."""
    text = """g (float[4,64] x) => (float[4,64] y, float[4,8] z) {
        y = Mul (x, x) h = Cast <to = 10> (x) f = Cast <to = 1> (h) z = MatMul (f, w) }"""
    region = make(text, {"x": normal(4, 64)}, w=normal(64, 8))
    for name, noise in (("y", 1e-6), ("z", 2e-4)):
        right = region.reference(name)
        off = np.abs(right).max() * normal(*right.shape)
        found = region.judge(right + off * np.float32(1e-2), name, options="floor=1e-5")
        assert found.status is FAIL
        found = region.judge(right + off * np.float32(noise / 2), name, options="floor=1e-5")
        assert found.status is AGREE
    y = region.reference("y")
    assert region.judge(y * np.float32(1.001), "y", options="floor=1e-5").status is FAIL


JOINTS = f32([[1, 0.6, 0.5, 0.4, 0.3, 0.15]])


@pytest.mark.parametrize(
    ("off", "status"), [(0.15, Status.UNRESOLVED), (0.07, AGREE), (0.0, AGREE)]
)
def test_the_scale_of_others_excuses_no_number_that_may_be_wrong(
    off: float, status: Status
) -> None:
    """It was right within int8 rounding: 15 % of the largest value."""
    noise = FakeNoise([JOINTS + 0.1, JOINTS - 0.1])
    found = judged(JOINTS, JOINTS - f32([[0, 0, 0, 0, 0, off]]), noise, Precision.INT8, output=True)
    assert found.status is status and ((has_line(found.why, "6 numbers")) == bool(off)), found
    assert (
        judged(JOINTS, JOINTS - f32([[0, 0, 0, 0, 0, off]]), noise, Precision.INT8).status is AGREE
    ), "inside"


SMALL = f32([[1, 0.6, 0.3, 0.08, 0.07, -0.06]])


@pytest.mark.parametrize(
    ("candidate", "status"),
    [
        ([1, 0.6, 0.3, 0, 0, 0], Status.UNRESOLVED),  # half of them lost
        ([1, 0.6, 0.3, 0, 0, -0.06], AGREE),
        ([0.92, 0.66, 0.37, 0.1, 0.09, -0.05], AGREE),  # each keeps more than half of itself
    ],
)
def test_half_of_few_numbers_are_not_lost_in_the_scale_of_others(
    candidate: list[float], status: Status
) -> None:
    """Three of a robot's six joints at 0 were right within int8 rounding: 8 % of the largest
    value."""
    noise = FakeNoise([SMALL + 0.1, SMALL - 0.1])
    found = judged(SMALL, f32([candidate]), noise, Precision.INT8, output=True)
    assert found.status is status, found
    said = (
        "6 numbers of one sample, 3 of them deviate by more than half of themselves: element 3,"
        " 0.08 in size"
    )
    assert (said in found.why) == (status is Status.UNRESOLVED), found
    # those that are as good as 0 may be anything as small
    scores = f32([[0.98, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7]])
    assert (
        judged(
            scores, scores * 2 - f32([[0.98, 0, 0, 0, 0, 0]]), noise, Precision.INT8, output=True
        ).status
        is AGREE
    )


@pytest.mark.parametrize(
    ("off", "status"),
    [(0.0, AGREE), (0.01, AGREE), (0.1, AGREE), (0.4, Status.UNRESOLVED), (0.9, FAIL)],
)
def test_region_that_quantizes_itself_is_held_to_what_a_step_does(
    off: float, status: Status
) -> None:
    """A step moves the first two by 6 % of their size, the others by 28 %, which is beyond use."""
    y = normal(4, 16)
    y /= np.abs(y).max()
    moved = y.copy()
    moved[0, 0] += np.float32(0.06 if off < 0.3 else 0.28)
    noise = FakeNoise([moved] * 8, own_steps=True, steps=True)
    wrong = y.copy()
    wrong[0, 0] += np.float32(off)
    found = judged(y, wrong, noise, output=True)
    assert found.status is status, found
    if status is Status.UNRESOLVED:
        assert found.label == "steps" and has_line(found.why, "one quantization")


def test_steps_may_be_off_by_one_anywhere_and_by_more_where_perturbed_runs_show_it() -> None:
    codes = np.arange(64, dtype=np.uint8)
    far = np.zeros(64, np.uint8)
    far[:2] = 2
    calm, wild = (
        FakeNoise([codes + k], own_steps=True, steps=True, op="QuantizeLinear")
        for k in (far * 0, far)
    )
    assert judged(codes, codes + 1, calm).status is AGREE
    assert judged(codes, codes + far, calm).status is FAIL
    assert judged(codes, codes + far, wild).status is AGREE
    assert judged(codes, codes + far * 3, wild).status is FAIL
    assert judged(codes, codes + 2, wild).status is FAIL


QUANTIZED = """g (float[1,64] x) => (float[1,32] y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, s, z) a = MatMul(d, v)
    p = QuantizeLinear(a, t, z) y = DequantizeLinear(p, t, z) }"""  # noqa: E501


def in_integers(x: Array, w: Array, s: Any, t: Any, saturates: bool = False) -> Array:
    """The quantized region as onnxruntime's integer kernels compute it: by unsigned inputs, two
    products at a time.

    `saturates`: in 16 bits, as with AVX2 and no VNNI.
    """
    q = np.clip(np.rint(x / s), -128, 127).astype(np.int64)
    pairs = ((q + 128).T * w).reshape(32, 2, 32).sum(axis=1)
    if saturates:
        pairs = np.clip(pairs, -(2**15), 2**15 - 1)
    sums = pairs.sum(axis=0) - 128 * w.sum(axis=0, dtype=np.int64)
    return f32(np.clip(np.rint(sums[None] * (float(s) ** 2 / t)), -128, 127) * t)


def test_sums_of_integers_agree_and_saturated_ones_do_not(make: Make) -> None:
    """The integer kernels of this processor may be either."""
    s = np.float32(0.02)
    t = np.float32(0.1)
    x = normal(1, 64)
    w = np.random.default_rng(1).integers(-99, 99, (64, 32), np.int8)
    region = make(QUANTIZED, {"x": x}, w=w, s=s, t=t, z=np.int8(0))
    for options in ("", "floor=0"):
        assert region.judge(in_integers(x, w, s, t), options=options).label == "agrees"
        assert region.judge(in_integers(x, w, s, t, saturates=True), options=options).status is FAIL
    _check_injected_errors(region)


@pytest.mark.parametrize("claim", [FP16, BF16])
@pytest.mark.parametrize("name", ["softmax", "layernorm", "gelu", "lstm", "conv"])
def test_candidate_of_low_precision_agrees_at_its_claim_only(
    make: Make, name: str, claim: Precision
) -> None:
    text, feeds, weights = REGIONS[name]
    region = make(text, feeds, **weights)
    low = region.noise.get_output("y").round_nodes(claim)
    assert region.judge(low, claim=claim).status is AGREE
    assert region.judge(low, options="floor=0").status is FAIL
    assert region.judge(low * np.float32(1.2), claim=claim).status is FAIL
    _check_injected_errors(region)


TIES = """g (float[12] x) => (float[5] s, int64[5] y, float[5] b) {
    a = Mul(x, x) s, y = TopK(a, k) b = Gather(boxes, y) }"""


def test_wrong_order_of_ties_fails(make: Make) -> None:
    """Saturated scores tie; a runtime that takes the last of them gives other boxes, and the same
    scores."""
    x = f32([3, 1, 3, 2, -3, 1, 0, 3, 0, -2, 1, 1])
    boxes = normal(12)
    region = make(TIES, {"x": x}, k=np.array([5]), boxes=boxes)
    assert region.reference("y").tolist() == [0, 2, 4, 7, 3]
    last = np.array([7, 4, 2, 0, 9])
    for claim in (FP32, FP16, BF16):
        assert region.judge(region.reference("s"), "s", claim).status is AGREE
        assert region.judge(last, "y", claim).status is FAIL
        assert region.judge(boxes[last], "b", claim).status is FAIL


def test_near_tie_may_fall_either_way(make: Make) -> None:
    x = f32([3, 1, np.nextafter(np.float32(3), np.float32(2)), 2, 0, 0, 0, 0, 0, 0, 0, 0.5])
    region = make(TIES, {"x": x}, k=np.array([5]), boxes=normal(12))
    order = region.reference("y").copy()
    order[[0, 1]] = order[[1, 0]]
    assert region.judge(order, "y", FP16).status is AGREE
    assert region.judge(order, "y", FP32).status is FAIL, "float32 holds the input as it is"
    order[[1, 2]] = order[[2, 1]]
    assert region.judge(order, "y", FP16).status is FAIL


def test_shape_that_hangs_on_rounding_is_unresolved(make: Make) -> None:
    text = """g (float[64] x) => (float[n] y) {
        a = Mul(x, x) m = Greater(a, half) i = NonZero(m) j = Squeeze(i, zero) p = Gather(a, j) y = Exp(p) }"""  # noqa: E501
    x = np.full(64, 0.5**0.5, np.float32) * np.linspace(0.98, 1.02, 64, dtype=np.float32)
    region = make(text, {"x": x}, half=np.float32(0.5), zero=np.array([0]))
    assert region.judge(region.reference("y") * 2, claim=BF16).status is UNRESOLVED


def test_overflow_inside_is_range(make: Make) -> None:
    text = "g (float[4] x) => (float[4] y) { a = Mul(x, x) y = Sqrt(a) }"
    region = make(text, {"x": f32([1, 300, 3, 4])})
    low = region.noise.get_output("y").round_nodes(FP16)
    assert np.isinf(low[1]) and region.judge(low, claim=FP16).label == "range"
    assert region.judge(low).signature is Signature.NAN
    assert region.judge(np.where(low == 1, NAN, low), claim=FP16).signature is Signature.NAN


def test_float16_model_in_float32_agrees(make: Make) -> None:
    text = (
        "g (float16[8,64] x) => (float16[8,64] y) { a = MatMul(x, w) b = Tanh(a) y = Softmax(b) }"
    )
    half = {"x": normal(8, 64).astype(np.float16)}
    weight = normal(64, 64, seed=1).astype(np.float16)
    region = make(text, half, w=weight)
    wide = np.tanh(half["x"].astype(np.float32) @ weight.astype(np.float32))
    e = np.exp(wide - wide.max(1, keepdims=True))
    assert region.judge((e / e.sum(1, keepdims=True)).astype(np.float16)).status is AGREE
    assert region.judge(region.candidate("ORT_ENABLE_ALL")["y"]).status is AGREE
    _check_injected_errors(region)


def test_scalar_and_bfloat16(make: Make) -> None:
    region = make(
        "g (float[8] x) => (float y) { y = ReduceSum <keepdims=0> (x) }", {"x": normal(8)}
    )
    y = region.reference("y")
    assert y.shape == () and region.judge(y * np.float32(1.01), options="floor=0").status is FAIL
    assert region.judge(y * np.float32(1.00001), options="floor=0").label == "approximate kernel"
    region = make(
        "g (float[8] x) => (bfloat16[8] y) { a = Exp(x) y = Cast <to=16> (a) }", {"x": normal(8)}
    )
    wide = region.reference("y").astype(np.float32)
    assert region.judge((wide * 1.008).astype(ml_dtypes.bfloat16)).status is AGREE
    assert region.judge((wide * 1.2).astype(ml_dtypes.bfloat16)).status is FAIL


# ------------------------------------------------------------ slices

RNG = np.random.default_rng(7)


def detections() -> Array:
    """As a YOLO head gives: [1, 84, 200], four rows of boxes in 0 … 320 and 80 of scores, a few of
    them high."""
    y = np.abs(RNG.standard_normal((1, 84, 200))).astype(np.float32) * 0.01
    y[:, :4] = RNG.uniform(0, 320, (1, 4, 200))
    y[0, 4 + np.arange(10), np.arange(10)] = 0.9
    return y


def quiet(y: Array) -> FakeNoise:
    """Noise of one rounding in fp32, of every element by its own size."""
    return FakeNoise([y * np.float32(1 + 2**-22)], rounded_values=y * np.float32(1 + 2**-11))


def changed(y: Array, place: Any, change: Any) -> Array:
    """`y` with `change` made to a part of it."""
    out = y.copy()
    out[place] = change(out[place])
    return out


PROBABILITIES = np.exp(4 * RNG.standard_normal((1, 40, 50)))
PROBABILITIES = (PROBABILITIES / PROBABILITIES.sum(2, keepdims=True)).astype(np.float32)
FEATURES = RNG.standard_normal((1, 16, 9, 9)).astype(np.float32)


def biased(y: Array) -> Array:
    return changed(y, np.s_[:, 9], lambda v: np.maximum(v - 1.2, 0))


def halved(y: Array) -> Array:
    return changed(y, np.s_[:, 5], lambda v: v / 2)


def stretched(y: Array) -> Array:
    return changed(y, np.s_[:, 5], lambda v: v * 1.02)


def moved(y: Array) -> Array:
    return changed(y, np.s_[0, 7], lambda v: v + 0.1)


def turned(y: Array) -> Array:
    return changed(y, np.s_[:, 6], lambda v: v[:, ::-1])


DIM_CHANNEL = changed(FEATURES, np.s_[:, 5], lambda v: v * 1e-3)
FLAT = FEATURES.reshape(1, -1)

# what, reference, candidate, claim -> status, words of the reason
CASES: dict[str, tuple[Array, Any, Precision, Status, str]] = {
    "class bias": (detections(), biased, FP32, FAIL, "0.28 % of"),
    "class bias, fp16": (detections(), biased, FP16, FAIL, "index 9 of axis 1"),
    "channel × 0.5": (FEATURES, halved, FP32, FAIL, "35 % of"),
    "channel × 0.5, int8": (FEATURES, halved, INT8, FAIL, "35 % of"),
    "scale × 2": (FEATURES, lambda y: y * 2, BF16, FAIL, ""),
    "small channel × 1.02": (DIM_CHANNEL, stretched, FP32, FAIL, "index 5 of axis 1"),
    "healthy": (
        detections(),
        lambda y: y * np.float32(1 + 1e-6),
        FP32,
        AGREE,
        "320; limit 0.0001 %",
    ),
    "healthy, fp16": (
        detections(),
        lambda y: y.astype(np.float16).astype(np.float32),
        FP16,
        AGREE,
        "",
    ),
    "1-D": (FEATURES.reshape(-1), lambda y: y + np.float32(1e-3), FP32, AGREE, "max error"),
    "[1, N]": (FLAT, moved, FP32, FAIL, "max error"),
    "scalar": (f32(3), lambda y: y * np.float32(1.001), FP32, AGREE, "max error"),
    "scalar, wrong": (f32(3), lambda y: y * np.float32(1.1), FP32, FAIL, "max error"),
    "row of a distribution": (PROBABILITIES, turned, FP32, FAIL, "39 % of"),
}


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_each_slice_is_judged_by_its_own_scale(case: str, output: bool) -> None:
    reference, change, claim, status, words = CASES[case]
    for noise in (quiet(reference), None) if claim == FP32 else (quiet(reference),):
        found = judged(reference, np.float32(change(reference)), noise, claim, output=output)
        assert found.status is status and words in found.why, found


def test_noise_that_explains_that_all_scores_are_zero_makes_them_no_use() -> None:
    """Seen with int8: a noise of 120 on a tensor of boxes and scores, so that all scores 0
    "agreed"."""
    y = detections()
    noise = FakeNoise([y + np.float32(120)], rounded_values=y + np.float32(40))
    blank = changed(y, np.s_[:, 4:], np.zeros_like)
    found = judged(y, blank, noise, INT8, output=True)
    assert (found.status, found.signature, found.label) == (
        FAIL,
        Signature.PRECISION,
        "fail, precision",
    )
    assert has_line(found.why, "rounding", "20 %")
    # an intermediate tensor: what becomes of it is not known here
    assert judged(y, blank, noise, INT8).status is AGREE


def test_changed_token_fails_and_what_rounding_changes_is_lost_precision() -> None:
    y = np.full((1, 6, 50), 0.4 / 48, np.float32)
    y[..., 0], y[..., 1] = 0.32, 0.28
    wrong = changed(y, np.s_[0, 3], lambda v: v[np.r_[1, 0, 2:50]])
    near = FakeNoise([y], rounded_values=y + np.float32(0.02))
    found = judged(y, wrong, near, FP16, output=True)
    assert (found.status, found.signature) == (FAIL, Signature.MISMATCH)
    assert has_line(found.why, "1 of 6", "axis 2", "class 0", "1", "4.0e-02")
    assert judged(y, wrong, near, FP16).status is AGREE, "no output of the model"
    swaps = FakeNoise(
        [changed(y, np.s_[0, 3], lambda v: v[np.r_[1, 0, 2:50]])],
        rounded_values=y + np.float32(0.02),
    )
    assert judged(y, wrong, swaps, FP16, output=True).signature is Signature.PRECISION
    # LogSoftmax, logits
    for values, other in ((np.log(y), np.log(wrong)), (np.log(y) + 9, np.log(wrong) + 9)):
        padded = [
            np.pad(v, ((0, 0), (0, 0), (0, 950)), constant_values=-9) for v in (values, other)
        ]
        noise = FakeNoise([padded[0]], padded[0] + np.float32(0.2))
        found = judged(padded[0], padded[1], noise, FP16, output=True, name="logits")
        assert "decisions" in found.why and found.signature is Signature.MISMATCH
    tie = changed(y, np.s_[..., 1], lambda v: v + 0.04 - 1e-5)
    # a tie
    assert judged(tie, tie[..., np.r_[1, 0, 2:50]], near, FP16, output=True).status is AGREE


def test_scores_of_0_to_1_that_are_as_good_as_0_may_be_off_by_their_own_size() -> None:
    y = np.full((4, 200), 0.0004, np.float32)
    noise = FakeNoise([y + np.float32(1e-4)])
    assert judged(y, y + np.float32(2e-4), noise, output=True).status is AGREE
    found = judged(y * 4e3, (y + np.float32(2e-4)) * 4e3, FakeNoise([(y + np.float32(1e-4)) * 4e3]))
    assert found.status is FAIL


def test_booleans_that_change_are_counted() -> None:
    x = np.zeros(1_000_000, bool)
    one = np.arange(x.size) < 1
    found = judged(x, one, FakeNoise([one] * 8, choice=True))
    assert found.status is AGREE and has_line(found.why, "1 of 1000000")


def test_jumps_behind_a_choice_excuse_no_slice_that_does_not_jump() -> None:
    """Rows may be exchanged as in perturbed runs; a column that is off everywhere is another
    matter."""
    y = np.c_[RNG.uniform(0, 640, (300, 4)), RNG.uniform(0.5, 1, 300)].astype(np.float32)
    swapped = y.copy()
    swapped[[7, 8]] = swapped[[8, 7]]
    noise = FakeNoise([swapped + np.float32(1e-6) * y] * 8, choice=True)
    assert judged(y, swapped, noise, output=True).status is AGREE
    found = judged(y, changed(swapped, np.s_[:, 4], lambda v: v * 0.98), noise, output=True)
    assert found.status is FAIL


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
CLAIMS = st.sampled_from([FP32, FP16, BF16, INT8])
ORDER = {AGREE: 0, UNRESOLVED: 1, FAIL: 2}


@st.composite
def compared(draw: Any) -> tuple[Array, Array, FakeNoise, str, bool]:
    """Values with slices of many scales, an error in them, noise, a claim, and whether it is a
    model's output."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(SHAPES)
    y = rng.standard_normal(shape)
    for axis in range(len(shape)):
        y = y * 10.0 ** rng.integers(-2, 3, [n if a == axis else 1 for a, n in enumerate(shape)])
    error, moved, rounded = (
        np.abs(y) * 10.0 ** rng.integers(-7, 1) * rng.uniform(-1, 1, shape) for _ in range(3)
    )
    noise = FakeNoise([y + moved], rounded_values=y + rounded)
    return y, y + error, noise, draw(CLAIMS), draw(st.booleans())


@LAW
@given(compared(), st.floats(1, 1e4), st.integers(0, 3), st.integers(0, 4))
def test_larger_error_in_one_slice_is_never_judged_milder(
    case: Any, times: float, axis: int, index: int
) -> None:
    y, candidate, noise, claim, output = case
    axis %= y.ndim
    place = tuple(index % y.shape[axis] if a == axis else slice(None) for a in range(y.ndim))
    larger = changed(candidate, place, lambda v: y[place] + (v - y[place]) * times)
    first, second = (judged(y, c, noise, claim, output=output).status for c in (candidate, larger))
    assert ORDER[second] >= ORDER[first]


@LAW
@given(compared(), st.integers(0, 2**32), st.integers(0, 3))
def test_the_order_of_axes_and_indices_does_not_matter(case: Any, seed: int, axis: int) -> None:
    y, candidate, noise, claim, output = case
    order = np.random.default_rng(seed).permutation(y.shape[axis % y.ndim])
    first = judged(y, candidate, noise, claim, output=output)
    for change in (
        lambda v: np.take(v, order, axis % y.ndim),
        np.transpose,
        lambda v: v[None, ..., None],
    ):
        runs = FakeNoise(
            [change(v) for v in noise.runs], rounded_values=change(noise.rounded_values)
        )
        found = judged(change(y), change(candidate), runs, claim, output=output)
        assert (found.status, found.label) == (first.status, first.label)


@LAW
@given(compared(), st.integers(0, 3), st.integers(0, 4))
def test_output_with_a_destroyed_slice_agrees_at_no_claim(case: Any, axis: int, index: int) -> None:
    y, candidate, noise, claim, _ = case
    axis %= y.ndim
    place = tuple(index % y.shape[axis] if a == axis else slice(None) for a in range(y.ndim))
    if y[place].size < 4 or y.shape[axis] == 1:
        return
    wrong = changed(
        candidate, place, lambda v: y[place] + np.abs(y[place]).max() + np.abs(y).max() * 1e-5
    )
    noise.runs = [y + np.abs(y).max() * 100]
    assert judged(y, wrong, noise, claim, output=True).status is FAIL


@pytest.mark.parametrize(
    ("steps", "status"),
    [(0, Status.AGREE), (1, Status.AGREE), (2, Status.UNRESOLVED), (200, Status.FAIL)],
)
def test_codes_of_which_the_noise_is_not_known(steps: int, status: Status) -> None:
    """One step may be another rounding; more may be several, or a fault."""
    reference = np.zeros(50, np.int8) - 100
    candidate = reference.copy()
    candidate[7] = steps - 100

    class Broken(FakeNoise):
        def perturb(self, claim: Precision, count: int) -> list[Array]:
            raise ModelError("nothing can be moved")

    assert judged(reference, candidate, Broken(codes=True)).status is status


@pytest.mark.parametrize(
    ("moved", "steps", "output", "status"),
    [
        (3, 4, True, Status.AGREE),
        (3, 8, True, Status.FAIL),
        (40, 30, True, Status.UNRESOLVED),  # one step moves the output by a fifth of its range
        (40, 30, False, Status.AGREE),
        (0, 1, True, Status.AGREE),  # a single operator, which reads what nothing moves
        (0, 2, True, Status.FAIL),
    ],
)
def test_codes_are_judged_by_what_moved_codes_before_them_do(
    moved: int, steps: int, output: bool, status: Status
) -> None:
    """A healthy model of a trained int8 network had 61 of 64 tensors unresolved."""
    reference = np.arange(-50, 50, dtype=np.int8)
    run = reference.copy()
    candidate = reference.copy()
    run[3] += moved
    candidate[7] += steps
    found = judged(
        reference, candidate, FakeNoise([run] * 8, codes=True, own_steps=True), output=output
    )
    assert found.status is status, found
    assert (found.label == "steps") == (status is Status.UNRESOLVED)


def test_errors_and_limits_beyond_the_scale_are_plain_numbers() -> None:
    """A percentage beyond 100 of a limit says nothing to anybody."""
    said = _floats.describe_error(_floats.WHOLE, 0.5, 2.0, "; limit {}", 7.6)
    assert has_line(said, "0.5", "25 %", "2", "7.6") and "× " not in said
    said = _floats.describe_error(_floats.WHOLE, 9.0, 2.0, "; limit {}", 0.02)
    assert has_line(said, "9", "2", "1 %") and said.count("%") == 1


@pytest.mark.parametrize(
    ("wrong", "named"), [(1.02, True), (1.0000001, False), (1000.0, False)], ids=str
)
def test_slice_is_named_only_if_the_full_tensor_does_not_decide(wrong: float, named: bool) -> None:
    reference = changed(FEATURES, np.s_[:, 5], lambda v: v * 1e-3)
    found = judged(
        reference, changed(reference, np.s_[:, 5], lambda v: v * wrong), quiet(reference)
    )
    assert ("index 5 of axis 1" in found.why) is named, found
    assert "of the tensor's largest value" in found.why
