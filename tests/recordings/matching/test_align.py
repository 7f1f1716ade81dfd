"""A recorded array as the tensor that it holds: alignments, print rounding, arrays that may be
near."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from subgraph.recordings.matching import align
from subgraph.trials.matching.match_tensors import BlockSums


@given(st.integers(0, 10**6), st.lists(st.integers(2, 4), min_size=1, max_size=4), st.booleans())
def test_law_the_right_way_is_among_those_that_fit(
    seed: int, shape: list[int], loose: bool
) -> None:
    """However an array was turned or flattened, one of the ways brings it back; its own shape is
    believed."""
    dice = np.random.default_rng(seed)
    # where two axes are alike, nothing tells them apart
    shape = shape if loose else list(dict.fromkeys(shape))
    value = dice.normal(size=shape)
    turned = value.transpose(dice.permutation(len(shape)))
    ways = (
        [turned]
        if not loose
        else [value.reshape(-1), np.moveaxis(value, 1, -1).reshape(-1) if value.ndim > 2 else value]
    )
    for way in ways:
        found = [a.apply(way) for a in align.iter_alignments(way.shape, tuple(shape), loose, None)]
        right = way if way.shape == value.shape and not loose else value
        assert any(np.array_equal(a, right) for a in found)
        assert all(a.shape == tuple(shape) for a in found)


def test_block_sums_leave_out_nothing_that_is_near() -> None:
    dice = np.random.default_rng(0)
    arrays = {
        f"a{k}": dice.normal(size=(2, 3, 4, 5)).astype(np.float32) * (1 + k % 3) for k in range(40)
    }
    sums = BlockSums(arrays.items())
    for name, value in arrays.items():
        near = (value * (1 + 0.05 * dice.uniform(-1, 1, value.shape))).transpose(0, 2, 3, 1)
        assert name in sums.find_near(near, 0.1)
    assert not sums.find_near(np.zeros((7,)), 0.1)
    assert len(sums.find_near(arrays["a0"], 0.1)) < 10


def test_printing_explains_half_a_digit() -> None:
    reference = np.array([1.0, 1.0, 1.0], np.float32)
    recorded = np.array([1.0004, 1.0006, np.nan], np.float32)
    absorbed = align.absorb_print_rounding(reference, recorded, 1e-3)
    assert np.array_equal(absorbed, np.array([1, recorded[1], np.nan], np.float32), equal_nan=True)
    assert align.absorb_print_rounding(reference, recorded, 0.0) is recorded
