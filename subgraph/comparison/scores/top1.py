"""Share of the samples whose largest value is at the label; without labels, if the float model
has it."""

from __future__ import annotations

from collections.abc import Sequence

from subgraph.comparison.scores._top import count_hits
from subgraph.types import Fields


def score(outputs: Sequence[Fields], truth: Sequence[Fields]) -> float:
    """Score the first output over its last axis.

    Each row of a batch counts. A row with NaN is not a hit.
    """
    return count_hits(outputs, truth, 1)
