"""Indices and sets of rows -> what noise explains of their difference. Plain functions of arrays.

Insight: an index says nothing about how wrong it is, but the values it chose between do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from subgraph.types import Array


def misranked(reference: Array, candidate: Array, value: Array, noise: Array, axis: int, gap: float) -> Array:
    """Which indices differ though noise does not explain it: booleans of the indices' shape.

    i → j is explained only where 0 < |v_i − v_j| ≤ gap·(noise_i + noise_j). Equal values are not: of them ONNX names
    the one to choose. No index may appear twice along the axis.

    Args:
        reference, candidate: indices along `axis` of `value`, any float or integer type; where they lack that axis
            (keepdims=0), it counts as 1.
        value, noise: what was compared, and its noise per element.

    >>> import numpy as np
    >>> v, noise = np.array([1.0, 1.001, 3.0]), np.full(3, 1e-3)
    >>> misranked(np.array([2, 1, 0]), np.array([2, 0, 1]), v, noise, 0, gap=3).tolist()
    [False, False, False]
    >>> misranked(np.array([2, 1, 0]), np.array([1, 2, 0]), v, noise, 0, gap=3).tolist()
    [True, True, False]
    """
    shape = reference.shape
    old, new = (np.asarray(a).astype(np.int64) for a in (reference, candidate))
    if old.ndim < value.ndim:
        old, new = (np.expand_dims(a, axis) for a in (old, new))
    inside = (new >= 0) & (new < value.shape[axis])
    pairs = [old, np.where(inside, new, 0)]
    wide = value.astype(np.float64)
    with np.errstate(invalid="ignore"):
        v_old, v_new = (np.take_along_axis(wide, index, axis) for index in pairs)
        n_old, n_new = (np.take_along_axis(noise, index, axis) for index in pairs)
        apart = np.abs(v_old - v_new)
        explained = inside & (apart > 0) & (apart <= gap * (n_old + n_new))
    wrong = (old != new) & (~explained | _twice(new, axis))
    return np.asarray(wrong.reshape(shape))


def _twice(index: Array, axis: int) -> Array:
    """Where an index appears more than once along the axis."""
    order = np.argsort(index, axis=axis, kind="stable")
    same = np.diff(np.take_along_axis(index, order, axis), axis=axis) == 0
    none = np.zeros_like(np.take(order, [0], axis), bool)
    again = np.concatenate([none, same], axis) | np.concatenate([same, none], axis)
    found = np.zeros(index.shape, bool)
    np.put_along_axis(found, order, again, axis)
    return found


def jaccard(one: Array, other: Array) -> float:
    """Distance 1 − |A ∩ B| / |A ∪ B| of two sets of rows, `(N, columns)` and `(M, columns)`; 0 for two empty ones.

    >>> import numpy as np
    >>> jaccard(np.array([[0, 0, 5], [0, 0, 7]]), np.array([[0, 0, 7], [0, 0, 9]]))
    0.6666666666666667
    """
    a, b = ({tuple(row) for row in rows.tolist()} for rows in (one, other))
    return 1 - len(a & b) / len(a | b) if a | b else 0.0
