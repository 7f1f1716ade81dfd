"""Errors of the steps of a loop: how far rounding alone moves the results of the reference."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from subgraph.decoding.walk import Trace
from subgraph.precision import Precision
from subgraph.storage.tensors import Record, distance, save, tensor_text


def error_of_rounding(walked: Trace, end: int, precision: Precision, folder: Path) -> float:
    """The largest relative error of the results of step `end` when each value of each state before
    it is off by up to one rounding in that precision. It is a lower bound: values inside a step are
    not touched.

    Complexity: as many steps of the reference.

    Raises:
        ModelError: the reference cannot run a step.
    """
    states = walked.state_before(0)
    results = walked.results[0]
    for k in range(end + 1):
        into = folder / f"rounding{k}"
        into.mkdir(parents=True)
        moved = {
            name: _moved(record, precision.eps, k, into, f"s{i}")
            for i, (name, record) in enumerate(states.items())
        }
        results, states = walked.step(k, moved, into)
        shutil.rmtree(folder / f"rounding{k - 1}", ignore_errors=True)
    pairs = ((walked.results[end][n].value(), record.value()) for n, record in results.items())
    return max((relative_error(*pair) for pair in pairs), default=0.0)


def _moved(record: Record, eps: float, seed: int, folder: Path, stem: str) -> Record:
    """A state with each value off by up to a rounding; one that holds no floats as it is."""
    value = record.value()
    if value is None or isinstance(value, list) or value.dtype.kind != "f":
        return record
    drawn = np.random.default_rng(seed).uniform(-1, 1, value.shape)
    moved = (value * (1 + eps * drawn)).astype(value.dtype)
    text = tensor_text(record.dtype)
    return save(record.name, moved, text, folder, stem).within(str(folder.resolve()))


def relative_error(expected: Any, actual: Any) -> float:
    """The largest difference over the largest magnitude; infinity where shapes, NaN or infinities
    differ."""
    if isinstance(expected, list) or isinstance(actual, list) or expected is None or actual is None:
        return 0.0 if expected is actual else math.inf
    if expected.shape != actual.shape:
        return math.inf
    found = distance(expected, actual)
    if found is None:
        return math.inf
    if found[1]:
        return found[0] / found[1]
    if found[0]:
        return math.inf
    return 0.0
