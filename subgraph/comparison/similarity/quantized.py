"""Values of a float tensor -> the coarser numbers that they all are: those of a narrower type, or few even levels.

What a runtime rounded to float16 stays on float16's numbers when it is given out as float32. That says something only
where the reference's own values are no such numbers.
"""

from __future__ import annotations

import numpy as np

from subgraph.comparison.precision import TYPE_OF
from subgraph.types import Array

SAMPLE = 4096  # values that are looked at first
FEWEST = 32  # values other than 0; fewer may lie on a grid by chance
OWN = 0.5  # of the reference's values that may lie on it as well
LEVELS, FEWEST_LEVELS = 256, 8
FINER = 4  # times as many values in the reference: else it is quantized itself
EVEN = 1e-2  # of a step: float32 holds 255 steps to 10⁻⁵


def coarse(reference: Array, candidate: Array) -> tuple[str, str] | None:
    """The precision (bf16, fp16, int8) and words for it; None where nothing is to be said.

    Complexity: a few passes over what a sample does not settle; both are sorted where the candidate has few values.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=100).astype(np.float32)
    >>> coarse(x, x.astype(np.float16).astype(np.float32)), coarse(x, x)
    (('fp16', "every value is one of float16, the reference's are not"), None)
    """
    if candidate.dtype.name not in ("float32", "float64") or reference.dtype.name not in ("float32", "float64"):
        return None
    x, y = _some(reference), _some(candidate)
    if y.size < FEWEST or not x.size:
        return None
    for claim, on in (("bf16", _on_bfloat16), ("fp16", _on_float16)):
        if on(y).all() and on(x).mean() <= OWN and on(_plain(candidate)).all():
            return claim, f"every value is one of {TYPE_OF[claim]}, the reference's are not"
    words = _leveled(_plain(reference), _plain(candidate)) if np.unique(y).size <= LEVELS else ""
    return ("int8", words) if words else None


def _some(values: Array) -> Array:
    """Some of these."""
    return _plain(values.reshape(-1)[:: max(1, values.size // SAMPLE)])


def _plain(values: Array) -> Array:
    """The finite ones without 0, which is on every grid."""
    flat = values.reshape(-1)
    return np.asarray(flat[np.isfinite(flat) & (flat != 0)])


def _on_bfloat16(values: Array) -> Array:
    """The upper half of a float32."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    return np.asarray((narrow == values) & (narrow.view(np.uint32) & 0xFFFF == 0))


def _on_float16(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(values.astype(np.float16) == values)


def _leveled(x: Array, y: Array) -> str:
    """Few values, evenly spaced: an integer of 8 bits times a scale."""
    levels = np.unique(y).astype(np.float64)
    if not FEWEST_LEVELS <= levels.size <= LEVELS or np.unique(x).size < FINER * levels.size:
        return ""
    steps = round((levels[-1] - levels[0]) / np.diff(levels).min())
    if steps >= LEVELS:
        return ""
    step = (levels[-1] - levels[0]) / steps
    places = levels / step
    if np.abs((places - places[0]) - np.round(places - places[0])).max() > EVEN:
        return ""
    return f"{levels.size} evenly spaced values, {step:.3g} apart: quantized to 8 bits"
