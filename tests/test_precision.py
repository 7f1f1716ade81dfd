"""What is known of a claimed precision."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from subgraph.precision import Precision
from subgraph.runtime.candidate import PRECISIONS


def test_the_words_that_a_user_types_in_their_order() -> None:
    assert PRECISIONS == ("fp32", "fp16", "bf16", "int8")
    assert sorted(Precision, key=Precision.roundoff) == list(Precision)
    assert json.dumps({"precision": Precision("bf16")}) == '{"precision": "bf16"}' and f"{Precision.INT8}" == "int8"


@pytest.mark.parametrize("claim", [p for p in Precision if p is not Precision.INT8])
def test_numbers_are_those_of_the_type(claim: Precision) -> None:
    info = ml_dtypes.finfo(claim.dtype)  # type: ignore[no-untyped-call]
    assert claim.eps == float(info.eps) / 2
    assert claim.largest == float(info.max) if claim.narrow else claim is Precision.FP32
    assert Precision.of_type(claim.dtype) is claim


def test_the_smallest_step_of_float16_and_other_types() -> None:
    assert Precision.FP16.half_step * 2 == float(np.finfo(np.float16).smallest_subnormal)
    assert Precision.of_type("float64") is Precision.of_type("int64") is Precision.FP32
