"""1 - the error rate of words in text or CTC's output; without labels, compared with the float
model's text."""

from __future__ import annotations

from collections.abc import Sequence

from subgraph.comparison.scores._text import compute_right_share
from subgraph.types import Fields

TEXT = True  # labels may be text


def score(outputs: Sequence[Fields], truth: Sequence[Fields]) -> float:
    """Score the first output; a number represents one of the words."""
    return compute_right_share(outputs, truth, str.split)
