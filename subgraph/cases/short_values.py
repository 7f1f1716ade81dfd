"""Tensors of a few numbers, in a line: `x = [1, 2, 3] in, y = [0, 1.5] expected`."""

from __future__ import annotations

import math
from collections.abc import Iterable

from subgraph.lazy import np
from subgraph.storage.tensors import Record, Records, format_shape
from subgraph.text import clean
from subgraph.types import Array

MAX_NUMBERS = 24  # of a line
MAX_COLUMNS = 1000  # of a line of numbers: it is not broken


def are_short(records: Iterable[Record]) -> bool:
    """Return whether values are tensors of real numbers, a few in all."""
    total = 0
    for record in records:
        if record.form != "tensor" or record.dtype.startswith(("string", "complex")):
            return False
        total += math.prod(record.shapes[0])
    return total <= MAX_NUMBERS


def list_values(values: Records, names: Iterable[str]) -> str:
    """Return the names and values of tensors."""
    return ", ".join(f"{clean(name)} = {show_array(values[name].array())}" for name in names)


def list_case(values: Records, inputs: Iterable[str], outputs: Iterable[str]) -> str | None:
    """Return the inputs and the expected outputs of a case; None if they are large."""
    if not are_short(map(values.__getitem__, (*inputs, *outputs))):
        return None
    return f"{list_values(values, inputs)} in, {list_values(values, outputs)} expected"


def show_array(array: Array) -> str:
    """Return `[1, 2, 3]`; with the shape if it has several axes with more than one element."""
    flat = np.reshape(array, -1)
    if array.dtype.kind not in "iu":
        flat = flat.astype(np.float64) + 0
    text = np.array2string(
        flat,
        threshold=MAX_NUMBERS,
        max_line_width=MAX_COLUMNS,
        separator=", ",
        formatter={"float_kind": "{:.6g}".format},
    )
    is_vector = array.size == max(array.shape, default=1)
    if is_vector:
        return text
    return f"{text} ({format_shape(array.shape)})"
