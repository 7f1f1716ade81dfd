"""Share of the samples whose largest value is at the label; without labels, where the float model
has it."""

from __future__ import annotations

from collections.abc import Sequence

from subgraph.comparison.scores._top import count_hits
from subgraph.types import Fields


def score(outputs: Sequence[Fields], truth: Sequence[Fields]) -> float:
    """Of the first output, over its last axis; a batch counts as many. Where a value is NaN it is
    no hit."""
    return count_hits(outputs, truth, 1)
