"""Which outputs show that the candidate computed them. Laws on random values; one fact per
example."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from subgraph.comparison.evidence import explain_mute, is_saturated, make_other_inputs
from subgraph.types import Array

SHAPES = st.sampled_from([(8,), (1, 16), (2, 3, 4, 5)])
SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.sampled_from([1e-6, 1.0, 1e6])


def draw(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


@given(SHAPES, SEEDS, SCALES)
def test_nearly_equal_answer_tells_something(
    shape: tuple[int, ...], seed: int, scale: float
) -> None:
    reference = draw(shape, seed, scale)
    other = draw(shape, seed + 1, scale)
    candidate = reference * np.float32(1.01)
    assert explain_mute(reference, candidate, [other]) == ""


@given(SHAPES, SEEDS, SCALES, st.sampled_from(["zeros", "mean", "other"]))
def test_answer_that_knows_nothing_is_mute(
    shape: tuple[int, ...], seed: int, scale: float, kind: str
) -> None:
    reference = draw(shape, seed, scale)
    other = draw(shape, seed + 1, scale)
    answers = {
        "zeros": np.zeros_like(reference),
        "mean": np.full_like(reference, reference.mean()),
        "other": other,
    }
    assert explain_mute(reference, answers[kind], [other]) != ""


@given(SHAPES, SEEDS, st.floats(-1e3, 1e3, width=32))
def test_constant_reference_is_mute(shape: tuple[int, ...], seed: int, value: float) -> None:
    reference = np.full(shape, value, np.float32)
    assert explain_mute(reference, reference, [draw(shape, seed)]) != ""


@given(SHAPES, SEEDS)
def test_output_that_no_input_changes_is_mute(shape: tuple[int, ...], seed: int) -> None:
    reference = draw(shape, seed)
    assert explain_mute(reference, reference, [reference, reference]) != ""
    assert explain_mute(reference, reference, [reference, draw(shape, seed + 1)]) == ""


@pytest.mark.parametrize(
    ("values", "others", "is_mute"),
    [
        (np.array([3, 1, 2]), [], False),
        (np.array([3, 3, 3]), [], True),
        (np.array([3, 1, 2]), [np.array([3, 1, 2])], True),
        (np.array([7]), [np.array([2])], False),
        (np.array([0]), [np.array([2])], True),  # an answer of zeros would pass
        (np.array([True, False]), [], False),
        (np.array([True, True]), [], True),
        (np.array(["a", "b"], object), [], False),
        (np.array(["a"], object), [], True),
        (np.zeros((0, 4), np.float32), [], True),
        (np.array([np.nan, np.inf], np.float32), [], True),
        (np.array([np.nan, 1.0, 2.0], np.float32), [], False),
        (np.array([2.5], np.float32), [np.array([1.0], np.float32)], False),
        (np.array([2.5], np.float32), [], False),
        (None, [], True),
        ([], [], True),
    ],
)
def test_values_that_are_no_plain_floats(
    values: object, others: list[Array], is_mute: bool
) -> None:
    assert bool(explain_mute(values, values, others)) is is_mute  # type: ignore[arg-type]


def test_sequence_tells_something_if_one_element_does() -> None:
    constant = np.ones(4, np.float32)
    varying = np.arange(4, dtype=np.float32)
    assert explain_mute([constant, varying], [constant, varying]) == ""
    assert explain_mute([constant], [constant]) != ""


@pytest.mark.parametrize(
    ("values", "hides"),
    [
        ([1.0, 0.0, 0.0], True),
        ([0.999, 0.001], True),
        ([0.6, 0.4], False),
        ([0.001] * 1000, False),
        ([0.0006, 0.0004], False),
        ([0.0, 0.0], True),
        ([-5.0, -0.1], True),
    ],
)
def test_saturated_values_hide_errors(values: list[float], hides: bool) -> None:
    assert is_saturated(np.array(values, np.float32)) is hides


def test_other_inputs_have_the_types_and_shapes_of_the_input() -> None:
    feeds = {
        "image": draw((1, 3, 8, 8), 0),
        "ids": np.array([[5, 9, 2, 7]]),
        "rate": np.array(16000),
        "mask": np.ones((1, 4), np.int64),
    }
    others = make_other_inputs(feeds)
    assert len(others) == 2
    for other in others:
        assert {n: (v.dtype, v.shape) for n, v in other.items()} == {
            n: (v.dtype, v.shape) for n, v in feeds.items()
        }
        assert not np.array_equal(other["image"], feeds["image"])
        assert set(other["ids"].flat) <= set(feeds["ids"].flat)
        assert np.array_equal(other["rate"], feeds["rate"]) and np.array_equal(
            other["mask"], feeds["mask"]
        )


def test_input_that_does_not_vary_has_no_others() -> None:
    assert make_other_inputs({"x": np.zeros((2, 2), np.float32), "n": np.array(3)}) == []
