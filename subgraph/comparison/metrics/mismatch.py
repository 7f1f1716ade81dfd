"""Share of the elements that differ at all, 0 to 1."""

from __future__ import annotations

import math

import numpy as np

from subgraph.comparison.pair import Pair
from subgraph.types import Array

SYMMETRIC = True


def measure(reference: Array, candidate: Array) -> float:
    """Return the number of c ≠ r, over n; as numpy.testing prints it. 0 and -0 are equal. Never
    NaN."""
    return float(np.count_nonzero(candidate != reference)) / reference.size


def of_pair(pair: Pair) -> float:
    """Measure a pair of any type, over all elements, also those that are not finite.

    NaN if there are no elements.
    """
    if pair.size:
        return pair.changed / pair.size
    return math.nan
