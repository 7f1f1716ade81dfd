"""Values of a tensor -> the same a little off, as rounding may put them.

Monte Carlo arithmetic (D. S. Parker, Monte Carlo Arithmetic, UCLA CSD-970002, 1997): perturb every rounded value by as
much as rounding may, and see how far the result moves. Ordinary random numbers would break exact ties, which hardly any
runtime that computes right does; so a value's perturbation is a hash of its bits without the sign: equal values of a
tensor move alike, and opposite ones oppositely, as rounding does. Only sums that are equal may come apart, where terms
are added in another order at another place: `apart` moves each element on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from subgraph.comparison.precision import CLAIM_OF, EPS, FLOATS, LARGEST, TYPE_OF, mask_plateau, wider
from subgraph.storage.tensors import np_dtype

if TYPE_CHECKING:
    from subgraph.types import Array

Draw = Callable[["Array", int], "Array"]  # values, key -> u for each of them, flat

HUGE = 1e30  # larger values stand for infinity in masks: no result of an arithmetic that rounds
SEEN = 4096  # elements looked at for values that repeat
REPEATED = 0.01  # of them; of so many random float32 values 0.02 % are equal by chance
BLOCK = 1 << 15  # elements hashed at a time: they and what is made of them stay in the processor's cache


def key_of(name: str, seed: int, draw: int) -> int:
    """64 bits that tell tensors, seeds and draws apart."""
    return int.from_bytes(blake2b(f"{seed}/{draw}/{name}".encode(), digest_size=8).digest(), "little")


def uniform(values: Array, key: int) -> Array:
    """u in [-1, 1) for each element, a function of |x| and `key` alone; flat, float64 for float64, else float32.

    The bits go through splitmix64's finalizer (G. L. Steele, D. Lea, C. H. Flood, Fast splittable pseudorandom number
    generators, OOPSLA 2014; constants by D. Stafford), which is a bijection of 64 bits in which each input bit changes
    half of the output bits.

    >>> import numpy as np
    >>> u = uniform(np.array([1.5, 2.0, -1.5], np.float32), key=7)
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


def apart(values: Array, key: int, times: float = 1.0) -> Array:
    """As `uniform`, but each element on its own, and in [-times, times)."""
    drawn = np.random.default_rng(key).uniform(-times, times, values.size)
    return drawn.astype(wider(values.dtype.name), copy=False)


def repeats(values: Array) -> bool:
    """Are many values, other than zero, equal to others? Looks at `SEEN` of them, evenly spread."""
    flat = values.reshape(-1)
    some = flat[:: max(1, flat.size // SEEN)]
    some = some[some != 0]
    return bool(some.size - np.unique(some).size > REPEATED * some.size)


def shift(values: Array, claim: str, key: int, draw: Draw = uniform) -> Array:
    """What to add to `values` so that they are off by as much as rounding at `claim` may put them off.

    x·eps·u, with u from `draw`; eps is no finer than the type of `values` can hold; at int8, u/255 of the tensor's
    range with zero in it. What stays: what is not finite, above `HUGE`, or above half of float16's largest value in
    float16; at int8 exact zeros, which every quantization can hold, and a mask's plateau, which does not count for the
    range.

    Returns float64 for float64, float32 for narrower types; the shape of `values`.
    """
    kind = values.dtype.name
    wide = values.astype(wider(kind), copy=False)
    moves = np.abs(wide) <= min(HUGE, LARGEST.get(CLAIM_OF[kind], math.inf) / 2)  # NaN does not
    by = draw(values, key).reshape(values.shape)
    if claim == "int8":
        masked = mask_plateau(wide)
        if masked is not None:
            moves &= ~masked
        kept = wide[moves]
        moves &= wide != 0
        by *= by.dtype.type((kept.max(initial=0.0) - kept.min(initial=0.0)) * EPS["int8"])
    else:
        by *= by.dtype.type(max(EPS[claim], FLOATS[kind]))
        with np.errstate(all="ignore"):
            by *= wide
    if not moves.all():
        by[~moves] = 0
    return by


def shaken(values: Array, claim: str, key: int) -> Array:
    """`values` off by `shift`, in their own type."""
    by = shift(values, claim, key)
    by += values.astype(by.dtype, copy=False)
    return by.astype(values.dtype, copy=False)


def through(values: Array, claim: str) -> Array:
    """`values` rounded to the claimed type and back to their own; what does not fit becomes infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np_dtype(TYPE_OF[claim])).astype(values.dtype)
