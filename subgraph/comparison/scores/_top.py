"""The share of the samples whose label is among the largest values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from subgraph.types import Fields


def count_hits(outputs: Sequence[Fields], truth: Sequence[Fields], most: int) -> float:
    """Return the share of hits of the first output, over its last axis; a batch counts as many.

    A sample with NaN is not a hit. Without labels, the float model's first class counts.

    Args:
        outputs: Per sample, the outputs.
        truth: Per sample, the label, or the outputs of the float model.
        most: The number of largest values that count.
    """
    hits = []
    for output, true in zip(outputs, truth, strict=True):
        name = next(iter(output))
        values = np.atleast_2d(output[name])
        best = np.argsort(-values.astype(np.float64), axis=-1, kind="stable")[..., :most]
        wanted = true["label"] if "label" in true else np.atleast_1d(true[name]).argmax(-1)
        is_among = best.reshape(-1, best.shape[-1]) == np.asarray(wanted).reshape(-1, 1)
        hits += (is_among.any(-1) & ~np.isnan(values).any(-1).reshape(-1)).tolist()
    return float(np.mean(hits))
