"""Mistakes of a wrapper that its outputs show. As candidates they are in
`tests/trials/test_preflight.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from subgraph.comparison.contract import explain_breach, explain_misread, is_right, keeps_answer
from subgraph.types import Array

SEEDS = st.integers(0, 2**32 - 1)


def outputs(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((1, 3, 8, 8)).astype(np.float32) for name in ("y", "z")}


@given(SEEDS, st.floats(0, 1e-3))
def test_right_values_break_nothing(seed: int, error: float) -> None:
    expected = outputs(seed)
    given_values = {name: value * np.float32(1 + error) for name, value in expected.items()}
    assert explain_breach(expected, given_values) == ""
    assert all(is_right(expected[name], given_values[name]) for name in expected)


@given(SEEDS)
def test_one_right_output_clears_the_wrapper(seed: int) -> None:
    expected = outputs(seed)
    assert explain_breach(expected, {"y": expected["y"], "z": expected["z"] * 3}) == ""


@given(SEEDS)
def test_another_network_is_no_known_mistake(seed: int) -> None:
    assert explain_breach(outputs(seed), outputs(seed + 1)) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.reshape(-1), "the shape"),
        (lambda v: v.astype(np.float16), "the type float16"),
        (lambda v: np.full_like(v, 7), "every value is 7"),
        (lambda v: v * np.nan, "NaN"),
        (lambda v: v.byteswap(), "big-endian"),
        (lambda v: np.ascontiguousarray(v.transpose(0, 2, 3, 1)).reshape(v.shape), "NHWC"),
        (lambda v: 3 * v, "reference"),
    ],
)
def test_change_of_all_outputs_is_named(change: Callable[[Array], Array], words: str) -> None:
    expected = outputs(0)
    assert words in explain_breach(
        expected, {name: change(value) for name, value in expected.items()}
    )


def test_exchanged_names_are_named() -> None:
    expected = outputs(0)
    assert "exchanged" in explain_breach(expected, {"y": expected["z"], "z": expected["y"]})


def test_input_read_in_another_layout_is_named() -> None:
    inputs = outputs(0)
    read = {
        name: np.ascontiguousarray(value.transpose(0, 2, 3, 1)).reshape(value.shape)
        for name, value in inputs.items()
    }
    assert "laid out" in explain_misread(dict, inputs, read)
    assert explain_misread(dict, inputs, dict(inputs)) == ""


@given(SEEDS)
def test_only_the_first_answer_is_a_kept_answer(seed: int) -> None:
    first = outputs(seed)
    other = outputs(seed + 1)
    assert keeps_answer(other, first, dict(first))
    assert not keeps_answer(other, first, dict(other))
    assert not keeps_answer(first, first, dict(first)), "both inputs give the same outputs"
