"""Expected outputs of operator tests: the tolerance of onnx's own runner. Covers
`questions.sweep.expected`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from subgraph.questions.sweep.expected import describe_excess, needs_noise
from tests.helpers.facts import has_line


def single(values: Any) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("expected", "value", "off"),
    [
        (single([1, 2]), single([1.0009, 2]), ()),
        (single([1, 2]), single([1.01, 2]), ("1 of 2",)),
        (single([np.nan, np.inf]), single([np.nan, np.inf]), ()),
        (single([np.nan, np.inf]), single([np.nan, -np.inf]), ("1 of 2",)),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), ()),
        (np.zeros((0, 3), np.float32), np.zeros((0, 4), np.float32), ("0×4", "0×3")),
        (single(1), single([1]), ()),
        (single(1), np.float64(1), ("float64", "float32")),
        (np.array(["a", "b"], object), np.array(["a", "c"]), ("1 of 2",)),
        (np.array([1], ml_dtypes.bfloat16), np.array([1.0078], ml_dtypes.bfloat16), ()),
        (np.array([1], ml_dtypes.int4), np.array([2], ml_dtypes.int4), ("1 of 1 elements",)),
        (np.array([1j], np.complex64), np.array([1.1j], np.complex64), ("1 of 1 elements",)),
        (None, None, ()),
        (None, single(1), ("empty optional",)),
        ([single(1)], [single(1)], ()),
        ([single(1)], [single(2)], ("1 of 1 elements",)),
        ([single(1)], [], ("number",)),
    ],
)
def test_the_tolerance_is_that_of_onnx(expected: Any, value: Any, off: tuple[str, ...]) -> None:
    found = describe_excess(expected, value, 1e-3, 1e-7)
    assert bool(found) == bool(off)
    assert has_line(found, *off)


def test_only_the_default_criterion_needs_noise() -> None:
    words = ("noise", "noise:floor=0", "noise_of_mine.py", "threshold:cosine>0.9")
    assert [needs_noise(w) for w in words] == [True, True, False, False]
