"""Each transformation is recognized in random tensors; noise and flat tensors have no explanation.

Covers `comparison.similarity.explanations` and `comparison.similarity.rearranged`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from subgraph.comparison.similarity.explanations import (
    find_explanations,
    find_grid,
    find_matching_tensors,
)
from subgraph.comparison.similarity.rearranged import iter_misreadings
from tests.helpers.budget import within
from tests.helpers.examples import examples
from tests.helpers.facts import has_line

Array = np.ndarray[Any, np.dtype[Any]]
few = settings(max_examples=examples(30))


def explain(reference: Array, candidate: Array, **options: Any) -> list[str]:
    return [e.text for e in find_explanations(reference, candidate, **options)]


def wide(values: Array) -> Array:
    """As float32, the type of most candidates' outputs."""
    return np.ascontiguousarray(values, np.float32)


@st.composite
def tensors(draw: st.DrawFn, ranks: tuple[int, int] = (2, 4), shortest: int = 4) -> Array:
    """Random values of several distributions, in random shapes."""
    shape = draw(st.lists(st.integers(shortest, 9), min_size=ranks[0], max_size=ranks[1]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "exponential", "uniform"]))
    values: Array = getattr(rng, kind)(size=shape)
    return wide(values * draw(st.sampled_from([1e-3, 1.0, 300.0])))


@st.composite
def any_tensors(draw: st.DrawFn) -> Array:
    """Also tensors with outliers, with many zeros, and smooth ones."""
    x = draw(tensors(ranks=(1, 4), shortest=2))
    kind = draw(st.sampled_from(["plain", "cube", "sparse", "smooth"]))
    changed = {
        "cube": x**3,
        "sparse": np.maximum(x - x.mean(), 0),
        "smooth": x.cumsum(0).cumsum(-1),
    }
    return wide(changed.get(kind, x))


# ------------------------------------------------------------ places


@few
@given(tensors(), st.data())
def test_any_order_of_axes_is_recognized(x: Array, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(x.ndim)).filter(lambda p: list(p) != sorted(p)))
    moved = wide(x.transpose(order))
    shown = ",".join(map(str, order))
    (words,) = explain(x, moved)
    assert has_line(words, "axes", f"{shown}") or "exchanged: transposed" in words
    if moved.shape != x.shape:  # where lengths are equal, it may be read as another order as well
        assert any(f"the order {shown}" in words for words in explain(x, moved.reshape(x.shape)))


@pytest.mark.parametrize(
    ("shape", "change", "words"),
    [
        ((2, 3, 8, 8), lambda x: x[:, ::-1], ("0 and 2", "axis 1", "RGB for BGR")),
        ((8, 8, 3), lambda x: x[..., ::-1], ("0 and 2", "axis 2", "RGB for BGR")),
        ((1, 4, 8, 8), lambda x: x[:, [2, 1, 0, 3]], ("0 and 2", "axis 1", "RGBA for BGRA")),
        (
            (1, 3, 8, 9),
            lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape),
            ("0,2,3,1", "NHWC for NCHW"),
        ),
        ((1, 3, 8, 9), lambda x: x.reshape(1, 8, 9, 3).transpose(0, 3, 1, 2), ("laid out",)),
        ((7, 7), lambda x: x.T, ("0 and 1", "transposed")),
        ((3, 16), lambda x: x.reshape(48), ("right values", "48")),
    ],
)
def test_places_have_names(
    shape: tuple[int, ...], change: Callable[[Array], Array], words: tuple[str, ...]
) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    (found,) = explain(x, wide(change(x)))
    assert has_line(found, *words)


# ------------------------------------------------------------ values


@few
@given(
    tensors(),
    st.sampled_from([-3.0, -1.0, 0.5, 1.02, 255.0]),
    st.sampled_from([0.0, -128.0, 127.5]),
)
def test_straight_line_is_recognized(x: Array, scale: float, offset: float) -> None:
    offset *= float(np.ptp(x)) / 100
    (words,) = explain(x, (scale * x + offset).astype(np.float32))
    assert words.startswith(f"candidate = {scale:.5g} · reference".replace("-", "−"))


def test_values_that_are_cut_off_are_not_named() -> None:
    x = wide(np.random.default_rng(0).normal(size=(6, 40)) * 3)
    assert explain(x, np.clip(x, -1, 1)) == []


@few
@given(tensors())
def test_another_tensor_is_recognized(x: Array) -> None:
    rng = np.random.default_rng(3)
    others: dict[str, Array] = {
        f"the values of sample {k}": np.asarray(rng.normal(size=x.shape)) for k in range(4)
    }
    changed: Array = wide(others["the values of sample 2"])
    assert explain(x, changed, others=others) == ["the values of sample 2"]
    assert [e.text for e in find_matching_tensors(x, changed, others)] == ["the values of sample 2"]
    assert find_matching_tensors(x, wide(np.asarray(rng.normal(size=x.shape))), others) == []


# ------------------------------------------------------------ rounding


@pytest.mark.parametrize(("bits", "claim"), [(16, "bf16"), (13, "fp16")])
@few
@given(x=tensors())
def test_values_of_a_narrower_type_are_recognized(bits: int, claim: str, x: Array) -> None:
    """Bits cut off; float16's own range is smaller, but not passed here."""
    x = np.clip(x, -1e3, 1e3)
    x[np.abs(x) < 1e-3] = 0.0
    narrow = (x.view(np.uint32) & np.uint32((1 << 32) - (1 << bits))).view(np.float32)
    found = find_grid(x, narrow)
    if np.count_nonzero(x) >= 32:
        assert found and found[0] == claim
    assert find_grid(narrow, narrow) is None and find_grid(x, x) is None


