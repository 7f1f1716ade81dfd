"""1 - the error rate of words in text or CTC's output; without labels, beside what the float model
reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from subgraph.comparison.scores._text import right_share

TEXT = True  # labels may be text


def score(outputs: Sequence[Mapping[str, Any]], truth: Sequence[Mapping[str, Any]]) -> float:
    """Of the first output; a number stands for one of the words."""
    return right_share(outputs, truth, str.split)
