"""Intersection over union of a mask, the mean over the samples; without labels, compared with the
float model's mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from subgraph.types import Fields

MAX_LOGIT = -0.5  # no probability is as low, however coarsely it is quantized


def score(outputs: Sequence[Fields], truth: Sequence[Fields]) -> float:
    """Score the first output.

    The mask is the elements above one half; those above 0 if the float model's outputs (with labels
    the candidate's) are logits, which have values far below 0.

    Two empty masks are equal; if a value is NaN, nothing is right.
    """
    name = next(iter(outputs[0]))
    masks = [np.asarray(output[name], np.float64) for output in outputs]
    wanted = [np.asarray(true.get("label", true.get(name)), np.float64) for true in truth]
    # A quantized probability may be a little below 0.
    judged = masks if "label" in truth[0] else wanted
    limit = 0.0 if any(np.nanmin(a, initial=0) < MAX_LOGIT for a in judged) else 0.5
    shares = []
    for a, b in zip(masks, wanted, strict=True):
        is_label = set(np.unique(b).tolist()) <= {0.0, 1.0}
        mine = (a > limit).reshape(-1)
        true = (b > (0.5 if is_label else limit)).reshape(-1)
        either = np.sum(mine | true)
        share = float(np.sum(mine & true) / either) if either else 1.0
        shares.append(0.0 if np.isnan(a).any() else share)
    return float(np.mean(shares))
