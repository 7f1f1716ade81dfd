"""Values of a few numbers in a line. Covers `cases.short_values`."""

from __future__ import annotations

import numpy as np
import pytest

from subgraph.cases.short_values import show_array
from subgraph.types import Array


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array([1 / 3, -0.0], np.float32), "[0.333333, 0]"),
        (np.array([[12345678]], np.int64), "[12345678]"),
        (np.array(2**53 + 1), "[9007199254740993]"),
        (np.array([True, False]), "[1, 0]"),
        (np.array([[1, 2], [3, 4]], np.uint8), "[1, 2, 3, 4] (2×2)"),
    ],
)
def test_array_in_a_line(array: Array, text: str) -> None:
    assert show_array(array) == text
