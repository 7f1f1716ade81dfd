"""Values of a tensor, perturbed by one rounding: x → x·(1 + eps·u) with random u in [−1, 1).

Monte Carlo arithmetic (D. S. Parker, Monte Carlo Arithmetic, UCLA CSD-970002, 1997): perturb every rounded value by as
much as rounding may, and see how far the result moves. Ordinary random numbers would break exact ties, which hardly any
correct runtime does; so u is a hash of a value's bits without the sign. Equal values of a tensor get equal u, and
opposite values opposite shifts, as rounding does. Only equal sums may differ on a runtime that adds terms in another
order: `shift` with a `tie_factor` draws u independently for each element.
"""

from __future__ import annotations

import math
from hashlib import blake2b

import numpy as np

from subgraph.comparison.precision import CLAIM_OF, EPS, FLOATS, LARGEST, TYPE_OF, mask_plateau, wider
from subgraph.storage.tensors import np_dtype
from subgraph.types import Array

MAX_PERTURBED = 1e30  # larger values stand for infinity in masks, and are results of no arithmetic
TIE_SAMPLE = 4096  # elements that are searched for equal values
TIE_SHARE = 0.01  # of them; among as many random float32 values 0.02 % are equal by chance
BLOCK = 1 << 15  # elements hashed at a time, so that all intermediate values stay in the processor's cache


def key_of(tensor: str, seed: int, run: int) -> int:
    """64 bits that differ for each tensor, seed and run."""
    return int.from_bytes(blake2b(f"{seed}/{run}/{tensor}".encode(), digest_size=8).digest(), "little")


def hashed_uniform(values: Array, key: int) -> Array:
    """u in [-1, 1) for each element, a function of |x| and `key` alone; flat, float64 for float64, else float32.

    The bits go through splitmix64's finalizer (G. L. Steele, D. Lea, C. H. Flood, Fast splittable pseudorandom number
    generators, OOPSLA 2014; constants by D. Stafford), which is a bijection of 64 bits in which each input bit changes
    half of the output bits.

    >>> import numpy as np
    >>> u = hashed_uniform(np.array([1.5, 2.0, -1.5], np.float32), key=7)
    >>> bool(u[0] == u[2]), bool(u[0] == u[1])
    (True, False)
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    bits = flat.view(np.dtype(f"u{flat.dtype.itemsize}"))
    unsigned = np.uint64((1 << (8 * flat.dtype.itemsize - 1)) - 1)
    out = np.empty(flat.shape, np.dtype(wider(flat.dtype.name)))
    kept = 52 if out.itemsize == 8 else 24  # bits that the result holds exactly
    scale, one = out.dtype.type(2.0 ** (1 - kept)), out.dtype.type(1)
    for begin in range(0, flat.size, BLOCK):
        z = bits[begin : begin + BLOCK].astype(np.uint64)
        z &= unsigned
        z *= np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(key)
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        z >>= np.uint64(64 - kept)
        part = out[begin : begin + BLOCK]
        np.multiply(z.view(np.int64), scale, out=part, casting="same_kind")
        part -= one
    return out


def independent_uniform(values: Array, key: int, times: float = 1.0) -> Array:
    """Random numbers in [-times, times), independent for each element; shape and types as `hashed_uniform`."""
    random = np.random.default_rng(key).uniform(-times, times, values.size)
    return random.astype(wider(values.dtype.name), copy=False)


def has_repeats(values: Array) -> bool:
    """Are many values, other than zero, equal to others? Looks at `TIE_SAMPLE` of them, evenly spaced."""
    flat = values.reshape(-1)
    sample = flat[:: max(1, flat.size // TIE_SAMPLE)]
    sample = sample[sample != 0]
    return bool(sample.size - np.unique(sample).size > TIE_SHARE * sample.size)


def shift(values: Array, claim: str, key: int, *, tie_factor: float = 0.0) -> Array:
    """What to add to `values` to perturb them by one rounding at the claimed precision.

    fp32, fp16, bf16: eps·u·x, with eps no smaller than that of the type of `values`. int8: u/255 of the range of the
    tensor and zero. `tie_factor` > 0: u is independent for each element, and within ±`tie_factor`.

    Zero for values that are not finite, above `MAX_PERTURBED`, or in the upper half of float16's range if they are
    float16. For int8 also for exact zeros, which every quantization represents, and for a mask's plateau, which does
    not count for the range either.

    Returns: the shape of `values`; float64 for float64, float32 for narrower types.
    """
    dtype = values.dtype.name
    wide = values.astype(wider(dtype), copy=False)
    moves = np.abs(wide) <= min(MAX_PERTURBED, LARGEST.get(CLAIM_OF[dtype], math.inf) / 2)  # False for NaN
    u = independent_uniform(values, key, tie_factor) if tie_factor else hashed_uniform(values, key)
    shifts = u.reshape(values.shape)
    if claim == "int8":
        plateau = mask_plateau(wide)
        if plateau is not None:
            moves &= ~plateau
        quantized = wide[moves]
        moves &= wide != 0
        shifts *= shifts.dtype.type((quantized.max(initial=0.0) - quantized.min(initial=0.0)) * EPS["int8"])
    else:
        shifts *= shifts.dtype.type(max(EPS[claim], FLOATS[dtype]))
        with np.errstate(all="ignore"):
            shifts *= wide
    if not moves.all():
        shifts[~moves] = 0
    return shifts


def perturb(values: Array, claim: str, key: int) -> Array:
    """`values` plus their `shift`, in their own type."""
    shifts = shift(values, claim, key)
    shifts += values.astype(shifts.dtype, copy=False)
    return shifts.astype(values.dtype, copy=False)


def round_to_claim(values: Array, claim: str) -> Array:
    """`values` rounded to fp16 or bf16 and back to their own type; infinite beyond the range."""
    with np.errstate(over="ignore"):
        return values.astype(np_dtype(TYPE_OF[claim])).astype(values.dtype)
