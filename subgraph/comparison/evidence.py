"""The null test: whether an agreement shows that the candidate computed an output from its input.

Symbols, over the elements that are finite on both sides:

    S  max|reference|                          n  number of elements
    E  |candidate − reference|₂
    K  |mean(reference) − reference|₂: no constant answer is nearer. |reference| of a single element
    O  the largest |reference for another input − reference|₂

Rule: an output of floats is evidence if E ≤ K/4, E ≤ O/4, and both K and O are beyond 1e-6 · S
· √n. Any other output is evidence if its values are not all alike (a single number must not be
0) and another input changes them. An output without evidence is mute: an answer that does not
depend on the model would pass as well.

Healthy candidates reach E / min(K, O) = 0.05 in bfloat16 and 0.19 in int8 on real inputs (199
verdicts on 29 trained models); answers that do not depend on the model begin at 0.23.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from subgraph.comparison.metrics import compute_norm
from subgraph.comparison.pair import Pair
from subgraph.storage.tensors import Value
from subgraph.types import Array, Arrays

MAX_ERROR_RATIO = 0.25  # of the distance of an answer that does not depend on the model
# Of the largest value: with less, an error of the logits hardly reaches the outputs.
MIN_SLOPE = 0.1
MIN_SPREAD = 1e-6  # of the largest value: values that are closer are equal
NUMBERS = ("float", "complex", "integer", "boolean")
SEED = 2  # of other inputs


def explain_mute(reference: Value, candidate: Value, others: Sequence[Value] = ()) -> str:
    """Return why an output that agrees is no evidence; "" if it is evidence.

    Args:
        reference: The reference's value: a tensor, a sequence of tensors, or None for an empty
            optional.
        candidate: The candidate's value, of the same shape and type.
        others: The reference's values for other inputs.
    """
    if isinstance(reference, list) and isinstance(candidate, list):
        lists = [other for other in others if isinstance(other, list)]
        reasons = [
            explain_mute(expected, given, [other[k] for other in lists if k < len(other)])
            for k, (expected, given) in enumerate(zip(reference, candidate, strict=True))
        ]
        if "" in reasons:
            return ""
        return next(iter(reasons), "it is empty")
    if (
        not isinstance(reference, np.ndarray)
        or not isinstance(candidate, np.ndarray)
        or not reference.size
    ):
        return "it is empty"
    tensors = [other for other in others if isinstance(other, np.ndarray)]
    pair = Pair(reference, candidate.reshape(reference.shape))
    if pair.kind != "float":
        flat = pair.reference.reshape(-1)
        is_alike = bool((flat == flat[0]).all())
        is_single_number = flat.size == 1 and pair.kind in NUMBERS and bool(flat[0])
        if is_alike and not is_single_number:
            return _explain_constant(flat[0])
        if tensors and all(np.array_equal(pair.reference, other) for other in tensors):
            return "another input produces the same values"
        return ""
    return _explain_mute_floats(pair, tensors)


def _explain_mute_floats(pair: Pair, others: Sequence[Array]) -> str:
    """Return why an output of floats is no evidence; "" if it is evidence."""
    reference, _ = pair.values
    if not reference.size:
        return "no value of it is finite"
    is_single = reference.size == 1
    error = compute_norm(pair.difference)
    least = MIN_SPREAD * pair.scale * math.sqrt(reference.size)
    spread = abs(float(reference[0])) if is_single else compute_norm(reference - reference.mean())
    if spread <= least:
        return _explain_constant(float(reference[0]))
    if error > MAX_ERROR_RATIO * spread:
        answer = "0" if is_single else "one value everywhere"
        if pair.scale < 1:
            size = f"its values are so small (at most {pair.scale:.2g})"
        else:
            size = "its values vary so little"
        return f"{size} that {answer} would be about as near as the candidate"
    distances = [_measure_distance(pair, other) for other in others]
    distance = max(distances, default=math.inf)
    if distance <= least:
        return "another input produces the same values"
    if error > MAX_ERROR_RATIO * distance:
        return "another input produces values about as near as those of the candidate"
    return ""


def _measure_distance(pair: Pair, other: Array) -> float:
    """Return |other − reference|₂ over the elements that are finite everywhere; infinite for
    another shape."""
    if other.shape != pair.reference.shape:
        return math.inf
    flat = other.reshape(-1).astype(np.float64)
    counted = pair.finite & np.isfinite(flat)
    if not counted.any():
        return math.inf
    reference = pair.reference.reshape(-1).astype(np.float64)
    return compute_norm(flat[counted] - reference[counted])


def _explain_constant(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, (float, np.floating)) else str(value)
    return f"it is {text} everywhere, so a candidate that answers {text} to any input would pass"


def is_saturated(reference: Value) -> bool:
    """Return whether a squashing function hides the errors of its input, judged by its values.

    The derivative of a sigmoid or softmax is y · (1 − y). Its ratio to the largest value is the
    share of an error that is left. Values beyond -1 to 1 are not those of such a function: nothing
    is known.
    """
    if (
        not isinstance(reference, np.ndarray)
        or reference.dtype.kind not in "fV"
        or not reference.size
    ):
        return True
    size = np.abs(reference.astype(np.float64))
    largest = float(size.max())
    if not 0 < largest <= 1 + MIN_SPREAD:
        return True
    return float((size * (1 - size)).max()) < MIN_SLOPE * largest


# ------------------------------------------------------------ other inputs


def make_other_inputs(feeds: Arrays) -> list[dict[str, Array]]:
    """Return two other inputs of the same types and shapes; none if no tensor of the input varies.

    Floats are drawn with the input's own mean and deviation, then reversed and rolled along the
    longest axis. Integers are drawn from the input's own values, then permuted.
    """
    rng = np.random.default_rng(SEED)
    varying = {
        name
        for name, value in feeds.items()
        if value.size > 1 and bool((value != value.reshape(-1)[0]).any())
    }
    if not varying:
        return []
    return [
        {name: change(value, rng) if name in varying else value for name, value in feeds.items()}
        for change in (_draw_alike, _rearrange)
    ]


def _is_float(value: Array) -> bool:
    return bool(np.issubdtype(value.dtype, np.floating)) or value.dtype.name.startswith(
        ("bfloat", "float")
    )


def _draw_alike(value: Array, rng: np.random.Generator) -> Array:
    if not _is_float(value):
        return np.asarray(rng.choice(value.reshape(-1), value.shape))
    wide = value.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    return np.asarray(rng.normal(finite.mean(), finite.std(), value.shape).astype(value.dtype))


def _rearrange(value: Array, rng: np.random.Generator) -> Array:
    if not _is_float(value):
        return rng.permutation(value.reshape(-1)).reshape(value.shape)
    axis = int(np.argmax(value.shape))
    return np.ascontiguousarray(np.roll(np.flip(value, axis), value.shape[axis] // 3, axis))
