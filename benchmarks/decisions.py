"""What users read from a model's outputs: a class, a text, boxes, a yes. Did a candidate change
any?

A `Decision` knows nothing of noise or of any criterion: it judges verdicts independently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
CLEAR = 0.05  # a winner this far ahead, of the largest value, is no toss-up


@dataclass(frozen=True)
class Change:
    """Between two runs: how many decisions there are, how many changed, how many of those were
    clear."""

    total: int
    changed: int
    clear: int

    def __add__(self, other: Change) -> Change:
        return Change(
            self.total + other.total, self.changed + other.changed, self.clear + other.clear
        )


@dataclass(frozen=True)
class Decision:
    """`names`: the outputs that it reads."""

    names: tuple[str, ...]
    measure: Callable[[Array, Array], Change]

    def changes(self, reference: Outputs, candidate: Outputs) -> Change:
        total = Change(0, 0, 0)
        for name in self.names:
            a, b = (np.asarray(values[name], np.float64) for values in (reference, candidate))
            if a.shape != b.shape or not np.isfinite(b).all():
                return Change(1, 1, 1)
            total += self.measure(a, b)
        return total


def chosen(*names: str) -> Decision:
    """The winner along the last axis, everywhere."""
    return Decision(names, _winners)


def _winners(a: Array, b: Array) -> Change:
    rows = a.reshape(-1, a.shape[-1])
    others = b.reshape(-1, a.shape[-1])
    changed = rows.argmax(1) != others.argmax(1)
    rivals = np.take_along_axis(rows, others.argmax(1)[:, None], 1)[:, 0]
    clear = changed & (rows.max(1) - rivals > CLEAR * np.abs(a).max())
    return Change(len(rows), int(changed.sum()), int(clear.sum()))


def reading(name: str) -> Decision:
    """A text by CTC: the winners along the last axis, without repetitions and blanks: one
    decision."""
    return Decision((name,), _texts)


def _texts(a: Array, b: Array) -> Change:
    first, second = (_decoded(x.reshape(-1, x.shape[-1]).argmax(1)) for x in (a, b))
    changed = int(first != second)
    return Change(1, changed, changed)


def _decoded(winners: Array) -> tuple[int, ...]:
    kept = [int(w) for k, w in enumerate(winners) if k == 0 or w != winners[k - 1]]
    blank = max(set(winners.tolist()), key=winners.tolist().count)
    return tuple(w for w in kept if w != blank)


def yes(*names: str, limit: float) -> Decision:
    """Is a value above a limit? Clear if it moves by more than 0.05 past it."""
    return Decision(names, partial(_crossings, limit))


def _crossings(limit: float, a: Array, b: Array) -> Change:
    changed = (a > limit) != (b > limit)
    return Change(a.size, int(changed.sum()), int((changed & (np.abs(a - b) > 0.05)).sum()))


def value(name: str, tolerance: float) -> Decision:
    """Numbers that may be off by so much, absolutely."""
    return Decision(
        (name,), lambda a, b: Change(a.size, *[int((np.abs(a - b) > tolerance).sum())] * 2)
    )


def similar(name: str, cosine: float) -> Decision:
    """Embeddings along the last axis, by their cosine."""
    return Decision((name,), partial(_turned, cosine))


def _turned(cosine: float, a: Array, b: Array) -> Change:
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    turned = int(((a * b).sum(-1) < cosine * norms).sum())
    return Change(norms.size, turned, turned)


def boxes(name: str, score: float) -> Decision:
    """YOLO's [1, 4 + classes, anchors]: which anchors find which class, and where (within 5 % of
    the box)."""
    return Decision((name,), partial(_found, score))


def _found(score: float, a: Array, b: Array) -> Change:
    first, second = (x[0, 4:].max(0) >= score for x in (a, b))
    either = first | second
    other = first != second
    other |= either & (a[0, 4:].argmax(0) != b[0, 4:].argmax(0))
    sizes = np.maximum(a[0, 2:4].min(0), 1)
    other |= either & (np.abs(a[0, :4] - b[0, :4]).max(0) > 0.05 * sizes)
    clear = other & (np.abs(a[0, 4:].max(0) - b[0, 4:].max(0)) > 0.05)
    clear |= other & either & (np.abs(a[0, :4] - b[0, :4]).max(0) > 0.2 * sizes)
    return Change(max(int(either.sum()), 1), int(other.sum()), int(clear.sum()))
