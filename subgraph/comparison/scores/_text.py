"""The text that a model read or heard, and the number of edits between it and the true one.

An output is text, numbers of letters or words, or one score per step and class. The last is read as
CTC: the best class of each step, repeats and blanks omitted; the blank is the first or the last
class, whichever most steps have.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from subgraph.iterables import flatten
from subgraph.types import Fields

Units = list[Hashable]
NO_CLASS = -1  # of a step with NaN: it equals nothing


def compute_right_share(
    outputs: Sequence[Fields],
    truth: Sequence[Fields],
    split: Callable[[str], Sequence[str]],
) -> float:
    """Return 1 − edits / units of the truth, over all samples.

    Args:
        outputs: The outputs of each sample.
        truth: The labels or the float model's outputs of each sample.
        split: Returns the units of a text.

    Raises:
        ValueError: the labels are text, and the output is not.
    """
    name = next(iter(outputs[0]))
    if "label" in truth[0]:
        wanted = [_split_units(true["label"], split, None) for true in truth]
        blank = _find_blank([output[name] for output in outputs])
    else:
        blank = _find_blank([true[name] for true in truth])
        wanted = [_split_units(true[name], split, blank) for true in truth]
    units = [_split_units(output[name], split, blank) for output in outputs]
    if any(isinstance(w, str) for w in flatten(wanted)) and any(
        isinstance(f, int) for f in flatten(units)
    ):
        raise ValueError(
            "the labels are text, the output is numbers: give numbers, `3 5 7`, or your own"
            " function"
        )
    edits = sum(compute_edit_distance(f, w) for f, w in zip(units, wanted, strict=True))
    return 1 - edits / max(1, sum(map(len, wanted)))


def _find_blank(values: Sequence[Any]) -> int | None:
    """Return the class of a blank; None without scores of classes."""
    scores = [np.asarray(v) for v in values]
    if any(a.dtype.kind != "f" or a.ndim < 2 for a in scores):
        return None
    best = np.concatenate([a.argmax(-1).reshape(-1) for a in scores])
    last = scores[0].shape[-1] - 1
    return last if np.sum(best == last) > np.sum(best == 0) else 0


def _split_units(value: Any, split: Callable[[str], Sequence[str]], blank: int | None) -> Units:
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        text = " ".join(
            v.decode() if isinstance(v, bytes) else str(v) for v in array.reshape(-1).tolist()
        )
        numbers = text.split()
        return (
            [*map(int, numbers)]
            if numbers and all(n.isdecimal() for n in numbers)
            else [*split(text)]
        )
    if blank is None or array.dtype.kind != "f":
        return [int(v) for v in array.reshape(-1)]
    best = np.where(np.isnan(array).any(-1), NO_CLASS, array.argmax(-1)).reshape(-1)
    new = np.diff(best, prepend=NO_CLASS - 1) != 0
    return [int(v) for v in best[new & (best != blank)]]


def compute_edit_distance(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the fewest units to insert, leave out or change. Complexity: the product of the
    lengths.

    >>> compute_edit_distance("kitten", "sitting")
    3
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before = row[0]
        row[0] = i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]