@few
@given(tensors(ranks=(3, 4), shortest=7))
def test_eight_bits_are_recognized(x: Array) -> None:
    step = float(np.ptp(x)) / 255
    found = find_grid(x, (np.round(x / step) * step).astype(np.float32))
    levels = np.unique(np.round(x / step)).size
    if levels * 5 < np.unique(x).size:
        assert found and found[0] == "int8"


@pytest.mark.parametrize(
    "values",
    [np.ones(64), np.arange(64) % 2 + 1.0, np.arange(1, 201) / 128, np.repeat([1.5, 3.0], 40)],
    ids=["constant", "mask", "exact in 8 bits", "few"],
)
def test_values_that_every_type_holds_tell_no_precision(values: Any) -> None:
    reference = np.random.default_rng(0).normal(size=values.size).astype(np.float32)
    assert find_grid(reference, values.astype(np.float32)) is None


def test_overflow_of_float16_is_named() -> None:
    x = (np.random.default_rng(0).normal(size=(8, 8)) * 5e4).astype(np.float32)
    with np.errstate(over="ignore"):
        changed = x.astype(np.float16).astype(np.float32)
    assert not np.isfinite(changed).all()
    assert has_line(explain(x, changed), "infinite", "65504, float16")
    few = np.isinf(changed)
    assert explain(x[few][:2], changed[few][:2]) == explain(x, changed)[:1]
    held = np.array([1e5, 2e5, 3e30], np.float32)
    assert explain(held, np.array([1e5, 2e5, np.inf], np.float32)) == []
    changed[0, 0] = np.inf if np.isfinite(changed[0, 0]) else 0.0
    assert "infinite" not in " ".join(explain(x, changed)) or np.isfinite(changed[0, 0])


# ------------------------------------------------------------ nothing


@given(any_tensors(), st.sampled_from([1e-7, 1e-3, 0.1, 1.0, 30.0]), st.integers(0, 2**32))
def test_noise_has_no_explanation(x: Array, size: float, seed: int) -> None:
    noise: Array = np.asarray(np.random.default_rng([seed, 1]).normal(size=x.shape))
    assert explain(x, (x + size * float(np.abs(x).max()) * noise).astype(np.float32)) == []
    assert explain(x, noise.astype(np.float32)) == []


@few
@given(any_tensors(), st.integers(0, 2**32), st.integers(1, 6))
def test_few_wrong_elements_have_no_explanation(x: Array, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    changed = x.copy()
    changed.reshape(-1)[rng.integers(0, x.size, count)] = rng.normal(size=count) * np.abs(x).max()
    assert explain(x, changed) == []


@few
@given(
    st.integers(1, 7), st.lists(st.integers(2, 9), min_size=1, max_size=4), st.integers(0, 2**32)
)
def test_few_different_values_have_no_explanation(values: int, shape: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, values, shape).astype(np.float32)
    for y in (
        x[..., ::-1],
        x.T.reshape(x.shape),
        x * 0.5 - 128,
        rng.permutation(x),
        np.zeros_like(x),
    ):
        assert explain(x, wide(y)) == []


@few
@given(tensors())
def test_equal_and_nearly_constant_tensors_have_no_explanation(x: Array) -> None:
    assert explain(x, x) == [] and explain(x, x.astype(np.float64)) == []
    flat = 7.0 + 1e-7 * np.tanh(x.astype(np.float64))
    assert explain(flat, flat[..., ::-1]) == []


def test_many_explanations_count_as_none() -> None:
    """Values that are the same along all but one axis: every order of the others would do as
    well."""
    line = np.random.default_rng(0).normal(size=9)
    x = np.broadcast_to(line, (9, 9, 9, 9)).copy()
    assert explain(x, x.transpose(3, 0, 1, 2)) == []


@pytest.mark.parametrize("kind", ["U4", bool, np.complex64, object])
def test_values_that_are_no_numbers_have_no_explanation(kind: Any) -> None:
    x = np.random.default_rng(0).integers(0, 99, (4, 8)).astype(kind)
    assert explain(x, x[::-1]) == [] and find_matching_tensors(x, x[::-1], {"x": x[::-1]}) == []
    assert explain(x, x[:2]) == [] and explain(x[:0], x[:0]) == []


def test_nan_and_infinities_move_with_the_values() -> None:
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    x[1, 2, 3], x[0, 0, 0] = np.nan, np.inf
    (found,) = explain(x, wide(x.transpose(0, 2, 1)))
    assert has_line(found, "1 and 2", "transposed")
    changed = wide(x.transpose(0, 2, 1))
    changed[3, 3, 3] = np.nan
    assert explain(x, changed) == []


@few
@given(tensors(ranks=(2, 4)))
def test_misread_inputs_keep_shape_and_type(x: Array) -> None:
    for text, value in iter_misreadings(x):
        assert text and value.shape == x.shape and value.dtype == x.dtype


@pytest.mark.rare
@pytest.mark.slow
def test_ten_million_elements_take_a_second_or_so() -> None:
    """CPU time of this thread alone; the limit is ten times that of where this was written."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 32, 500, 600)).astype(np.float32)
    for y in (
        rng.normal(size=x.shape).astype(np.float32),
        wide(x.transpose(0, 2, 3, 1)).reshape(x.shape),
    ):
        with within(12):
            find_explanations(x, y)
