"""Are all values of a float tensor on a coarser grid: numbers of a narrower type, or few evenly
spaced levels?

A value that a runtime rounded to float16 stays a number of float16 when it is returned as float32.
That tells something only if the reference's own values are no such numbers.
"""

from __future__ import annotations

import numpy as np

from subgraph.comparison.noise.perturb import round_to_claim
from subgraph.precision import Precision
from subgraph.types import Array

MAX_SAMPLE = 4096  # values that are looked at first
MIN_VALUES = 32  # other than 0; fewer may lie on a grid by chance
MAX_OWN = 0.5  # of the reference's values may lie on it as well
MIN_LEVELS = 8
MAX_LEVELS = 256
MIN_FINER = 4  # times as many values in the reference: else it is quantized itself
MAX_UNEVEN = 1e-2  # of a step: float32 holds 255 steps to 10⁻⁵


def find_grid(reference: Array, candidate: Array) -> tuple[Precision, str] | None:
    """The precision (bf16, fp16, int8) of the candidate's grid, and words for it; None if there is none.

    Complexity: a few passes unless a sample excludes a grid; both are sorted if the candidate has few values.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=100).astype(np.float32)
    >>> find_grid(x, x.astype(np.float16).astype(np.float32)), find_grid(x, x)
    ((<Precision.FP16: 'fp16'>, "every value is one of float16, the reference's are not"), None)
    """  # noqa: E501
    if candidate.dtype.name not in ("float32", "float64") or reference.dtype.name not in (
        "float32",
        "float64",
    ):
        return None
    x, y = (
        _nonzero(v.reshape(-1)[:: max(1, v.size // MAX_SAMPLE)]) for v in (reference, candidate)
    )
    if y.size < MIN_VALUES or not x.size:
        return None
    for claim in (Precision.BF16, Precision.FP16):
        own = _on_grid(x, claim).mean() <= MAX_OWN
        if (
            own
            and _needs_floats(y)
            and _on_grid(y, claim).all()
            and _on_grid(_nonzero(candidate), claim).all()
        ):
            return claim, f"every value is one of {claim.dtype}, the reference's are not"
    words = (
        _describe_levels(_nonzero(reference), _nonzero(candidate))
        if np.unique(y).size <= MAX_LEVELS
        else ""
    )
    return (Precision.INT8, words) if words else None


def _nonzero(values: Array) -> Array:
    """The finite values without 0, which is on every grid."""
    flat = values.reshape(-1)
    return np.asarray(flat[np.isfinite(flat) & (flat != 0)])


def _needs_floats(values: Array) -> bool:
    """Whether there are many different values that 8 bits cannot hold: every type holds a constant,
    a mask or small integers."""
    step = np.ldexp(1.0, np.frexp(np.abs(values).max())[1] - 8)
    return bool(np.unique(values).size >= MIN_LEVELS and (values % step).any())


def _on_grid(values: Array, claim: Precision) -> Array:
    return np.asarray(round_to_claim(values, claim) == values)


def _describe_levels(x: Array, y: Array) -> str:
    """Words for few, evenly spaced values of y: integers of 8 bits times a scale. Empty
    otherwise."""
    levels = np.unique(y).astype(np.float64)
    if not MIN_LEVELS <= levels.size <= MAX_LEVELS or np.unique(x).size < MIN_FINER * levels.size:
        return ""
    steps = round((levels[-1] - levels[0]) / np.diff(levels).min())
    if steps >= MAX_LEVELS:
        return ""
    step = (levels[-1] - levels[0]) / steps
    places = levels / step
    if np.abs((places - places[0]) - np.round(places - places[0])).max() > MAX_UNEVEN:
        return ""
    return f"{levels.size} evenly spaced values, {step:.3g} apart: quantized to 8 bits"
