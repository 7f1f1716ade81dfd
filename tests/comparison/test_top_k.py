"""How often reference and candidate name the same class; a constant output gains nothing from
ties."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from subgraph.comparison.pair import compute_agreement
from tests.helpers.examples import examples

LAW = settings(max_examples=examples(200), deadline=None, database=None, derandomize=True)
ROW = st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), min_size=7, max_size=7)
SCORES = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def agree(reference: Any, candidate: Any, dtype: Any = np.float32) -> dict[str, float] | None:
    return compute_agreement(np.array(reference, dtype), np.array(candidate, dtype))


@LAW
@given(st.lists(st.tuples(ROW, ROW), min_size=1, max_size=4))
def test_it_is_its_definition(rows: list[tuple[list[float], list[float]]]) -> None:
    top1 = top5 = 0
    for expected, actual in rows:
        best = [i for i, value in enumerate(expected) if value == max(expected)]
        order = sorted(range(len(actual)), key=lambda i: (-actual[i], i))
        top1 += order[0] in best
        top5 += any(i in best for i in order[:5])
    found = agree([a for a, _ in rows], [b for _, b in rows])
    assert found == pytest.approx({"top1": top1 / len(rows), "top5": top5 / len(rows)})


@LAW
@given(st.lists(ROW, min_size=1, max_size=4))
def test_equal_scores_agree(rows: list[list[float]]) -> None:
    assert agree(rows, rows) == {"top1": 1.0, "top5": 1.0}


def test_shares_of_samples() -> None:
    swapped = [*SCORES[:5], 6.0, 5.0]
    assert agree([SCORES, SCORES], [SCORES, swapped]) == {"top1": 0.5, "top5": 1.0}
    assert agree([SCORES], [SCORES[::-1]]) == {"top1": 0.0, "top5": 0.0}


def test_the_two_best_of_the_reference_are_equal() -> None:
    """Either is right; but not the third, however near."""
    tied = [0.0, 7.0, 0.0, 7.0, 6.9999, 0.0]
    for best in range(6):
        candidate = np.arange(6) == best
        found = agree([tied], [candidate])
        assert found and found["top1"] == (best in (1, 3))


def test_constant_candidate_earns_nothing() -> None:
    assert agree([SCORES], [[0.0] * 7]) == {"top1": 0.0, "top5": 0.0}


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
@pytest.mark.parametrize("shape", [(1, 7), (1, 7, 1, 1), (1, 7, 1)])
def test_tensors_that_look_like_classes(dtype: Any, shape: tuple[int, ...]) -> None:
    scores = np.array(SCORES, dtype).reshape(shape)
    assert compute_agreement(scores, scores) == {"top1": 1.0, "top5": 1.0}


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(7),
        np.zeros((1, 5)),
        np.zeros((0, 7)),
        np.zeros((1, 7, 2, 2)),
        np.zeros((1, 3, 7)),
        np.zeros((1, 7), int),
        np.zeros((1, 7), bool),
        np.zeros((1, 7), object),
        np.array(1.0),
        None,
        [np.zeros((1, 7))],
    ],
)
def test_tensors_that_do_not(value: Any) -> None:
    assert compute_agreement(value, value) is None


def test_the_candidate_must_look_alike() -> None:
    one = np.zeros((1, 7))
    for other in (np.zeros((1, 8)), np.zeros((7, 1)), np.zeros((1, 7), int), None, [one]):
        assert compute_agreement(one, other) is None


def test_nan_and_infinities() -> None:
    odd = [math.nan, *SCORES[1:]]
    assert agree([SCORES], [odd]) == {"top1": 0.0, "top5": 0.0}
    # the first is left out
    assert agree([odd, SCORES], [odd, SCORES[::-1]]) == {"top1": 0.0, "top5": 0.0}
    assert agree([odd], [odd]) is None
    low = [-math.inf, *SCORES[1:]]
    assert agree([low], [low]) == {"top1": 1.0, "top5": 1.0}
