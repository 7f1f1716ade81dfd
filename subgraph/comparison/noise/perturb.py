"""Values and keys of perturbations: what a precision represents exactly, random factors, sums that
are equal.

Monte Carlo arithmetic (D. S. Parker, Monte Carlo Arithmetic, UCLA CSD-970002, 1997): perturb every
rounded value by as much as rounding may, and see how far the result moves. Ordinary random numbers
would break exact ties, which hardly any correct runtime does; so `rounding_nodes` computes them
from the values. Only equal sums may differ on a runtime that adds terms in another order:
`draw_untied_shift` draws an independent number for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from subgraph.comparison.float_types import FLOATS, find_wider, mask_plateau
from subgraph.precision import Precision
from subgraph.storage.tensors import find_dtype
from subgraph.types import Array

MAX_PERTURBED = 1e30  # larger values represent infinity in masks, and are results of no arithmetic
TIE_SAMPLE = 4096  # elements that are searched for equal values
TIE_SHARE = 0.01  # of them; among as many random float32 values 0.02 % are equal by chance
FIRST_SAMPLE_SIZE = 4096  # values that are looked at first
# In fp32 every float32 weight is exact. But what runtimes make of weights (folded batch
# normalizations, transforms of convolutions, sums in another order) rounds like perturbed weights;
# only those that need fewer bits are left alone.
WEIGHTS_HELD_AS = Precision.FP16
STEP_SHARE = 0.01  # of the elements after each of a model's own quantizers: moved by one step
LEVELS_OF_8_BITS = 256  # of 8 bits
MAX_OFF_STEP = 1e-2  # of a step, deviation of stored values: float32 holds 255 steps to 10⁻⁵
MAX_UNEVEN = 1e-3  # of a step: float32 holds 255 steps to 10⁻⁵


def compute_key(tensor: str, seed: int, run: int, attempt: int = 0) -> int:
    """Return 64 bits that differ for each tensor, seed, run and attempt at it."""
    text = f"{seed}/{run}/{attempt}/{tensor}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def compute_factor(key: int) -> float:
    """Return a float32 number in [1, 2) whose 24 bits of significand are random; odd, so that it
    changes every value's."""
    return 1 + ((key >> 41 | 1) * 2.0**-23)


def is_exact(values: Array, claim: Precision) -> bool:
    """Return whether the claimed precision represents all values exactly. For int8: they are whole
    numbers, as ids and bytes are.

    >>> import numpy as np
    >>> ids = np.array([101, 2003, 30000], np.float32)
    >>> [is_exact(ids, claim) for claim in Precision], is_exact(ids / 16, Precision.INT8)
    ([True, True, True, False, True], False)
    """
    if claim is Precision.INT8:
        with np.errstate(invalid="ignore"):
            return bool((np.rint(values) == values).all())
    if claim is Precision.FP32 and values.dtype != np.float64:
        return True
    if values.size > FIRST_SAMPLE_SIZE and not is_exact(
        values.reshape(-1)[:FIRST_SAMPLE_SIZE], claim
    ):
        return False
    narrow = round_to_claim(values, claim)
    return bool(((narrow == values) | np.isnan(values)).all())


def is_on_int8_grid(weights: Array, lowest: Array, highest: Array) -> bool:
    """Return whether weights are 8-bit integers times a scale per channel, as after quantization.
    `lowest`, `highest`: per channel."""
    size = np.maximum(-lowest, highest)
    for levels in (127.0, 128.0):
        steps = weights * (levels / np.where(size > 0, size, 1))
        if (np.abs(steps - np.rint(steps)) <= MAX_UNEVEN).all():
            return True
    return False


