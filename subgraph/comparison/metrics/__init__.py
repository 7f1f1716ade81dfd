"""Metrics: one number for the distance of two values of a tensor. One file per metric; its name is
the key in JSON.

To add one, write `metrics/NAME.py`, or any `FILE.py` that is given by its path:

    '''One line of help, such as: Largest absolute difference, in the tensor's own unit.'''
    from subgraph.types import Array

    IDEAL = 0.0  # value for equal arrays; 0 if left out
    SYMMETRIC = True  # exchanging the arrays changes nothing; False if left out

    def measure(reference: Array, candidate: Array) -> float:
        '''max|c - r|: the formula, and when it is NaN (not defined) or infinite.'''
        return float(abs(candidate - reference).max())

Both arrays are flat float64 of equal size, at least one element, all finite; numpy's floating-point
warnings are disabled. A metric that needs the element type, the NaN, or integers beyond float64
also defines `of_pair(pair: Pair) -> float`, which is then called instead.
`tests/comparison/test_metrics.py` tests every file of this folder.
"""

from __future__ import annotations

import math

import numpy as np

from subgraph.storage.tensors import find_largest
from subgraph.types import Array

# Others overflow, or lose bits in float64's subnormal numbers.
MIN_SQUARE = 1e-280
MAX_SQUARE = 1e280


def compute_dot(first: Array, second: Array) -> float:
    """Return Σxy.

    BLAS would wake a thread per core, and wait 20 ms for one of them on a busy machine.
    """
    return float(np.einsum("i,i->", first, second))


def compute_norm(values: Array) -> float:
    """Return sqrt(Σx²), whose squares neither overflow nor underflow; 0 for no elements.

    >>> import numpy as np
    >>> compute_norm(np.array([0.0, -2e200]))
    2e+200
    """
    with np.errstate(all="ignore"):
        square = compute_dot(values, values)
    if MIN_SQUARE < square < MAX_SQUARE:
        return math.sqrt(square)
    largest = find_largest(values)
    if largest == 0 or math.isinf(largest):
        return largest
    scaled = values / largest
    return largest * math.sqrt(compute_dot(scaled, scaled))
