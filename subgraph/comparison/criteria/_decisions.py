"""Decisions of a model's output: which class wins in each row. For the criterion `noise`.

Insight: a small error can change a token, and a large one can change none. The user of a
distribution needs its winner.

Indices are decisions, too: `find_misranked` finds those that rounding noise does not explain. The
error of an index is the distance between the values that it selects from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from subgraph.comparison.criteria import Ranking
from subgraph.comparison.criteria._slices import find_log_probability_axis, find_probability_axis
from subgraph.types import Array, frozen

# Classes of logits; detectors have fewer, whose winners mean nothing where no object is.
MIN_VOCABULARY = 1000
MAX_GAP = 3.0  # times the noise of both classes: a larger margin is no matter of rounding


def find_class_axis(name: str, values: Array) -> int | None:
    """Return the axis along which a model's output has classes of which one wins; None for other
    outputs.

    That of probabilities (not negative, the sum is 1 ± 1e-3) or of their logarithms; the last one
    of an output whose name holds "logits", if it is a vocabulary, of 1,000 classes or more. Scores
    of other outputs are left alone: most axes have no winner that anyone reads.
    """
    for find in (find_probability_axis, find_log_probability_axis):
        if (axis := find(values)) is not None:
            return axis
    vocabulary = "logits" in name.lower() and values.ndim > 1 and values.shape[-1] >= MIN_VOCABULARY
    return values.ndim - 1 if vocabulary else None


@frozen
class Flips:
    """Rows whose winner the candidate changed; all vectors have an element per such row.

    Attributes:
        axis: The class axis.
        rows: The number of rows, changed or not.
        places: Indices of the changed rows in the tensor without the class axis, flat.
        winners: The classes that win in the reference.
        others: The classes that win in the candidate.
        margins: The reference's values of the winners minus those of the others.
        rounding: The sum of the errors that rounding the output causes in both values.
    """

    axis: int
    rows: int
    places: Array
    winners: Array
    others: Array
    margins: Array
    rounding: Array

    def find_explained(self, reference: Array, runs: Sequence[Array]) -> Array:
        """Return the flips that rounding explains: a perturbed run changes the winner too, or the
        margin is within the noise."""
        noise = self.rounding
        changed = np.zeros(self.places.shape, bool)
        for values in runs:
            old, new = (
                _as_rows(v, self.axis)[self.places].astype(np.float64) for v in (reference, values)
            )
            moved = np.abs(new - old)
            each = np.arange(self.places.size)
            noise = np.fmax(
                noise, moved[each, self.winners] + moved[each, self.others] + self.rounding
            )
            changed |= new.argmax(1) != self.winners
        return np.asarray(changed | (self.margins <= MAX_GAP * noise))


def find_flips(
    reference: Array, candidate: Array, axis: int, eps: float, step: float, floor: float
) -> Flips:
    """Return rows whose winner changes, but for ties: margins within `floor` of the winner, or that
    rounding both closes.

    `eps`, `step`: rounding a value x changes it by eps·|x| + step.
    """
    old = _as_rows(reference, axis)
    new = _as_rows(candidate, axis)
    winners = old.argmax(1)
    others = new.argmax(1)
    places = np.flatnonzero(winners != others)
    winners = winners[places]
    others = others[places]
    ahead, behind = (old[places, classes].astype(np.float64) for classes in (winners, others))
    margins = ahead - behind
    rounding = eps * (np.abs(ahead) + np.abs(behind)) + 2 * step
    real = margins > np.maximum(rounding, floor * np.abs(ahead))
    return Flips(
        axis, old.shape[0], *(v[real] for v in (places, winners, others, margins, rounding))
    )


def _as_rows(values: Array, axis: int) -> Array:
    """Return the values as `(rows, classes)`."""
    return np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


def find_misranked(reference: Array, candidate: Array, ranking: Ranking, gap: float) -> Array:
    """Find the indices that differ without an explanation by noise: booleans in the shape of the
    indices.

    i → j is explained if 0 < |v_i − v_j| ≤ gap·(noise_i + noise_j). Equal values never explain it,
    because ONNX specifies which of them to select; nor does an index that appears twice along the
    axis. The indices may have any float or integer type; without the ranking's axis (keepdims=0),
    it counts as 1.

    >>> import numpy as np
    >>> ranking = Ranking(np.array([1.0, 1.001, 3.0]), noise=np.full(3, 1e-3), axis=0)
    >>> find_misranked(np.array([2, 1, 0]), np.array([2, 0, 1]), ranking, gap=3).tolist()
    [False, False, False]
    >>> find_misranked(np.array([2, 1, 0]), np.array([1, 2, 0]), ranking, gap=3).tolist()
    [True, True, False]
    """
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
    order = np.argsort(new, axis=axis, kind="stable")
    same = np.diff(np.take_along_axis(new, order, axis), axis=axis) == 0
    none = np.zeros_like(np.take(order, [0], axis), bool)
    in_order = np.concatenate([none, same], axis) | np.concatenate([same, none], axis)
    repeated = np.zeros(new.shape, bool)
    np.put_along_axis(repeated, order, in_order, axis)
    wrong = (old != new) & (~explained | repeated)
    return np.asarray(wrong.reshape(reference.shape))


def compute_jaccard_distance(first: Array, second: Array) -> float:
    """Return 1 − |A ∩ B| / |A ∪ B| of two sets of rows, `(N, columns)` and `(M, columns)`.

    The distance of two empty sets is 0.

    >>> import numpy as np
    >>> compute_jaccard_distance(np.array([[0, 0, 5], [0, 0, 7]]), np.array([[0, 0, 7], [0, 0, 9]]))
    0.6666666666666667
    """
    a, b = ({tuple(row) for row in rows.tolist()} for rows in (first, second))
    return 1 - len(a & b) / len(a | b) if a | b else 0.0
