"""1 - the error rate of letters in text or CTC's output; without labels, beside what the float
model reads."""

from __future__ import annotations

from collections.abc import Sequence

from subgraph.comparison.scores._text import right_share
from subgraph.types import Fields

TEXT = True  # labels may be text


def score(outputs: Sequence[Fields], truth: Sequence[Fields]) -> float:
    """Of the first output; a number stands for one of the letters."""
    return right_share(outputs, truth, list)
