"""Mean of the elements' own relative errors: msaccucmp's MeanRelativeError."""

from __future__ import annotations

import numpy as np

from subgraph.types import Array

ZERO = 2.0**-52  # float64's eps: smaller reference values count as zero in msaccucmp


def measure(reference: Array, candidate: Array) -> float:
    """Σ e / n with e = |c/r - 1| if |r| > eps of float64, else 0; no unit.

    An element whose reference is zero counts as right, whatever the candidate is; one whose
    reference is nearly zero outweighs all others. Both as in msaccucmp (algorithm 9); `max_rel` and
    `rel_l2` have neither fault.

    Corner cases: a reference of zeros: 0. Infinite if a quotient leaves float64; never NaN.
    """
    return float(compute_relative_errors(reference, candidate).mean())


def compute_relative_errors(reference: Array, candidate: Array) -> Array:
    """Return the e of each element: flat, float64."""
    nonzero = np.abs(reference) > ZERO
    error = np.ones_like(reference)
    np.divide(candidate, reference, out=error, where=nonzero)
    error -= 1
    return np.asarray(np.abs(error, out=error))
