"""Share of the samples whose largest value is at the label; without labels, where the float model
has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def score(outputs: Sequence[Mapping[str, Any]], truth: Sequence[Mapping[str, Any]]) -> float:
    """Of the first output, over its last axis; a batch counts as many. Where a value is NaN it is
    no hit."""
    hits: list[bool] = []
    for given, true in zip(outputs, truth, strict=True):
        name = next(iter(given))
        best = np.atleast_1d(given[name]).argmax(-1).reshape(-1)
        wanted = true["label"] if "label" in true else np.atleast_1d(true[name]).argmax(-1)
        sound = ~np.isnan(np.atleast_1d(given[name])).any(-1).reshape(-1)
        hits += (sound & (best == np.asarray(wanted).reshape(-1))).tolist()
    return float(np.mean(hits))
