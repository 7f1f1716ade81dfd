"""Share of the samples whose label is among the five largest values; without labels, the float
model's first one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST = 5


def score(outputs: Sequence[Mapping[str, Any]], truth: Sequence[Mapping[str, Any]]) -> float:
    """Of the first output, over its last axis; a batch counts as many. Where a value is NaN it is
    no hit."""
    hits: list[bool] = []
    for given, true in zip(outputs, truth, strict=True):
        name = next(iter(given))
        values = np.atleast_2d(given[name])
        sound = ~np.isnan(values).any(-1).reshape(-1)
        best = np.argsort(-values, axis=-1, kind="stable")[..., :MOST].reshape(
            -1, min(MOST, values.shape[-1])
        )
        wanted = true["label"] if "label" in true else np.atleast_1d(true[name]).argmax(-1)
        rows = zip(
            sound.tolist(), best.tolist(), np.asarray(wanted).reshape(-1).tolist(), strict=True
        )
        hits += [is_sound and w in row for is_sound, row, w in rows]
    return float(np.mean(hits))
