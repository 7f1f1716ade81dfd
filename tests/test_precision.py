"""What is known of a claimed precision."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from subgraph.comparison.noise.perturb import round_to_claim
from subgraph.precision import Precision
from subgraph.runtime.candidate import PRECISIONS


def test_the_words_that_a_user_types_in_their_order() -> None:
    assert PRECISIONS == ("fp32", "tf32", "fp16", "bf16", "int8")
    assert sorted(Precision, key=Precision.roundoff) == list(Precision)
    assert (
        json.dumps({"precision": Precision("bf16")}) == '{"precision": "bf16"}'
        and f"{Precision.INT8}" == "int8"
    )


@pytest.mark.parametrize(
    "claim", [p for p in Precision if p not in (Precision.INT8, Precision.TF32)]
)
def test_numbers_are_those_of_the_type(claim: Precision) -> None:
    info = ml_dtypes.finfo(claim.dtype)  # type: ignore[no-untyped-call]
    assert claim.eps == float(info.eps) / 2
    assert claim.largest == float(info.max) if claim.narrow else claim is Precision.FP32
    assert Precision.from_dtype(claim.dtype) is claim


def test_tf32_has_the_digits_of_float16_and_the_range_of_float32() -> None:
    assert Precision.TF32.eps == Precision.FP16.eps
    assert not Precision.TF32.narrow
    values = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1e30, np.inf, np.nan], np.float32)
    rounded = round_to_claim(values, Precision.TF32)
    assert rounded[:2].tolist() == [1, 1 + 2**-9], "ties to even"
    assert abs(rounded[2] / 1e30 - 1) <= Precision.TF32.eps
    assert np.isinf(rounded[3]) and np.isnan(rounded[4])


def test_the_smallest_step_of_float16_and_other_types() -> None:
    assert Precision.FP16.half_step * 2 == float(np.finfo(np.float16).smallest_subnormal)
    assert Precision.from_dtype("float64") is Precision.from_dtype("int64") is Precision.FP32
