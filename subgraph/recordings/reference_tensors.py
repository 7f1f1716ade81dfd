"""Reference values that recordings are compared with: captured in batches, memory-mapped from
disk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from subgraph.errors import Inconclusive, InputError
from subgraph.recordings import recording
from subgraph.recordings.dumps import TensorSpec
from subgraph.storage import dtypes
from subgraph.trials.reference_model import ReferenceModel
from subgraph.types import Array

CAPTURE_BYTES = 256 << 20  # of tensors that are captured in one run


def capture_tensors(model: ReferenceModel, names: Iterable[str]) -> None:
    """Capture tensors in several runs, each of so few that they fit into memory; the values stay on
    disk.

    Raises:
        ModelError: the reference cannot give them.
    """
    lacking = [n for n in dict.fromkeys(names) if n not in model.values.records[0]]
    batch: list[str] = []
    room = CAPTURE_BYTES
    for name, size in iter_tensor_sizes(model, lacking) if lacking else ():
        if batch and size > room:
            model.values.need(batch, near=True)
            batch = []
            room = CAPTURE_BYTES
        batch.append(name)
        room -= size
    model.values.need(batch, near=True)


def iter_tensor_sizes(model: ReferenceModel, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(name, bytes) of tensors by the model's types; open dimensions count as 1."""
    specs = recording.find_hints(model.graph).specs
    for name in names:
        spec = specs.get(name, TensorSpec())
        bits = dtypes.bits_of(spec.dtype or "float32")
        yield name, math.prod(d or 1 for d in spec.shape or ()) * bits // 8


def read_reference_value(model: ReferenceModel, tensor: str, k: int) -> Array | None:
    """The reference's value of a tensor; None if it is not a tensor (a sequence, an empty
    optional).

    Large values are memory-mapped, and keep their file open until they are freed: hold few of them.

    Raises:
        Inconclusive: it cannot be read back; no fault of the recording's, which InputError would
            mean.
    """
    record = model.values.records[k].get(tensor)
    try:
        value = record.value(mapped=True) if record else None
    except InputError as e:
        raise Inconclusive(
            f"the reference's value of {tensor} is lost: {e.what}",
            "free some space",
            code="reference.value-lost",
        ) from e
    return value if isinstance(value, np.ndarray) else None


def displace(reference: Array, before: Array, after: Array) -> Array:
    """The reference, moved by the difference of two recorded values of a tensor, as a share of the
    larger scale.

    So two recordings are compared by the same rounding noise as each of them with the reference.
    Where both are the same, NaN and infinities too, nothing moves.
    """
    old = before.astype(np.float64)
    new = after.astype(np.float64)
    scale, own = (
        np.abs(v[np.isfinite(v)]).max(initial=0.0) for v in (old, reference.astype(np.float64))
    )
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    with np.errstate(all="ignore"):
        step = (new - old) * (own / scale if scale > own else 1.0)
        return np.where(same, reference, reference + step).astype(reference.dtype)


def measure_remoteness(reference: Array, before: Array, after: Array) -> float:
    """How far one recorded value is from another, as a share of how far that one is from the
    reference; both as root mean squares. Infinite where one of them alone is infinite or NaN
    somewhere."""
    exact, old, new = (v.astype(np.float64) for v in (reference, before, after))
    finite = np.isfinite(old) & np.isfinite(exact)
    if not np.array_equal(old[~np.isfinite(old)], new[~np.isfinite(old)], equal_nan=True):
        return np.inf
    step, own = (np.sum(np.square(d[finite])) for d in (new - old, old - exact))
    if own:
        return float(np.sqrt(step / own))
    if step:
        return np.inf
    return 0.0
