"""Mean intersection over union of the classes of each pixel; without labels, compared with the
float model's classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from subgraph.types import Fields

CLASS_AXIS = 1  # axis of the first output
NO_CLASS = -1  # of a pixel with NaN


def score(outputs: Sequence[Fields], truth: Sequence[Fields]) -> float:
    """Over all samples; classes that neither side has do not count."""
    both: dict[int, int] = {}
    either: dict[int, int] = {}
    for output, true in zip(outputs, truth, strict=True):
        name = next(iter(output))
        values = np.asarray(output[name])
        found = np.where(
            np.isnan(values).any(CLASS_AXIS), NO_CLASS, values.argmax(CLASS_AXIS)
        ).reshape(-1)
        wanted = true["label"] if "label" in true else np.asarray(true[name]).argmax(CLASS_AXIS)
        wanted = np.asarray(wanted).reshape(-1)
        for kind in np.union1d(found, wanted).tolist():
            both[kind] = both.get(kind, 0) + int(np.sum((found == kind) & (wanted == kind)))
            either[kind] = either.get(kind, 0) + int(np.sum((found == kind) | (wanted == kind)))
    return float(np.mean([both[kind] / either[kind] for kind in either]))
