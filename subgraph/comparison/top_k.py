"""Class scores of reference and candidate -> how often both name the same class. Shown in reports;
no criterion.

A small error may exchange the two best classes, and a large one may leave them.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from subgraph.storage.tensors import Value
from subgraph.types import Array

MIN_CLASSES = 6  # of five, every one is among the best five
BEST = 5
SUM = 1e-2  # by how much the probabilities of a row may miss 1: float16 rounds each


def agreement(reference: Value, candidate: Value) -> dict[str, float] | None:
    """Shares of the samples, 0 to 1: {"top1": …, "top5": …}; None if the two do not look like class scores.

    Class scores are floats of shape (N, C), or (N, C, 1, 1 …), with N ≥ 1 and C ≥ 6; an embedding looks the same.

    top1: the candidate's best class is the reference's best. top5: the reference's best class is among the candidate's
    five best (top-5 accuracy, with the reference as the truth). The best class has the largest value and, among equal
    ones, the lowest index, as in ArgMax and TopK of ONNX. If several classes of the reference are equally good, each of
    them is right; equal values of the candidate excuse nothing, or a constant output would be perfect.

    A sample with NaN in the reference is left out (None if none remains); with NaN in the candidate alone it disagrees.
    Complexity: N·C·log C.

    >>> import numpy as np
    >>> scores = np.array([[0.1, 0.2, 0.9, 0.3, 0.0, 0.4]])
    >>> agreement(scores, scores - 0.8 * (scores == 0.9))
    {'top1': 0.0, 'top5': 1.0}
    """  # noqa: E501
    if (
        not _are_scores(reference)
        or not _are_scores(candidate)
        or reference.shape != candidate.shape
    ):
        return None
    expected, actual = (v.reshape(v.shape[:2]).astype(np.float64) for v in (reference, candidate))
    defined = ~np.isnan(expected).any(axis=1)
    expected, actual = expected[defined], actual[defined]
    if not expected.size:
        return None
    order = np.argsort(-actual, axis=1, kind="stable")[
        :, :BEST
    ]  # equal values in the order of their indices
    hits = np.take_along_axis(expected, order, axis=1) == expected.max(axis=1, keepdims=True)
    hits &= ~np.isnan(actual).any(axis=1, keepdims=True)
    return {"top1": float(hits[:, 0].mean()), "top5": float(hits.any(axis=1).mean())}


def are_probabilities(value: Value) -> bool:
    """Return whether each row of class scores is a distribution, or the logarithms of one. Of a
    pose or of bits no class is the best.

    >>> are_probabilities(np.full((1, 8), 0.125)), are_probabilities(np.arange(8.0)[None])
    (True, False)
    """
    if not _are_scores(value):
        return False
    rows = value.reshape(value.shape[:2]).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return any(
            bool((part >= 0).all() and np.allclose(part.sum(axis=1), 1.0, atol=SUM))
            for part in (rows, np.exp(rows))
        )


def _are_scores(value: Value) -> TypeGuard[Array]:
    """Return whether the value looks like class scores."""
    if not isinstance(value, np.ndarray) or value.ndim < 2:
        return False
    floating = value.dtype.kind == "f" or value.dtype.name.startswith(("bfloat", "float"))
    return (
        floating
        and value.shape[0] > 0
        and value.shape[1] >= MIN_CLASSES
        and set(value.shape[2:]) <= {1}
    )
