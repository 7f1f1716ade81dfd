"""Class scores of reference and candidate -> how often both name the same class.

A small error may exchange the two best classes and a large one leave them: no criterion asks this, reports show it.
"""

from __future__ import annotations

import numpy as np

from subgraph.storage.tensors import Value

FEWEST = 6  # classes: of five, every one is among the best five
BEST = 5


def agreement(reference: Value, candidate: Value) -> dict[str, float] | None:
    """Shares of the samples, 0 to 1: {"top1": …, "top5": …}; None where the two do not look like class scores.

    Class scores are floats of shape (N, C), or (N, C, 1, 1 …), with N ≥ 1 and C ≥ 6; an embedding looks the same.

    top1: the candidate's best class is the reference's best. top5: the reference's best class is among the candidate's
    five best (as "top-5 accuracy" has it, with the reference for the truth). The best is the largest value and, among
    equal ones, that of the lowest index: what ArgMax and TopK of ONNX give. Where several classes of the reference are
    exactly equal and best, each of them is right; equal values of the candidate excuse nothing, or a constant output
    would be perfect.

    A sample with NaN in the reference is left out (None where that leaves none); with NaN in the candidate alone it
    disagrees. Complexity: N·C·log C.

    >>> import numpy as np
    >>> scores = np.array([[0.1, 0.2, 0.9, 0.3, 0.0, 0.4]])
    >>> agreement(scores, scores - 0.8 * (scores == 0.9))
    {'top1': 0.0, 'top5': 1.0}
    """
    if not _scores(reference) or not isinstance(candidate, np.ndarray) or not isinstance(reference, np.ndarray):
        return None
    if candidate.shape != reference.shape or not _scores(candidate):
        return None
    right, asked = (v.reshape(v.shape[:2]).astype(np.float64) for v in (reference, candidate))
    known = ~np.isnan(right).any(axis=1)
    right, asked = right[known], asked[known]
    if not right.size:
        return None
    order = np.argsort(-asked, axis=1, kind="stable")[:, :BEST]  # equal values in the order of their indices
    hits = np.take_along_axis(right, order, axis=1) == right.max(axis=1, keepdims=True)
    hits &= ~np.isnan(asked).any(axis=1, keepdims=True)
    return {"top1": float(hits[:, 0].mean()), "top5": float(hits.any(axis=1).mean())}


def _scores(value: Value) -> bool:
    """Does it look like class scores?"""
    if not isinstance(value, np.ndarray) or value.ndim < 2:
        return False
    floating = value.dtype.kind == "f" or value.dtype.name.startswith(("bfloat", "float"))
    return floating and value.shape[0] > 0 and value.shape[1] >= FEWEST and set(value.shape[2:]) <= {1}
