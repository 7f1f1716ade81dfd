"""Values of a few numbers in a line. Covers `cases.short_values`."""

from __future__ import annotations

import numpy as np
import pytest

from subgraph.cases.short_values import are_short, show_array
from subgraph.storage.tensors import Record
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


@pytest.mark.parametrize(("sizes", "short"), [((8, 16), True), ((9, 16), False), ((), True)])
def test_few_numbers_are_counted_together(sizes: tuple[int, ...], short: bool) -> None:
    records = [Record(str(n), "tensor", "float32", ((n,),), ()) for n in sizes]
    assert are_short(records) is short
    texts = [Record("s", "tensor", "string", ((1,),), ())]
    assert not are_short([*records, *texts])
