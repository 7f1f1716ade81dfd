"""Reference values that recordings are compared with: captured in batches, memory-mapped from disk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from subgraph.errors import Inconclusive, InputError
from subgraph.recordings import recording
from subgraph.recordings.dumps import TensorSpec
from subgraph.storage import dtypes
from subgraph.storage.tensors import load
from subgraph.text import clean
from subgraph.trials.trial import Trials
from subgraph.types import Array

CAPTURE_BYTES = 256 << 20  # of tensors that are captured in one run


def capture_tensors(trials: Trials, names: Iterable[str]) -> None:
    """Capture tensors in several runs, each of so few that they fit into memory; the values stay on disk.

    Raises:
        ModelError: the reference cannot give them.
    """
    lacking = [n for n in dict.fromkeys(names) if n not in trials.values.records[0]]
    batch: list[str] = []
    room = CAPTURE_BYTES
    for name, size in tensor_sizes(trials, lacking) if lacking else ():
        if batch and size > room:
            trials.values.need(batch, near=True)
            batch, room = [], CAPTURE_BYTES
        batch.append(name)
        room -= size
    trials.values.need(batch, near=True)


def tensor_sizes(trials: Trials, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(name, bytes) of tensors by the model's types; open dimensions count as 1."""
    specs = recording.hints_of(trials.graph).specs
    for name in names:
        spec = specs.get(name, TensorSpec())
        bits = dtypes.bits_of(spec.dtype or "float32")
        yield name, math.prod(d or 1 for d in spec.shape or ()) * bits // 8


def reference_value(trials: Trials, tensor: str, k: int) -> Array | None:
    """The reference's value of a tensor; None if it is no tensor (a sequence, an empty optional).

    Large values are memory-mapped, and keep their file open until they are freed: hold few of them.

    Raises:
        Inconclusive: it cannot be read back; no fault of the recording's, which InputError would mean.
    """
    record = trials.values.records[k].get(tensor)
    try:
        value = load(record, Path("/"), mapped=True) if record else None
    except InputError as e:
        raise Inconclusive(f"the reference's value of {clean(tensor)} is lost: {e.what}", "free some space") from e
    return value if isinstance(value, np.ndarray) else None