def has_even_steps(values: Array) -> bool:
    """Return whether all values are finite, and codes of 8 bits times a scale, plus a shift.

    >>> import numpy as np
    >>> codes = np.array([-3, 0, 1, 90], np.float32)
    >>> [has_even_steps(values) for values in (codes * 0.1, np.exp(codes / 9))]
    [True, False]
    """
    levels = np.unique(values).astype(np.float64)
    if not 1 < levels.size <= LEVELS_OF_8_BITS or not np.isfinite(levels).all():
        return levels.size == 1
    span = levels[-1] - levels[0]
    places = (levels - levels[0]) * (np.rint(span / np.diff(levels).min()) / span)
    is_even = np.abs(places - np.rint(places)) <= MAX_OFF_STEP
    return bool(places[-1] < LEVELS_OF_8_BITS and is_even.all())


def has_repeats(values: Array) -> bool:
    """Return whether many values, other than zero, are equal to others, among `TIE_SAMPLE` of them,
    evenly spaced."""
    flat = values.reshape(-1)
    sample = flat[:: max(1, flat.size // TIE_SAMPLE)]
    sample = sample[sample != 0]
    return bool(sample.size - np.unique(sample).size > TIE_SHARE * sample.size)


def draw_untied_shift(
    values: Array, claim: Precision, key: int, times: float, span: Array | None = None
) -> Array:
    """Draw a shift of `values` that perturbs each element independently, by up to `times`
    roundings.

    fp32, fp16, bf16: eps·u·x, with eps no smaller than that of the type of `values`. int8: u/255 of
    the range of the tensor and zero, or of `span`, that of each channel. u is uniform within
    ±`times`.

    The shift is zero for values that are not finite, above `MAX_PERTURBED`, or in the upper half of
    the range of float16 if they are float16. In int8 it is also zero for exact zeros, which every
    quantization represents, and for a mask's plateau, which does not count for the range either.

    Returns: the shape of `values`; float64 for float64, float32 for narrower types.
    """
    dtype = values.dtype.name
    wide = values.astype(find_wider(dtype), copy=False)
    # False for NaN.
    moves = np.abs(wide) <= min(MAX_PERTURBED, Precision.from_dtype(dtype).largest / 2)
    shifts = np.asarray(np.random.default_rng(key).uniform(-times, times, values.shape), wide.dtype)
    if claim is Precision.INT8:
        plateau = mask_plateau(wide)
        if plateau is not None:
            moves &= ~plateau
        if span is None:
            quantized = wide[moves]
            span = quantized.max(initial=0.0) - quantized.min(initial=0.0)
        moves &= wide != 0
        shifts = shifts * np.asarray(span * claim.eps, shifts.dtype)
    else:
        with np.errstate(all="ignore"):
            shifts = shifts * shifts.dtype.type(max(claim.eps, FLOATS[dtype])) * wide
    return np.asarray(np.where(moves, shifts, 0), wide.dtype)


def draw_steps(shape: Sequence[int], dtype: str, key: int) -> Array:
    """Return codes of +1 and −1 for `STEP_SHARE` of the elements, else of 0, which is 128 for
    uint8.

    >>> draw_steps([4], "int8", 0)
    array([0, 0, 0, 0], dtype=int8)
    """
    drawn = np.random.default_rng(key).random(shape)
    steps = np.where(drawn < STEP_SHARE / 2, -1, np.where(drawn > 1 - STEP_SHARE / 2, 1, 0))
    return np.asarray((steps + (128 if dtype == "uint8" else 0)).astype(dtype))


def round_to_claim(values: Array, claim: Precision) -> Array:
    """Return `values` rounded to the claimed float type, in their own type.

    Values beyond the range of the claim are infinite.
    """
    if claim is Precision.TF32:
        wide = values.astype(np.float32)
        lost = np.uint32(Precision.FP32.bits - claim.bits)
        bits = wide.view(np.uint32)
        # Ties to even.
        half = np.uint32(1 << (lost - 1)) - np.uint32(1) + ((bits >> lost) & np.uint32(1))
        rounded = ((bits + half) >> lost << lost).view(np.float32)
        return np.where(np.isfinite(wide), rounded, wide).astype(values.dtype)
    with np.errstate(over="ignore"):
        return values.astype(find_dtype(claim.dtype)).astype(values.dtype)
