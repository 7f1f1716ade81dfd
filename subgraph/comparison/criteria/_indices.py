"""Which differences of indices, and of sets of rows, rounding noise explains. For the criterion
`noise`.

Insight: an index does not tell how wrong it is, but the values that it selects between do.
"""

from __future__ import annotations

import numpy as np

from subgraph.comparison.criteria import Ranking
from subgraph.types import Array


def misranked(reference: Array, candidate: Array, ranking: Ranking, gap: float) -> Array:
    """Where an index differs and noise does not explain it: booleans in the shape of the indices.

    i → j is explained if 0 < |v_i − v_j| ≤ gap·(noise_i + noise_j). Equal values never explain it, because ONNX says
    which of them to select; nor does an index that appears twice along the axis. The indices may have any float or
    integer type; without the ranking's axis (keepdims=0), it counts as 1.

    >>> import numpy as np
    >>> ranking = Ranking(np.array([1.0, 1.001, 3.0]), noise=np.full(3, 1e-3), axis=0)
    >>> misranked(np.array([2, 1, 0]), np.array([2, 0, 1]), ranking, gap=3).tolist()
    [False, False, False]
    >>> misranked(np.array([2, 1, 0]), np.array([1, 2, 0]), ranking, gap=3).tolist()
    [True, True, False]
    """  # noqa: E501
    values = ranking.values
    noise = ranking.noise
    axis = ranking.axis
    old, new = (np.asarray(a).astype(np.int64) for a in (reference, candidate))
    if old.ndim < values.ndim:
        old, new = (np.expand_dims(a, axis) for a in (old, new))
    inside = (new >= 0) & (new < values.shape[axis])
    pairs = [old, np.where(inside, new, 0)]
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        v_old, v_new = (np.take_along_axis(wide, index, axis) for index in pairs)
        n_old, n_new = (np.take_along_axis(noise, index, axis) for index in pairs)
        gaps = np.abs(v_old - v_new)
        explained = inside & (gaps > 0) & (gaps <= gap * (n_old + n_new))
    wrong = (old != new) & (~explained | _repeated(new, axis))
    return np.asarray(wrong.reshape(reference.shape))


def _repeated(index: Array, axis: int) -> Array:
    """Where an index appears more than once along the axis."""
    order = np.argsort(index, axis=axis, kind="stable")
    same = np.diff(np.take_along_axis(index, order, axis), axis=axis) == 0
    none = np.zeros_like(np.take(order, [0], axis), bool)
    in_order = np.concatenate([none, same], axis) | np.concatenate([same, none], axis)
    repeated = np.zeros(index.shape, bool)
    np.put_along_axis(repeated, order, in_order, axis)
    return repeated


def jaccard_distance(one: Array, other: Array) -> float:
    """1 − |A ∩ B| / |A ∪ B| of two sets of rows, `(N, columns)` and `(M, columns)`; 0 for two empty ones.

    >>> import numpy as np
    >>> jaccard_distance(np.array([[0, 0, 5], [0, 0, 7]]), np.array([[0, 0, 7], [0, 0, 9]]))
    0.6666666666666667
    """  # noqa: E501
    a, b = ({tuple(row) for row in rows.tolist()} for rows in (one, other))
    return 1 - len(a & b) / len(a | b) if a | b else 0.0
